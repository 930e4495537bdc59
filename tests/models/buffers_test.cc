// What a framework keeps beside the training state, against sizes worked out by hand.
#include "models/buffers.h"

#include <utility>

#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

// Heads of 8, two of four with keys and values: qkv (64, 32), proj (32, 32), fc1 (192, 32),
// fc2 (32, 96) are 12,288 elements a layer.
const Model kModel = llama_model(4, 32, 4, 2, 96, 128);
constexpr std::int64_t kMatrices = 64 * 32 + 32 * 32 + 192 * 32 + 32 * 96;
constexpr std::int64_t kHead = 128 * 32;

// Bytes that rest on a stage beyond what the plan without buffers has there.
std::int64_t kept(const Plan& plan, std::size_t stage, const Model& model = kModel) {
  Plan bare = plan;
  bare.weight_gradient_placeholders = bare.gather_buffer = bare.score_buffer = false;
  bare.kernel_workspace = Bytes(0);
  const Job with = lower(transformer(model, plan), plan);
  const Job without = lower(transformer(model, bare), bare);
  EXPECT_EQ(verify(with), "");
  const StageMemory more = account(with).stages[stage], less = account(without).stages[stage];
  EXPECT_EQ(more.peak - less.peak, more.resident - less.resident);
  return (more.resident - less.resident).count;
}

TEST(Buffers, HoldAPlaceholderOfEachShapeHoweverManyLayersThereAre) {
  Plan plan = small_plan(16, 1, 1);
  plan.weight_gradient_placeholders = true;
  EXPECT_EQ(kept(plan, 0), 2 * (kMatrices + kHead));
  plan.eight_bit.scaling = Scaling::kTensor;  // products read copies, gradients are the matrices'
  EXPECT_EQ(kept(plan, 0), 2 * (kMatrices + kHead));
  plan.eight_bit.scaling = Scaling::kNone;
  plan.tensor = 2;
  EXPECT_EQ(kept(plan, 0), kMatrices + kHead);
  plan.compute = Dtype::kFp32;
  plan.gradients = Dtype::kFp32;
  EXPECT_EQ(kept(plan, 0), 2 * (kMatrices + kHead));
  plan = small_plan(16, 1, 2);
  plan.weight_gradient_placeholders = true;
  plan.pipeline = 2;
  EXPECT_EQ(kept(plan, 0), 2 * kMatrices);
  EXPECT_EQ(kept(plan, 1), 2 * (kMatrices + kHead));
}

// Transformer Engine keeps one of each shape, and every expert's product has that of one. With
// experts of 24: fc1 (48, 32), fc2 (32, 24) and the router (4, 32). What the two ranks gather, 32
// tokens of 32, has a buffer in turn.
TEST(Buffers, HoldForExpertsWhatOneOfThemTakes) {
  Model model = kModel;
  model.experts = 4;
  model.experts_per_token = 2;
  model.expert_ffn = 24;
  Plan plan = small_plan(16, 1, 1);
  plan.expert = plan.data = 2;
  plan.global_batch = 2;
  plan.weight_gradient_placeholders = true;
  const std::int64_t matrices = 64 * 32 + 32 * 32 + 48 * 32 + 32 * 24 + 4 * 32;
  EXPECT_EQ(kept(plan, 0, model), 2 * (matrices + kHead));
  plan.weight_gradient_placeholders = false;
  plan.gather_buffer = true;
  EXPECT_EQ(kept(plan, 0, model), 0);
  plan.expert_exchange = ExpertExchange::kAllGather;
  EXPECT_EQ(kept(plan, 0, model), 2 * 16 * 32 * 2);
}

// 16 tokens of 32 in bf16, where the head is.
TEST(Buffers, HoldTheHeadsGatheredInputOnTheLastStage) {
  Plan plan = small_plan(16, 1, 2);
  plan.gather_buffer = true;
  plan.pipeline = 2;
  EXPECT_EQ(kept(plan, 1), 0);
  plan.tensor = 2;
  EXPECT_EQ(kept(plan, 1), 0);  // without sequence parallelism nothing is gathered
  plan.sequence_parallel = true;
  EXPECT_EQ(kept(plan, 0), 0);
  EXPECT_EQ(kept(plan, 1), 16 * 32 * 2);
}

TEST(Buffers, HoldAWorkspaceOnEveryStage) {
  Plan plan = small_plan(16, 1, 2);
  plan.pipeline = 2;
  plan.kernel_workspace = Bytes(1 << 20);
  EXPECT_EQ(kept(plan, 0), 1 << 20);
  EXPECT_EQ(kept(plan, 1), 1 << 20);
}

// 4 heads of 16 x 16 scores of each of two sequences; tensor ranks have half of the heads. Fused
// attention has no scores. Under sequence parallelism the head's gathered input takes turns with
// them in the same buffer: of 8 tokens 8 x 32 against 2 x 8 x 8.
TEST(Buffers, HoldOneBufferForScoresAndTheHeadsGatheredInput) {
  Plan plan = small_plan(16, 2, 1);
  plan.score_buffer = true;
  EXPECT_EQ(kept(plan, 0), 0);
  plan.fused_attention = false;
  EXPECT_EQ(kept(plan, 0), 2 * 4 * 16 * 16 * 2);
  plan.tensor = 2;
  EXPECT_EQ(kept(plan, 0), 2 * 2 * 16 * 16 * 2);
  plan = small_plan(8, 1, 2);
  plan.score_buffer = plan.gather_buffer = true;
  plan.fused_attention = false;
  plan.tensor = plan.pipeline = 2;
  plan.sequence_parallel = true;
  EXPECT_EQ(kept(plan, 0), 2 * 8 * 8 * 2);
  EXPECT_EQ(kept(plan, 1), 8 * 32 * 2);
}

// A micro-batch of 16 tokens leaves 16 x 128 gradients of logits and 16 x 32 inputs in bf16. Of
// four micro-batches each backward holds its own; three at most come on top.
TEST(Buffers, HoldWhatTheHeadDefersToTheEndOfTheStep) {
  Plan plan = small_plan(16, 1, 4);
  plan.pipeline = 2;
  const StageMemory bare = account(lower(transformer(kModel, plan), plan)).stages[1];
  for (const auto& [deferred, kept] : {std::pair{1, 1}, {3, 3}, {4, 3}, {9, 3}}) {
    plan.deferred_head = deferred;
    const Job job = lower(transformer(kModel, plan), plan);
    EXPECT_EQ(verify(job), "");
    const StageMemory memory = account(job).stages[1];
    EXPECT_EQ((memory.peak - bare.peak).count, kept * 16 * (128 + 32) * 2);
    EXPECT_EQ(memory.resident, bare.resident);
  }
}

// 16 tokens of 128 logits: with fp32 probabilities and a gradient in bf16; with a copy in fp32 and
// its gradient besides; with that of the probabilities, too; or alone.
TEST(Buffers, HoldOfTheLogitsWhatTheLossKeeps) {
  Plan plan = small_plan(16, 1, 1);
  const auto logits = [](const Plan& p) {
    const Job job = lower(transformer(kModel, p), p);
    EXPECT_EQ(verify(job), "");
    std::int64_t bytes = 0;
    for (const Tensor& tensor : job.tensors) {
      const bool wide = tensor.shape.rank == 2 && tensor.shape.sizes[0] == 16 &&
                        tensor.shape.sizes[1] == 128;
      if (wide) bytes += tensor.bytes().count;
    }
    return bytes;
  };
  EXPECT_EQ(logits(plan), 16 * 128 * (2 + 4 + 2));
  plan.loss = CrossEntropy::kMegatronFused;
  EXPECT_EQ(logits(plan), 16 * 128 * (2 + 4 + 4 + 4 + 2));
  plan.loss = CrossEntropy::kTorch;
  EXPECT_EQ(logits(plan), 16 * 128 * (2 + 4 + 4 + 4 + 4 + 2));
  plan.loss = CrossEntropy::kTransformerEngine;
  EXPECT_EQ(logits(plan), 16 * 128 * 2);
}

// Whoever calls the loss holds the logits of which it makes a copy: they go behind its last kernel
// of forward, not behind the copy.
TEST(Buffers, HoldTheCopiedLogitsUntilTheLossIsThere) {
  Plan plan = small_plan(16, 1, 1);
  plan.loss = CrossEntropy::kMegatronFused;
  const Job job = lower(transformer(kModel, plan), plan);
  int seen = 0;
  for (const Body& body : job.bodies) {
    bool there = false;
    for (const Instruction& instruction : body.code) {
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        const auto* loss = std::get_if<Loss>(&job.ops[static_cast<std::size_t>(compute->op)]);
        if (loss != nullptr) there = loss->part == LossPart::kFinish;
      }
      const auto* free = std::get_if<Free>(&instruction);
      if (free == nullptr) continue;
      const Tensor& tensor = job.tensors[static_cast<std::size_t>(free->tensor)];
      if (job.names[static_cast<std::size_t>(tensor.label.name)] != "head.logits") continue;
      EXPECT_TRUE(there);
      ++seen;
    }
  }
  EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace stepcast
