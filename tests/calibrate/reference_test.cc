// Kernels are held against double precision before they are timed; one that is wrong is found.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibrate/reference.h"
#include "execute/cpu/cpu_backend.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

// The CPU's kernels, with one slip: in results of ops that `wrong` picks, one element is off by
// `factor`.
class Slip : public Backend {
 public:
  Slip(std::function<bool(const Op&)> wrong, float factor)
      : wrong_(std::move(wrong)), factor_(factor), right_(make_cpu_backend(1)) {}

  void compute(const Work& work) override {
    right_->compute(work);
    if (!wrong_(work.op)) return;
    auto* out = static_cast<float*>(work.writes[0].data);
    const std::int64_t elements = work.writes[0].tensor->shape.elements();
    for (std::int64_t i = 0; i < elements; ++i) out[i] *= factor_;
  }
  double squared_norm(const float* values, std::int64_t elements) override {
    const double sum = right_->squared_norm(values, elements);
    return wrong_(Update{UpdatePart::kSquaredNorm}) ? sum * factor_ : sum;
  }
  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    right_->update(range, options, step, wrong_(Update{}) ? scale * factor_ : scale);
  }

 private:
  std::function<bool(const Op&)> wrong_;
  float factor_;
  std::unique_ptr<Backend> right_;
};

Plan plan_of(bool fused) {
  Plan plan = executable_plan(160, 4);  // longer than what attention is made smaller to
  plan.micro_batch = 2;
  plan.fused_attention = fused;
  return plan;
}

Model gpt() { return gpt_model(2, 48, 4, 61, 160); }
Model llama() {
  Model model = llama_model(2, 48, 4, 2, 80, 5000);  // more entries than are looked at
  model.qk_norm = true;
  return model;
}

// Three of eight experts, some of which drop tokens.
Model with_experts(Model model) {
  model.experts = 8;
  model.experts_per_token = 3;
  model.expert_ffn = 24;
  return model;
}

TEST(Reference, FindsNothingWrongWithTheKernels) {
  for (const bool fused : {true, false}) {
    for (const Model& model : {gpt(), llama(), with_experts(llama())}) {
      Plan plan = plan_of(fused);
      for (const std::int64_t tensor : {1, 2}) {
        plan.tensor = tensor;
        plan.sequence_parallel = tensor > 1;
        if (model.experts > 0) plan.expert = tensor;
        const Job job = lowered(model, plan);
        const auto backend = make_cpu_backend(1);
        const KernelCheck check = check_kernels(job, *backend);
        EXPECT_EQ(check.kernels, job.ops.size());
        EXPECT_GT(check.worst, 0);
        EXPECT_LT(check.worst, 3e-5);
      }
    }
  }
}

// Tokens gathered by all ranks of the experts, and a sequence whose heads are shared out, longer
// than what attention is made smaller to.
TEST(Reference, FindsNothingWrongWithWhatRanksExchange) {
  Plan experts = plan_of(true), heads = experts;
  experts.tensor = experts.expert = 2;
  experts.sequence_parallel = true;
  experts.expert_exchange = ExpertExchange::kAllGather;
  heads.context = 2;
  heads.context_exchange = ContextExchange::kAllToAll;
  heads.dropout = true;
  for (const auto& [model, plan] :
       {std::pair(with_experts(llama()), experts), std::pair(gpt(), heads)}) {
    const Job job = lowered(model, plan);
    const auto backend = make_cpu_backend(1);
    const KernelCheck check = check_kernels(job, *backend);
    EXPECT_EQ(check.kernels, job.ops.size());
    EXPECT_LT(check.worst, 3e-5);
  }
}

// Every single op of a Job, off by a thousandth, is found and named.
TEST(Reference, FindsEveryKernelThatIsWrong) {
  for (const bool fused : {true, false}) {
    Plan plan = executable_plan(8, 4);
    plan.fused_attention = fused;
    Model model = llama_model(1, 16, 4, 2, 24, 61);
    model.qk_norm = true;
    if (fused) model = with_experts(model);
    const Job job = lowered(model, plan);
    for (const Op& op : job.ops) {
      const auto* pointwise = std::get_if<Pointwise>(&op);
      const bool zeros = pointwise != nullptr && pointwise->kind == PointwiseKind::kFill;
      if (zeros) continue;  // a thousandth more than nothing is nothing
      // Sizes may differ: where a kernel is made smaller, so is its op.
      const auto like = [&](const Op& other) {
        if (other.index() != op.index()) return false;
        const auto* update = std::get_if<Update>(&op);
        if (update != nullptr) return std::get<Update>(other).part == update->part;
        const std::string a = to_text(op), b = to_text(other);
        const auto name = [](const std::string& text) {
          return text.substr(0, text.find(' ', text.find(' ') + 1));
        };
        return name(a) == name(b);
      };
      Slip slip(like, 1.01f);
      try {
        check_kernels(job, slip);
        ADD_FAILURE() << to_text(op) << " passed";
      } catch (const Error& error) {
        EXPECT_THAT(error.message(), testing::HasSubstr("the kernel is wrong"));
      }
    }
  }
}

TEST(Reference, NamesTheKernel) {
  const Job job = lowered(gpt(), plan_of(true));
  Slip slip([](const Op& op) { return std::holds_alternative<Attention>(op); }, 0.5f);
  try {
    check_kernels(job, slip);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.where(), testing::StartsWith("attention forward"));
  }
}

}  // namespace
}  // namespace stepcast
