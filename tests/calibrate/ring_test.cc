// The ring: a small Job that verifies, trains, and does all the distinct work of the plan's own.
#include <cmath>
#include <cstdint>
#include <exception>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "calibrate/catalog.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

std::set<std::string> texts(const Job& job) {
  Catalog catalog;
  catalog.add(job);
  std::set<std::string> out;
  for (const WorkKey& key : catalog.keys()) out.insert(to_text(key));
  return out;
}

struct Pair {
  Model model;
  Plan plan;
  Job full, ring;
};

Pair pair_of(const Model& model, const Plan& plan, std::int64_t rounds) {
  check_plan(plan, model);
  const Plan small = ring_plan(plan);
  return {model, plan, lower(transformer(model, plan), plan),
          lower_ring(transformer(model, small), plan, rounds)};
}

std::string of(const Plan& plan) { return write_plan(plan).dump(); }

// A legal plan of up to 8 ranks, with whatever changes its instructions.
Plan random_plan(const Model& model, std::mt19937& random) {
  const auto pick = [&](std::vector<std::int64_t> of) {
    return of[std::uniform_int_distribution<std::size_t>(0, of.size() - 1)(random)];
  };
  for (;;) {
    Plan plan = executable_plan(8, 1);
    plan.tensor = pick({1, 1, 2});
    plan.sequence_parallel = plan.tensor > 1 && pick({0, 1}) == 1;
    plan.data = pick({1, 2, 4});
    plan.pipeline = pick({1, 1, 2, 3});
    if (plan.ranks() > 8) continue;
    if (plan.pipeline > 1) plan.virtual_stages = pick({1, 1, 2});
    plan.schedule = plan.virtual_stages > 1 ? PipelineSchedule::kInterleaved
                    : pick({0, 1}) == 1     ? PipelineSchedule::kGpipe
                                            : PipelineSchedule::k1f1b;
    plan.layout = plan.virtual_stages > 1 ? StageLayout::kEven : StageLayout::kBalanced;
    plan.zero = static_cast<int>(pick({0, 1, 2, 3}));
    plan.overlap = pick({0, 1, 1}) == 1;
    plan.prefetch = pick({0, 1, 3});
    plan.bucket = Bytes(pick({2000, 20'000, 200'000'000}));
    plan.reshard_after_forward = pick({0, 1}) == 1;
    if (plan.zero > 0 && plan.data == 4) plan.shard_group = pick({0, 2});
    plan.micro_batch = pick({1, 2});
    plan.global_batch = plan.micro_batch * plan.data * pick({1, 2, 3, 4, 7});
    plan.fused_attention = pick({0, 1, 1}) == 1;
    plan.clip_gradients = pick({0, 1, 1}) == 1;
    plan.recompute = static_cast<Recompute>(pick({0, 1, 1, 2, 3}));
    if (plan.recompute == Recompute::kFull) plan.recompute_every = pick({1, 2, 3});
    if (plan.recompute == Recompute::kModules) plan.recompute_modules = {"norm", "mlp"};
    if (!trouble_alone(plan) && !trouble_with(plan, model)) return plan;
  }
}

TEST(Ring, HoldsTheSameDistinctWorkAsThePlanAndVerifies) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::int64_t layers = 1 + static_cast<std::int64_t>(random() % 13);
    Model model =
        i % 2 == 0 ? gpt_model(layers, 16, 4, 61, 12) : llama_model(layers, 16, 4, 2, 24, 61);
    if (i % 6 == 1) model.qk_norm = model.tied_embeddings = true;
    Plan plan;
    try {
      plan = random_plan(model, random);
    } catch (const std::exception&) {
      continue;
    }
    const std::int64_t rounds = 1 + i % 3;
    Pair pair;
    try {
      pair = pair_of(model, plan, rounds);
    } catch (const Error&) {
      continue;  // fewer layers than parts
    }
    ASSERT_EQ(verify(pair.ring), "") << layers << " layers, " << of(plan);
    ASSERT_EQ(texts(pair.ring), texts(pair.full)) << layers << " layers, " << of(plan);
    EXPECT_EQ(pair.ring.mesh, pair.full.mesh);
    // What lives between steps is the plan's own.
    EXPECT_EQ(resident_bytes(pair.ring, 0), resident_bytes(pair.full, 0)) << of(plan);
  }
}

// Work of one kernel a layer: with 12 layers and 4 micro-batches 48 times forward in a step, in a
// round of the ring 3 x 2 times.
TEST(Ring, PassesTwoLayersAMicroBatch) {
  Plan plan = executable_plan(8, 4);
  const Pair pair = pair_of(llama_model(12, 16, 4, 2, 24, 61), plan, 1);
  const auto rotations = [](const Job& job) {
    Catalog catalog;
    catalog.add(job);
    std::int64_t count = 0;
    for (std::size_t i = 0; i < catalog.keys().size(); ++i) {
      const auto* kernel = std::get_if<KernelKey>(&catalog.keys()[i]);
      const auto* op = kernel == nullptr ? nullptr : std::get_if<Pointwise>(&kernel->op);
      if (op != nullptr && op->kind == PointwiseKind::kRotary) count += catalog.instances(i);
    }
    return count;
  };
  EXPECT_EQ(rotations(pair.full), 48);
  EXPECT_EQ(rotations(pair.ring), 6);
  EXPECT_EQ(pair.ring.batch.micro_batches, 3);
}

// The weights' turn comes round: over three rounds of three micro-batches every layer of six is
// passed.
TEST(Ring, MovesOnFromRoundToRound) {
  const Pair pair = pair_of(llama_model(8, 16, 4, 2, 24, 61), executable_plan(8, 4), 4);
  const auto layers_of = [&](const Call& call) {
    std::set<int> layers;
    for (const Instruction& i : pair.ring.bodies[static_cast<std::size_t>(call.body)].code) {
      const auto* compute = std::get_if<Compute>(&i);
      if (compute != nullptr && compute->label.layer >= 0) layers.insert(compute->label.layer);
    }
    return layers;
  };
  std::vector<std::set<int>> forward;
  for (const Call& call : pair.ring.programs[0].schedule) {
    const Body& body = pair.ring.bodies[static_cast<std::size_t>(call.body)];
    if (body.phase == Phase::kForward) forward.push_back(layers_of(call));
  }
  ASSERT_EQ(forward.size(), 12u);
  EXPECT_EQ(forward[0], (std::set{0, 1}));
  EXPECT_EQ(forward[1], (std::set{2, 3}));
  EXPECT_EQ(forward[2], (std::set{4, 5}));
  EXPECT_EQ(forward[3], (std::set{2, 3}));
  EXPECT_EQ(forward[5], (std::set{6, 7}));
  EXPECT_EQ(forward[8], (std::set{0, 1}));
}

TEST(Ring, Executes) {
  std::mt19937 random(8);
  for (int i = 0; i < 12; ++i) {
    const Model model = i % 2 == 0 ? gpt_model(6, 16, 4, 61, 12) : llama_model(6, 16, 4, 2, 24, 61);
    const Plan plan = random_plan(model, random);
    const Pair pair = pair_of(model, plan, 2);
    const std::vector<RankRun> runs = train(pair.ring, train_options(3));
    for (const double loss : runs[0].losses) EXPECT_TRUE(std::isfinite(loss)) << of(plan);
  }
}

}  // namespace
}  // namespace stepcast
