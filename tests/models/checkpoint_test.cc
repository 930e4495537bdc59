// Chen et al. 2016 ("Training Deep Nets with Sublinear Memory Cost"): a chain of L equal layers
// with a checkpoint every k keeps L / k inputs and, while one group runs backward, k more.
#include <gtest/gtest.h>

#include <cmath>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kChainTokens = 4096, kWidth = 64;
constexpr std::int64_t kUnit = kChainTokens * kWidth * 2;  // bytes of one layer's input

Plan every(std::int64_t k) {
  Plan plan = small_plan(kChainTokens, 1, 1);
  plan.recompute = Recompute::kFull;
  plan.recompute_every = k;
  return plan;
}

// Activations at the peak, in layer inputs.
double peak_inputs(std::int64_t layers, std::int64_t k) {
  const Plan plan = every(k);
  const Job job = lower(chain_network(layers, kChainTokens, kWidth, plan), plan);
  EXPECT_EQ(verify(job), "");
  const StageMemory memory = account(job).stages[0];
  return static_cast<double>(
             memory.at_peak[static_cast<std::size_t>(Category::kActivations)].count) /
         kUnit;
}

TEST(Checkpoints, ArePlacedBestNearTheSquareRootOfTheDepth) {
  for (std::int64_t layers : {16, 36, 64, 100, 144}) {
    std::int64_t best = 1;
    for (std::int64_t k = 1; k <= layers; ++k) {
      if (peak_inputs(layers, k) < peak_inputs(layers, best)) best = k;
    }
    const double root = std::sqrt(static_cast<double>(layers));
    EXPECT_GE(static_cast<double>(best), 0.6 * root) << layers;
    EXPECT_LE(static_cast<double>(best), 1.7 * root) << layers;
  }
}

// L / k + k at k = sqrt L is 2 sqrt L; the rest is what any backward holds (a few layers' worth).
TEST(Checkpoints, MakeThePeakGrowLikeTheSquareRootOfTheDepth) {
  for (std::int64_t root : {4, 6, 8, 10, 12}) {
    const double peak = peak_inputs(root * root, root);
    EXPECT_GE(peak, 2.0 * static_cast<double>(root) - 1);
    EXPECT_LE(peak, 2.0 * static_cast<double>(root) + 4);
  }
}

// Layers of a chain of 12 that run forward again.
std::int64_t layers_again(const Plan& plan) {
  const Job job = lower(chain_network(12, kChainTokens, kWidth, plan), plan);
  EXPECT_EQ(verify(job), "");
  std::int64_t again = 0;
  for (const Call& call : job.programs[0].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      const auto* compute = std::get_if<Compute>(&i);
      if (compute != nullptr && compute->phase == Phase::kRecompute) ++again;
    }
  }
  return again;
}

// One more forward in all, whatever k is: L recomputed layers.
TEST(Checkpoints, CostOneMoreForward) {
  for (std::int64_t k : {1, 2, 3, 5, 12}) EXPECT_EQ(layers_again(every(k)), 12) << k;
}

// Megatron-LM's --recompute-method block: n layers of a chunk keep their input only, the others
// all that backward needs. Each runs its own forward again and frees what it does not keep.
TEST(Checkpoints, OfTheFirstLayersCostTheirForwardAndFreeTheirActivations) {
  const Model model = gpt_model(12, 32, 4, 96, kChainTokens);
  const auto peak = [&](const Plan& plan) {
    const StageMemory memory = account(lower(transformer(model, plan), plan)).stages[0];
    return memory.at_peak[static_cast<std::size_t>(Category::kActivations)].count;
  };
  const std::int64_t all = peak(every(1));
  Plan plan = every(1);
  plan.recompute = Recompute::kNone;
  std::int64_t before = peak(plan);
  plan.recompute = Recompute::kFull;
  for (const std::int64_t n : {1, 5, 11, 12, 40}) {
    plan.recompute_layers = n;
    EXPECT_EQ(layers_again(plan), std::min<std::int64_t>(n, 12)) << n;
    EXPECT_LE(peak(plan), before) << n;
    before = peak(plan);
  }
  EXPECT_EQ(before, all);
  EXPECT_LT(all, peak(small_plan(kChainTokens, 1, 1)));
}

}  // namespace
}  // namespace stepcast
