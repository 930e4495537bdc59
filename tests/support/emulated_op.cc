// Both sides get the same operands; scratch begins as zeros.
#include "support/emulated_op.h"

#include <fmt/format.h>

#include <cmath>

#include "execute/cuda/attention_kernels.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

void EmulatedOp::run(const Op& op, const std::vector<TwoFold*>& reads,
                     const std::vector<TwoFold*>& writes, WarpOrder order) {
  const auto operands = [](const std::vector<TwoFold*>& folds, bool stored) {
    std::vector<Operand> out;
    for (TwoFold* fold : folds) {
      void* data = stored ? fold->data() : static_cast<void*>(fold->exact.data());
      if (!fold->ids.empty()) data = fold->ids.data();
      out.push_back({data, &fold->tensor});
    }
    return out;
  };
  const auto exact_reads = operands(reads, false), exact_writes = operands(writes, false);
  cpu::compute<double>({op, exact_reads, exact_writes, place_}, scratch_);

  const auto in = operands(reads, true), out = operands(writes, true);
  const Work work{op, in, out, place_};
  const auto emulated = [&](const auto& kernel) {
    conflicts_ += emulate(kernel, order).bank_conflicts;
  };
  match(
      op,
      [&](const Attention& attention) {
        std::vector<float> scratch(static_cast<std::size_t>(attention_scratch_floats(attention)));
        op_kernels(attention, work, scratch.data(), emulated);
      },
      [&](const Norm& norm) {
        std::vector<float> scratch(static_cast<std::size_t>(norm_scratch_floats(norm)));
        op_kernels(norm, work, scratch.data(), emulated);
      },
      [&](const Pointwise& pointwise) {
        std::vector<float> scratch(static_cast<std::size_t>(pointwise_scratch_floats(pointwise)));
        op_kernels(pointwise, work, scratch.data(), emulated);
      },
      [&](const Gather& gather) { op_kernels(gather, work, emulated); },
      [&](const Loss& loss) { op_kernels(loss, work, emulated); },
      [&](const auto&) { STEPCAST_CHECK(false, "no kernel of this folder"); });
}

std::string EmulatedOp::far_off(const TwoFold& fold, double tolerance) {
  for (std::size_t i = 0; i < fold.size(); ++i) {
    const double value = fold.value(i), exact = fold.exact[i];
    if (std::abs(value - exact) <= tolerance * (1 + std::abs(exact))) continue;
    return fmt::format("element {}: {} instead of {}", i, value, exact);
  }
  return "";
}

}  // namespace stepcast::cuda
