// Any legal plan of a dense model trains as one rank does.
#include <string>

#include <gtest/gtest.h>

#include "tests/support/same_training.h"

namespace stepcast {
namespace {

using toy::gpt;
using toy::llama;
using toy::qwen;

void add_data_parallel(TrainingCases& cases) {
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

void add_tensor_parallel(TrainingCases& cases) {
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
  cases.add("tensor2_loss_of_torch", llama, 2, [](Plan& p) {
    p.tensor = 2, p.loss = CrossEntropy::kTorch;
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

void add_pipelines(TrainingCases& cases) {
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

void add_documents(TrainingCases& cases) {
  cases.add("documents_tensor2", llama, 2, [](Plan& p) {
    p.tensor = 2, p.sequence_parallel = true, p.document_length = 4, p.micro_batch = 2;
    p.recompute = Recompute::kFull;
  });
}

void add_recompute(TrainingCases& cases) {
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

void add_separate_products(TrainingCases& cases) {
  cases.add("separate_tensor2", llama, 2, [](Plan& p) { separate(p), p.tensor = 2; });
  cases.add("separate_tensor2_sequence", llama, 2, [](Plan& p) {
    separate(p), p.tensor = 2, p.sequence_parallel = true, p.micro_batch = 2;
  });
  cases.add("separate_tensor4_sequence_qk_norm", qwen, 2, [](Plan& p) {
    separate(p), p.tensor = 4, p.sequence_parallel = true;
  });
  cases.add("separate_zero3_pipeline2", llama, 4, [](Plan& p) {
    separate(p), p.data = 2, p.zero = 3;
    pipeline(p, 2, PipelineSchedule::k1f1b);
  });
  cases.add("separate_heads_alone_full", qwen, 2, [](Plan& p) {
    p.fused_qkv = false, p.recompute = Recompute::kFull;
  });
  for (const char* module : {"qkv", "up", "activation", "attention"}) {
    cases.add(std::string("separate_") + module, qwen, 2, [&](Plan& p) {
      separate(p), p.tensor = 2, p.sequence_parallel = true;
      p.recompute = Recompute::kModules, p.recompute_modules = {module};
    });
  }
}

// As PyTorch's DTensor, FSDP2 and checkpoints do it.
void add_pytorch(TrainingCases& cases) {
  const auto eager = [](Plan& p) {
    separate(p), p.batch_first = true, p.gather_again = p.flat_weights = false;
    p.tensor_overlap = false, p.recompute_early_stop = true;
  };
  cases.add("pytorch_tensor2_sequence", llama, 2, [&](Plan& p) {
    eager(p), p.tensor = 2, p.sequence_parallel = true, p.micro_batch = 2;
  });
  cases.add("pytorch_tensor2_sequence_zero3_full", qwen, 3, [&](Plan& p) {
    eager(p), p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.zero = 3;
    p.recompute = Recompute::kFull;
  });
  cases.add("pytorch_zero3_every2_tied", qwen, 4, [&](Plan& p) {
    eager(p), p.data = 2, p.zero = 3, p.recompute = Recompute::kFull, p.recompute_every = 2;
  });
  cases.add("pytorch_tensor2_sequence_per_op", llama, 2, [&](Plan& p) {
    eager(p), p.tensor = 2, p.sequence_parallel = true, p.recompute = Recompute::kPerOp;
  });
}

// Of one product for all three, of three; summed in place behind a product, and scattered.
void add_per_op(TrainingCases& cases) {
  const auto add = [&](const std::string& name, Model (*model)(std::int64_t), auto change) {
    cases.add("per_op_" + name, model, 3, [&](Plan& p) {
      p.recompute = Recompute::kPerOp;
      change(p);
    });
  };
  add("packed", llama, [](Plan&) {});
  add("separate", llama, [](Plan& p) { separate(p); });
  add("separate_qk_norm_tensor2", qwen, [](Plan& p) { separate(p), p.tensor = 2; });
  add("packed_qk_norm_tensor2_sequence", qwen,
      [](Plan& p) { p.tensor = 2, p.sequence_parallel = true; });
  add("separate_tensor2_sequence_zero3", llama, [](Plan& p) {
    separate(p), p.tensor = 2, p.sequence_parallel = true, p.data = 2, p.zero = 3;
  });
  add("unfused_softmax_of_megatron_dropout_tensor2", gpt, [](Plan& p) {
    p.tensor = 2, p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatron;
    p.dropout = true;
  });
}

// Every layout drops what one rank with one sequence at a time drops.
void add_dropout(TrainingCases& cases) {
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
void add_context(TrainingCases& cases) {
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
    add("4_separate_heads", llama, 2, 4, [](Plan& p) { separate(p), p.micro_batch = 2; });
    add("2_separate_qk_norm", qwen, 2, 2, [](Plan& p) { separate(p); });
    add("4_per_op", llama, 2, 4, [](Plan& p) { p.recompute = Recompute::kPerOp; });
    add("2_per_op_separate_data2_zero3", llama, 2, 2, [](Plan& p) {
      separate(p), p.batch_first = true, p.gather_again = p.flat_weights = false;
      p.data = 2, p.zero = 3, p.recompute = Recompute::kPerOp;
    });
    add("2_separate_heads_tensor2_sequence_full", llama, 2, 2, [](Plan& p) {
      separate(p), p.tensor = 2, p.sequence_parallel = true;
      p.recompute = Recompute::kFull, p.recompute_early_stop = true;
    });
    add("2_another_order_of_axes", gpt, 2, 2, [](Plan& p) {
      pipeline(p, 2, k1f1b), p.data = 2, p.zero = 2;
      p.order = {Axis::kPipeline, Axis::kData,    Axis::kTensor,
                 Axis::kContext,  Axis::kReplica, Axis::kExpert};
    });
  }
}

// Heads shared out, packed and apart: of 4 with 4 or 2 key-value heads.
void add_context_of_heads(TrainingCases& cases) {
  using enum PipelineSchedule;
  const auto add = [&](const std::string& rest, Model (*model)(std::int64_t), std::int64_t layers,
                       std::int64_t ranks, auto change) {
    cases.add("context_heads_" + rest, model, layers, [&](Plan& p) {
      p.context = ranks, p.context_exchange = ContextExchange::kAllToAll;
      change(p);
    });
  };
  add("2", gpt, 2, 2, [](Plan&) {});
  add("4_micro2", gpt, 2, 4, [](Plan& p) { p.micro_batch = 2; });
  add("2_grouped_queries_zero3", llama, 2, 2, [](Plan& p) { p.data = 2, p.zero = 3; });
  add("2_tensor2_sequence", gpt, 2, 2, [](Plan& p) { p.tensor = 2, p.sequence_parallel = true; });
  add("4_separate_qk_norm", qwen, 2, 4, [](Plan& p) { separate(p), p.micro_batch = 2; });
  add("2_pipeline2_full", llama, 2, 2, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.zero = 1, p.recompute = Recompute::kFull;
  });
  add("4_selective", gpt, 2, 4, [](Plan& p) { p.recompute = Recompute::kSelective; });
  add("2_per_op", llama, 2, 2, [](Plan& p) { p.recompute = Recompute::kPerOp; });
  add("2_in_a_loop", gpt, 2, 2, [](Plan& p) { p.scan_layers = true; });
  add("4_dropout_micro2", gpt, 2, 4, [](Plan& p) { p.dropout = true, p.micro_batch = 2; });
  add("2_dropout_tensor2", gpt, 2, 2, [](Plan& p) { p.dropout = true, p.tensor = 2; });
}

void add_combined(TrainingCases& cases) {
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
  cases.add("a_host_that_waits_for_each_launch", llama, 4, [](Plan& p) {
    pipeline(p, 2, k1f1b), p.tensor = 2, p.data = 2, p.zero = 3, p.pipeline_overlap = false;
    p.launch_blocking = true;
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
  TrainingCases cases;
  add_data_parallel(cases);
  add_tensor_parallel(cases);
  add_pipelines(cases);
  add_documents(cases);
  add_recompute(cases);
  add_separate_products(cases);
  add_pytorch(cases);
  add_per_op(cases);
  add_dropout(cases);
  add_context(cases);
  add_context_of_heads(cases);
  add_combined(cases);
  return cases.all();
}

class SameTraining : public testing::TestWithParam<TrainingCase> {};

TEST_P(SameTraining, AsOnOneRank) { expect_training_of_one_rank(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Plans, SameTraining, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.name; });

// Reductions are in the order of the ranks, so threads cannot change a bit.
TEST(Execute, GivesTheSameLossesEveryTime) {
  Plan plan = executable_plan(8, 8);
  plan.tensor = plan.pipeline = plan.data = 2;
  const Job job = lowered(gpt(2), plan);
  EXPECT_EQ(train(job, train_options(3))[0].losses, train(job, train_options(3))[0].losses);
}

}  // namespace
}  // namespace stepcast
