// Passes: what a framework moves through memory where it does not fuse (Fusion in
// sim/hardware/kernels.h): a kernel more for each operation, and the bytes it reads and writes.
// Internal to this folder. O(1) each.
#pragma once

#include "sim/hardware/hardware.h"
#include "sim/program/op.h"

namespace stepcast {

// Bytes that pass through memory besides the Op's own, and the kernels that move them.
struct Passes {
  double bytes = 0;
  double kernels = 0;
};

inline double count(std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

// The product as it is made where what it adds to, or is copied to, is a kernel's work of its own.
Gemm as_made(Gemm gemm, const Fusion& fusion);

Passes unfused(const Gemm& gemm, const Fusion& fusion);
Passes unfused(const Attention& attention, const Fusion& fusion);
Passes unfused(const Norm& norm, const Fusion& fusion);
Passes unfused(const Pointwise& pointwise, const Fusion& fusion);
Passes unfused(const Loss& loss, LossKernels kernels);
Passes unfused(const Update& update, const Fusion& fusion);
Passes unfused(const Permute& permute, const Fusion& fusion);
Passes unfused(const Route& route, const Fusion& fusion);
// All other kinds are one kernel in every framework.
template <class Any>
Passes unfused(const Any&, const Fusion&) {
  return {};
}

}  // namespace stepcast
