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
// non-decreasing in every size.
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
  const double compute = flops(Op(a)).value / rate * keys * fill * width;
  const double bytes = static_cast<double>(traffic(Op(a)).count);
  return Seconds(std::max(compute, memory_time(bytes, device, room).value));
}

Seconds streaming_time(const Op& op, const Device& device, const Room& room) {
  const double compute = (flops(op) / device.vector_rate).value;
  const double bytes = static_cast<double>(traffic(op).count);
  return Seconds(std::max(compute, memory_time(bytes, device, room).value));
}

}  // namespace

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
        return cost(gemm_time(gemm, device, room), kernels.matrix.basis);
      },
      [&](const Attention& attention) {
        return cost(attention_time(attention, device, room), kernels.usual().basis);
      },
      [&](const auto&) { return cost(streaming_time(op, device, room), kernels.memory_basis); });
}

}  // namespace stepcast
