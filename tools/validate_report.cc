// Rows and sums as JSON and as tables of at most 100 columns. Launch-bound runs stand apart
// throughout: they would drown what the forecast is made for. Linear in what is written.
#include "tools/validate_report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/table.h"
#include "tools/validate_runs.h"
#include "tools/validate_summary.h"

namespace stepcast {
namespace {

constexpr std::size_t kWorst = 12;     // rows that are shown
constexpr std::size_t kReasons = 40;   // lines of reasons
constexpr int kCutShown = 8;          // plans; smaller cuts are in the JSON

using Cells = std::vector<std::vector<std::string>>;

// -------------------------------------------------------------------------------- what is grouped

bool ordinary_run(const ValidationRow& row) {
  return row.kind == "run" && row.variant != "launch-bound";
}

std::string label_of(const ValidationRow& row) {
  return row.group.empty() ? row.source : row.group;
}

std::vector<ValidationSummary> runs_by_source(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) ? label_of(row) : "";
  });
}

std::vector<ValidationSummary> launch_bound_runs(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return row.kind == "run" && !ordinary_run(row) ? label_of(row) : "";
  });
}

std::vector<ValidationSummary> runs_by_gpu(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) && row.covered ? row.gpu : "";
  });
}

std::vector<ValidationSummary> runs_by_plan(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) && row.covered ? row.run->plan : "";
  });
}

// All runs, launch-bound ones too, by how much work a layer gives each kernel.
std::vector<ValidationSummary> runs_by_work(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) -> std::string {
    if (!row.run) return "";
    const double launches = row.run->layer_launches;
    if (launches < kLayerKernels) return "  0 to 24";
    if (launches < 96) return " 24 to 96";
    if (launches < 384) return " 96 to 384";
    return "384 and more";
  });
}

// Clusters that were set up badly are no evidence of a size.
std::vector<ValidationSummary> collectives_by_size(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) -> std::string {
    if (!row.size || *row.size < 1 || row.variant == "degraded") return "";
    constexpr const char* kDecades[] = {"from 1 B",    "from 10 B",  "from 100 B", "from 1 kB",
                                        "from 10 kB",  "from 100 kB", "from 1 MB",  "from 10 MB",
                                        "from 100 MB", "from 1 GB",   "from 10 GB"};
    const auto decade = static_cast<std::size_t>(std::log10(*row.size) + 1e-9);
    // The index sorts; it is cut off before it is shown.
    return fmt::format("{}\n{:02}\n{}", row.gpu, decade,
                       kDecades[std::min(decade, std::size(kDecades) - 1)]);
  });
}

// A refused plan names its numbers; what is counted is the rule that it breaks.
std::string rule_of(const std::string& reason) {
  if (!reason.starts_with("what-if")) return reason;
  std::string rule;
  for (const char c : reason) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) rule += c;
    if (digit && (rule.empty() || rule.back() != 'N')) rule += 'N';
  }
  return rule;
}

struct Reason {
  std::string kind, what;
  int rows = 0;
};

// The most frequent first.
std::vector<Reason> reasons_of(const std::vector<ValidationRow>& rows) {
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const ValidationRow& row : rows) {
    if (!row.covered) ++counts[{row.kind, rule_of(row.reason)}];
  }
  std::vector<Reason> reasons;
  for (const auto& [key, count] : counts) reasons.push_back({key.first, key.second, count});
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const Reason& a, const Reason& b) { return a.rows > b.rows; });
  return reasons;
}

// ------------------------------------------------------------------------------------------ JSON

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
               {"memory_relative_error", or_null(memory_relative_error(row))}};
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
          {"kendall_tau", or_null(cut.kendall_tau)},
          {"regret", cut.regret},       {"measured_spread", cut.spread}};
}

// ---------------------------------------------------------------------------------------- tables

std::string clipped(const std::string& text, std::size_t columns) {
  return text.size() <= columns ? text : text.substr(0, columns - 2) + "..";
}

// A repository without its owner where both are too long.
std::string short_source(const std::string& source) {
  constexpr std::size_t kColumns = 24;
  const std::size_t slash = source.find('/');
  const bool whole = source.size() <= kColumns || slash == std::string::npos;
  return clipped(whole ? source : source.substr(slash + 1), kColumns);
}

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.1f}", 100 * share); }
std::string tau_text(const std::optional<double>& tau) {
  return tau ? fmt::format("{:.2f}", *tau) : "-";
}

void add_errors(const ErrorSummary& errors, std::vector<std::string>& cells) {
  cells.push_back(fmt::format("{}", errors.count));
  if (errors.count == 0) {
    cells.insert(cells.end(), 5, "-");
    return;
  }
  cells.push_back(percent(errors.mean_absolute));
  cells.push_back(percent(errors.median_absolute));
  cells.push_back(signed_percent(errors.signed_bias));
  cells.push_back(percent(errors.within_5_percent));
  cells.push_back(percent(errors.within_10_percent));
}

// Nothing where no row is covered. `whole`: an order, and a line in which each one weighs the same.
std::string runs_table(const std::string& title, std::vector<ValidationSummary> summaries,
                       bool whole) {
  std::erase_if(summaries, [](const auto& s) { return s.time.count == 0; });
  if (summaries.empty()) return "";
  if (whole && summaries.size() > 1) {
    summaries.push_back(mean_of(summaries));
    summaries.back().name = "each weighs the same";
  }
  Cells cells = {{title, "rows", "timed", "mean %", "med. %", "bias %", "< 5 %", "< 10 %"}};
  if (whole) cells.front().emplace_back("tau");
  for (const ValidationSummary& s : summaries) {
    std::vector<std::string>& line = cells.emplace_back();
    line = {clipped(s.name, 24), fmt::format("{}", s.rows)};
    add_errors(s.time, line);
    if (whole) line.push_back(tau_text(s.kendall_tau));
  }
  return align(cells, "lrrrrrrrr") + "\n";
}

// Of all runs, launch-bound ones too: bytes do not wait for the host.
std::string memory_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"memory of runs", "of", "rows", "mean %", "med. %", "bias %", "< 5 %", "< 10 %"}};
  const auto line = [&](const std::string& name, const std::string& of,
                        const ErrorSummary& errors) {
    if (errors.count == 0) return;
    std::vector<std::string> one = {clipped(name, 24), of};
    add_errors(errors, one);
    cells.push_back(std::move(one));
  };
  const auto by_memory = summarise_by(rows, [](const ValidationRow& row) {
    return row.run && row.measured_bytes ? label_of(row) + "\n" + row.run->memory : "";
  });
  for (const ValidationSummary& s : by_memory) {
    const std::string source = s.name.substr(0, s.name.find('\n'));
    line(source, s.name.substr(s.name.find('\n') + 1), s.memory);
    line(source, "allocated, each stage", s.stages);
    line(source, "between steps", s.resident);
  }
  return cells.size() == 1 ? "" : align(cells, "llrrrrrr") + "\n";
}

std::string shares_table(const std::vector<ValidationSummary>& summaries) {
  Cells cells = {{"predicted step, shares %", "compute", "recomp.", "bubble", "tensor", "pipe",
                  "data", "optim.", "other"}};
  constexpr Part kShown[] = {Part::kCompute,  Part::kRecompute, Part::kBubble,    Part::kTensor,
                             Part::kPipeline, Part::kData,      Part::kOptimizer, Part::kOther};
  for (const ValidationSummary& s : summaries) {
    if (s.time.count == 0) continue;
    std::vector<std::string>& line = cells.emplace_back();
    line.push_back(clipped(s.name, 24));
    for (const Part part : kShown) line.push_back(percent(s.parts[static_cast<std::size_t>(part)]));
  }
  return cells.size() == 1 ? "" : align(cells, "lrrrrrrrr") + "\n";
}

std::string cuts_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"plans for the same work", "source", "plans", "spread", "tau", "regret %"}};
  for (const CutSummary& cut : summarise_cuts(rows)) {
    if (cut.count < kCutShown || cut.launch_bound) continue;
    cells.push_back({clipped(cut.name, 44), clipped(cut.source, 20), fmt::format("{}", cut.count),
                     fmt::format("{:.1f}x", cut.spread), tau_text(cut.kendall_tau),
                     percent(cut.regret)});
  }
  return cells.size() == 1 ? "" : align(cells, "llrrrr") + "\n";
}

std::string kernels_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"source", "GPU", "kind", "rows", "mean %", "med. %", "bias %", "< 5 %",
                  "< 10 %"}};
  const auto line = [&](const ValidationSummary& s, std::string source, const std::string& kind) {
    std::vector<std::string> one = {std::move(source), clipped(s.gpu, 16), clipped(kind, 21)};
    add_errors(s.time, one);
    cells.push_back(std::move(one));
  };
  for (const ValidationSummary& s : summarise(rows)) {
    if (s.time.count == 0 || s.kind == "run") continue;
    line(s, short_source(s.source), s.variant.empty() ? s.kind : s.kind + " " + s.variant);
  }
  const auto kinds = summarise_by(rows, [](const ValidationRow& row) {
    return row.covered && row.kind != "run" && row.variant != "degraded" ? row.kind : "";
  });
  for (const ValidationSummary& s : kinds) line(s, "all but degraded", s.name);
  return cells.size() == 1 ? "" : align(cells, "lllrrrrrr") + "\n";
}

// "H200\n08\nfrom 100 MB" in its parts.
std::pair<std::string, std::string> gpu_and_size(const std::string& name) {
  return {name.substr(0, name.find('\n')), name.substr(name.rfind('\n') + 1)};
}

std::string sizes_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"collectives", "size", "rows", "mean %", "med. %", "p90 %", "bias %"}};
  for (const ValidationSummary& s : collectives_by_size(rows)) {
    if (s.time.count == 0) continue;
    const auto [gpu, size] = gpu_and_size(s.name);
    cells.push_back({clipped(gpu, 24), size, fmt::format("{}", s.time.count),
                     percent(s.time.mean_absolute), percent(s.time.median_absolute),
                     percent(s.time.p90_absolute), signed_percent(s.time.signed_bias)});
  }
  return cells.size() == 1 ? "" : align(cells, "llrrrrr") + "\n";
}

std::vector<const ValidationRow*> worst_of(const std::vector<ValidationRow>& rows, bool runs) {
  std::vector<const ValidationRow*> worst;
  for (const ValidationRow& row : rows) {
    const bool wanted = runs ? ordinary_run(row) : row.kind != "run";
    if (row.covered && wanted && relative_error(row)) worst.push_back(&row);
  }
  // A factor too fast is as bad as the same factor too slow.
  const auto badness = [](const ValidationRow* row) {
    return std::abs(std::log(*row->predicted_seconds / *row->measured_seconds));
  };
  std::stable_sort(worst.begin(), worst.end(),
                   [&](const auto* a, const auto* b) { return badness(a) > badness(b); });
  if (worst.size() > kWorst) worst.resize(kWorst);
  return worst;
}

std::string worst_runs_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"worst runs", "plan", "forecast", "measured", "err. %", "comp", "rec", "bub",
                  "tens", "pipe", "data", "opt", "oth"}};
  for (const ValidationRow* row : worst_of(rows, true)) {
    const std::array<double, kParts>& seconds = row->run->seconds;
    const auto share = [&](Part part) {
      return fmt::format("{:.0f}",
                         100 * seconds[static_cast<std::size_t>(part)] / *row->predicted_seconds);
    };
    cells.push_back({clipped(row->id, 26), clipped(row->run->plan, 13),
                     format_seconds(Seconds(*row->predicted_seconds)),
                     format_seconds(Seconds(*row->measured_seconds)),
                     fmt::format("{:+.0f}", 100 * *relative_error(*row)), share(Part::kCompute),
                     share(Part::kRecompute), share(Part::kBubble), share(Part::kTensor),
                     share(Part::kPipeline), share(Part::kData), share(Part::kOptimizer),
                     share(Part::kOther)});
  }
  return cells.size() == 1 ? "" : align(cells, "llrrrrrrrrrrr") + "\n";
}

std::string worst_kernels_table(const std::vector<ValidationRow>& rows) {
  Cells cells = {{"worst rows", "predicted", "measured", "error %"}};
  for (const ValidationRow* row : worst_of(rows, false)) {
    cells.push_back({clipped(row->id, 60), format_seconds(Seconds(*row->predicted_seconds)),
                     format_seconds(Seconds(*row->measured_seconds)),
                     signed_percent(*relative_error(*row))});
  }
  return cells.size() == 1 ? "" : align(cells, "lrrr") + "\n";
}

std::string uncovered_table(const std::vector<ValidationRow>& rows) {
  const std::vector<Reason> reasons = reasons_of(rows);
  if (reasons.empty()) return "";
  Cells cells = {{"not covered", "rows", "because"}};
  int rest = 0;
  for (const Reason& reason : reasons) {
    if (cells.size() > kReasons) {
      rest += reason.rows;
      continue;
    }
    cells.push_back({clipped(reason.kind.empty() ? "-" : reason.kind, 20),
                     fmt::format("{}", reason.rows), clipped(reason.what, 70)});
  }
  if (rest > 0) cells.push_back({"", fmt::format("{}", rest), "other reasons, see --json"});
  return align(cells, "lrl");
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
  json["by_work"] = named_json(runs_by_work(rows));
  json["by_gpu"] = named_json(runs_by_gpu(rows));
  json["by_plan"] = named_json(runs_by_plan(rows));
  json["overall"] = sums_json(mean_of(sources));
  json["collectives_by_size"] = Json::array();
  for (const ValidationSummary& s : collectives_by_size(rows)) {
    const auto [gpu, size] = gpu_and_size(s.name);
    Json one = {{"gpu", gpu}, {"size", size}};
    one.update(errors_json(s.time));
    json["collectives_by_size"].push_back(std::move(one));
  }
  json["cuts"] = Json::array();
  for (const CutSummary& cut : summarise_cuts(rows)) json["cuts"].push_back(cut_json(cut));
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
  return fmt::format("{} row{}, {} of them covered; errors are predicted / measured - 1\n\n",
                     rows.size(), rows.size() == 1 ? "" : "s", covered) +
         runs_table("training runs", sources, true) +
         runs_table("by GPU", runs_by_gpu(rows), false) +
         runs_table("by plan", runs_by_plan(rows), false) +
         runs_table("launch-bound runs", launch_bound_runs(rows), false) +
         runs_table("a layer, in launches", runs_by_work(rows), false) + memory_table(rows) +
         cuts_table(rows) + shares_table(sources) + worst_runs_table(rows) + kernels_table(rows) +
         sizes_table(rows) +
         worst_kernels_table(rows) + uncovered_table(rows);
}

}  // namespace stepcast
