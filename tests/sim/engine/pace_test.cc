// Which device sets a step's pace: by hand where a closed form exists, else by drawing devices.
#include "sim/engine/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "sim/cost/cost.h"
#include "tests/support/kernel_costs.h"

namespace stepcast {
namespace {

// A step of `layers[s]` products in stage s.
Job stages_of(const std::vector<int>& layers, int tensor) {
  Job job;
  job.mesh.degree(Axis::kTensor) = tensor;
  job.mesh.degree(Axis::kPipeline) = static_cast<int>(layers.size());
  job.ops = {Gemm{8192, 8192, 8192}};
  Body body;
  body.code.push_back(Compute{0, {}, {}, Phase::kForward});
  job.bodies = {body};
  for (const int count : layers) {
    Program program;
    program.schedule.assign(static_cast<std::size_t>(count), Call{0, 0, 0});
    job.programs.push_back(program);
  }
  return job;
}

Device spread_device() {
  Device device = plain_device();
  device.spread = 0.02;
  return device;
}

TEST(Pace, IsThatOfTheSlowestOfAllWhereStagesHaveTheSameWork) {
  const Device device = spread_device();
  EXPECT_DOUBLE_EQ(pace_deviate(stages_of({48}, 8), device), highest_of(8));
  EXPECT_NEAR(pace_deviate(stages_of({3, 3, 3, 3}, 8), device), highest_of(32), 1e-9);
  Device equal = device;
  equal.spread = 0;
  EXPECT_DOUBLE_EQ(pace_deviate(stages_of({3, 4}, 8), equal), highest_of(16));
}

// A stage with a third more to do: the slowest of its own eight, not that of 256.
TEST(Pace, IsThatOfItsOwnSlowestWhereAStageHasMuchMore) {
  std::vector<int> layers(32, 3);
  layers.back() = 4;
  EXPECT_NEAR(pace_deviate(stages_of(layers, 8), spread_device()), highest_of(8), 0.03);
  EXPECT_NEAR(pace_deviate(stages_of({0, 4}, 8), spread_device()), highest_of(8), 0.03);
  std::reverse(layers.begin(), layers.end());
  EXPECT_NEAR(pace_deviate(stages_of(layers, 8), spread_device()), highest_of(8), 0.03);
}

// Between the two: against the median of the slowest stage's time over 4,000 clusters drawn.
TEST(Pace, IsWhatDrawnClustersShowWhereAStageHasALittleMore) {
  const Device device = spread_device();
  std::vector<int> layers(15, 48);
  layers.push_back(50);  // two standard deviations
  const int tensor = 4;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> periods;
  for (int cluster = 0; cluster < 4000; ++cluster) {
    double period = 0;
    for (const int work : layers) {
      double slowest = -10;
      for (int rank = 0; rank < tensor; ++rank) slowest = std::max(slowest, normal(random));
      period = std::max(period, work * (1 + device.spread * slowest));
    }
    periods.push_back(period);
  }
  std::nth_element(periods.begin(), periods.begin() + 2000, periods.end());
  const double period = 50 * (1 + device.spread * pace_deviate(stages_of(layers, tensor), device));
  EXPECT_NEAR(period / periods[2000], 1, 0.002);
  EXPECT_LT(period, 50 * (1 + device.spread * highest_of(64)));
  EXPECT_GT(period, 50 * (1 + device.spread * highest_of(4)));
}

}  // namespace
}  // namespace stepcast
