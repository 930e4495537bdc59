// A report's figures are read with their limits: nothing that cannot be enters a comparison.
#include "tools/compare/judge.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "sim/base/json_text.h"

namespace stepcast {
namespace {

constexpr double kStepMost = 1e12;
constexpr double kStepLeast = 1e-12;                   // a picosecond, the resolution of a report
constexpr double kRateMost = 1e15;                     // tokens a second

double required(const Object& object, std::string_view key, double least, double most) {
  object.at(key);
  return object.number(key, 0, least, most);
}

Object required_object(const Object& object, std::string_view key) {
  object.at(key);
  return object.object(key);
}

std::vector<double> step_times(const Object& root) {
  const std::size_t count = root.array_size("step_seconds");
  if (count == 0) root.fail("step_seconds", "has no step");
  const Json& values = root.at("step_seconds");
  std::vector<double> steps;
  for (std::size_t i = 0; i < count; ++i) {
    const Json& value = values[i];
    const double seconds = value.is_number() ? value.get<double>() : 0;
    if (!(seconds >= kStepLeast && seconds <= kStepMost)) {
      root.fail("step_seconds", fmt::format("step {} must be a number of seconds above 0, is {}",
                                            i + 1, shortened(value.dump())));
    }
    steps.push_back(seconds);
  }
  return steps;
}

void read_steps(const Object& root, ReportFigures& figures) {
  const std::vector<double> steps = step_times(root);
  const double reported = figures.step;
  figures.step = median_of({steps.begin() + (steps.size() >= 2 ? 1 : 0), steps.end()});
  figures.rate *= reported / figures.step;
  if (steps.size() < 2) return;  // one step says nothing about how still the machine was
  figures.spread = spread_of({steps.begin() + (steps.size() >= 3 ? 1 : 0), steps.end()});
}

}  // namespace

void check_report_format(const Object& root) {
  constexpr const char* kWriters =
      "`stepcast simulate --json` and `stepcast execute --json` write "
      "reports";
  if (!root.has("format")) {
    root.fail("format", fmt::format("is missing, so this is no report; {}", kWriters));
  }
  const std::string format = root.string("format");
  if (format == "stepcast.report/1") return;
  if (format.starts_with("stepcast.report/")) {
    root.fail("format", fmt::format("this program reads stepcast.report/1, not {}; write the "
                                    "report again with it",
                                    shortened(format)));
  }
  root.fail("format", fmt::format("\"{}\" is no report; {}", shortened(format), kWriters));
}

double spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (quantile(values, 0.75) - quantile(values, 0.25)) / quantile(values, 0.5);
}

ReportFigures read_report_figures(const Document& report) {
  const Object root(report);
  ReportFigures figures;
  const Object step = required_object(root, "step");
  figures.step = required(step, "seconds", kStepLeast, kStepMost);
  figures.bubble = required(step, "bubble_fraction", 0, 1);
  figures.rate = required(step, "tokens_per_second_per_device", 0, kRateMost);

  const Object breakdown = required_object(root, "breakdown_seconds");
  for (std::size_t i = 0; i < kParts; ++i) {
    figures.parts[i] = required(breakdown, part_name(static_cast<Part>(i)), 0, kStepMost);
    figures.parts_sum += figures.parts[i];
  }
  breakdown.done();  // a part that nobody compares would pass unseen

  figures.peak = required_object(root, "memory").integer("allocated_peak_bytes", kReportBytes);
  const Object sent = required_object(required_object(root, "traffic"), "sent_bytes_per_device");
  for (const Axis axis : kReportAxes) {
    figures.sent[static_cast<std::size_t>(axis)] = sent.integer(axis_name(axis), kReportBytes);
  }
  sent.done();
  if (root.has("step_seconds")) read_steps(root, figures);
  return figures;
}

std::string percent_text(double share) {
  const double percent = 100 * share;
  return std::abs(percent) < 1000 ? fmt::format("{:.3g} %", percent)
                                  : fmt::format("{:.0f} %", percent);
}

Metric make_metric(std::string name, std::string label, Metric::Unit unit, double predicted,
                   double measured) {
  Metric result;
  result.name = std::move(name);
  result.label = std::move(label);
  result.unit = unit;
  result.predicted = predicted;
  result.measured = measured;
  const double error = predicted / measured - 1;
  if (measured != 0 && std::isfinite(error)) result.error = error;
  return result;
}

// What is exactly at the tolerance is within: 1.05 against 1 must not hang on the last bit.
void judge(Metric& metric, double tolerance) {
  constexpr double kRounding = 1e-9;
  const bool near = metric.error && std::abs(*metric.error) <= tolerance + kRounding;
  if (metric.predicted == metric.measured || near) {
    metric.verdict = Verdict::kWithin;
    return;
  }
  metric.verdict = Verdict::kBeyond;
  const bool time = metric.unit == Metric::Unit::kSeconds;
  if (!metric.error) {
    metric.message = "the forecast has it, the measurement has none; refresh the baseline";
  } else if (*metric.error > 0) {
    metric.message = fmt::format("predicted {} {}; if that is an improvement, refresh the baseline",
                                 percent_text(*metric.error), time ? "too slow" : "too much");
  } else {
    metric.message = fmt::format("predicted {} {}: a regression, or a forecast that is wrong",
                                 percent_text(-*metric.error), time ? "too fast" : "too little");
  }
}

void judge_step(Metric& step, const Comparison& comparison) {
  const double tolerance = comparison.tolerance;
  const double predicted = comparison.predicted_spread.value_or(0);
  const double measured = comparison.measured_spread.value_or(0);
  if (std::max(predicted, measured) <= tolerance) {
    judge(step, tolerance);
    return;
  }
  step.verdict = Verdict::kInconclusive;
  step.message =
      fmt::format("the steps of {} spread by {}, over {}: the machine was not still; run longer",
                  measured >= predicted ? comparison.measured : comparison.predicted,
                  percent_text(std::max(predicted, measured)), percent_text(tolerance));
}

void conclude(Comparison& comparison) {
  for (const Metric& metric : comparison.metrics) {
    comparison.verdict = std::max(comparison.verdict, metric.verdict.value_or(Verdict::kWithin));
  }
}

std::string utf8_text(const std::string& text) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  return Json::parse(Json(text).dump(-1, ' ', false, kReplace)).get<std::string>();
}

}  // namespace stepcast
