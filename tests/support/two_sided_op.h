// TwoSidedOp: one Op twice, by the kernels of execute/cuda and by those of execute/cpu in double,
// on the same operands, and what lies further apart than it may. The kernels' side is emulated on
// the host (EmulatedOp) or runs on a GPU (DeviceOp in tests/execute/cuda/device); the cases in
// kernel_cases.h serve both.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "execute/cpu/kernels.h"
#include "execute/cuda/op_kernels.h"
#include "tests/support/emulated_block.h"

namespace stepcast::cuda {

// A tensor as both sides hold it: stored (bf16 or fp32, as its dtype says) and in double. Of a mask
// both are its bytes.
struct TwoFold {
  Tensor tensor;
  std::vector<std::uint64_t> stored;  // 8 bytes at a time, so that it is aligned
  std::vector<double> exact;
  std::vector<std::int64_t> ids;  // of an int64 tensor, for both

  void* data() { return stored.data(); }
  std::size_t size() const { return static_cast<std::size_t>(tensor.shape.elements()); }
  double value(std::size_t i) const {
    const auto at = static_cast<std::int64_t>(i);
    return static_cast<double>(ConstView{stored.data(), storage_of(tensor.dtype)}[at]);
  }
};

class TwoSidedOp {
 public:
  virtual ~TwoSidedOp() = default;

  TwoFold random(Shape shape, Dtype dtype, Scope scope = Scope::kMicroBatch) {
    std::normal_distribution<double> normal;
    TwoFold fold = empty(shape, dtype, scope);
    for (std::size_t i = 0; i < fold.size(); ++i) set(fold, i, normal(random_));
    return fold;
  }
  TwoFold weight(Shape shape, Dtype dtype) { return random(shape, dtype, Scope::kChunk); }
  // Holds NaNs: an element that nobody writes is noticed.
  static TwoFold empty(Shape shape, Dtype dtype, Scope scope = Scope::kMicroBatch) {
    TwoFold fold;
    fold.tensor = Tensor{{}, shape, dtype, Category::kActivations, scope};
    fold.stored.assign((fold.size() * 4 + 7) / 8, ~std::uint64_t{0});
    fold.exact.assign(fold.size(), std::numeric_limits<double>::quiet_NaN());
    return fold;
  }
  static TwoFold ids(std::vector<std::int64_t> values) {
    TwoFold fold;
    fold.tensor = Tensor{{},
                         {static_cast<std::int64_t>(values.size())},
                         Dtype::kInt64,
                         Category::kBuffers,
                         Scope::kChunk};
    fold.ids = std::move(values);
    return fold;
  }
  // What is stored, both hold.
  static void set(TwoFold& fold, std::size_t i, double value) {
    const View view{fold.stored.data(), storage_of(fold.tensor.dtype)};
    view.set(static_cast<std::int64_t>(i), static_cast<float>(value));
    fold.exact[i] = fold.value(i);
  }

  // Runs both sides, on what each holds. `order` is the emulation's.
  void run(const Op& op, const std::vector<TwoFold*>& reads, const std::vector<TwoFold*>& writes,
           WarpOrder order = WarpOrder::kUp);

  // Each element shall be within `tolerance` of the exact one, relative to 1 + its size.
  void expect_close(const TwoFold& fold, double tolerance, const std::string& what = "");
  // The root of the mean square of all errors, in that of all values: rounding errors average out,
  // an element that is wrong does not.
  void expect_close_on_the_whole(const TwoFold& fold, double tolerance, const std::string& what);
  // Of a mask: both sides hold the same bytes.
  void expect_same_mask(const TwoFold& mask);
  void expect(bool holds, const std::string& what);
  const std::vector<std::string>& failures() const { return failures_; }
  bool has_failed() const { return !failures_.empty(); }

  // From here on, what drops drops at this rate.
  void drop(double rate) { dropout_ = {dropout_rule(rate, 0x1234567890abcdef, &step_), 6}; }

  Place place;

 protected:
  // The kernels' side: operands as stored, the step of dropout in the host's memory.
  virtual void carry_out(const Work& work, WarpOrder order) = 0;

 private:
  std::vector<std::string> failures_;
  std::mt19937 random_{20240607};
  const std::uint32_t step_ = 3;
  Dropout dropout_;
  cpu::Scratch<double> scratch_;
};

class EmulatedOp final : public TwoSidedOp {
 public:
  // Of matrix loads, so far: see EmulatedRun.
  std::int64_t bank_conflicts() const { return conflicts_; }

 private:
  void carry_out(const Work& work, WarpOrder order) override;

  std::int64_t conflicts_ = 0;
};

}  // namespace stepcast::cuda
