// Reference: every kernel is held against slow arithmetic in double precision before anybody times
// it. A kernel that is fast because it is wrong would make a fine forecast of nothing.
#pragma once

#include <cstddef>

#include "execute/backend.h"
#include "sim/program/program.h"

namespace stepcast {

struct KernelCheck {
  std::size_t kernels = 0;  // distinct ops that were checked
  double worst = 0;         // largest error of an element, relative to its size plus the root mean
                            // square of its tensor
};

// Runs each op of the Job once on made-up numbers. Products with weights have the Job's own shape,
// of whose result some elements are computed again; where all of an op's result is computed again,
// it has the Job's shape or, if that is large, fewer rows, tokens, or entries of a table.
// Throws Error (place: the op as text) where an element is off by more than 1e-4, as above.
// REQUIRES: executable(job) is ""; the backend works on this machine's memory.
KernelCheck check_kernels(const Job& job, Backend& backend);

}  // namespace stepcast
