// Masks: dropout on the CPU, of a tensor with its mask in memory and of one row of attention.
#pragma once

#include "execute/cpu/kernels.h"

namespace stepcast::cpu {

// kDropout and kDropoutAdd: y = factor (x + bias) + residual, and the mask.
template <class Real>
void drop(const Pointwise& op, const Work& work);
// kDropoutBackward: d_x = d_y where the mask says so, scaled.
template <class Real>
void drop_backward(const Pointwise& op, const Work& work);

// What the first `columns` columns of a row of the model are multiplied by.
void drop_factors(const DropoutMask& mask, std::int64_t row, std::int64_t columns, float* out);

}  // namespace stepcast::cpu
