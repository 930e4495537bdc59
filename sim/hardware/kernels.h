// Kernels: how near a device's kernels come to its data sheet, a few physical numbers each kind.
//
// The defaults are those of a device of which only the data sheet is known. A profile
// (configs/profiles) replaces them by what was fitted to measured kernels. sim/cost and sim/network
// have the formulas in which these numbers stand.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "sim/base/json.h"
#include "sim/base/units.h"

namespace stepcast {

// What a number rests on, best first.
enum class Basis : std::uint8_t { kMeasured, kInterpolated, kFitted, kDatasheet };
inline constexpr int kBases = 4;
std::string_view basis_name(Basis basis);  // "measured", ...

// Matrix products. Rates are shares of the data sheet's peak for the dtype.
struct MatrixKernels {
  double efficiency = 0;     // large products that follow each other for seconds, as in training:
                             // what power and heat allow
  double burst = 1;          // the rate of short products on a rested device over that; >= 1
  Seconds burst_time;        // a product this long has lost half of that gain
  double fp8 = 1;            // fp8's share over that of bf16
  double fp8_block = 1;      // the same, with a scale for each block (Gemm::block_scales)
  double fp8_sustained = 1;  // both in training over what scans of rested devices say: a product in
                             // 8 bits draws less for each FLOP, so power takes less of its rate
  double partial_wave = 1;   // of a last wave that fills the device partly: the share of the idle
                             // multiprocessors' time that is lost (stream-k kernels lose less)
  Basis basis = Basis::kDatasheet;
};

// One implementation of fused attention ("flash2", "cudnn"), as benchmarks time it alone.
struct AttentionKernels {
  double forward = 0;          // share of the peak: long sequences, head_dim 128, a full device
  double backward = 0;
  double keys = 190;           // what a block of queries pays besides its keys, in keys
  double causal_keys = 470;    // the same where half of the scores is masked: the blocks on the
                               // diagonal are computed whole
  double forward_blocks = 1;   // blocks of 128 queries a multiprocessor that make it half busy
  double backward_blocks = 1;
  double narrow = 30;          // softmax work of a score, in columns of head_dim
  double forward_wide = 0;     // loss at head_dim 256, beyond what 256 columns cost
  double backward_wide = 0;
  double sustained = 1;        // the rate in training over that of the benchmark, whose kernels may
                               // be few and short, on a rested device; <= 1
  bool deterministic_waves = false;  // deterministic backward gives each block of threads whole
                                     // heads, or an equal share of one, not a block of keys
  Basis basis = Basis::kDatasheet;
};

// Collectives. A profile also sets the device's node_latency and node_bandwidth_efficiency, of
// which the standard box is built.
struct CollectiveKernels {
  Seconds start;               // launch and meeting of the members, before the first byte
  double nvls = 1;             // bandwidth of NVLink SHARP over what NCCL's tuner expects
  double ring_copy = 0;        // a ring's last step in a node, which copies out of NCCL's buffer
                               // and sends nothing, in steps on the standard box's links
  Basis basis = Basis::kDatasheet;
};

// How the loss over the vocabulary is worked out. Bytes are those of one logit, c its dtype's.
enum class LossKernels : std::uint8_t {
  kFused,     // two kernels forward, the second leaves the gradient in the logits' place, which
              // backward multiplies by the loss's: 5 c
  kParallel,  // one kernel a part (sim/program/op.h, Loss), probabilities in fp32: 4 c + 8
  kTorch,     // PyTorch's log-softmax and negative log-likelihood on an fp32 copy: 32, or 24 where
              // a row fits in shared memory, and 2 c + 12 for the copies and a gradient of zeros
  kMegatron,  // Megatron-LM's vocab_parallel_cross_entropy, as written, on an fp32 copy: 2 c + 48
  kMegatronFused,  // its fusion, compiled, on an fp32 copy: 40, and 2 c + 8 for the copies
};

// What a framework's kernels do beyond each Op's own traffic: where it has not fused what an Op
// puts together, operands pass through memory once more, by a kernel of their own. Not a property
// of a device; it comes with the framework (configs/frameworks).
struct Fusion {
  LossKernels loss = LossKernels::kParallel;
  bool bias_gradients = true;  // false: a linear layer's bias gradient reads the output's again
  bool accumulation = true;    // false: a weight gradient is written, then added to the buffer
  bool accumulation_cast = true;  // false: and first copied to the buffer's type, where it differs
  bool gradient_fill = false;     // true: and filled before it is written (models/plan.h, Filled)
  bool norm_gradients = true;  // false: those of the weights read both inputs again, and norms are
                               // the plain kernels that leave them over (sim/cost/cost.cc)
  bool flat_gradients = true;  // false: a shard group's are put side by side before the reduction
  bool qkv_gradients = true;   // false: attention leaves three, which are then put side by side
  bool norms = true;           // false: RMSNorm is written in PyTorch's operations, in fp32
  bool rotary = true;          // false: and so is the rotation of queries and keys
  bool scaled_rotary = true;   // false: one with a factor is six operations (Megatron-Core)
  bool gates = true;           // false: activation and product of a gated MLP one by one
  bool update = true;          // false: fp32 gradients, their norm, clipping, the copy to weights
  bool lookups = true;         // false: the embedding is the product with a one-hot matrix
  bool biases = true;          // false: what a biased product made is read and written once more
  bool softmax = true;         // false: maximum, sum and quotient of unfused attention one by one
  bool heads = true;           // false: its products have the heads outermost, the rest the tokens
  bool norm_sums = true;       // false: a norm's sums each end a kernel, fp32 between them
  bool gelu = true;            // false: the fp32 tanh in it is kept for its gradient
  bool dropout = true;         // false: its random bits are written, then read
  bool groups = true;          // false: the product of each expert is a kernel of its own
  bool permutes = true;        // false: tokens are sorted, gathered and added up one by one
  bool routers = true;         // false: highest logits, softmax and the map of experts one by one
  bool expert_biases = true;   // false: those of experts' second products are added in fp32, expert
                               // by expert, an operation at a time
  bool limits = true;          // false: SwiGLU's limits are copies of its input (kSwigluOai)
  bool casts = false;          // true: 8-bit operands are cast by the kernel that makes their input

  bool operator==(const Fusion&) const = default;
};

struct Kernels {
  Fusion fusion;
  double memory = 0;           // share of memory_bandwidth, long streams
  Basis memory_basis = Basis::kDatasheet;
  MatrixKernels matrix;
  std::map<std::string, AttentionKernels> attention;  // never empty
  std::string usual_attention;                        // a key of `attention`
  CollectiveKernels collectives;

  const AttentionKernels& usual() const { return attention.at(usual_attention); }
};

struct Device;

// Reads {"memory": ..., "matrix": {...}, "attention": {NAME: {...}}, "usual_attention": NAME,
// "collectives": {...}} into device.kernels: what is left out stays, what is there gets `basis`. An
// implementation of attention that is new starts from the usual one. Throws Error.
void read_kernels(const Object& object, Basis basis, Device& device);
// What read_kernels() reads back as the same: all that has `basis`.
Json kernels_json(const Device& device, Basis basis);

}  // namespace stepcast
