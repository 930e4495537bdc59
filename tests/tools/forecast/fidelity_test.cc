#include "tools/forecast/fidelity.h"

#include <gmock/gmock.h>

#include "tests/tools/small_whatif.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

// What simulate takes its range from lies in the repository, with every device that has runs.
TEST(ErrorClasses, AreShipped) {
  const std::vector<ErrorClass> classes = shipped_error_classes();
  ASSERT_NE(nearest_class(classes, "h100-sxm", "pipeline"), nullptr);
  EXPECT_EQ(nearest_class(classes, "h100-sxm", "pipeline")->device, "h100-sxm");
  EXPECT_EQ(nearest_class(classes, "mi300x", "pipeline")->device, "");
}

// predicted / measured - 1 = e, so a run that was forecast as t was measured as t / (1 + e).
TEST(Forecast, TakesItsRangeFromTheNearestClass) {
  const WhatIf what_if = small_what_if();
  ForecastOptions options;
  ErrorClass all;
  all.runs = 20;
  all.sources = 3;
  all.low = -0.2;
  all.high = 0.25;
  options.errors = {all};
  all.kind = plan_kind(what_if.model, what_if.plan, what_if.cluster.device);
  options.errors.push_back(all);
  const Report report = forecast(what_if, options).report;
  const double step = to_seconds(report.timeline.step).value;
  EXPECT_NEAR(report.low.value, step / 1.25, 1e-12);
  EXPECT_NEAR(report.high.value, step / 0.8, 1e-12);
  EXPECT_THAT(report.range_from, HasSubstr("20 published runs (3 sources)"));
}

TEST(Forecast, StaysInItsRangeWhereAllErrOnOneSide) {
  const WhatIf what_if = small_what_if();
  ForecastOptions options;
  ErrorClass fast;
  fast.runs = fast.sources = 1;
  fast.kind = plan_kind(what_if.model, what_if.plan, what_if.cluster.device);
  fast.low = -0.5;
  fast.high = -0.2;
  options.errors = {fast};
  const Report report = forecast(what_if, options).report;
  const double step = to_seconds(report.timeline.step).value;
  EXPECT_DOUBLE_EQ(report.low.value, step);
  EXPECT_NEAR(report.high.value, step / 0.5, 1e-12);
}

TEST(Forecast, HasNoRangeWithoutPublishedRuns) {
  const Report report = forecast(small_what_if()).report;
  EXPECT_EQ(report.low, to_seconds(report.timeline.step));
  EXPECT_EQ(report.high, to_seconds(report.timeline.step));
  EXPECT_EQ(report.range_from, "no published runs");
}

}  // namespace
}  // namespace stepcast
