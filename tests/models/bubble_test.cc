// Bubbles of the schedules, simulated with equal stages and free wires: the published fractions,
// exactly.
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

// A layer's forward takes one unit and its backward two; embedding, loss and optimizer are free.
Prices layer_prices(const Job& job) {
  Prices prices;
  const Duration unit(1'000'000);
  for (const Op& op : job.ops) {
    const bool product = std::holds_alternative<Gemm>(op);
    prices.ops.push_back(product ? unit : Duration());
    prices.basis.push_back(Basis::kDatasheet);
  }
  prices.transfers.assign(job.transfers.size(), Duration());
  return prices;
}

double bubble(PipelineSchedule schedule, std::int64_t p, std::int64_t v, std::int64_t m) {
  Plan plan = small_plan(8, 1, m);
  plan.pipeline = p;
  plan.virtual_stages = v;
  plan.schedule = schedule;
  const Job job = lower(chain_network(2 * p * v, 8, 16, plan), plan);
  EXPECT_EQ(verify(job), "") << p << " " << v << " " << m;
  return simulate(job, layer_prices(job)).bubble_fraction;
}

// (p - 1) / (m + p - 1): 4 stages and 8 micro-batches waste 3 / 11 (Huang et al. 2019).
TEST(Bubble, OfGpipeAnd1f1bIsTheSameFraction) {
  for (std::int64_t p : {1, 2, 4, 7}) {
    for (std::int64_t m : {1, 2, 4, 8, 28}) {
      const double expected = static_cast<double>(p - 1) / static_cast<double>(m + p - 1);
      EXPECT_DOUBLE_EQ(bubble(PipelineSchedule::kGpipe, p, 1, m), expected);
      EXPECT_DOUBLE_EQ(bubble(PipelineSchedule::k1f1b, p, 1, m), expected);
    }
  }
  EXPECT_DOUBLE_EQ(bubble(PipelineSchedule::k1f1b, 4, 1, 8), 3.0 / 11);
}

TEST(Bubble, OfFourStagesFallsBelowATenthAtTwentyEightMicroBatches) {
  EXPECT_GE(bubble(PipelineSchedule::k1f1b, 4, 1, 27), 0.1);
  EXPECT_LT(bubble(PipelineSchedule::k1f1b, 4, 1, 28), 0.1);
}

// The bubble's time is (p - 1) (F + B) / v (Narayanan et al. 2021), so with x = (p - 1) / v its
// share is x / (m + x).
TEST(Bubble, OfInterleavedStagesIsDividedByTheChunks) {
  for (std::int64_t p : {2, 4, 8}) {
    for (std::int64_t v : {2, 3, 4}) {
      for (std::int64_t m : {p, 2 * p, 4 * p}) {
        const double x = static_cast<double>(p - 1) / static_cast<double>(v);
        EXPECT_NEAR(bubble(PipelineSchedule::kInterleaved, p, v, m),
                    x / (static_cast<double>(m) + x), 1e-12)
            << p << " " << v << " " << m;
      }
    }
  }
}

// Any number of micro-batches runs to its end, and interleaving never costs more than 1F1B.
TEST(Bubble, OfInterleavedStagesIsNoLargerWithOddMicroBatches) {
  for (std::int64_t p : {2, 3, 4}) {
    for (std::int64_t m = 1; m <= 3 * p + 1; ++m) {
      EXPECT_LE(bubble(PipelineSchedule::kInterleaved, p, 2, m),
                bubble(PipelineSchedule::k1f1b, p, 1, m) + 1e-12)
          << p << " " << m;
    }
  }
}

}  // namespace
}  // namespace stepcast
