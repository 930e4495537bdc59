// Cost of one kernel from its data sheet: a roofline (Williams, Waterman and Patterson 2009) with
// the shape's own efficiency on the compute side and a size ramp on the memory side. Matrix
// products are in gemm.cc. Everything here is O(1).
//
// Attention. FlashAttention keeps the scores on chip, so a long sequence is bound by the matrix
// units. The published curves (Dao-AILab/flash-attention, assets/flash2_a100_fwd_bwd_benchmark.png,
// flash2_h100_fwd_bwd_benchmark.png, flash3_fp16_fwd.png; MooreThreads/SimuMax configs/system) fall
// on one form,
//   FLOP/s = limit / ((1 + s0 / keys) fill width),  fill = sqrt(1 + (b processors / blocks)^2)
//   * s0     what each block of queries pays besides its keys; more where half of the scores is
//            masked, because the blocks on the diagonal are computed whole
//   * blocks of 128 queries. With few of them the last ones to finish set the time, with many the
//            sum of all; the root is a smooth maximum of the two
//   * width  exponentials cost the same for any head_dim, so narrow heads run below the rate of
//            d = 128: (1 + c / d) / (1 + c / 128). Wide ones may not fit: 1 + w (d / 128 - 1)
// s0, b, c and w are those of AttentionKernels, for each implementation its own. Time is
// non-decreasing in every size, but for what follows.
//
// Those curves are of kernels alone, mostly few and short, on a rested device. Kernel after kernel
// the power limit lowers the clocks, as it does for products, but attention draws less: of cuDNN's
// and FlashAttention-4's kernels on one H200 (NVIDIA/cudnn-frontend, benchmark/attention_training),
// those that last some 100 ms run at 0.89 of the rate of short ones forward and at 0.94 to 0.97
// backward. AttentionKernels::sustained is what is left of a figure in training.
//
// Deterministic backward of FlashAttention-2 (csrc/flash_attn/src/flash_bwd_launch_template.h):
// each head of each sequence is cut into ceil(processors / (batch heads)) equal shares of its keys,
// a block of threads each, one to a processor. The last wave of blocks leaves processors idle, and
// each share has a gradient of q of its own in fp32, zeroed before and added up behind.
//
// All else is bound by the memory bus: traffic over the long-stream bandwidth plus a ramp.
#include "sim/cost/cost.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "sim/program/program.h"

namespace stepcast {
namespace {

constexpr double kQueryBlock = 128;
constexpr double kMemoryLeft = 0.1;     // of the bandwidth, whatever is taken
constexpr double kHeadReference = 128;  // head_dim of AttentionKernels' shares

struct Waves {
  double slower = 1;  // than with all processors at work
  double bytes = 0;   // of the further gradients of q
};

Waves deterministic_waves(const Attention& a, double processors) {
  const double heads = static_cast<double>(a.batch) * static_cast<double>(a.heads);
  const double shares = std::ceil(processors / heads);
  const double blocks = shares * heads;
  const double written = 2 * static_cast<double>(dtype_size(Dtype::kFp32));  // zeroed, read
  return {std::ceil(blocks / processors) * processors / blocks,
          (shares - 1) * written * heads * static_cast<double>(a.queries) *
              static_cast<double>(a.head_dim)};
}

Seconds attention_time(const Attention& a, const Device& device, const Room& room) {
  STEPCAST_CHECK(a.batch >= 1 && a.heads >= 1 && a.kv_heads >= 1 && a.queries >= 1 &&
                     a.keys >= 1 && a.head_dim >= 1,
                 "an attention of no size");
  const AttentionKernels& kernels = device.kernels.usual();
  const bool forward = a.pass == Pass::kForward;
  const double rate =
      matrix_rate(a.dtype, device).value * (forward ? kernels.forward : kernels.backward) *
      room.multiprocessors / device.multiprocessors;
  const double keys = 1 + (a.causal ? kernels.causal_keys : kernels.keys) /
                              static_cast<double>(a.keys);
  // Not rounded to whole blocks: `fill` already pays for the last, partial one.
  const double blocks = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                        std::max(1.0, static_cast<double>(a.queries) / kQueryBlock);
  const double few = (forward ? kernels.forward_blocks : kernels.backward_blocks) *
                     room.multiprocessors / blocks;
  const double fill = std::sqrt(1 + few * few);
  const double d = static_cast<double>(a.head_dim);
  const double wide = forward ? kernels.forward_wide : kernels.backward_wide;
  const double width = d <= kHeadReference
                           ? (1 + kernels.narrow / d) / (1 + kernels.narrow / kHeadReference)
                           : 1 + wide * (d / kHeadReference - 1);
  const bool waves = !forward && a.deterministic && kernels.deterministic_waves;
  const Waves more = waves ? deterministic_waves(a, room.multiprocessors) : Waves{};
  const double kept = room.rested ? 1 : kernels.sustained;
  const double compute = flops(Op(a)).value / (rate * kept) * keys * fill * width * more.slower;
  const double bytes = static_cast<double>(traffic(Op(a)).count);
  const Seconds time(std::max(compute, memory_time(bytes, device, room).value));
  return more.bytes > 0 ? time + memory_time(more.bytes, device, room) : time;
}

// Bytes that pass through memory besides the Op's own, and the kernels that move them.
struct Passes {
  double bytes = 0;
  double kernels = 0;
};

double count(std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

// Of each part: the copy to fp32 and the maximum; differences, exponentials and their sum; the
// quotient; in backward the product with the loss's gradient and the copy back. PyTorch's
// log-softmax does the first three in one kernel, and its backward is one more.
Passes unfused(const Loss& l, LossKernels kernels) {
  const double c = static_cast<double>(dtype_size(l.dtype));
  const double p = static_cast<double>(dtype_size(l.statistics));
  double each = 0, more = 0;
  switch (kernels) {
    case LossKernels::kParallel: break;
    case LossKernels::kFused:
      if (l.part == LossPart::kSums) each = -c;
      if (l.part == LossPart::kFinish) each = -c - p;
      if (l.part == LossPart::kBackward) each = c - p;
      break;
    case LossKernels::kTorch:
      if (l.part == LossPart::kMaximum) each = 4;
      if (l.part == LossPart::kSums) each = 8 - c;
      if (l.part == LossPart::kFinish) each = -c - p;
      if (l.part == LossPart::kBackward) each = 4 + 4 + 4 + 4 + 4 - p;
      if (l.part == LossPart::kMaximum || l.part == LossPart::kBackward) more = 2;
      break;
    case LossKernels::kMegatron:
      if (l.part == LossPart::kMaximum) each = 4 + 4;
      if (l.part == LossPart::kSums) each = 8 + 8 + 4 - c;
      if (l.part == LossPart::kFinish) each = 8 - c - p;
      if (l.part == LossPart::kBackward) each = 8 + 4 - p;
      more = l.part == LossPart::kSums ? 4 : 1;
      break;
  }
  return {each * count(l.rows, l.vocabulary), more};
}

// Autograd's weight gradient where accumulation is not fused: a matrix of the compute type.
bool apart(const Gemm& g, const Fusion& fusion) {
  return g.role == GemmRole::kWeightGradient && g.accumulate && !fusion.accumulation;
}

// PyTorch's FSDP reduces one tensor of all gradients of a shard group. FSDP1's parameters are views
// split from a flat one, and the split's backward concatenates; FSDP2 copies them in.
bool regrouped(const Gemm& g, const Fusion& fusion) {
  return g.role == GemmRole::kWeightGradient && !g.accumulate && g.batch == 1 &&
         !fusion.flat_gradients;
}

Gemm as_made(Gemm g, const Fusion& fusion) {
  if (!apart(g, fusion) && !regrouped(g, fusion)) return g;
  g.accumulate = false;
  g.output = g.dtype == Dtype::kFp8 ? Dtype::kBf16 : g.dtype;
  return g;
}

// A linear layer: m outputs of n inputs over k tokens in its weight gradient. What is added to the
// buffer afterwards is read, and the buffer read and written: nothing of that is hidden behind the
// product. A cast of its own writes the addend once more, in the buffer's type, and reads it again.
Passes unfused(const Gemm& g, const Fusion& fusion) {
  if (g.role != GemmRole::kWeightGradient || g.batch > 1) return {};
  Passes passes;
  if (g.bias && !fusion.bias_gradients) {
    passes.bytes += count(g.m, g.k) * static_cast<double>(dtype_size(g.dtype));
    ++passes.kernels;
  }
  const Dtype made = as_made(g, fusion).output;
  const double buffer = static_cast<double>(dtype_size(g.output));
  if (regrouped(g, fusion)) {
    passes.bytes += (static_cast<double>(dtype_size(made)) + buffer) * count(g.m, g.n);
    ++passes.kernels;
  }
  if (!apart(g, fusion)) return passes;
  double each = static_cast<double>(dtype_size(made)) + 2 * buffer;
  ++passes.kernels;
  if (fusion.gradient_fill) {
    each += static_cast<double>(dtype_size(made));
    ++passes.kernels;
  }
  if (made != g.output && !fusion.accumulation_cast) {
    each += 2 * buffer;
    ++passes.kernels;
  }
  passes.bytes += each * count(g.m, g.n);
  return passes;
}

Passes unfused(const Norm& n, const Fusion& fusion) {
  if (n.pass == Pass::kForward || fusion.norm_gradients) return {};
  return {2 * count(n.rows, n.columns) * static_cast<double>(dtype_size(n.dtype)), 1};
}

// Gradients of queries, keys and values are three tensors, which autograd of the projection's split
// concatenates: read and written, nothing of it behind attention.
Passes unfused(const Attention& a, const Fusion& fusion) {
  if (a.pass == Pass::kForward || fusion.qkv_gradients) return {};
  const double width = static_cast<double>((a.heads + 2 * a.kv_heads) * a.head_dim);
  return {2 * count(a.batch, a.queries) * width * static_cast<double>(dtype_size(a.dtype)), 1};
}

// silu(gate), then its product with up; in backward two products, then the activation's gradient.
Passes unfused(const Pointwise& p, const Fusion& fusion) {
  const double each = static_cast<double>(dtype_size(p.dtype)) * count(p.rows, p.columns);
  const bool forward = p.kind == PointwiseKind::kSwiglu || p.kind == PointwiseKind::kGeglu;
  const bool backward =
      p.kind == PointwiseKind::kSwigluBackward || p.kind == PointwiseKind::kGegluBackward;
  if (fusion.gates || !(forward || backward)) return {};
  return forward ? Passes{2 * each, 1} : Passes{2 * each, 2};  // (rows, columns) is d_gate_up
}

// fp32 gradients are read and written to be unscaled and to be clipped, the norm has its own Op;
// the new weights are copied from the master's.
Passes unfused(const Update& u, const Fusion& fusion) {
  if (fusion.update || u.part == UpdatePart::kSquaredNorm || !u.master) return {};
  const double elements = static_cast<double>(u.elements);
  return {elements * (16 + 4), 3};
}

// All other kinds are one kernel in every framework.
template <class Any>
Passes unfused(const Any&, const Fusion&) {
  return {};
}

// Of passes that follow a kernel bound by the matrix units.
Seconds behind(const Passes& passes, const Device& device, const Room& room) {
  if (!(passes.kernels > 0)) return Seconds(0);
  return memory_time(passes.bytes, device, room) + device.kernel_start * passes.kernels;
}

Seconds streaming_time(const Op& op, const Passes& passes, const Device& device,
                       const Room& room) {
  const double compute = (flops(op) / device.vector_rate).value;
  const double bytes = static_cast<double>(traffic(op).count) + passes.bytes;
  return Seconds(std::max(compute, memory_time(bytes, device, room).value)) +
         device.kernel_start * passes.kernels;
}

// What the highest of n standard normal deviates is expected to be: see slowest_of(). By bisection,
// since the normal distribution's inverse has no closed form.
double highest_of(int n) {
  const double share = (n - 0.375) / (n + 0.25);
  double low = 0, high = 10;
  for (int halved = 0; halved < 50; ++halved) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
  }
  return low;
}

}  // namespace

Device slowest_of(const Device& device, int devices) {
  STEPCAST_CHECK(devices >= 1, "no device at all");
  Device slowest = device;
  const double pace = 1 + device.spread * highest_of(devices);
  slowest.kernels.matrix.efficiency /= pace;
  for (auto& [name, attention] : slowest.kernels.attention) attention.sustained /= pace;
  return slowest;
}

Cost op_cost(const Op& op, const Device& device, const Setting& setting) {
  const Kernels& kernels = device.kernels;
  const Room room = {std::max(1, device.multiprocessors - setting.multiprocessors_taken),
                     std::max(kMemoryLeft, 1 - setting.memory_taken), setting.rested};
  const auto cost = [&](Seconds work, Basis basis) {
    return Cost{device.kernel_start + work, basis};
  };
  return match(
      op,
      [&](const Gemm& gemm) {
        return cost(gemm_time(as_made(gemm, kernels.fusion), device, room) +
                        behind(unfused(gemm, kernels.fusion), device, room),
                    kernels.matrix.basis);
      },
      [&](const Attention& attention) {
        return cost(attention_time(attention, device, room) +
                        behind(unfused(attention, kernels.fusion), device, room),
                    kernels.usual().basis);
      },
      [&](const Loss& loss) {
        const Passes passes = unfused(loss, kernels.fusion.loss);
        return cost(streaming_time(op, passes, device, room), kernels.memory_basis);
      },
      [&](const auto& other) {
        const Passes passes = unfused(other, kernels.fusion);
        return cost(streaming_time(op, passes, device, room), kernels.memory_basis);
      });
}

}  // namespace stepcast
