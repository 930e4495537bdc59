// Rows and sums as JSON, and all tables one after the other. Linear in what is written.
#include "tools/validate/report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tools/forecast/table.h"
#include "tools/validate/summary.h"
#include "tools/validate/tables.h"

namespace stepcast {
namespace {

constexpr std::size_t kReasons = 40;   // lines of reasons

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json parts_json(const std::array<double, kParts>& parts) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kParts; ++i) {
    json[std::string(part_name(static_cast<Part>(i)))] = parts[i];
  }
  return json;
}

Json run_json(const RunDetails& run) {
  Json stages = Json::array();
  for (const StageBytes& stage : run.stages) {
    stages.push_back({{"stage", stage.stage},
                      {"predicted_bytes", stage.predicted},
                      {"measured_bytes", stage.measured}});
  }
  return {{"plan", run.plan},
          {"layer_launches", run.layer_launches},
          {"memory_share", run.memory_share},
          {"cut", run.cut_name},
          {"breakdown_seconds", parts_json(run.seconds)},
          {"memory", run.memory},
          {"memory_stages", std::move(stages)},
          {"predicted_resident_bytes", or_null(run.predicted_resident)},
          {"measured_resident_bytes", or_null(run.measured_resident)},
          {"what_if", run.what_if}};
}

Json row_json(const ValidationRow& row) {
  Json json = {{"id", row.id},
               {"source", row.source},
               {"group", row.group},
               {"kind", row.kind},
               {"variant", row.variant},
               {"gpu", row.gpu},
               {"covered", row.covered},
               {"reason", row.reason},
               {"assumed", row.assumed},
               {"predicted_seconds", or_null(row.predicted_seconds)},
               {"measured_seconds", or_null(row.measured_seconds)},
               {"relative_error", or_null(relative_error(row))},
               {"predicted_bytes", or_null(row.predicted_bytes)},
               {"measured_bytes", or_null(row.measured_bytes)},
               {"memory_relative_error", or_null(memory_relative_error(row))},
               {"cause", row.cause}};
  if (row.run) json["run"] = run_json(*row.run);
  return json;
}

// Errors are null where no row has one: 0 would read as perfect.
Json errors_json(const ErrorSummary& errors) {
  const auto of_any = [&](double value) { return errors.count > 0 ? Json(value) : Json(nullptr); };
  return {{"count", errors.count},
          {"mean_absolute_error", of_any(errors.mean_absolute)},
          {"median_absolute_error", of_any(errors.median_absolute)},
          {"p90_absolute_error", of_any(errors.p90_absolute)},
          {"signed_bias", of_any(errors.signed_bias)},
          {"within_5_percent", of_any(errors.within_5_percent)},
          {"within_10_percent", of_any(errors.within_10_percent)}};
}

// Times on top, memory below.
Json sums_json(const ValidationSummary& s) {
  Json json = {{"rows", s.rows}};
  json.update(errors_json(s.time));
  json["kendall_tau"] = or_null(s.kendall_tau);
  json["memory"] = errors_json(s.memory);
  json["resident_memory"] = errors_json(s.resident);
  json["memory_by_stage"] = errors_json(s.stages);
  return json;
}

Json summary_json(const ValidationSummary& s) {
  Json json = {{"source", s.source},
               {"group", s.group},
               {"gpu", s.gpu},
               {"kind", s.kind},
               {"variant", s.variant}};
  json.update(sums_json(s));
  return json;
}

Json named_json(const std::vector<ValidationSummary>& summaries) {
  Json list = Json::array();
  for (const ValidationSummary& s : summaries) {
    Json json = {{"name", s.name}};
    json.update(sums_json(s));
    json["breakdown_shares"] = parts_json(s.parts);
    list.push_back(std::move(json));
  }
  return list;
}

Json cut_json(const CutSummary& cut) {
  return {{"source", cut.source},       {"name", cut.name},
          {"launch_bound", cut.launch_bound}, {"plans", cut.count},
          {"kendall_tau", or_null(cut.kendall_tau)}, {"tau_of_good_forecasts", cut.tau_of_good},
          {"regret", cut.regret},       {"measured_spread", cut.spread},
          {"best_at", cut.best_at}};
}

}  // namespace

Json validation_json(const std::vector<ValidationRow>& rows) {
  Json json = {{"format", "stepcast.validation/1"},
               {"rows", Json::array()},
               {"summary", Json::array()}};
  for (const ValidationRow& row : rows) json["rows"].push_back(row_json(row));
  for (const ValidationSummary& one : summarise(rows)) {
    json["summary"].push_back(summary_json(one));
  }
  std::vector<ValidationSummary> sources = runs_by_source(rows);
  json["by_source"] = named_json(sources);
  json["launch_bound"] = named_json(launch_bound_runs(rows));
  json["unsteady"] = named_json(unsteady_runs(rows));
  json["by_work"] = named_json(runs_by_work(rows));
  json["by_gpu"] = named_json(runs_by_gpu(rows));
  json["by_plan"] = named_json(runs_by_plan(rows));
  json["overall"] = sums_json(mean_of(sources));
  json["overall_unseen"] = sums_json(mean_of(unseen(sources)));  // by any fit
  json["collectives_by_size"] = Json::array();
  for (const ValidationSummary& s : collectives_by_size(rows)) {
    const auto [gpu, size] = gpu_and_size(s.name);
    Json one = {{"gpu", gpu}, {"size", size}};
    one.update(errors_json(s.time));
    json["collectives_by_size"].push_back(std::move(one));
  }
  json["cuts"] = Json::array();
  for (const CutSummary& cut : summarise_cuts(rows)) json["cuts"].push_back(cut_json(cut));
  json["misses"] = Json::array();
  for (const MissSummary& miss : misses_of(rows)) {
    json["misses"].push_back({{"cause", miss.cause},
                              {"too_fast", miss.too_fast},
                              {"too_slow", miss.too_slow},
                              {"sources", miss.sources}});
  }
  json["uncovered"] = Json::array();
  for (const Reason& reason : reasons_of(rows)) {
    json["uncovered"].push_back(
        {{"kind", reason.kind}, {"reason", reason.what}, {"rows", reason.rows}});
  }
  return json;
}

std::string validation_table(const std::vector<ValidationRow>& rows) {
  const auto covered = std::count_if(rows.begin(), rows.end(),
                                     [](const ValidationRow& row) { return row.covered; });
  const std::vector<ValidationSummary> sources = runs_by_source(rows);
  std::string text =
      fmt::format("{} row{}, {} of them covered; errors are predicted / measured - 1\n",
                  rows.size(), rows.size() == 1 ? "" : "s", covered);
  for (const ReportTable& table :
       {runs_table("training runs", sources, true), runs_table("by GPU", runs_by_gpu(rows), false),
        runs_table("by plan", runs_by_plan(rows), false),
        runs_table("launch-bound runs", launch_bound_runs(rows), false),
        runs_table("unsteady runs", unsteady_runs(rows), false),
        runs_table("a layer, in launches", runs_by_work(rows), false), memory_table(rows),
        cuts_table(rows), shares_table(sources), misses_table(rows), worst_runs_table(rows),
        kernels_table(rows), sizes_table(rows), worst_kernels_table(rows),
        uncovered_table(rows, kReasons)}) {
    if (!table.empty()) text += "\n" + align(table.cells, table.left);
  }
  return text;
}

}  // namespace stepcast
