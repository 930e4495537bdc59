// Scratch of an emulated Op begins as NaNs: what a kernel reads of it, another must have written.
#include "tests/support/two_sided_op.h"

#include <fmt/format.h>

#include <cmath>

#include "execute/cuda/attention_kernels.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

void TwoSidedOp::run(const Op& op, const std::vector<TwoFold*>& reads,
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
  cpu::compute<double>({op, exact_reads, exact_writes, place, dropout_}, scratch_);
  const auto in = operands(reads, true), out = operands(writes, true);
  carry_out({op, in, out, place, dropout_}, order);
}

void TwoSidedOp::expect_close(const TwoFold& fold, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < fold.size(); ++i) {
    const double value = fold.value(i), exact = fold.exact[i];
    if (std::abs(value - exact) <= tolerance * (1 + std::abs(exact))) continue;
    failures_.push_back(fmt::format("{} element {}: {} instead of {}", what, i, value, exact));
    return;
  }
}

void TwoSidedOp::expect_close_on_the_whole(const TwoFold& fold, double tolerance,
                                           const std::string& what) {
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < fold.size(); ++i) {
    errors += (fold.value(i) - fold.exact[i]) * (fold.value(i) - fold.exact[i]);
    squares += fold.exact[i] * fold.exact[i];
  }
  const double error = std::sqrt(errors / squares);
  if (!(error <= tolerance)) failures_.push_back(fmt::format("{}: error {}", what, error));
}

void TwoSidedOp::expect_same_mask(const TwoFold& mask) {
  const auto* stored = reinterpret_cast<const unsigned char*>(mask.stored.data());
  const auto* exact = reinterpret_cast<const unsigned char*>(mask.exact.data());
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (stored[i] == exact[i] && stored[i] <= 1) continue;
    failures_.push_back(fmt::format("mask element {}: {} and {}", i, stored[i], exact[i]));
    return;
  }
}

void TwoSidedOp::expect(bool holds, const std::string& what) {
  if (!holds) failures_.push_back(what);
}

void EmulatedOp::carry_out(const Work& work, WarpOrder order) {
  std::vector<float> scratch(static_cast<std::size_t>(op_scratch_floats(work.op)), std::nanf(""));
  const auto emulated = [&](const auto& kernel) {
    conflicts_ += emulate(kernel, order).bank_conflicts;
  };
  match(
      work.op, [&](const Attention& op) { op_kernels(op, work, scratch.data(), emulated); },
      [&](const Norm& op) { op_kernels(op, work, scratch.data(), emulated); },
      [&](const Pointwise& op) { op_kernels(op, work, scratch.data(), emulated); },
      [&](const Gather& op) { op_kernels(op, work, emulated); },
      [&](const Loss& op) { op_kernels(op, work, emulated); },
      [&](const auto&) { STEPCAST_CHECK(false, "no kernel of this folder"); });
}

}  // namespace stepcast::cuda
