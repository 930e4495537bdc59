// The loop: its statistics by hand, and the whole of it on a small plan, on this machine.
#include "tools/run/loop.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shell.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

// Two slices of each ratio.
LoopPlan plan_of(const std::vector<double>& ratios) {
  LoopPlan plan;
  plan.name = "a plan";
  plan.composition = {0.001, -0.004, 0.002};
  for (int twice = 0; twice < 2; ++twice) {
    for (const double ratio : ratios) {
      plan.slices.push_back({Seconds(0.011), Seconds(ratio), Seconds(1), Seconds(ratio)});
    }
  }
  plan.costs = {{"gemm", Seconds(0.95), Seconds(0.9)}, {"norm", Seconds(0.1), Seconds(0.1)}};
  plan.kept_forecast = Seconds(0.9);
  plan.kept_sentinel = Seconds(0.01);
  return plan;
}

TEST(Bootstrap, OfEqualValuesIsThatValue) {
  const std::vector<double> values(7, 0.25);
  const Interval interval = bootstrap_median(values);
  EXPECT_EQ(interval.median, 0.25);
  EXPECT_EQ(interval.half_width(), 0);
}

// Of n values, the median of a sample is below the r-th smallest with the probability that more
// than half of n draws are: for 15 evenly spaced values 95 % of the medians are four places each
// way at most.
TEST(Bootstrap, IsAsWideAsTheOrderStatisticsSay) {
  std::vector<double> values;
  for (int i = 0; i < 15; ++i) values.push_back(i);
  const Interval interval = bootstrap_median(values);
  EXPECT_EQ(interval.median, 7);
  EXPECT_NEAR(interval.low, 3, 1);
  EXPECT_NEAR(interval.high, 11, 1);
  EXPECT_EQ(bootstrap_median(values).low, interval.low);  // the same seed
}

TEST(Loop, JudgesTheMedianOfTheRatios) {
  EXPECT_EQ(plan_of({1.01, 1.02, 1.02}).verdict(0.04), Verdict::kWithin);
  EXPECT_EQ(plan_of({1.05, 1.06, 1.06}).verdict(0.04), Verdict::kBeyond);
  EXPECT_EQ(plan_of({0.94, 0.95, 0.95}).verdict(0.04), Verdict::kBeyond);
  EXPECT_EQ(plan_of({0.8, 1.0, 1.2}).verdict(0.04), Verdict::kInconclusive);
  EXPECT_EQ(plan_of({1, 1}).verdict(0.04), Verdict::kInconclusive);  // of four slices
  EXPECT_NEAR(plan_of({1.01, 1.02, 1.02}).total().median, 0.02, 1e-12);
  EXPECT_NEAR(plan_of({1, 1, 1}).kept().median, -0.1, 1e-12);
  EXPECT_NEAR(plan_of({1, 1, 1}).drift().median, 0.1, 1e-12);
}

TEST(Loop, SaysWhatEachErrorIs) {
  const std::string one = loop_table({plan_of({1.01, 1.01, 1.01})}, 0.04);
  EXPECT_THAT(one, HasSubstr("+1.00 %"));
  EXPECT_THAT(one, HasSubstr("+5.56 %"));  // gemm: 0.95 for 0.9
  EXPECT_THAT(one, HasSubstr("+5.00 %"));  // which is 0.05 of 1
  EXPECT_THAT(one, HasSubstr("of 1 plans 1 within 4 %, 0 beyond, 0 inconclusive"));
  const std::string two =
      loop_table({plan_of({1.01, 1.01, 1.01}), plan_of({0.97, 0.97, 0.97})}, 0.02);
  EXPECT_THAT(two, HasSubstr("median |error| 2.00 %, bias -1.00 %, worst -3.00 %"));
  EXPECT_THAT(two, HasSubstr("of 2 plans 1 within 2 %, 1 beyond, 0 inconclusive"));
}

TEST(Loop, WritesTheSameAsJson) {
  const Json json = loop_json({plan_of({1.01, 1.01, 1.01}), plan_of({0.8, 1.0, 1.2})}, 0.04);
  EXPECT_EQ(json["format"], "stepcast.loop/1");
  EXPECT_EQ(json["summary"]["plans"], 2);
  EXPECT_EQ(json["summary"]["inconclusive"], 1);
  EXPECT_EQ(json["plans"][0]["verdict"], "within");
  EXPECT_EQ(json["plans"][0]["slices"].size(), 6u);
  EXPECT_EQ(json["plans"][0]["cost"][0]["kind"], "gemm");
  EXPECT_NEAR(json["plans"][0]["composition"]["relative_error"].get<double>(), 0.001, 1e-12);
  EXPECT_NEAR(json["plans"][0]["composition"]["largest_relative_error"].get<double>(), -0.004,
              1e-12);
}

const std::string kSmall =
    "configs/loop/gpt-h256.json --set model.hidden=128 --set model.vocabulary=512 "
    "--set batch.sequence_length=64 ";

// The gate of a machine that others share: a plan may be inconclusive, which is counted, but three
// times in a row beyond 8 % is a forecast that is wrong.
TEST(Loop, ForecastsASmallPlanWithinEightPercent) {
  int inconclusive = 0;
  Json json;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Outcome outcome =
        run_shell(binary() + "loop " + kSmall + "--slices 9 --tolerance 8% --json - 2>/dev/null");
    ASSERT_LE(outcome.code, 1) << outcome.text;
    json = Json::parse(outcome.text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << outcome.text;
    const std::string verdict = json["plans"][0]["verdict"];
    EXPECT_EQ(outcome.code, verdict == "within" ? 0 : 1);
    inconclusive += verdict == "inconclusive" ? 1 : 0;
    if (verdict == "within") break;
  }
  std::fprintf(stderr, "loop: %s, inconclusive %d times; total %+.2f %%\n",
               json["plans"][0]["verdict"].get<std::string>().c_str(), inconclusive,
               100 * json["plans"][0]["total"]["relative_error"].get<double>());
  RecordProperty("inconclusive", inconclusive);
  EXPECT_NE(json["plans"][0]["verdict"], "beyond") << json["plans"][0].dump(2);
  // One rank waits for nobody.
  EXPECT_EQ(json["plans"][0]["composition"]["largest_relative_error"], 0.0);
}

TEST(Loop, SaysWhatIsWrong) {
  const auto trouble = [](const std::string& arguments) {
    const Outcome outcome = run_shell(binary() + "loop " + arguments + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.code, 2) << arguments;
    return outcome.text;
  };
  EXPECT_THAT(trouble("nowhere.json"), HasSubstr("nowhere.json"));
  EXPECT_THAT(trouble(kSmall + "--slices 0"), HasSubstr("--slices"));
  EXPECT_THAT(trouble(kSmall + "--tolerance x"), HasSubstr("--tolerance"));
  EXPECT_THAT(trouble("configs/loop/gpt-h256.json --set cluster=cpu-1x64 --set parallel.data=64 "
                      "--set batch.global=64"),
              HasSubstr("64 ranks would take turns on"));
}

}  // namespace
}  // namespace stepcast
