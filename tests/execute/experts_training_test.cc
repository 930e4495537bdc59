// Any legal plan of a mixture of experts trains as one rank does.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/same_training.h"

namespace stepcast {
namespace {

// A gate's, and a GELU's.
Model mixtral(std::int64_t layers) { return toy::of_experts(toy::llama(layers)); }
Model gpt_of_experts(std::int64_t layers) {
  Model model = toy::of_experts(toy::gpt(layers));
  model.mlp_bias = false;
  return model;
}

// Norms of queries and keys, tied embeddings.
Model qwen_of_experts(std::int64_t layers) {
  Model model = toy::of_experts(toy::qwen(layers));
  model.qkv_bias = model.post_norms = false;
  return model;
}

// Eight experts, three a token, an MLP for all tokens besides, and a first
// layer without experts.
Model deepseek(std::int64_t layers) {
  Model model = toy::llama(layers);
  model.experts = 8;
  model.experts_per_token = 3;
  model.expert_ffn = 6;
  model.shared_ffn = 8;
  model.dense_layers = 1;
  return model;
}

// Experts on all ranks, on some data ranks, on tensor and context ranks
// besides, and cut over tensor ranks.
void add_experts(TrainingCases& cases) {
  using enum PipelineSchedule;
  const auto add = [&](const std::string& name, Model (*model)(std::int64_t), auto change,
                       std::int64_t layers = 2) {
    cases.add("experts_" + name, model, layers, change);
  };
  const auto spread = [](Plan& p, std::int64_t experts, std::int64_t data, int zero = 0) {
    p.expert = experts, p.data = data, p.zero = zero;
  };
  // `whole` on one tensor rank each, else cut.
  const auto tensor2 = [](Plan& p, bool whole) {
    p.tensor = 2, p.sequence_parallel = true, p.expert_tensor = whole ? 1 : 2;
  };
  add("of_one_rank_micro2", mixtral, [](Plan& p) { p.micro_batch = 2; });
  add("of_all_ranks_data2", mixtral, [](Plan& p) { p.data = 2; });
  add("of_all_ranks_data2_zero3", deepseek, [](Plan& p) { p.data = 2, p.zero = 3; });
  for (int zero = 0; zero <= 1; ++zero) {
    const std::string state = "_zero" + std::to_string(zero);
    add("2" + state, mixtral, [&](Plan& p) { spread(p, 2, 2, zero); });
    add("4_micro2" + state, mixtral, [&](Plan& p) { spread(p, 4, 4, zero), p.micro_batch = 2; });
    add("2_data4" + state, deepseek, [&](Plan& p) { spread(p, 2, 4, zero); });
    add("4_tensor2" + state, mixtral, [&](Plan& p) { spread(p, 4, 2, zero), tensor2(p, true); });
    add("2_tensor2_data2" + state, mixtral,
        [&](Plan& p) { spread(p, 2, 2, zero), tensor2(p, true); });
    add("2_cut_over_tensor2" + state, deepseek,
        [&](Plan& p) { spread(p, 2, 2, zero), tensor2(p, false); });
    add("4_context2" + state, mixtral, [&](Plan& p) { spread(p, 4, 2, zero), p.context = 2; });
    add("4_context2_tensor2" + state, mixtral,
        [&](Plan& p) { spread(p, 4, 2, zero), tensor2(p, true), p.context = 2; });
    add(
        "2_pipeline2" + state, deepseek,
        [&](Plan& p) { spread(p, 2, 2, zero), pipeline(p, 2, k1f1b); }, 3);
  }
  const auto gathered = [](Plan& p) { p.expert_exchange = ExpertExchange::kAllGather; };
  add("4_gathered_micro2", mixtral,
      [&](Plan& p) { spread(p, 4, 4, 1), gathered(p), p.micro_batch = 2; });
  add("2_gathered_data4", deepseek, [&](Plan& p) { spread(p, 2, 4), gathered(p); });
  add("4_gathered_tensor2", mixtral,
      [&](Plan& p) { spread(p, 4, 2, 1), tensor2(p, true), gathered(p); });
  add("2_gathered_cut_over_tensor2", deepseek,
      [&](Plan& p) { spread(p, 2, 2, 1), tensor2(p, false), gathered(p); });
  add("all_gathered_cut_over_tensor2", gpt_of_experts,
      [&](Plan& p) { tensor2(p, false), gathered(p); });
  add("4_gathered_context2", mixtral,
      [&](Plan& p) { spread(p, 4, 2, 1), p.context = 2, gathered(p), p.gather_buffer = true; });
  add(
      "2_gathered_pipeline2_full", deepseek,
      [&](Plan& p) {
        spread(p, 2, 2, 1), pipeline(p, 2, k1f1b), gathered(p), p.recompute = Recompute::kFull;
      },
      3);
  add("2_gathered_in_a_loop", mixtral,
      [&](Plan& p) { spread(p, 2, 2), gathered(p), p.scan_layers = true; });
  add("2_of_tensor_ranks_alone", gpt_of_experts,
      [&](Plan& p) { spread(p, 2, 1), tensor2(p, true), p.micro_batch = 2; });
  add("all_cut_over_tensor2", gpt_of_experts, [&](Plan& p) { tensor2(p, false); });
  add("4_cut_over_tensor2_context2", mixtral,
      [&](Plan& p) { spread(p, 4, 2, 1), tensor2(p, false), p.context = 2; });
  add("2_of_context_ranks_alone", deepseek, [&](Plan& p) { spread(p, 2, 1), p.context = 2; });
  add(
      "2_interleaved", mixtral,
      [&](Plan& p) { spread(p, 2, 2, 1), pipeline(p, 2, kInterleaved, 2); }, 4);
  add("2_whole_gradients_small_buckets", deepseek,
      [&](Plan& p) { spread(p, 2, 4, 1), p.all_reduce = true, p.bucket = Bytes(4000); });
  add("2_without_clipping", mixtral, [&](Plan& p) { spread(p, 2, 2), p.clip_gradients = false; });
  add("4_without_overlap", mixtral,
      [&](Plan& p) { spread(p, 4, 2, 1), tensor2(p, true), p.overlap = p.tensor_overlap = false; });
  add("2_separate", deepseek, [&](Plan& p) { spread(p, 2, 2), separate(p); });
  add("2_deterministic", mixtral,
      [&](Plan& p) { spread(p, 2, 2), p.deterministic = true, p.filled = 2 * kFilledMessage - 1; });
  add("4_dropout_tensor2", gpt_of_experts,
      [&](Plan& p) { spread(p, 4, 2, 1), tensor2(p, true), p.dropout = true; });
  const auto overlapped = [](Plan& p) { p.expert_overlap = true; };
  add("2_overlapped_data4", deepseek, [&](Plan& p) { spread(p, 2, 4, 1), overlapped(p); });
  add("4_overlapped_tensor2_micro2", mixtral, [&](Plan& p) {
    spread(p, 4, 2), tensor2(p, true), overlapped(p), p.micro_batch = 2;
  });
  add("2_overlapped_cut_over_tensor2", mixtral,
      [&](Plan& p) { spread(p, 2, 2, 1), tensor2(p, false), overlapped(p); });
  add("4_overlapped_gathered_full", mixtral, [&](Plan& p) {
    spread(p, 4, 4), gathered(p), overlapped(p), p.recompute = Recompute::kFull;
  });
  add("4_overlapped_context2_modules", gpt_of_experts, [&](Plan& p) {
    spread(p, 4, 2, 1), p.context = 2, overlapped(p), p.recompute = Recompute::kModules;
    p.recompute_modules = {"norm", "activation"};
  });
  add(
      "2_overlapped_interleaved", mixtral,
      [&](Plan& p) { spread(p, 2, 2, 1), pipeline(p, 2, kInterleaved, 2), overlapped(p); }, 4);
  add("4_another_order_of_axes", mixtral, [&](Plan& p) {
    spread(p, 4, 4, 1), tensor2(p, true), pipeline(p, 2, k1f1b);
    p.order = {Axis::kPipeline, Axis::kData,    Axis::kTensor,
               Axis::kContext,  Axis::kReplica, Axis::kExpert};
  });
}

// What frameworks do otherwise than by default, with experts.
void add_experts_of_frameworks(TrainingCases& cases) {
  using enum PipelineSchedule;
  const auto add = [&](const std::string& name, Model (*model)(std::int64_t), auto change,
                       std::int64_t layers = 2) {
    cases.add("experts_" + name, model, layers, change);
  };
  add("4_as_pytorch_does", deepseek, [](Plan& p) {
    p.expert = 4, p.data = p.tensor = 2, p.sequence_parallel = true;
    separate(p), p.batch_first = true, p.gather_again = p.flat_weights = false;
    p.tensor_overlap = false, p.recompute_early_stop = true, p.recompute = Recompute::kFull;
  });
  add("of_all_ranks_zero3_full", mixtral,
      [](Plan& p) { p.data = 2, p.zero = 3, p.recompute = Recompute::kFull; });
  add("of_all_ranks_hybrid", mixtral, [](Plan& p) { p.data = 4, p.zero = 2, p.shard_group = 2; });
  add("2_layers_in_a_loop", mixtral,
      [](Plan& p) { p.data = p.expert = 2, p.scan_layers = true, p.fused_attention = false; });
  add("2_tied_pipeline2", qwen_of_experts, [](Plan& p) {
    p.data = p.expert = 2, p.zero = 1;
    pipeline(p, 2, k1f1b);
  });
  add("4_tensor2_buffers", qwen_of_experts, [](Plan& p) {
    p.data = p.tensor = 2, p.expert = 4, p.sequence_parallel = true, p.micro_batch = 2;
    p.loss = CrossEntropy::kTransformerEngine;
    p.weight_gradient_placeholders = p.gather_buffer = true;
  });
}

void add_expert_recompute(TrainingCases& cases) {
  const auto add = [&](const std::string& name, auto change) {
    cases.add("experts_recompute_" + name, deepseek, 2, [&](Plan& p) {
      p.expert = 4, p.data = p.tensor = 2, p.sequence_parallel = true;
      change(p);
    });
  };
  add("full", [](Plan& p) { p.recompute = Recompute::kFull; });
  add("full_cut_over_tensor2_early_stop", [](Plan& p) {
    p.expert = p.expert_tensor = 2;
    p.recompute = Recompute::kFull, p.recompute_early_stop = true;
  });
  add("per_op", [](Plan& p) { p.recompute = Recompute::kPerOp; });
  for (const char* module : {"mlp", "activation", "norm", "up"}) {
    add(module,
        [&](Plan& p) { p.recompute = Recompute::kModules, p.recompute_modules = {module}; });
  }
}

std::vector<TrainingCase> expert_cases() {
  TrainingCases cases;
  add_experts(cases);
  add_experts_of_frameworks(cases);
  add_expert_recompute(cases);
  return cases.all();
}

class TrainingOfExperts : public testing::TestWithParam<TrainingCase> {};

TEST_P(TrainingOfExperts, AsOnOneRank) { expect_training_of_one_rank(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Plans, TrainingOfExperts, testing::ValuesIn(expert_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace stepcast
