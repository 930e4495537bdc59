// One rank's training against a transformer in plain loops, in double precision.
#include <gtest/gtest.h>

#include "tests/support/reference_model.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

void expect_reference(const Model& model, double dropout = 0, bool separate = false) {
  constexpr std::int64_t kSteps = 6;
  Plan plan = executable_plan(5, 2);
  plan.dropout = dropout > 0;
  plan.dropout_rate = dropout;
  plan.fused_qkv = plan.fused_gate_up = !separate;
  plan.capacity_factor = static_cast<double>(model.experts);  // room for all tokens
  if (model.experts == 0) plan.capacity_factor = 1;
  ExecuteOptions options = train_options(kSteps);
  options.optimizer.rate = 2e-2;
  options.optimizer.decay = 0.1;
  const std::vector<double> losses = train(lowered(model, plan), options)[0].losses;
  const ReferenceRun run{5,
                         2,
                         kSteps,
                         options.optimizer,
                         options.initial_deviation,
                         options.seed,
                         dropout,
                         separate};
  const std::vector<double> expected =
      reference_losses(model, run, *make_language(model.vocabulary, 7));
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 2e-5 * expected[i]) << "step " << i;
  }
}

TEST(Execute, TrainsTheGptThatPlainLoopsTrain) {
  expect_reference(gpt_model(2, 8, 2, 11, 7));
}

TEST(Execute, TrainsTheLlamaThatPlainLoopsTrain) {
  expect_reference(llama_model(2, 8, 4, 2, 12, 11));
}

// Queries, keys, values, gate and up each from a product of its own.
TEST(Execute, TrainsTheLlamaOfSeparateProductsThatPlainLoopsTrain) {
  expect_reference(llama_model(2, 8, 4, 2, 12, 11), 0, true);
}

// A gate's: two of four, in the second layer, beside an MLP that every token takes. A GELU's: two
// of three, in both layers.
TEST(Execute, TrainsTheExpertsThatPlainLoopsTrain) {
  Model model = llama_model(2, 8, 4, 2, 12, 11);
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 6;
  model.shared_ffn = 4;
  model.dense_layers = 1;
  expect_reference(model);
  model = gpt_model(2, 8, 2, 11, 7);
  model.mlp_bias = false;
  model.experts = 3;
  model.experts_per_token = 2;
  model.expert_ffn = 6;
  expect_reference(model);
}

// gpt-oss in small: sinks, a window of 3 of 5 tokens but in every second layer, biases of experts
// and of their router, its own activation.
TEST(Execute, TrainsTheGptOssThatPlainLoopsTrain) {
  Model model = llama_model(2, 8, 4, 2, 12, 11);
  model.attention_sinks = true;
  model.window = 3;
  model.full_every = 2;
  model.activation = Activation::kSwigluOai;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  expect_reference(model);
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 6;
  expect_reference(model);
  expect_reference(model, 0, true);
}

// Embeddings, probabilities and both branches of each layer lose three elements in ten.
TEST(Execute, DropsWhatPlainLoopsDrop) { expect_reference(gpt_model(2, 8, 2, 11, 7), 0.3); }

}  // namespace
}  // namespace stepcast
