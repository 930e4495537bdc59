// Context parallelism in the Job: what it divides, what it sends, and what runs beside what.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kSequence = 128, kBatch = 2, kStreamWidth = 64;
constexpr std::int64_t kQueryHeads = 8, kKeyHeads = 4;

Plan shared(std::int64_t ranks, ContextExchange how) {
  Plan plan = small_plan(kSequence, kBatch, 1);
  plan.context = ranks;
  plan.context_exchange = how;
  return plan;
}

Job lowered(std::int64_t layers, const Plan& plan) {
  const Model model = llama_model(layers, kStreamWidth, kQueryHeads, kKeyHeads, 256, 512);
  check_plan(plan, model);
  Job job = lower(transformer(model, plan), plan);
  EXPECT_EQ(verify(job), "");
  return job;
}

std::int64_t context_bytes(const Job& job) {
  return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kContext)].count;
}

constexpr ContextExchange kBoth[] = {ContextExchange::kRing, ContextExchange::kAllGather};
constexpr ContextExchange kAny[] = {ContextExchange::kRing, ContextExchange::kAllGather,
                                    ContextExchange::kAllToAll};

// Keys and values of n = s b / c tokens, 2 g / t heads of d columns in bf16: each of them goes to
// c - 1 ranks in forward, and again in backward with its gradient.
TEST(Context, SendsKeysAndValuesAndInBackwardTheirGradientsToo) {
  for (const ContextExchange how : kBoth) {
    for (const std::int64_t c : {2, 4, 8}) {
      for (const std::int64_t t : {1, 2}) {
        Plan plan = shared(c, how);
        plan.tensor = t;
        const std::int64_t d = kStreamWidth / kQueryHeads;
        const std::int64_t block = kSequence * kBatch / c * 2 * kKeyHeads / t * d * 2;
        EXPECT_EQ(context_bytes(lowered(3, plan)) - context_bytes(lowered(2, plan)),
                  3 * (c - 1) * block);
      }
    }
  }
}

// Of n = s b / c tokens queries, keys, values and results, h / t and g / t heads of d columns in
// bf16; (c - 1) / c of them leave the rank, and so do their gradients.
TEST(Context, SendsQueriesKeysValuesAndResultsForHeads) {
  for (const std::int64_t c : {2, 4}) {
    for (const bool packed : {true, false}) {
      Plan plan = shared(c, ContextExchange::kAllToAll);
      plan.fused_qkv = packed;
      const std::int64_t d = kStreamWidth / kQueryHeads;
      const std::int64_t once = kSequence * kBatch / c * (2 * kQueryHeads + 2 * kKeyHeads) * d * 2;
      EXPECT_EQ(context_bytes(lowered(3, plan)) - context_bytes(lowered(2, plan)),
                2 * once / c * (c - 1));
    }
  }
}

TEST(Context, SharesOutHeadsThatThereAre) {
  Plan plan = shared(8, ContextExchange::kAllToAll);
  Model model = llama_model(2, kStreamWidth, kQueryHeads, kKeyHeads, 256, 512);
  EXPECT_EQ(trouble_with(plan, model).value().what,
            "4 heads that a tensor rank has of queries and of keys cannot be divided by context 8; "
            "use 1, 2 or 4, or another context_exchange");
  plan.context = 4;
  EXPECT_FALSE(trouble_with(plan, model));
  plan.tensor = 2;
  EXPECT_TRUE(trouble_with(plan, model));
  plan.tensor = 1;
  model.qk_norm = true;
  EXPECT_EQ(trouble_with(plan, model).value().key, "context_exchange");
  plan.fused_qkv = false;
  EXPECT_FALSE(trouble_with(plan, model));
  model.window = 16;  // every rank has whole sequences
  EXPECT_FALSE(trouble_with(plan, model));
  plan.context_exchange = ContextExchange::kRing;
  EXPECT_TRUE(trouble_with(plan, model));
}

// Run again, a layer's forward sends again.
TEST(Context, SendsAgainWhatIsRunAgain) {
  for (const ContextExchange how : kBoth) {
    Plan plan = shared(4, how);
    const std::int64_t once = context_bytes(lowered(2, plan)) / 3;
    plan.recompute = Recompute::kFull;
    EXPECT_EQ(context_bytes(lowered(2, plan)), 4 * once);
  }
}

// Every rank does 1 / c of all products and of all scores: the stretches are paired so.
TEST(Context, DividesTheWork) {
  const auto work = [](const Job& job) {
    return std::pair(flops_of<Gemm>(job), flops_of<Attention>(job));
  };
  const auto [products, attention] = work(lowered(2, small_plan(kSequence, kBatch, 1)));
  for (const ContextExchange how : kAny) {
    for (const std::int64_t c : {2, 4}) {
      const auto [part, scores] = work(lowered(2, shared(c, how)));
      EXPECT_DOUBLE_EQ(part * static_cast<double>(c), products);
      EXPECT_DOUBLE_EQ(scores * static_cast<double>(c), attention);
    }
  }
}

// What a layer keeps is 1 / c of what one rank keeps: keys and values of others are not kept.
TEST(Context, DividesWhatALayerKeeps) {
  const auto kept = [](const Plan& plan) {
    const auto peak = [&](std::int64_t layers) {
      Bytes live, most;
      const Job job = lowered(layers, plan);
      for (const Instruction& i :
           job.bodies[static_cast<std::size_t>(job.programs[0].schedule[0].body)].code) {
        if (const auto* a = std::get_if<Alloc>(&i)) {
          live += job.tensors[static_cast<std::size_t>(a->tensor)].bytes();
        }
        if (const auto* f = std::get_if<Free>(&i)) {
          live -= job.tensors[static_cast<std::size_t>(f->tensor)].bytes();
        }
      }
      return live;  // after forward
    };
    return peak(5) - peak(4);
  };
  const Bytes alone = kept(small_plan(kSequence, kBatch, 1));
  for (const ContextExchange how : kBoth) {
    EXPECT_EQ(kept(shared(2, how)) * 2, alone);
    EXPECT_EQ(kept(shared(8, how)) * 8, alone);
  }
}

// Of a ring: the next block is under way before attention on this one begins, in both passes.
TEST(Context, PassesTheNextBlockOnBesideAttention) {
  const Job job = lowered(1, shared(4, ContextExchange::kRing));
  std::map<Phase, std::string> order;
  for (const Body& body : job.bodies) {
    for (const Instruction& i : body.code) {
      if (const auto* c = std::get_if<Collective>(&i);
          c != nullptr && c->stream == Stream::kContext) {
        const std::string& name = job.names[static_cast<std::size_t>(c->label.name)];
        order[c->phase] += name.find("gradient") == std::string::npos ? 's' : 'g';
      }
      const auto* c = std::get_if<Compute>(&i);
      if (c == nullptr) continue;
      const bool attends =
          std::holds_alternative<Attention>(job.ops[static_cast<std::size_t>(c->op)]);
      if (attends) order[c->phase] += 'A';
    }
  }
  EXPECT_EQ(order[Phase::kForward], "sAsAsAA");
  EXPECT_EQ(order[Phase::kBackward], "sAsAgsAgAgsAsAgsAgAg");  // of all micro-batches, of the last
}

// Context ranks hold the same weights: their gradients are summed, and ZeRO shards over them too.
TEST(Context, ShardsTheStateOverContextAndData) {
  for (int zero = 0; zero <= 3; ++zero) {
    Plan data = small_plan(kSequence, kBatch, 1);
    data.data = 8;
    data.global_batch = 8 * kBatch;
    data.zero = zero;
    Plan both = shared(4, ContextExchange::kRing);
    both.data = 2;
    both.global_batch = 2 * kBatch;
    both.zero = zero;
    const Job one = lowered(2, data), other = lowered(2, both);
    EXPECT_EQ(resident_bytes(one, 0), resident_bytes(other, 0)) << zero;
    const auto sent = [](const Job& job) {
      return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kData)];
    };
    EXPECT_EQ(sent(one), sent(other)) << zero;
  }
}

}  // namespace
}  // namespace stepcast
