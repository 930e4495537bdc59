// Cost of one kernel from its data sheet: a roofline (Williams, Waterman and Patterson 2009) with
// the shape's own efficiency on the compute side and a size ramp on the memory side. Matrix
// products are in gemm.cc. Everything here is O(1).
//
// Attention. FlashAttention keeps the scores on chip, so a long sequence is bound by the matrix
// units. The published curves (Dao-AILab/flash-attention, assets/flash2_a100_fwd_bwd_benchmark.png,
// flash2_h100_fwd_bwd_benchmark.png, flash3_fp16_fwd.png) fall on one form,
//   FLOP/s = limit / ((1 + s0 / keys) (1 + processors / blocks) (1 + 30 / d) / (1 + 30 / 128))
//   * s0     what each block of queries pays besides its keys: about 190 keys; 470 where half of
//            the scores is masked, because the blocks on the diagonal are computed whole
//   * blocks of 128 queries, one a multiprocessor at a time. By Graham's list scheduling bound
//            (1969) the last ones cost up to one block more; MooreThreads/SimuMax's few-head
//            rows show it
//   * d      exponentials cost the same for any head_dim, so narrow heads run below the rate of
//            d = 128 and wide ones are not given more than that
// `limit` is matrix_rate x attention_*_efficiency. Time is non-decreasing in every size.
//
// All else is bound by the memory bus: traffic over the long-stream bandwidth plus a ramp.
#include "sim/cost/cost.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "sim/program/program.h"

namespace stepcast {
namespace {

constexpr double kKeysOverhead = 190;        // s0, full attention
constexpr double kKeysOverheadCausal = 470;  // s0, causal
constexpr double kQueryBlock = 128;
constexpr double kHeadOverhead = 30;         // head_dim equivalents of the softmax
constexpr double kHeadReference = 128;       // head_dim of the devices' attention efficiency

Seconds attention_time(const Attention& a, const Device& device) {
  STEPCAST_CHECK(a.batch >= 1 && a.heads >= 1 && a.kv_heads >= 1 && a.queries >= 1 &&
                     a.keys >= 1 && a.head_dim >= 1,
                 "an attention of no size");
  const double efficiency = a.pass == Pass::kForward ? device.attention_forward_efficiency
                                                     : device.attention_backward_efficiency;
  const double rate = matrix_rate(a.dtype, device).value * efficiency;
  const double overhead = a.causal ? kKeysOverheadCausal : kKeysOverhead;
  const double keys = 1 + overhead / static_cast<double>(a.keys);
  // Not rounded to whole blocks: the bound already pays for the last, partial one.
  const double blocks = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                        std::max(1.0, static_cast<double>(a.queries) / kQueryBlock);
  const double fill = 1 + device.multiprocessors / blocks;
  const double d = static_cast<double>(a.head_dim);
  const double width =
      std::max(1.0, (1 + kHeadOverhead / d) / (1 + kHeadOverhead / kHeadReference));
  const double compute = flops(Op(a)).value / rate * keys * fill * width;
  const double bytes = static_cast<double>(traffic(Op(a)).count);
  return Seconds(std::max(compute, memory_time(bytes, device).value));
}

Seconds streaming_time(const Op& op, const Device& device) {
  const double compute = (flops(op) / device.vector_rate).value;
  const double bytes = static_cast<double>(traffic(op).count);
  return Seconds(std::max(compute, memory_time(bytes, device).value));
}

}  // namespace

Cost op_cost(const Op& op, const Device& device) {
  const Seconds work = match(
      op, [&](const Gemm& gemm) { return gemm_time(gemm, device); },
      [&](const Attention& attention) { return attention_time(attention, device); },
      [&](const auto&) { return streaming_time(op, device); });
  return {device.kernel_start + work, Basis::kDatasheet};
}

}  // namespace stepcast
