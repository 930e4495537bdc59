// Activation memory: the closed forms of Korthikanti et al. 2022 ("Reducing Activation
// Recomputation in Large Transformer Models") against what the derived backward saves.
//
// The paper leaves out what is small: the row statistics of norms (two fp32 a row) and, where
// attention is fused, its log-sum-exp. They are counted here by name, apart.
#include <gtest/gtest.h>

#include <cmath>

#include "models/backward.h"
#include "models/lower.h"
#include "models/recompute.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

struct Saved {
  std::int64_t counted = 0;     // what the paper counts
  std::int64_t statistics = 0;  // what it leaves out
};

// Bytes that one layer keeps from forward to backward.
Saved saved_by_layer(const Model& model, const Plan& plan) {
  const Network network = transformer(model, plan);
  const Block& layer = network.kinds[1];
  const Differentiated d = differentiate(layer, recompute_slices(layer, plan), {});
  Saved saved;
  for (std::size_t v = 0; v < d.saved.size(); ++v) {
    if (!d.saved[v]) continue;
    const Value& value = d.block.values[v];
    const bool statistics = value.name.find("statistics") != std::string::npos ||
                            value.name.find("lse") != std::string::npos;
    (statistics ? saved.statistics : saved.counted) += value.bytes().count;
  }
  return saved;
}

struct Size {
  std::int64_t s, b, h, a;
};
const Size kSizes[] = {
    {128, 1, 64, 4}, {2048, 1, 6144, 64}, {2048, 4, 12288, 96}, {1024, 2, 768, 12}};

Plan unfused(const Size& size, std::int64_t t, bool sequence_parallel) {
  Plan plan = small_plan(size.s, size.b, 1);
  plan.tensor = t;
  plan.sequence_parallel = sequence_parallel;
  plan.fused_attention = false;
  plan.dropout = true;
  return plan;
}

// Per layer: two norm inputs 4, qkv input 2, Q, K, V 6, scores 5 a s / h (softmax 2, mask 1,
// dropped 2), projection input 2, mask 1, fc1 input 2, GELU input 8, fc2 input 8, mask 1; times s b
// h.
TEST(Activations, OfALayerAreTheThirtyFourOfThePaper) {
  for (const Size& z : kSizes) {
    const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), unfused(z, 1, false));
    EXPECT_EQ(saved.counted, 34 * z.s * z.b * z.h + 5 * z.a * z.s * z.s * z.b);
    EXPECT_EQ(saved.statistics, 2 * z.s * z.b * 2 * 4);  // two norms, mean and deviation
  }
}

// Tensor parallel without sequence parallelism: sbh (10 + 24 / t + 5 a s / (h t)).
TEST(Activations, TensorParallelismDividesAllButTen) {
  for (const Size& z : kSizes) {
    for (std::int64_t t : {2, 4}) {
      const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), unfused(z, t, false));
      EXPECT_EQ(saved.counted, 10 * z.s * z.b * z.h + 24 * z.s * z.b * z.h / t +
                                   5 * z.a * z.s * z.s * z.b / t);
    }
  }
}

// With sequence parallelism everything is divided: sbh / t (34 + 5 a s / h).
TEST(Activations, SequenceParallelismDividesAllOfThem) {
  for (const Size& z : kSizes) {
    for (std::int64_t t : {2, 4}) {
      const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), unfused(z, t, true));
      EXPECT_EQ(saved.counted, (34 * z.s * z.b * z.h + 5 * z.a * z.s * z.s * z.b) / t);
      EXPECT_EQ(saved.statistics, 2 * z.s * z.b * 2 * 4 / t);
    }
  }
}

// Without Megatron-LM's fused kernel autograd keeps fp32 probabilities: softmax 4, mask 1, dropped
// 2; Core's in the compute type keep what the fused kernel keeps.
TEST(Activations, OfPytorchsSoftmaxAreInSinglePrecision) {
  for (const Size& z : {Size{128, 1, 64, 4}, Size{4096, 1, 64, 1}, Size{4100, 4, 64, 1}}) {
    Plan plan = unfused(z, 1, false);
    const Model model = gpt_model(2, z.h, z.a, 512, z.s);
    const std::int64_t linear = 34 * z.s * z.b * z.h, scores = z.a * z.s * z.s * z.b;
    plan.softmax = SoftmaxKernels::kMegatron;
    EXPECT_EQ(saved_by_layer(model, plan).counted, linear + 7 * scores);
    plan.softmax = SoftmaxKernels::kMegatronCore;
    EXPECT_EQ(saved_by_layer(model, plan).counted, linear + 5 * scores);
    plan.softmax = SoftmaxKernels::kMegatron;
    plan.recompute = Recompute::kSelective;
    EXPECT_EQ(saved_by_layer(model, plan).counted, linear);
  }
}

// Selective recomputation drops the attention core: 34 sbh / t.
TEST(Activations, SelectiveRecomputationLeavesThirtyFour) {
  for (const Size& z : kSizes) {
    for (std::int64_t t : {1, 2, 4}) {
      Plan plan = unfused(z, t, t > 1);
      plan.recompute = Recompute::kSelective;
      const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), plan);
      EXPECT_EQ(saved.counted, 34 * z.s * z.b * z.h / t);
    }
  }
}

// Where the core's result goes with it, the projection's input, 2 of the 34, is dropped, too; alone
// the word says nothing.
TEST(Activations, RecomputingTheContextDropsTheProjectionsInput) {
  for (const Size& z : kSizes) {
    const Model model = gpt_model(2, z.h, z.a, 512, z.s);
    Plan plan = unfused(z, 1, false);
    plan.recompute = Recompute::kModules;
    plan.recompute_modules = {"context"};
    EXPECT_EQ(saved_by_layer(model, plan).counted,
              34 * z.s * z.b * z.h + 5 * z.a * z.s * z.s * z.b);
    plan.recompute_modules = {"attention_core", "context"};
    EXPECT_EQ(saved_by_layer(model, plan).counted, 32 * z.s * z.b * z.h);
  }
}

// Running the product behind queries, keys and values again drops them: 6 of the 34.
TEST(Activations, RecomputingQueriesKeysAndValuesDropsSix) {
  for (const Size& z : kSizes) {
    Plan plan = unfused(z, 1, false);
    plan.fused_attention = true;
    plan.recompute = Recompute::kModules;
    plan.recompute_modules = {"qkv"};
    const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), plan);
    EXPECT_EQ(saved.counted, 28 * z.s * z.b * z.h);
  }
}

// A fused kernel saves what selective recomputation saves, and fp32 row sums: 4 a s b.
TEST(Activations, FusedAttentionKeepsRowSumsInsteadOfScores) {
  for (const Size& z : kSizes) {
    Plan plan = unfused(z, 1, false);
    plan.fused_attention = true;
    const Saved saved = saved_by_layer(gpt_model(2, z.h, z.a, 512, z.s), plan);
    EXPECT_EQ(saved.counted, 34 * z.s * z.b * z.h);
    EXPECT_EQ(saved.statistics, 2 * z.s * z.b * 2 * 4 + 4 * z.a * z.s * z.b);
  }
}

// Llama without dropout, grouped queries (Q 2 q, K and V 2 (2 kv)), SwiGLU of width f: norms 4 h,
// qkv input 2 h, projection input 2 q, fc1 input 2 h, gate and up 4 f, product 2 f; a row.
TEST(Activations, OfALlamaLayerFollowItsShape) {
  const std::int64_t s = 256, b = 2, h = 512, a = 8, g = 2, f = 1408;
  const Saved saved = saved_by_layer(llama_model(2, h, a, g, f, 1000), small_plan(s, b, 1));
  const std::int64_t q = h, kv = h / a * g;
  EXPECT_EQ(saved.counted, s * b * (4 * h + 2 * h + 2 * q + 4 * kv + 2 * q + 2 * h + 6 * f));
}

// Activations that the ranks of stage 0 hold when backward begins, all micro-batches in flight;
// what is counted is what forward left behind, so it is read at the first backward's beginning.
std::int64_t live_activations(const Job& job, std::size_t stage) {
  std::int64_t live = 0, most = 0;
  const auto count = [&](TensorId id, std::int64_t sign) {
    const Tensor& t = job.tensors[static_cast<std::size_t>(id)];
    if (t.category == Category::kActivations) live += sign * t.bytes().count;
  };
  for (const Call& call : job.programs[stage].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (const auto* alloc = std::get_if<Alloc>(&i)) count(alloc->tensor, 1);
      if (const auto* free = std::get_if<Free>(&i)) count(free->tensor, -1);
    }
    most = std::max(most, live);  // between calls: without the temporaries inside them
  }
  return most;
}

// Full recomputation keeps a layer's input: 2 sbh, 2 sbh / t where it is split by tokens.
TEST(Activations, FullRecomputationKeepsOnlyInputs) {
  const Size z = {256, 1, 128, 4};
  for (std::int64_t t : {1, 2}) {
    Plan plan = unfused(z, t, t > 1);
    plan.recompute = Recompute::kFull;
    const auto held = [&](std::int64_t layers) {
      const Model model = gpt_model(layers, z.h, z.a, 512, z.s);
      const Job job = lower(transformer(model, plan), plan);
      EXPECT_EQ(verify(job), "");
      return live_activations(job, 0);
    };
    EXPECT_EQ(held(9) - held(8), 2 * z.s * z.b * z.h / t);
  }
}

// Figure 1 (values as published, through calculon's validation set): GiB a device on the first
// stage with all its micro-batches in flight, for 22B, 175B, 530B and 1T. Everything kept, and
// sequence parallel + selective. The rest: we count the norms' statistics and the embedding's mask.
struct Figure {
  std::int64_t h, a, layers, p, v, b;
  double none, sequence_selective;
};
TEST(Activations, MatchKorthikantisFigureOneWithinThreePercent) {
  const Figure figures[] = {{6144, 64, 48, 1, 1, 4, 59.25, 9.56},
                            {12288, 96, 96, 8, 3, 1, 66.84, 12.35},
                            {20480, 128, 105, 35, 3, 1, 114.02, 23.08},
                            {25600, 160, 128, 64, 1, 1, 131.25, 26.56}};
  constexpr double kGib = 1024.0 * 1024 * 1024;
  for (const Figure& f : figures) {
    const Model model = gpt_model(f.layers, f.h, f.a, 51200, 2048);
    for (bool saving : {false, true}) {
      Plan plan = unfused({2048, f.b, f.h, f.a}, 8, saving);
      plan.pipeline = f.p;
      plan.virtual_stages = f.v;
      plan.schedule = f.v > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1f1b;
      plan.recompute = saving ? Recompute::kSelective : Recompute::kNone;
      plan.global_batch = f.b * std::max<std::int64_t>(2 * f.p, 1);
      const Job job = lower(transformer(model, plan), plan);
      const double gib = static_cast<double>(live_activations(job, 0)) / kGib;
      const double published = saving ? f.sequence_selective : f.none;
      EXPECT_NEAR(gib, published, 0.03 * published) << "h " << f.h << " saving " << saving;
    }
  }
}

}  // namespace
}  // namespace stepcast
