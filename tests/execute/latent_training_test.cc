// Any legal plan of a model with latent attention, with a sliding window or with sinks trains as
// one rank does.
#include <string>
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
  Model model = toy::of_experts(latent(layers));
  model.name = "latent of experts";
  model.q_rank = 0;
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

// Sinks, a window in every second layer, a rotation with a factor, and biases.
Model gpt_oss_of_one_expert(std::int64_t layers) {
  Model model = sliding(layers);
  model.name = "gpt-oss";
  model.attention_sinks = true;
  model.rotary_attention_factor = 1.25;
  model.activation = Activation::kSwigluOai;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  return model;
}

Model gpt_oss(std::int64_t layers) { return toy::of_experts(gpt_oss_of_one_expert(layers)); }

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
  cases.add("sinks_of_one_rank_micro2", gpt_oss, 2, [](Plan& p) { p.micro_batch = 2; });
  cases.add("sinks_data2_zero3", gpt_oss, 2, [](Plan& p) { p.data = 2, p.zero = 3; });
  for (const int zero : {0, 3}) {
    cases.add("sinks_dropout_zero" + std::to_string(zero), gpt_oss, 2,
              [&](Plan& p) { p.data = 2, p.zero = zero, p.dropout = true; });
  }
  cases.add("sinks_separate_tensor2", gpt_oss_of_one_expert, 2, [](Plan& p) {
    p.tensor = 2, p.fused_qkv = p.fused_gate_up = false;
  });
  cases.add("sinks_experts4_tensor2_zero1", gpt_oss, 3, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.expert = 4, p.zero = 1;
  });
  cases.add("sinks_experts2_gathered_pipeline2", gpt_oss, 4, [](Plan& p) {
    p.data = p.expert = 2, p.expert_exchange = ExpertExchange::kAllGather;
    pipeline(p, 2, PipelineSchedule::k1f1b), p.recompute = Recompute::kFull;
  });
  cases.add("sinks_experts2_recompute_modules", gpt_oss, 2, [](Plan& p) {
    p.data = p.expert = 2, p.recompute = Recompute::kModules;
    p.recompute_modules = {"norm", "activation"};
  });
  return cases.all();
}

class TrainingOfLatents : public testing::TestWithParam<TrainingCase> {};

TEST_P(TrainingOfLatents, AsOnOneRank) { expect_training_of_one_rank(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Plans, TrainingOfLatents, testing::ValuesIn(latent_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace stepcast
