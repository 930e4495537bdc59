// The report as JSON: every number that the table shows, and the counts that it sums up.
#include "tools/search/report.h"

#include <algorithm>

#include "models/model.h"

namespace stepcast {
namespace {

Json training_json(const SearchReport& report, const RankedPlan& plan) {
  const std::optional<Training> whole = training(report, plan);
  if (!whole) return Json();
  return Json{{"seconds", whole->seconds},
              {"device_hours", whole->device_hours},
              {"price", report.price ? Json(*report.price * whole->device_hours) : Json()}};
}

Json plan_json(const SearchReport& report, const RankedPlan& plan) {
  std::vector<std::string> sets = report.sets;
  sets.insert(sets.end(), plan.sets.begin(), plan.sets.end());
  Json json{{"rank", plan.rank > 0 ? Json(plan.rank) : Json()},
            {"devices", plan.devices},
            {"sets", std::move(sets)}};
  for (const char* section : {"batch", "parallel", "sharding", "recompute"}) {
    json[section] = plan.config.at(section);
  }
  json["step"] = {{"seconds", to_seconds(plan.step).value},
                  {"seconds_low", plan.low.value},
                  {"seconds_high", plan.high.value},
                  {"range_from", plan.range_from},
                  {"tokens_per_second_per_device", plan.tokens_per_second_per_device},
                  {"mfu", plan.mfu},
                  {"bubble_fraction", plan.bubble_fraction}};
  json["memory"] = {{"device_total_bytes", plan.peak.count},
                    {"fits", plan.peak <= report.findings.limit}};
  json["device_seconds"] = plan.device_seconds();
  json["training"] = training_json(report, plan);
  json["pareto"] = plan.pareto;
  json["tie"] = plan.tie;
  return json;
}

Json plans_json(const SearchReport& report, const std::vector<RankedPlan>& plans) {
  Json json = Json::array();
  for (const RankedPlan& plan : plans) json.push_back(plan_json(report, plan));
  return json;
}

}  // namespace

std::optional<Training> training(const SearchReport& report, const RankedPlan& plan) {
  if (report.common.tokens <= 0) return std::nullopt;
  const double steps = report.common.tokens / (static_cast<double>(report.global_batch) *
                                               static_cast<double>(report.sequence_length));
  return Training{steps * to_seconds(plan.step).value, steps * plan.device_seconds() / 3600};
}

Json search_json(const SearchReport& report) {
  const Findings& findings = report.findings;
  Json json{{"format", "stepcast.search/1"},
            {"name", report.common.name},
            {"config", report.config},
            {"sets", report.sets}};
  json["work"] = {
      {"model", report.common.model.name},
      {"parameters", parameters(report.common.model)},
      {"device", report.common.cluster.device.name},
      {"global_batch", report.global_batch},
      {"sequence_length", report.sequence_length},
      {"training_tokens", report.common.tokens > 0 ? Json(report.common.tokens) : Json()}};
  json["given"] = Json::object();
  for (const Choice& choice : report.given) json["given"][choice.key] = choice.values;
  json["capacity_bytes"] = findings.capacity.count;
  json["limit_bytes"] = findings.limit.count;
  json["counts"] = {{"candidates", findings.candidates},
                    {"refused", findings.refused},
                    {"too_large", findings.too_large},
                    {"simulated", findings.simulated},
                    {"fit", findings.fit},
                    {"too_fragmented", findings.too_fragmented},
                    {"not_needed", findings.not_needed}};
  json["refusals"] = Json::array();
  for (const Refusal& refusal : findings.refusals) {
    json["refusals"].push_back(
        {{"key", refusal.key}, {"count", refusal.count}, {"example", refusal.example}});
  }
  json["plans"] = plans_json(report, findings.plans);
  json["nearest"] = plans_json(report, findings.nearest);
  json["own"] = report.own ? plan_json(report, *report.own) : Json();
  return json;
}

bool is_welcome(const SearchReport& report) {
  const std::vector<RankedPlan>& plans = report.findings.plans;
  return std::any_of(plans.begin(), plans.end(), [&](const RankedPlan& plan) {
    return !report.common.expect_step_time ||
           to_seconds(plan.step) <= *report.common.expect_step_time;
  });
}

}  // namespace stepcast
