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
// Dropout in fused attention. Its mask is made again in each pass, in a kernel that the issue of
// vector instructions bounds already, so little of it hides ("Reducing the Cost of Dropout in
// Flash-Attention by Hiding RNG with GEMM", arXiv 2410.07531). FlashAttention-2 counts (csrc/
// flash_attn/src/philox.cuh, dropout.h): Philox 4x32 of seven rounds for 16 scores, a round two
// wide multiplies, two three-way exclusive ors and two additions to the key: with its start some
// 50 integer instructions, 3 a score; 2 more unpack, compare and select. That is 0.08 cycles of a
// multiprocessor with 64 integer lanes: at head_dim 128 a fifth of FlashAttention-2's forward and
// a twelfth of its backward. Its CuTe kernels lose a quarter and a tenth on a GB10 with head_dim
// 64, less with 128 (Dao-AILab/flash-attention#2439), and 15 to 25 and 30 to 40 % of their rate on
// a GB200 (#2597).
//
// All else is bound by the memory bus: traffic over the long-stream bandwidth plus a ramp.
//
// Norms. PyTorch's kernels (layer_norm_kernel.cu) and Apex's first (csrc/layer_norm_cuda_kernel.cu)
// leave the gradients of the weights to kernels of their own, and all of them run below a long
// stream: at 0.57 to 0.69 of its rate on A100 and H100, either pass (linkedin/Liger-Kernel,
// benchmark/data/all_benchmark_data.csv, layer_norm and megatron_rms_norm from 4,096 columns up,
// backward with both inputs read twice; NVIDIA/apex#1037, "current": 0.64 and 0.68). Kernels that
// sum those gradients as they go are near it: 0.90 and 0.83 (#1037, "new", from which Transformer
// Engine's come).
#include "sim/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "sim/cost/passes.h"
#include "sim/program/program.h"

namespace stepcast {
namespace {

constexpr double kQueryBlock = 128;
constexpr double kMemoryLeft = 0.1;     // of the bandwidth, whatever is taken
constexpr double kHeadReference = 128;  // head_dim of AttentionKernels' shares
constexpr double kDropoutWork = 2 * 5;  // of a score, in integer operations (multiply-add: two)
constexpr double kPlainNorm = 0.62;     // of a long stream's rate

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

// For the random numbers of dropout; only of scores that are not masked, of which each is as many
// multiply-adds as head_dim in each of the products, two forward and five backward.
Seconds dropout_time(const Attention& a, const Device& device, const Room& room) {
  if (!a.dropout) return Seconds(0);
  const double products = a.pass == Pass::kForward ? 2 : 5;
  Attention square = a;  // whose products are all alike
  square.value_dim = 0;
  const double scores =
      flops(Op(square)).value / (2 * products * static_cast<double>(a.head_dim));
  const FlopRate rate = device.integer_rate.value_or(device.vector_rate * 0.5);
  return Seconds(scores * kDropoutWork / rate.value * device.multiprocessors /
                 room.multiprocessors);
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
  // Blocks on the diagonal are half of use; of a window, those on its other edge, too.
  const bool sliding = a.window > 0 && a.window < a.keys;
  const double keys = 1 + (a.causal ? kernels.causal_keys : kernels.keys) /
                              static_cast<double>(sliding ? a.window : a.keys);
  // Not rounded to whole blocks: `fill` already pays for the last, partial one.
  const double blocks = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                        std::max(1.0, static_cast<double>(a.queries) / kQueryBlock);
  const double few = (forward ? kernels.forward_blocks : kernels.backward_blocks) *
                     room.multiprocessors / blocks;
  const double fill = std::sqrt(1 + few * few);
  const double d = static_cast<double>(a.head_dim + value_columns(a)) / 2;
  const double wide = forward ? kernels.forward_wide : kernels.backward_wide;
  const double width = d <= kHeadReference
                           ? (1 + kernels.narrow / d) / (1 + kernels.narrow / kHeadReference)
                           : 1 + wide * (d / kHeadReference - 1);
  const bool waves = !forward && a.deterministic && kernels.deterministic_waves;
  const Waves more = waves ? deterministic_waves(a, room.multiprocessors) : Waves{};
  const double kept = room.rested ? 1 : kernels.sustained;
  const double compute = flops(Op(a)).value / (rate * kept) * keys * fill * width * more.slower;
  const double bytes = static_cast<double>(traffic(Op(a)).count);
  const Seconds time = Seconds(std::max(compute, memory_time(bytes, device, room).value)) +
                       dropout_time(a, device, room);
  return more.bytes > 0 ? time + memory_time(more.bytes, device, room) : time;
}

// Of passes that follow a kernel bound by the matrix units.
Seconds behind(const Passes& passes, const Device& device, const Room& room) {
  if (!(passes.kernels > 0)) return Seconds(0);
  return memory_time(passes.bytes, device, room) + device.kernel_start * passes.kernels;
}

// The embedding as products with a one-hot matrix, which forward writes first.
Seconds one_hot_time(const Gather& g, const Device& device, const Room& room) {
  Gemm product{g.rows, g.columns, g.vocabulary};
  product.dtype = product.output = g.dtype;
  if (g.pass == Pass::kForward) {
    const double bytes = count(g.rows, g.vocabulary) * static_cast<double>(dtype_size(g.dtype));
    return memory_time(bytes, device, room) + device.kernel_start +
           gemm_time(product, device, room);
  }
  std::swap(product.m, product.k);
  product.role = GemmRole::kWeightGradient;
  product.output = g.gradient;
  return gemm_time(product, device, room);
}

// Share of a long stream's rate that the kernels of an Op reach. What XLA makes of a norm are its
// own loops, and PyTorch's single operations stream.
double streaming_share(const Norm& n, const Fusion& fusion) {
  const bool one_kernel = fusion.norm_sums && (fusion.norms || n.kind != NormKind::kRms);
  return fusion.norm_gradients || !one_kernel ? 1 : kPlainNorm;
}

template <class Any>
double streaming_share(const Any&, const Fusion&) {
  return 1;
}

Seconds streaming_time(const Op& op, const Passes& passes, const Device& device, Room room) {
  room.memory *=
      match(op, [&](const auto& any) { return streaming_share(any, device.kernels.fusion); });
  const double compute = (flops(op) / device.vector_rate).value;
  const double bytes = static_cast<double>(traffic(op).count) + passes.bytes;
  return Seconds(std::max(compute, memory_time(bytes, device, room).value)) +
         device.kernel_start * passes.kernels;
}

}  // namespace

// By bisection, since the normal distribution's inverse has no closed form.
double highest_of(int n) {
  STEPCAST_CHECK(n >= 1, "the highest of none");
  const double share = std::log((n - 0.375) / (n + 0.25));
  double low = 0, high = 10;
  for (int halved = 0; halved < 50; ++halved) {
    const double middle = (low + high) / 2;
    (log_share_below(middle) < share ? low : high) = middle;
  }
  return low;
}

double log_share_below(double deviate) {
  return std::log(std::erfc(-deviate / std::numbers::sqrt2) / 2);
}

Device slower_by(const Device& device, double deviate) {
  Device slower = device;
  const double pace = 1 + device.spread * deviate;
  slower.kernels.matrix.efficiency /= pace;
  for (auto& [name, attention] : slower.kernels.attention) attention.sustained /= pace;
  return slower;
}

// The host's time for one of TransformerEngine's products in a loop: descriptors, the heuristic and
// the launch. Of MooreThreads/SimuMax's grouped products on a B200 those with the least work, of 80
// to 256 experts, take 8.8 to 9.4 us each (four shapes, five rows), as far apart as their work is.
constexpr Seconds kProductIssue{9e-6};

Seconds issue_time(const Op& op, const Device& device) {
  const auto* gemm = std::get_if<Gemm>(&op);
  if (gemm == nullptr || !gemm->grouped || device.kernels.fusion.groups) return Seconds(0);
  return kProductIssue * static_cast<double>(gemm->batch - 1);
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
      [&](const Gather& gather) {
        if (!kernels.fusion.lookups) {
          return cost(one_hot_time(gather, device, room), kernels.matrix.basis);
        }
        return cost(streaming_time(op, {}, device, room), kernels.memory_basis);
      },
      [&](const auto& other) {
        const Passes passes = unfused(other, kernels.fusion);
        return cost(streaming_time(op, passes, device, room), kernels.memory_basis);
      });
}

}  // namespace stepcast
