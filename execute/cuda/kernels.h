// Kernels: what the device computes, one launch function a kind of Op.
//
// Every function puts its work on `stream` and returns at once; it throws Error only for a launch
// that the driver refuses. Operands are a Work's, in the order that op.h gives, with device
// addresses in Operand::data, aligned to 512 bytes at the beginning of a tensor; their dtypes are
// those of their tensors (bf16 or fp32; ids int64, masks one byte) and may differ from operand to
// operand: a bf16 d_y, an fp32 gradient. Arithmetic is in fp32 whatever is stored, and a result is
// rounded once, to nearest even. Meaning, layouts and strides are those of execute/cpu/kernels.h:
//   * matrices are row-major; tokens sequence first, row = position * micro_batch + sequence
//   * qkv (tokens, (a + 2 g) d) packed: queries, keys, values; strides as in execute/cpu/packed.h
//   * what a weight gradient adds to, it names among its reads (accumulates() in
//     execute/cpu/kernels.h); else it is overwritten
//   * position(i) of a row, and the ids of a slice of the vocabulary, follow from Work::place
// Constants (epsilon 1e-5, rotary base 10000, tanh-GELU) are those of execute/cpu as well.
//
// Nothing here allocates. `scratch` is device memory of at least scratch_bytes(op) bytes for the
// kernel that runs now: the next kernel of the same stream may overwrite it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "execute/backend.h"
#include "sim/program/op.h"

namespace stepcast::cuda {

struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Where a kernel runs.
struct Launch {
  cudaStream_t stream = nullptr;
  Workspace scratch;
};

// Bytes of scratch that launch() of this op needs on a device with `multiprocessors`; 0 for most.
// Attention backward: rowsum(dO * O), and dQ in fp32 if blocks of keys add to it.
std::size_t scratch_bytes(const Op& op, int multiprocessors);

// Fused attention, forward and backward (Attention in op.h; execute/cpu/attention.cc). o, d_o
// (tokens, a d), lse (batch, a, s) fp32 natural logarithm. Head dimension 64 or 128, bf16, causal
// or not; anything else, and fp32, by a slow but right kernel. With dropout of the probabilities
// where the op says so, of which no mask is kept.
void launch(const Attention& op, const Work& work, const Launch& at);

// LayerNorm and RMSNorm, forward and backward, QK-norm included (execute/cpu/norm.cc). Statistics
// are fp32. Weight gradients: sums over rows; two passes through scratch, no atomics, so that two
// runs give the same bits.
void launch(const Norm& op, const Work& work, const Launch& at);

// PointwiseKind but for what 8-bit products need (execute/cpu/pointwise.cc). kCast joins several
// reads into one write and converts; kFill writes zeros to every write; kSoftmax, kMask and their
// backwards serve attention without a fused kernel.
void launch(const Pointwise& op, const Work& work, const Launch& at);

// Table lookup and its gradient (execute/cpu/tokens.cc). The gradient adds rows of equal id in the
// order of the rows (no float atomics).
void launch(const Gather& op, const Work& work, const Launch& at);

// The four parts of vocabulary-parallel cross-entropy. `probabilities` may be bf16 or fp32.
void launch(const Loss& op, const Work& work, const Launch& at);

// The bias gradient of a linear layer: column sums of d_y (rows, columns; bf16 or fp32) into or,
// with `accumulate`, onto `sums` (columns; bf16 or fp32).
void launch_column_sums(const Operand& d_y, std::int64_t rows, std::int64_t columns,
                        const Operand& sums, bool accumulate, const Launch& at);

// A stretch of numbers of one dtype (bf16 or fp32) in device memory, any alignment of its dtype.
struct Numbers {
  const void* data = nullptr;
  Dtype dtype = Dtype::kFp32;
  std::int64_t elements = 0;
};

// *sum += the squares of all stretches, added up in a fixed order; `sum` is fp32 on the device.
// Scratch: scratch_bytes of the Update.
void launch_squared_norm(const Numbers* stretches, int count, float* sum, const Launch& at);

// *sum += the numbers, in double (the loss of a micro-batch's rows).
void launch_add_up(const float* values, std::int64_t elements, double* sum, const Launch& at);

// The numbers of `in` in another dtype (bf16 or fp32), or the same, into `out`.
void launch_convert(const Numbers& in, void* out, Dtype dtype, const Launch& at);

// What changes from step to step, in device memory, so that a captured graph can be launched
// again: 1 / (1 - beta^n) of AdamW in step n.
struct StepScalars {
  float correction1 = 1, correction2 = 1;
};

// AdamW (backend.h) over one stretch. weight: bf16 or fp32, written; master: fp32, read and
// written where there is one, else the weight is its own master; moments fp32 or bf16.
// `norm`: null, or the sum of squared gradients, from which the kernel takes min(1, clip / (sqrt +
// 1e-6)) itself, so that no host ever waits for it.
struct UpdateStretch {
  void* weight = nullptr;
  float* master = nullptr;
  const void* gradient = nullptr;
  void* moment1 = nullptr;
  void* moment2 = nullptr;
  Dtype weight_dtype = Dtype::kBf16, gradient_dtype = Dtype::kBf16, moment_dtype = Dtype::kFp32;
  std::int64_t elements = 0;
};
void launch_update(const UpdateStretch& stretch, const AdamW& options, const StepScalars* scalars,
                   const float* norm, const Launch& at);

}  // namespace stepcast::cuda
