// Any legal plan of a model with latent attention, or with a sliding window, trains as one rank
// does.
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/same_training.h"

namespace stepcast {
namespace {

// Heads of 6 columns, of which 2 are rotated and shared; values of 4. From 8 and 12 latents.
Model latent(std::int64_t layers) {
  Model model = toy::llama(layers);
  model.name = "latent";
  model.kv_heads = model.heads;
  model.head_dim = 6;
  model.kv_rank = 8;
  model.q_rank = 12;
  model.rotary_dim = 2;
  model.value_dim = 4;
  return model;
}

// Queries of the token itself, and experts behind.
Model latent_of_experts(std::int64_t layers) {
  Model model = latent(layers);
  model.name = "latent of experts";
  model.q_rank = 0;
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 12;
  model.dense_layers = 1;
  return model;
}

// A window of 3 of 8 tokens, but in every second layer.
Model sliding(std::int64_t layers) {
  Model model = toy::llama(layers);
  model.name = "sliding";
  model.window = 3;
  model.full_every = 2;
  return model;
}

std::vector<TrainingCase> latent_cases() {
  TrainingCases cases;
  cases.add("latent_of_one_rank_micro2", latent, 2, [](Plan& p) { p.micro_batch = 2; });
  cases.add("latent_data2_zero3", latent, 2, [](Plan& p) { p.data = 2, p.zero = 3; });
  cases.add("latent_tensor2", latent, 2, [](Plan& p) { p.tensor = 2; });
  cases.add("latent_tensor2_sequence_zero1", latent, 2, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.zero = 1;
  });
  cases.add("latent_recompute_full", latent, 2, [](Plan& p) { p.recompute = Recompute::kFull; });
  cases.add("latent_recompute_qkv", latent, 2, [](Plan& p) {
    p.recompute = Recompute::kModules, p.recompute_modules = {"qkv", "norm"};
    p.tensor = 2, p.sequence_parallel = true;
  });
  cases.add("latent_recompute_up", latent, 2, [](Plan& p) {
    p.recompute = Recompute::kModules, p.recompute_modules = {"latent_up"};
    p.tensor = 2, p.sequence_parallel = true;
  });
  cases.add("latent_experts_tensor2", latent_of_experts, 3, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.expert = 4, p.zero = 1;
    pipeline(p, 2, PipelineSchedule::k1f1b);
  });
  cases.add("latent_context2_of_heads", latent, 2, [](Plan& p) {
    p.context = 2, p.context_exchange = ContextExchange::kAllToAll, p.zero = 1;
  });
  cases.add("window_context2_of_heads", sliding, 3, [](Plan& p) {
    p.context = 2, p.context_exchange = ContextExchange::kAllToAll, p.micro_batch = 2;
  });
  cases.add("window_pipeline2_recompute", sliding, 4, [](Plan& p) {
    pipeline(p, 2, PipelineSchedule::k1f1b), p.recompute = Recompute::kFull, p.recompute_every = 2;
  });
  cases.add("window_tensor2_zero3", sliding, 3, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.zero = 3;
  });
  return cases.all();
}

class TrainingOfLatents : public testing::TestWithParam<TrainingCase> {};

TEST_P(TrainingOfLatents, AsOnOneRank) { expect_training_of_one_rank(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Plans, TrainingOfLatents, testing::ValuesIn(latent_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace stepcast
