#include "tools/import/fit_runs.h"

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tests/support/shipped.h"
#include "tools/base/files.h"
#include "tools/validate/runs.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

Device device() { return load_device(find_config("devices", "h100-sxm", "test")); }

// A run of one source on 8 devices; `measured` seconds.
Json run(const std::string& group, int hidden, int micro, double measured, int sequence = 4096,
         const std::string& precision = "bf16") {
  return {{"id", "r"},
          {"group", group},
          {"model",
           {{"name", "m"},
            {"layers", 4},
            {"hidden", hidden},
            {"heads", hidden / 128},
            {"kv_heads", hidden / 128},
            {"ffn_hidden", hidden * 8 / 3},
            {"gated_mlp", true},
            {"vocab", 32000},
            {"seq_len", sequence},
            {"tied_embeddings", false}}},
          {"hardware", {{"gpu", "H100-80GB-SXM"}, {"gpus_per_node", 8}, {"gpus_total", 8}}},
          {"software", {{"framework", "torchtitan"}, {"precision", precision}}},
          {"parallel",
           {{"tp", 1},
            {"pp", 1},
            {"dp", 8},
            {"zero_stage", 3},
            {"micro_batch", micro},
            {"global_batch", 8 * micro}}},
          {"recompute", "none"},
          {"measured", {{"step_time_s", measured}}}};
}

// Of some 4,096 tokens a device and more, that takes as long as the forecast says.
Json forecast_run(const std::string& group, int hidden, int sequence,
                  const std::string& precision, RunForecasts& known) {
  Json row = run(group, hidden, 1 + 32768 / sequence / 8, 1, sequence, precision);
  const ValidationRow forecast = validate_row(row, "", shipped(), known);
  EXPECT_TRUE(forecast.covered) << forecast.reason;
  row["measured"]["step_time_s"] = forecast.predicted_seconds.value();
  return row;
}

// Two sources of four runs, made by the forecast itself, lead back to its numbers from elsewhere.
// Sequences of 1,024 and of 32,768 tell products from attention, narrow and wide layers
// products from what memory bounds.
TEST(FitRuns, FindsTheDeviceThatMadeTheRuns) {
  std::vector<Json> rows;
  RunForecasts known;
  for (const char* group : {"a", "b"}) {
    for (const int hidden : {2560, 8192}) {
      for (const int sequence : {1024, 32768}) {
        rows.push_back(forecast_run(group, hidden, sequence, "bf16", known));
      }
    }
  }
  Device start = device();
  const double efficiency = start.kernels.matrix.efficiency;
  const double rested = efficiency * start.kernels.matrix.burst;
  start.kernels.matrix.efficiency *= 0.8;
  start.kernels.matrix.burst /= 0.8;
  const double sustained = start.kernels.usual().sustained;
  for (auto& [name, attention] : start.kernels.attention) attention.sustained = 0.85;
  const FittedRuns fitted = fit_runs(start, rows, shipped());
  const MatrixKernels& matrix = fitted.device.kernels.matrix;
  EXPECT_NEAR(matrix.efficiency / efficiency, 1, 0.02);
  EXPECT_NEAR(matrix.burst * matrix.efficiency / rested, 1, 0.01);
  EXPECT_NEAR(fitted.device.kernels.usual().sustained, sustained, 0.02);
  ASSERT_EQ(fitted.residuals.size(), 2U);
  EXPECT_EQ(fitted.residuals[0].rows, "runs a");
  EXPECT_EQ(fitted.residuals[0].count, 4);
  EXPECT_EQ(fitted.residuals[0].left_out_count, 4);
  EXPECT_LT(fitted.residuals[0].mean_absolute_error, 0.02);
}

// Where products in 8 bits are among them, their share is found, too.
TEST(FitRuns, FindsTheRateOfEightBits) {
  std::vector<Json> rows;
  RunForecasts known;
  for (const int hidden : {3072, 12288}) {
    for (const int sequence : {1024, 32768}) {
      for (const char* precision : {"bf16", "fp8 tensorwise"}) {
        rows.push_back(forecast_run("a", hidden, sequence, precision, known));
      }
    }
  }
  Device start = device();
  const double share = start.kernels.matrix.fp8_sustained;
  start.kernels.matrix.fp8_sustained = 1;
  const FittedRuns fitted = fit_runs(start, rows, shipped());
  EXPECT_THAT(fitted.numbers, testing::Contains("matrix.fp8_sustained"));
  EXPECT_NEAR(fitted.device.kernels.matrix.fp8_sustained / share, 1, 0.02);
}

// What is held stays, and the other numbers are found as if it were known.
TEST(FitRuns, HoldsWhatItIsTold) {
  std::vector<Json> rows;
  RunForecasts known;
  for (const int hidden : {2560, 8192}) {
    for (const int sequence : {1024, 8192}) {
      rows.push_back(forecast_run("a", hidden, sequence, "bf16", known));
    }
  }
  Device start = device();
  const double efficiency = start.kernels.matrix.efficiency;
  start.kernels.matrix.efficiency *= 0.8;
  const FittedRuns fitted =
      fit_runs(start, rows, shipped(), 16, {"memory", "attention.sustained"});
  EXPECT_THAT(fitted.numbers, testing::ElementsAre("matrix.efficiency"));
  EXPECT_NEAR(fitted.device.kernels.matrix.efficiency / efficiency, 1, 0.002);
  EXPECT_EQ(fitted.device.kernels.memory, start.kernels.memory);
  EXPECT_EQ(fitted.device.kernels.usual().sustained, start.kernels.usual().sustained);
  start.kernels.memory *= 0.9;  // held where it is wrong, so products have to make up for it
  const FittedRuns wrong =
      fit_runs(start, rows, shipped(), 16, {"memory", "attention.sustained"});
  EXPECT_EQ(wrong.device.kernels.memory, start.kernels.memory);
  EXPECT_GT(wrong.device.kernels.matrix.efficiency / efficiency, 1.01);

  EXPECT_THROW(fit_runs(start, rows, shipped(), 16, {"memori"}), Error);
  EXPECT_THROW(fit_runs(start, rows, shipped(), 16,
                        {"matrix.efficiency", "memory", "attention.sustained"}),
               Error);
}

// Whatever they say: configs/published/causes.json has a cause for MaxText's.
TEST(FitRuns, LeavesOutRunsOfAKnownCause) {
  std::vector<Json> rows;
  RunForecasts known;
  for (const char* group : {"a", "b"}) {
    for (const int sequence : {1024, 2048, 4096, 8192}) {
      rows.push_back(forecast_run(group, 8192, sequence, "bf16", known));
      if (group[0] == 'a') continue;
      rows.back()["software"]["framework"] = "maxtext 2024";
      const ValidationRow mapped = validate_row(rows.back(), "", shipped(), known);
      EXPECT_TRUE(mapped.covered && mapped.variant.empty()) << mapped.reason;
    }
  }
  EXPECT_THAT(fit_runs(device(), rows, shipped()).sources, testing::ElementsAre("a"));
}

TEST(FitRuns, TakesNoMoreOfASourceThanItIsTold) {
  std::vector<Json> rows;
  RunForecasts known;
  for (const int hidden : {2560, 4096}) {
    for (const int sequence : {1024, 2048, 4096, 8192}) {
      rows.push_back(forecast_run("a", hidden, sequence, "bf16", known));
    }
  }
  EXPECT_EQ(fit_runs(device(), rows, shipped(), 5).residuals.at(0).count, 5);
  EXPECT_EQ(fit_runs(device(), rows, shipped()).residuals.at(0).count, 8);
}

TEST(FitRuns, LeavesOutSourcesOfFewRowsAndSaysIfNoneIsLeft) {
  std::vector<Json> rows;
  for (int i = 0; i < 3; ++i) rows.push_back(run("a", 4096, 1 + i, 1));
  EXPECT_THROW(fit_runs(device(), rows, shipped()), Error);
}

}  // namespace
}  // namespace stepcast
