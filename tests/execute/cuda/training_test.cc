// Whole Jobs on emulated kernels: what the executor's operands look like in truth, whatever the
// model and the plan, the kernels take as the CPU's do. Matrix products are the CPU's own.
#include <cmath>
#include <memory>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/cuda/attention_kernels.h"
#include "execute/cuda/op_kernels.h"
#include "sim/base/error.h"
#include "tests/support/emulated_block.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast::cuda {
namespace {

class EmulatedBackend final : public Backend {
 public:
  void compute(const Work& work) override {
    if (std::holds_alternative<Gemm>(work.op)) return products_->compute(work);
    scratch_.assign(static_cast<std::size_t>(op_scratch_floats(work.op)), std::nanf(""));
    const auto emulated = [](const auto& kernel) { emulate(kernel); };
    match(
        work.op, [&](const Attention& op) { op_kernels(op, work, scratch_.data(), emulated); },
        [&](const Norm& op) { op_kernels(op, work, scratch_.data(), emulated); },
        [&](const Pointwise& op) { op_kernels(op, work, scratch_.data(), emulated); },
        [&](const Gather& op) { op_kernels(op, work, emulated); },
        [&](const Loss& op) { op_kernels(op, work, emulated); },
        [&](const auto&) { STEPCAST_CHECK(false, "the interpreter takes Updates apart"); });
  }
  double squared_norm(const float* values, std::int64_t elements) override {
    return products_->squared_norm(values, elements);
  }
  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    const auto n = static_cast<double>(step);
    const float corrections[] = {static_cast<float>(1 / (1 - std::pow(options.beta1, n))),
                                 static_cast<float>(1 / (1 - std::pow(options.beta2, n)))};
    std::vector<float> scaled(range.gradient, range.gradient + range.elements);
    for (float& g : scaled) g *= static_cast<float>(scale);
    AdamWKernel kernel;
    kernel.size = range.elements;
    kernel.weight = {range.weight, Storage::kFp32};
    kernel.gradient = {scaled.data(), Storage::kFp32};
    kernel.moment1 = {range.moment1, Storage::kFp32};
    kernel.moment2 = {range.moment2, Storage::kFp32};
    kernel.options(options);
    kernel.corrections = corrections;
    emulate(kernel);
  }

 private:
  std::unique_ptr<Backend> products_ = make_cpu_backend(1);
  std::vector<float> scratch_;
};

// The losses of three steps, by the CPU's kernels and by emulated ones.
void expect_alike(const Model& model, const Plan& plan, double tolerance) {
  const Job job = lowered(model, plan);
  const ExecuteOptions options = train_options(3);
  const std::vector<double> expected = train(job, options)[0].losses;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const std::vector<RankRun> runs =
      run_threads(job, options, *corpus, [] { return std::make_unique<EmulatedBackend>(); });
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(runs[0].losses[i], expected[i], tolerance * expected[i]) << "step " << i;
  }
  EXPECT_NE(expected.front(), expected.back());
}

Plan bf16_plan(std::int64_t sequence, std::int64_t global) {
  Plan plan = executable_plan(sequence, global);
  plan.compute = Dtype::kBf16;
  plan.gradients = Dtype::kFp32;
  plan.master = true;
  return plan;
}

TEST(EmulatedTraining, OfAGptInSinglePrecision) {
  expect_alike(gpt_model(2, 32, 4, 61, 12), executable_plan(8, 2), 2e-6);
}

TEST(EmulatedTraining, OfALlamaOverTwoTensorRanksInSinglePrecision) {
  Plan plan = executable_plan(8, 2);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  expect_alike(llama_model(2, 32, 4, 2, 48, 61), plan, 2e-6);
}

TEST(EmulatedTraining, OfNormalisedQueriesAndUnfusedAttentionInBf16) {
  Model model = llama_model(1, 32, 4, 4, 48, 61);
  model.qk_norm = model.qkv_bias = model.tied_embeddings = true;
  Plan plan = bf16_plan(8, 2);
  plan.fused_attention = false;
  plan.micro_batch = 2;
  expect_alike(model, plan, 2e-3);
}

// Heads of 64: flash attention.
TEST(EmulatedTraining, OfFlashAttentionInBf16) {
  expect_alike(llama_model(1, 128, 2, 1, 48, 61), bf16_plan(24, 1), 2e-3);
}

TEST(EmulatedTraining, WithDropoutOverTwoTensorRanks) {
  Plan plan = executable_plan(8, 2);
  plan.dropout = true;
  plan.tensor = 2;
  plan.sequence_parallel = true;
  expect_alike(gpt_model(1, 32, 4, 61, 12), plan, 2e-6);
  plan.fused_attention = false;
  plan.micro_batch = 2;
  expect_alike(gpt_model(1, 32, 4, 61, 12), plan, 2e-6);
}

TEST(EmulatedTraining, WithDropoutInsideFlashAttention) {
  Plan plan = bf16_plan(24, 1);
  plan.dropout = true;
  expect_alike(llama_model(1, 128, 2, 1, 48, 61), plan, 2e-3);
}

}  // namespace
}  // namespace stepcast::cuda
