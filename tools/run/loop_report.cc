// The loop's results for people and programs: a line a plan, all plans together, and of a single
// plan also what makes up its error.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "tools/forecast/table.h"
#include "tools/run/loop.h"

namespace stepcast {

namespace {

std::string signed_share(double share) { return fmt::format("{:+.2f} %", 100 * share); }

std::string interval_text(const Interval& interval) {
  return fmt::format("{:+.2f} to {:+.2f}", 100 * interval.low, 100 * interval.high);
}

Seconds median_step(const LoopPlan& plan) {
  std::vector<double> steps;
  for (const LoopSlice& slice : plan.slices) steps.push_back(slice.measured.value);
  std::sort(steps.begin(), steps.end());
  return Seconds(quantile(steps, 0.5));
}

struct Composed {
  double median = 0, largest = 0;
};
Composed composed(const LoopPlan& plan) {
  std::vector<double> errors = plan.composition;
  std::sort(errors.begin(), errors.end());
  const bool high = std::abs(errors.back()) > std::abs(errors.front());
  return {quantile(errors, 0.5), high ? errors.back() : errors.front()};
}

// Over the plans.
struct Summary {
  double median_absolute = 0, bias = 0, worst = 0;
  int within = 0, beyond = 0, inconclusive = 0;
};

template <class Error>
Summary summarise(const std::vector<LoopPlan>& plans, double tolerance, Error error) {
  Summary summary;
  std::vector<double> absolute;
  for (const LoopPlan& plan : plans) {
    const double e = error(plan);
    absolute.push_back(std::abs(e));
    summary.bias += e / static_cast<double>(plans.size());
    if (std::abs(e) > std::abs(summary.worst)) summary.worst = e;
    switch (plan.verdict(tolerance)) {
      case Verdict::kWithin: ++summary.within; break;
      case Verdict::kBeyond: ++summary.beyond; break;
      case Verdict::kInconclusive: ++summary.inconclusive; break;
    }
  }
  std::sort(absolute.begin(), absolute.end());
  summary.median_absolute = quantile(absolute, 0.5);
  return summary;
}

double total_error(const LoopPlan& plan) { return plan.total().median; }
double kept_error(const LoopPlan& plan) { return plan.kept().median; }
double composition_median(const LoopPlan& plan) { return composed(plan).median; }

std::string cost_table(const LoopPlan& plan) {
  double all = 0;
  for (const KindCost& cost : plan.costs) all += cost.measured.value;
  std::vector<std::vector<std::string>> rows = {
      {"cost of a step, all ranks", "forecast", "measured", "error", "of all", "of the total"}};
  for (const KindCost& cost : plan.costs) {
    const double difference = cost.forecast.value - cost.measured.value;
    const bool some = cost.measured.value > 0;
    rows.push_back({cost.kind, format_seconds(cost.forecast), format_seconds(cost.measured),
                    some ? signed_share(difference / cost.measured.value) : "-",
                    fmt::format("{:.1f} %", 100 * cost.measured.value / all),
                    signed_share(difference / all)});
  }
  return align(rows, "lrrrrr");
}

std::string summary_line(const char* what, const Summary& summary) {
  return fmt::format("{:<12} median |error| {:.2f} %, bias {}, worst {}\n", what,
                     100 * summary.median_absolute, signed_share(summary.bias),
                     signed_share(summary.worst));
}

Json interval_json(const Interval& interval) {
  return {{"relative_error", interval.median}, {"low", interval.low}, {"high", interval.high}};
}

Json summary_json(const Summary& summary) {
  return {{"median_absolute_error", summary.median_absolute},
          {"signed_bias", summary.bias},
          {"worst", summary.worst}};
}

Json plan_json(const LoopPlan& plan, double tolerance) {
  Json costs = Json::array(), slices = Json::array();
  for (const KindCost& cost : plan.costs) {
    costs.push_back({{"kind", cost.kind},
                     {"forecast_seconds", cost.forecast.value},
                     {"measured_seconds", cost.measured.value}});
  }
  for (const LoopSlice& slice : plan.slices) {
    slices.push_back({{"sentinel_seconds", slice.sentinel.value},
                      {"forecast_seconds", slice.forecast.value},
                      {"forecast_of_means_seconds", slice.of_means.value},
                      {"measured_seconds", slice.measured.value}});
  }
  const Composed composition = composed(plan);
  return {{"name", plan.name},
          {"config", plan.config},
          {"ranks", plan.ranks},
          {"threads", plan.threads},
          {"step_seconds", median_step(plan).value},
          {"verdict", verdict_name(plan.verdict(tolerance))},
          {"total", interval_json(plan.total())},
          {"kept", interval_json(plan.kept())},
          {"drift", interval_json(plan.drift())},
          {"composition",
           {{"steps", plan.composition.size()},
            {"relative_error", composition.median},
            {"largest_relative_error", composition.largest}}},
          {"cost", std::move(costs)},
          {"slices", std::move(slices)}};
}

}  // namespace

std::string loop_table(const std::vector<LoopPlan>& plans, double tolerance) {
  std::vector<std::vector<std::string>> rows = {
      {"plan", "step", "total", "95 %", "verdict", "composed", "kept", "drift"}};
  for (const LoopPlan& plan : plans) {
    rows.push_back({plan.name, format_seconds(median_step(plan)), signed_share(plan.total().median),
                    interval_text(plan.total()), std::string(verdict_name(plan.verdict(tolerance))),
                    signed_share(composed(plan).median), signed_share(plan.kept().median),
                    signed_share(plan.drift().median)});
  }
  std::string out = align(rows, "lrrrlrrr") + "\n";
  if (plans.size() == 1) out += cost_table(plans.front()) + "\n";
  const Summary total = summarise(plans, tolerance, total_error);
  out += summary_line("total", total);
  out += summary_line("composition", summarise(plans, tolerance, composition_median));
  out += summary_line("kept profile", summarise(plans, tolerance, kept_error));
  return out + fmt::format("of {} plans {} within {:.3g} %, {} beyond, {} inconclusive\n",
                           plans.size(), total.within, 100 * tolerance, total.beyond,
                           total.inconclusive);
}

Json loop_json(const std::vector<LoopPlan>& plans, double tolerance) {
  const Summary total = summarise(plans, tolerance, total_error);
  Json list = Json::array();
  for (const LoopPlan& plan : plans) list.push_back(plan_json(plan, tolerance));
  return {{"format", "stepcast.loop/1"},
          {"tolerance", tolerance},
          {"summary",
           {{"plans", plans.size()},
            {"within", total.within},
            {"beyond", total.beyond},
            {"inconclusive", total.inconclusive},
            {"total", summary_json(total)},
            {"composition", summary_json(summarise(plans, tolerance, composition_median))},
            {"kept", summary_json(summarise(plans, tolerance, kept_error))}}},
          {"plans", std::move(list)}};
}

}  // namespace stepcast
