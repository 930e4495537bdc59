// Any legal plan trains the same model: the losses of 20 steps are those of one rank, up to the
// order of float sums. Beside each run stand the other readers of the same Job: the arena's peak is
// what account() says, and what was sent is what count_traffic() says, to the byte.
#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "sim/engine/simulate.h"
#include "tests/support/as_counted.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

constexpr std::int64_t kTrainingSteps = 20;
constexpr std::int64_t kSequence = 8;
constexpr std::int64_t kGlobal = 8;

// A vocabulary that no tensor degree divides, and more positions than the sequence has.
Model gpt(std::int64_t layers) { return gpt_model(layers, 16, 4, 61, 12); }
Model llama(std::int64_t layers) { return llama_model(layers, 16, 4, 2, 24, 61); }

// Norms of queries and keys, a bias on qkv alone, tied embeddings, a norm behind each branch.
Model qwen(std::int64_t layers) {
  Model model = llama_model(layers, 16, 4, 4, 24, 61);
  model.qk_norm = model.qkv_bias = model.tied_embeddings = model.post_norms = true;
  model.activation = Activation::kGeglu;
  return model;
}

struct TrainingCase {
  std::string name;
  Model (*model)(std::int64_t layers);
  std::int64_t layers = 2;
  Plan plan;
};
void PrintTo(const TrainingCase& one, std::ostream* out) { *out << one.name; }

class Cases {
 public:
  // Starts from one rank's plan; `change` makes it another.
  template <class Change>
  Cases& add(std::string name, Model (*model)(std::int64_t), std::int64_t layers, Change change) {
    TrainingCase one{std::move(name), model, layers, executable_plan(kSequence, kGlobal)};
    change(one.plan);
    cases_.push_back(std::move(one));
    return *this;
  }
  const std::vector<TrainingCase>& all() const { return cases_; }

 private:
  std::vector<TrainingCase> cases_;
};

void pipeline(Plan& plan, std::int64_t stages, PipelineSchedule schedule,
              std::int64_t virtual_stages = 1) {
  plan.pipeline = stages;
  plan.schedule = schedule;
  plan.virtual_stages = virtual_stages;
}

void add_data_parallel(Cases& cases) {
  for (int zero = 0; zero <= 3; ++zero) {
    const std::string name = "zero" + std::to_string(zero);
    cases.add(name + "_data2", gpt, 2, [&](Plan& p) { p.data = 2, p.zero = zero; });
    cases.add(name + "_data4_micro2", llama, 2,
              [&](Plan& p) { p.data = 4, p.zero = zero, p.micro_batch = 2; });
    if (zero == 0) continue;  // shards nothing
    cases.add(name + "_hybrid", llama, 2,
              [&](Plan& p) { p.data = 4, p.zero = zero, p.shard_group = 2; });
  }
  cases.add("zero1_whole_gradients", gpt, 2,
            [](Plan& p) { p.data = 4, p.zero = 1, p.all_reduce = true; });
  // Three does not divide what it shards: padding.
  cases.add("zero1_small_buckets", qwen, 3, [](Plan& p) {
    p.data = 4, p.zero = 1, p.bucket = Bytes(4000);
  });
  cases.add("zero2_without_overlap", gpt, 2, [](Plan& p) {
    p.data = 2, p.zero = 2, p.overlap = false;
  });
  cases.add("zero3_kept_after_forward", llama, 3, [](Plan& p) {
    p.data = 2, p.zero = 3, p.reshard_after_forward = false;
  });
  cases.add("zero3_far_prefetch_tied", qwen, 3, [](Plan& p) {
    p.data = 2, p.zero = 3, p.prefetch = 3;
  });
  cases.add("zero0_without_clipping", llama, 2, [](Plan& p) {
    p.data = 2, p.clip_gradients = false;
  });
  cases.add("zero3_layers_in_a_loop", gpt, 2, [](Plan& p) {
    p.data = 2, p.zero = 3, p.scan_layers = true, p.fused_attention = false;
    p.recompute = Recompute::kModules;
    p.recompute_modules = {"attention_core", "norm", "activation"};
  });
}

void add_tensor_parallel(Cases& cases) {
  for (const std::int64_t t : {2, 4}) {
    const std::string name = "tensor" + std::to_string(t);
    cases.add(name, gpt, 2, [&](Plan& p) { p.tensor = t; });
    cases.add(name + "_sequence_micro2", gpt, 2,
              [&](Plan& p) { p.tensor = t, p.sequence_parallel = true, p.micro_batch = 2; });
  }
  cases.add("tensor2_grouped_heads", llama, 2, [](Plan& p) { p.tensor = 2; });
  cases.add("tensor2_sequence_grouped_heads", llama, 2, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true;
  });
  cases.add("tensor4_sequence_qk_norm", qwen, 2, [](Plan& p) {
    p.tensor = 4, p.sequence_parallel = true;
  });
  cases.add("tensor2_loss_in_place_with_buffers", llama, 2, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.loss = CrossEntropy::kTransformerEngine;
    p.weight_gradient_placeholders = p.gather_buffer = true, p.kernel_workspace = Bytes(4096);
  });
  cases.add("tensor2_loss_copied", gpt, 2, [](Plan& p) {
    p.tensor = 2, p.loss = CrossEntropy::kMegatronFused;
  });
  cases.add("tensor2_unfused", qwen, 2, [](Plan& p) {
    p.tensor = 2, p.fused_attention = false, p.micro_batch = 2;
  });
  cases.add("softmax_of_megatron", gpt, 2,
            [](Plan& p) { p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatron; });
  cases.add("tensor2_softmax_of_core_selective", gpt, 2, [](Plan& p) {
    p.tensor = 2, p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatronCore;
    p.recompute = Recompute::kSelective;
  });
}

void add_pipelines(Cases& cases) {
  using enum PipelineSchedule;
  cases.add("gpipe2", gpt, 2, [](Plan& p) { pipeline(p, 2, kGpipe); });
  cases.add("gpipe4_uneven", llama, 6, [](Plan& p) { pipeline(p, 4, kGpipe); });
  cases.add("1f1b2_micro2", llama, 2, [](Plan& p) { pipeline(p, 2, k1f1b), p.micro_batch = 2; });
  cases.add("1f1b4_tied_uneven", gpt, 5, [](Plan& p) { pipeline(p, 4, k1f1b); });
  cases.add("1f1b3_batches_no_multiple", gpt, 3, [](Plan& p) { pipeline(p, 3, k1f1b); });
  cases.add("1f1b2_balanced", gpt, 3, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.layout = StageLayout::kBalanced;
  });
  cases.add("1f1b3_given_stages", llama, 4, [](Plan& p) {
    pipeline(p, 3, k1f1b), p.layout = StageLayout::kGiven, p.stages = {1, 1, 2};
  });
  cases.add("1f1b2_buffers_of_head_and_scores", gpt, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.deferred_head = 2, p.score_buffer = true, p.fused_attention = false;
  });
  cases.add("interleaved2", gpt, 4, [](Plan& p) { pipeline(p, 2, kInterleaved, 2); });
  cases.add("interleaved4_qk_norm", qwen, 8, [](Plan& p) { pipeline(p, 4, kInterleaved, 2); });
}

void add_documents(Cases& cases) {
  cases.add("documents_tensor2", llama, 2, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.document_length = 4, p.micro_batch = 2;
    p.recompute = Recompute::kFull;
  });
}

void add_recompute(Cases& cases) {
  cases.add("recompute_full", gpt, 3, [](Plan& p) { p.recompute = Recompute::kFull; });
  cases.add("recompute_every2", llama, 4, [](Plan& p) {
    p.recompute = Recompute::kFull, p.recompute_every = 2, p.micro_batch = 2;
  });
  cases.add("recompute_first_layers", gpt, 3, [](Plan& p) {
    p.recompute = Recompute::kFull, p.recompute_layers = 2, p.zero = 3, p.data = 2;
  });
  cases.add("recompute_selective_unfused", gpt, 2, [](Plan& p) {
    p.recompute = Recompute::kSelective, p.fused_attention = false;
  });
  cases.add("recompute_selective_fused", llama, 2, [](Plan& p) {
    p.recompute = Recompute::kSelective;
  });
  for (const std::string& module : kRecomputeModules) {
    cases.add("recompute_" + module, qwen, 2, [&](Plan& p) {
      p.recompute = Recompute::kModules, p.recompute_modules = {module};
      p.tensor = 2, p.sequence_parallel = true;
    });
  }
}

// Every layout drops what one rank with one sequence at a time drops.
void add_dropout(Cases& cases) {
  using enum PipelineSchedule;
  const auto add = [&](const std::string& name, Model (*model)(std::int64_t), std::int64_t layers,
                       auto change) {
    cases.add("dropout_" + name, model, layers, [&](Plan& p) {
      p.dropout = true;
      change(p);
    });
  };
  add("unfused_micro2", gpt, 2, [](Plan& p) { p.fused_attention = false, p.micro_batch = 2; });
  add("data4_zero3_micro2", gpt, 2, [](Plan& p) { p.data = 4, p.zero = 3, p.micro_batch = 2; });
  add("hybrid", llama, 2, [](Plan& p) { p.data = 4, p.zero = 3, p.shard_group = 2; });
  add("tensor4", gpt, 2, [](Plan& p) { p.tensor = 4; });
  add("tensor2_sequence_micro2", gpt, 2,
      [](Plan& p) { p.tensor = 2, p.sequence_parallel = true, p.micro_batch = 2; });
  add("documents_tensor2_micro2", llama, 2, [](Plan& p) {
    p.tensor = 2, p.document_length = 4, p.micro_batch = 2;
  });
  add("tensor2_unfused_grouped_heads", llama, 2,
      [](Plan& p) { p.tensor = 2, p.fused_attention = false, p.micro_batch = 2; });
  add("1f1b4_uneven", gpt, 5, [](Plan& p) { pipeline(p, 4, k1f1b); });
  add("interleaved2", gpt, 4, [](Plan& p) { pipeline(p, 2, kInterleaved, 2); });
  add("recompute_every2", gpt, 4,
      [](Plan& p) { p.recompute = Recompute::kFull, p.recompute_every = 2, p.micro_batch = 2; });
  add("recompute_selective_unfused", gpt, 2,
      [](Plan& p) { p.recompute = Recompute::kSelective, p.fused_attention = false; });
  add("recompute_selective_fused", gpt, 2, [](Plan& p) { p.recompute = Recompute::kSelective; });
  add("recompute_projection", gpt, 2, [](Plan& p) {
    p.recompute = Recompute::kModules, p.recompute_modules = {"projection", "attention"};
    p.tensor = 2, p.sequence_parallel = true;
  });
  add("tensor2_pipeline2_zero1_recompute", gpt, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 1, p.sequence_parallel = true;
    p.recompute = Recompute::kFull;
  });
}

// Each exchange by itself and beside all else that a plan may ask for.
void add_context(Cases& cases) {
  using enum PipelineSchedule;
  for (const auto how : {ContextExchange::kAllGather, ContextExchange::kRing}) {
    const std::string name = how == ContextExchange::kRing ? "context_ring_" : "context_gather_";
    const auto add = [&](const std::string& rest, Model (*model)(std::int64_t), std::int64_t layers,
                         std::int64_t ranks, auto change) {
      cases.add(name + rest, model, layers, [&](Plan& p) {
        p.context = ranks, p.context_exchange = how;
        change(p);
      });
    };
    add("2", gpt, 2, 2, [](Plan&) {});
    add("4_micro2", llama, 2, 4, [](Plan& p) { p.micro_batch = 2; });
    add("4_qk_norm", qwen, 2, 4, [](Plan&) {});
    for (int zero = 1; zero <= 3; ++zero) {
      add("2_data2_zero" + std::to_string(zero), gpt, 2, 2,
          [&](Plan& p) { p.data = 2, p.zero = zero; });
    }
    add("4_zero3_alone", llama, 3, 4, [](Plan& p) { p.zero = 3; });
    add("2_hybrid", llama, 2, 2, [](Plan& p) { p.data = 2, p.zero = 2, p.shard_group = 1; });
    add("2_tensor2_sequence", qwen, 2, 2,
        [](Plan& p) { p.tensor = 2, p.sequence_parallel = true; });
    add("2_tensor2_pipeline2_zero1", gpt, 2, 2,
        [](Plan& p) { pipeline(p, 2, k1f1b), p.tensor = 2, p.zero = 1, p.micro_batch = 2; });
    add("2_interleaved_serial_tensor", llama, 4, 2,
        [](Plan& p) { pipeline(p, 2, kInterleaved, 2), p.tensor = 2, p.tensor_overlap = false; });
    add("4_full", gpt, 2, 4, [](Plan& p) { p.recompute = Recompute::kFull; });
    add("2_selective", llama, 2, 2, [](Plan& p) { p.recompute = Recompute::kSelective; });
    for (const std::string& module : kRecomputeModules) {
      add("4_" + module, qwen, 1, 4,
          [&](Plan& p) { p.recompute = Recompute::kModules, p.recompute_modules = {module}; });
    }
    add("4_dropout_micro2", gpt, 2, 4, [](Plan& p) { p.dropout = true, p.micro_batch = 2; });
    add("2_dropout_tensor2_sequence_selective", gpt, 2, 2, [](Plan& p) {
      p.dropout = true, p.tensor = 2, p.sequence_parallel = true;
      p.recompute = Recompute::kSelective;
    });
    add("2_deterministic", llama, 2, 2,
        [](Plan& p) { p.deterministic = true, p.filled = 2 * kFilledMessage - 1; });
    add("2_another_order_of_axes", gpt, 2, 2, [](Plan& p) {
      pipeline(p, 2, k1f1b), p.data = 2, p.zero = 2;
      p.order = {Axis::kPipeline, Axis::kData,    Axis::kTensor,
                 Axis::kContext,  Axis::kReplica, Axis::kExpert};
    });
  }
}

void add_combined(Cases& cases) {
  using enum PipelineSchedule;
  cases.add("tensor2_pipeline2_zero1", gpt, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 1, p.sequence_parallel = true;
  });
  cases.add("tensor2_pipeline2_data4", llama, 2, [](Plan& p) {
    pipeline(p, 2, kGpipe), p.tensor = 2, p.data = 4;
  });
  cases.add("tensor2_pipeline2_zero2_tied", gpt, 3, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 2;
  });
  cases.add("tensor2_pipeline2_zero3_tied", qwen, 3, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 3, p.sequence_parallel = true;
    p.recompute = Recompute::kFull;
  });
  cases.add("tensor4_pipeline2_data2_interleaved", gpt, 4, [](Plan& p) {
    pipeline(p, 2, kInterleaved, 2), p.tensor = 4, p.data = 2, p.zero = 1;
  });
  cases.add("hybrid_tensor2_pipeline2", llama, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 4, p.zero = 3, p.shard_group = 2;
  });
  cases.add("whole_tensors_between_stages", llama, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.scatter_gather = false, p.pipeline_overlap = false;
    p.tensor_overlap = false;
  });
  cases.add("a_host_that_waits", llama, 4, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.pipeline_overlap = false;
    p.p2p_sync = p.pass_sync = p.optimizer_sync = true;
  });
  cases.add("deterministic", llama, 4, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.deterministic = true;
    p.filled = 2 * kFilledMessage - 1;
  });
  cases.add("deterministic_sequence_full", gpt, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.sequence_parallel = p.deterministic = true;
    p.filled = 2 * kFilledMessage - 1, p.fused_attention = false;
    p.recompute = Recompute::kFull;
  });
  cases.add("another_order_of_axes", gpt, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 1;
    p.order = {Axis::kPipeline, Axis::kData,    Axis::kTensor,
               Axis::kContext,  Axis::kReplica, Axis::kExpert};
  });
}

std::vector<TrainingCase> all_cases() {
  Cases cases;
  add_data_parallel(cases);
  add_tensor_parallel(cases);
  add_pipelines(cases);
  add_documents(cases);
  add_recompute(cases);
  add_dropout(cases);
  add_context(cases);
  add_combined(cases);
  return cases.all();
}

// Losses of one rank without any saving, by model and number of layers. One run serves all.
class SameTraining : public testing::TestWithParam<TrainingCase> {
 protected:
  static const std::vector<double>& alone(const TrainingCase& one) {
    static std::map<std::string, std::vector<double>> known;
    const Model model = one.model(one.layers);
    const std::string key = model.name + (model.qk_norm ? "qk" : "") + std::to_string(one.layers) +
                            (one.plan.clip_gradients ? "" : "free") +
                            std::to_string(one.plan.document_length) +
                            (one.plan.dropout ? "dropout" : "");
    auto& losses = known[key];
    if (losses.empty()) {
      Plan plan = executable_plan(kSequence, kGlobal);
      plan.clip_gradients = one.plan.clip_gradients;
      plan.document_length = one.plan.document_length;
      plan.dropout = one.plan.dropout;
      losses = train(lowered(model, plan), train_options(kTrainingSteps))[0].losses;
    }
    return losses;
  }
};

TEST_P(SameTraining, AsOnOneRank) {
  const TrainingCase& one = GetParam();
  const Job job = lowered(one.model(one.layers), one.plan);
  ASSERT_EQ(verify(job), "");
  const std::vector<RankRun> runs = train(job, train_options(kTrainingSteps));

  const std::vector<double>& expected = alone(one);
  ASSERT_EQ(runs[0].losses.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(runs[0].losses[i], expected[i], 1e-4 * expected[i]) << "step " << i;
  }
  EXPECT_LT(expected.back(), 0.95 * expected.front());

  expect_as_counted(job, runs);
}

INSTANTIATE_TEST_SUITE_P(Plans, SameTraining, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.name; });

// Reductions are in the order of the ranks, so threads cannot change a bit.
TEST(Execute, GivesTheSameLossesEveryTime) {
  Plan plan = executable_plan(kSequence, kGlobal);
  plan.tensor = plan.pipeline = plan.data = 2;
  const Job job = lowered(gpt(2), plan);
  EXPECT_EQ(train(job, train_options(3))[0].losses, train(job, train_options(3))[0].losses);
}

}  // namespace
}  // namespace stepcast
