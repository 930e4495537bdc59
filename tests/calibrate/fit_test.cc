#include "calibrate/fit.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

// A wire: t = latency + bytes / bandwidth, 24 sizes from 1 kB to 8 GB.
struct Wire {
  std::vector<double> bytes, measured;

  Wire(double latency, double bandwidth) {
    for (double size = 1e3; bytes.size() < 24; size *= 2) {
      bytes.push_back(size);
      measured.push_back(latency + size / bandwidth);
    }
  }
  Predict predict() const {
    return [this](std::span<const double> p, std::span<double> times) {
      for (std::size_t i = 0; i < times.size(); ++i) times[i] = p[0] + bytes[i] / p[1];
    };
  }
};

const std::vector<Parameter> kWire = {{"latency", 1e-4, 1e-7, 1e-2}, {"bandwidth", 1e9, 1e6, 1e13}};

TEST(Fit, FindsTheParametersThatMadeTheRows) {
  const Wire wire(20e-6, 180e9);
  const Fit result = fit(kWire, wire.measured, wire.predict());
  EXPECT_NEAR(result.values[0] / 20e-6, 1, 0.01);
  EXPECT_NEAR(result.values[1] / 180e9, 1, 0.01);
  EXPECT_LT(result.error.p90_absolute, 0.01);
  EXPECT_EQ(result.left_out.count, wire.bytes.size());
  EXPECT_LT(result.left_out.p90_absolute, 0.01);
}

// One row in eight is three times too slow: a mean would move by 25 %, the parameters hardly do.
TEST(Fit, IsNotPulledByRowsThatAreFarOff) {
  Wire wire(20e-6, 180e9);
  for (std::size_t i = 3; i < wire.measured.size(); i += 8) wire.measured[i] *= 3;
  const Fit result = fit(kWire, wire.measured, wire.predict());
  EXPECT_NEAR(result.values[0] / 20e-6, 1, 0.05);
  EXPECT_NEAR(result.values[1] / 180e9, 1, 0.05);
  EXPECT_LT(result.error.median_absolute, 0.03);
  EXPECT_LT(result.error.bias, -0.05);  // the slow rows are still counted
}

// Twelve parameters for 36 rows of noise fit better than they predict.
TEST(Fit, ShowsOverFittingInTheRowsLeftOut) {
  std::mt19937_64 random(7);
  std::vector<double> measured;
  for (int i = 0; i < 36; ++i) measured.push_back(1 + static_cast<double>(random() % 100) / 200);
  std::vector<Parameter> parameters;
  for (int i = 0; i < 12; ++i) parameters.push_back({"p", 1, 0.1, 10});
  const Fit result = fit(parameters, measured, [](std::span<const double> p, std::span<double> t) {
    for (std::size_t i = 0; i < t.size(); ++i) t[i] = p[i % 12];
  });
  ASSERT_EQ(result.left_out.count, 36u);
  EXPECT_GT(result.left_out.mean_absolute, 1.2 * result.error.mean_absolute);
}

TEST(Fit, LeavesNothingOutWhereRowsAreFew) {
  const Wire wire(20e-6, 180e9);
  const std::span<const double> few(wire.measured.data(), 5);
  EXPECT_EQ(fit(kWire, few, wire.predict()).left_out.count, 0u);
}

// Errors of -10, 0, 20 and 30 %: mean 10, of absolute values 15; the median of them 15, the ninth
// decile at 0.9 x 3 = 2.7: 20 + 0.7 x 10.
TEST(FitError, CountsWhatItSays) {
  const std::vector<double> measured = {1, 1, 1, 1}, predicted = {0.9, 1, 1.2, 1.3};
  const FitError error = fit_error(predicted, measured);
  EXPECT_EQ(error.count, 4u);
  EXPECT_NEAR(error.bias, 0.10, 1e-12);
  EXPECT_NEAR(error.mean_absolute, 0.15, 1e-12);
  EXPECT_NEAR(error.median_absolute, 0.15, 1e-12);
  EXPECT_NEAR(error.p90_absolute, 0.27, 1e-12);
  EXPECT_NEAR(error.median_bias, 0.10, 1e-12);
}

// 20 rows of one source say 2, two of another say 3, two of a third say 3: of the sources, two
// thirds say 3; of the rows, a sixth. Near its minimum the loss is flat, hence 2 %.
TEST(Fit, WeighsSourcesAndNotRows) {
  std::vector<double> measured(20, 2.0);
  std::vector<std::size_t> source_of(20, 0);
  for (std::size_t source : {1U, 1U, 2U, 2U}) {
    measured.push_back(3);
    source_of.push_back(source);
  }
  const Predict constant = [](std::span<const double> p, std::span<double> times) {
    for (double& time : times) time = p[0];
  };
  const SourceFit result = fit_by_source({{"p", 1, 0.1, 10}}, measured, source_of, constant);
  EXPECT_NEAR(result.values[0], 3, 0.06);
  ASSERT_EQ(result.errors.size(), 3U);
  EXPECT_NEAR(result.errors[0].bias, 0.5, 0.04);
  // Without the first, the others say 3, so it is predicted half too slow.
  ASSERT_EQ(result.left_out.size(), 3U);
  EXPECT_NEAR(result.left_out[0].bias, 0.5, 0.04);
  EXPECT_EQ(result.left_out[0].count, 20U);
}

TEST(Fit, HasNothingToLeaveOutOfOneSource) {
  const Wire wire(20e-6, 180e9);
  const std::vector<std::size_t> source_of(wire.bytes.size(), 0);
  const SourceFit result = fit_by_source(kWire, wire.measured, source_of, wire.predict());
  EXPECT_NEAR(result.values[0] / 20e-6, 1, 0.01);
  EXPECT_TRUE(result.left_out.empty());
}

}  // namespace
}  // namespace stepcast
