// Deterministic runs: which tensors are filled, counted by hand, and that nothing else changes.
#include "models/fill.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

using ::testing::ElementsAre;

constexpr std::uint16_t kEverything = 2 * kFilledMessage - 1;

bool is_fill(const Job& job, const Instruction& i) {
  const auto* compute = std::get_if<Compute>(&i);
  if (compute == nullptr || compute->phase == Phase::kOptimizer) return false;
  const auto* op = std::get_if<Pointwise>(&job.ops[static_cast<std::size_t>(compute->op)]);
  return op != nullptr && op->kind == PointwiseKind::kFill;
}

// Names of what is filled in the bodies of a phase, of the first layer or outside of layers, in the
// order of the text.
std::vector<std::string> filled(const Job& job, Phase phase) {
  std::vector<std::string> names;
  const auto body = std::find_if(job.bodies.begin(), job.bodies.end(),
                                 [&](const Body& b) { return b.phase == phase; });
  for (const Instruction& i : body->code) {
    if (!is_fill(job, i)) continue;
    const auto& compute = std::get<Compute>(i);
    if (compute.label.layer > 0) continue;
    const auto first = static_cast<std::size_t>(compute.operands.first);
    const Tensor& tensor = job.tensors[static_cast<std::size_t>(body->operands[first])];
    EXPECT_EQ(compute.operands.reads, 0);
    EXPECT_EQ(compute.operands.writes, 1);
    names.push_back(job.names[static_cast<std::size_t>(tensor.label.name)]);
  }
  return names;
}

Plan deterministic_plan(std::uint16_t what) {
  Plan plan = small_plan(16, 1, 1);
  plan.deterministic = true;
  plan.filled = what;
  return plan;
}

Job llama(const Plan& plan) {
  return lower(transformer(llama_model(2, 32, 4, 2, 96, 128), plan), plan);
}

TEST(Fill, WritesOnlyWhatTheFrameworkMakesUninitialised) {
  EXPECT_THAT(filled(llama(deterministic_plan(kFilledProduct)), Phase::kForward),
              ElementsAre("qkv.out", "proj.out", "fc1.out", "fc2.out"));
  EXPECT_THAT(filled(llama(deterministic_plan(kFilledNorm)), Phase::kForward),
              ElementsAre("norm1.out", "norm1.statistics", "norm2.out", "norm2.statistics",
                          "final_norm.out", "final_norm.statistics"));
  EXPECT_THAT(filled(llama(deterministic_plan(kFilledAttention)), Phase::kForward),
              ElementsAre("attention.out", "attention.lse"));
  Plan off = deterministic_plan(kEverything);
  off.deterministic = false;
  EXPECT_TRUE(filled(llama(off), Phase::kForward).empty());
}

// The loss in fp32 has a copy of the logits and, backward, their gradient; the statistics of their
// rows are reductions, which PyTorch does not fill.
TEST(Fill, WritesTheLossesTensorsOfTheLogitsSize) {
  Plan plan = deterministic_plan(kFilledLoss);
  plan.loss = CrossEntropy::kMegatron;
  const Job job = llama(plan);
  EXPECT_EQ(filled(job, Phase::kForward).size(), 1u);
  EXPECT_EQ(filled(job, Phase::kBackward).size(), 1u);
  plan.loss = CrossEntropy::kTransformerEngine;  // works in the logits
  EXPECT_TRUE(filled(llama(plan), Phase::kForward).empty());
  plan.loss = CrossEntropy::kTorch;  // structured kernels; the zeros of backward are its own
  EXPECT_TRUE(filled(llama(plan), Phase::kForward).empty());
  EXPECT_EQ(filled(llama(plan), Phase::kBackward).size(), 1u);
}

// Backward: an input's gradient of each of four products; the norms' and attention's.
TEST(Fill, WritesGradientsBeforeTheyAreMade) {
  const auto count = [](std::uint16_t what) {
    return filled(llama(deterministic_plan(what)), Phase::kBackward).size();
  };
  EXPECT_EQ(count(kFilledProduct), 4u);
  EXPECT_EQ(count(kFilledNorm), 3u);
  EXPECT_EQ(count(kFilledAttention), 1u);
  EXPECT_EQ(count(kFilledSoftmax | kFilledDropout), 0u);
}

// Softmax and dropout of the scores, dropout's gradient; not the products, nor dropout's mask.
TEST(Fill, WritesTheScoresOfUnfusedAttentionThatAreNotProducts) {
  Plan plan = deterministic_plan(kFilledSoftmax | kFilledDropout);
  plan.fused_attention = false;
  plan.dropout = true;
  EXPECT_THAT(filled(llama(plan), Phase::kForward),
              ElementsAre("attention.softmax", "attention.dropout"));
  EXPECT_EQ(filled(llama(plan), Phase::kBackward).size(), 1u);
}

// What two stages of two tensor ranks exchange is filled by compute before others write to it.
TEST(Fill, ComesBeforeAMessageOrAnExchangeArrives) {
  Plan plan = deterministic_plan(kFilledExchange | kFilledMessage);
  plan.tensor = plan.pipeline = 2;
  plan.sequence_parallel = true;
  plan.global_batch = 4;
  const Job job = llama(plan);
  EXPECT_EQ(verify(job), "");
  std::set<std::string> all;
  for (const Body& body : job.bodies) {
    for (const Instruction& i : body.code) {
      if (!is_fill(job, i)) continue;
      all.insert(job.names[static_cast<std::size_t>(std::get<Compute>(i).label.name)]);
    }
  }
  EXPECT_TRUE(all.contains("receive.fill"));
  EXPECT_TRUE(all.contains("proj.reduce.fill") && all.contains("fc1.gather.fill"));
}

// Only backward's sums over blocks of keys have an order; forward's op stays what it is.
TEST(Fill, GoesWithAttentionThatAddsUpInOneOrder) {
  const Job job = llama(deterministic_plan(kFilledNone));
  int backward = 0;
  for (const Op& op : job.ops) {
    const auto* a = std::get_if<Attention>(&op);
    if (a == nullptr) continue;
    EXPECT_EQ(a->deterministic, a->pass == Pass::kBackward);
    backward += a->pass == Pass::kBackward ? 1 : 0;
  }
  EXPECT_EQ(backward, 1);
}

TEST(Fill, TakesNoMemoryAndSendsNothing) {
  Plan plan = deterministic_plan(kEverything);
  plan.tensor = plan.pipeline = 2;
  plan.global_batch = 4;
  plan.recompute = Recompute::kFull;
  const Job with = llama(plan);
  plan.deterministic = false;
  const Job without = llama(plan);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(account(with).stages[stage].peak, account(without).stages[stage].peak);
  }
  EXPECT_EQ(count_traffic(with).stages, count_traffic(without).stages);
}

TEST(Fill, WritesAllOfATensorInOneKernel) {
  const Pointwise fill = fill_of({2, 3, 5}, Dtype::kFp32);
  EXPECT_EQ(fill.rows, 6);
  EXPECT_EQ(fill.columns, 5);
  EXPECT_EQ(traffic(Op(fill)), Bytes(2 * 3 * 5 * 4));
}

}  // namespace
}  // namespace stepcast
