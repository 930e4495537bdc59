// Cells of at most 100 columns a line. Launch-bound runs stand apart throughout: they would drown
// what the forecast is made for. Linear in what is written.
#include "tools/validate/tables.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "sim/base/units.h"

namespace stepcast {
namespace {

constexpr std::size_t kWorst = 12;  // rows that are shown

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

std::string percent_number(double share) { return fmt::format("{:.1f}", 100 * share); }

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
  cells.push_back(signed_percent(errors.signed_bias));
  cells.push_back(percent_number(errors.mean_absolute));
  cells.push_back(percent_number(errors.median_absolute));
  cells.push_back(percent_number(errors.within_5_percent));
  cells.push_back(percent_number(errors.within_10_percent));
}

std::vector<const ValidationRow*> worst_of(const std::vector<ValidationRow>& rows, bool runs,
                                           std::size_t most) {
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
  if (worst.size() > most) worst.resize(most);
  return worst;
}

// Of a run: its id, plan and times, and where the forecast's time goes, in percent_number.
std::vector<std::string> worst_cells(const ValidationRow& row) {
  constexpr Part kShown[] = {Part::kCompute,  Part::kRecompute, Part::kBubble,    Part::kTensor,
                             Part::kPipeline, Part::kData,      Part::kOptimizer, Part::kOther};
  std::vector<std::string> cells = {row.id, row.run->plan,
                                    format_seconds(Seconds(*row.predicted_seconds)),
                                    format_seconds(Seconds(*row.measured_seconds)),
                                    fmt::format("{:+.0f}", 100 * *relative_error(row))};
  for (const Part part : kShown) {
    const double seconds = row.run->seconds[static_cast<std::size_t>(part)];
    cells.push_back(fmt::format("{:.0f}", 100 * seconds / *row.predicted_seconds));
  }
  return cells;
}

}  // namespace

ReportTable runs_table(const std::string& title, std::vector<ValidationSummary> summaries,
                       bool whole) {
  std::erase_if(summaries, [](const auto& s) { return s.time.count == 0; });
  if (summaries.empty()) return {};
  if (whole && summaries.size() > 1) {
    const std::vector<ValidationSummary> others = unseen(summaries);
    const bool some = !others.empty() && others.size() < summaries.size();
    summaries.push_back(mean_of(summaries));
    summaries.back().name = "each weighs the same";
    if (some) {
      summaries.push_back(mean_of(others));
      summaries.back().name = "those that no fit saw";
    }
  }
  ReportTable table;
  auto& cells = table.cells;
  cells = {{title, "rows", "timed", "bias %", "mean %", "med. %", "< 5 %", "< 10 %"}};
  if (whole) cells.front().emplace_back("tau");
  for (const ValidationSummary& s : summaries) {
    std::vector<std::string>& line = cells.emplace_back();
    line = {clipped(s.name, 24), fmt::format("{}", s.rows)};
    add_errors(s.time, line);
    if (whole) line.push_back(tau_text(s.kendall_tau));
  }
  table.left = "lrrrrrrrr";
  return table;
}

ReportTable memory_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"memory of runs", "of", "rows", "bias %", "mean %", "med. %", "< 5 %", "< 10 %"}};
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
  table.left = "llrrrrrr";
  return table;
}

ReportTable shares_table(const std::vector<ValidationSummary>& summaries) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"predicted step, shares %", "compute", "recomp.", "bubble", "tensor", "pipe", "data",
            "optim.", "other"}};
  constexpr Part kShown[] = {Part::kCompute,  Part::kRecompute, Part::kBubble,    Part::kTensor,
                             Part::kPipeline, Part::kData,      Part::kOptimizer, Part::kOther};
  for (const ValidationSummary& s : summaries) {
    if (s.time.count == 0) continue;
    std::vector<std::string>& line = cells.emplace_back();
    line.push_back(clipped(s.name, 24));
    for (const Part part : kShown)
      line.push_back(percent_number(s.parts[static_cast<std::size_t>(part)]));
  }
  table.left = "lrrrrrrrr";
  return table;
}

ReportTable cuts_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"plans for the same work", "source", "plans", "spread", "tau", "tau at 2 %",
            "regret %", "best at"}};
  for (const CutSummary& cut : summarise_cuts(rows)) {
    if (cut.count < kCutShown || cut.launch_bound) continue;
    cells.push_back({clipped(cut.name, 42), clipped(cut.source, 16), fmt::format("{}", cut.count),
                     fmt::format("{:.1f}x", cut.spread), tau_text(cut.kendall_tau),
                     tau_text(cut.tau_of_good), percent_number(cut.regret),
                     fmt::format("{}", cut.best_at)});
  }
  table.left = "llrrrrrr";
  return table;
}

ReportTable kernels_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"source", "GPU", "kind", "rows", "bias %", "mean %", "med. %", "< 5 %", "< 10 %"}};
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
  table.left = "lllrrrrrr";
  return table;
}

ReportTable sizes_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"collectives", "size", "rows", "bias %", "mean %", "med. %", "p90 %"}};
  for (const ValidationSummary& s : collectives_by_size(rows)) {
    if (s.time.count == 0) continue;
    const auto [gpu, size] = gpu_and_size(s.name);
    cells.push_back({clipped(gpu, 24), size, fmt::format("{}", s.time.count),
                     signed_percent(s.time.signed_bias), percent_number(s.time.mean_absolute),
                     percent_number(s.time.median_absolute), percent_number(s.time.p90_absolute)});
  }
  table.left = "llrrrrr";
  return table;
}

ReportTable misses_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  table.cells = {{"misses beyond 15 %", "runs", "too fast", "too slow", "in"}};
  for (const MissSummary& one : misses_of(rows)) {
    table.cells.push_back({clipped(one.cause, 44), fmt::format("{}", one.too_fast + one.too_slow),
                           fmt::format("{}", one.too_fast), fmt::format("{}", one.too_slow),
                           one.sources});
  }
  table.left = "lrrrl";
  return table;
}

ReportTable worst_runs_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  table.cells = {{"worst runs", "plan", "forecast", "measured", "err. %", "comp", "rec", "bub",
                  "tens", "pipe", "data", "opt", "oth"}};
  for (const ValidationRow* row : worst_of(rows, true, kWorst)) {
    std::vector<std::string> line = worst_cells(*row);
    line[0] = clipped(line[0], 26);
    line[1] = clipped(line[1], 13);
    table.cells.push_back(std::move(line));
  }
  table.left = "llrrrrrrrrrrr";
  return table;
}

ReportTable worst_of_sources_table(const std::vector<ValidationRow>& rows, std::size_t most) {
  ReportTable table;
  table.cells = {{"run", "plan", "forecast", "measured", "err. %", "comp", "rec", "bub", "tens",
                  "pipe", "data", "opt", "oth", "cause"}};
  for (const ValidationSummary& source : runs_by_source(rows)) {
    std::vector<ValidationRow> its;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(its),
                 [&](const ValidationRow& row) { return label_of(row) == source.name; });
    for (const ValidationRow* row : worst_of(its, true, most)) {
      const bool miss = std::abs(*relative_error(*row)) > kMiss;
      table.cells.push_back(worst_cells(*row));
      table.cells.back().push_back(!miss ? "" : row->cause.empty() ? "not understood" : row->cause);
    }
  }
  table.left = "llrrrrrrrrrrrl";
  return table;
}

ReportTable worst_kernels_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"worst rows", "predicted", "measured", "error %"}};
  for (const ValidationRow* row : worst_of(rows, false, kWorst)) {
    cells.push_back({clipped(row->id, 60), format_seconds(Seconds(*row->predicted_seconds)),
                     format_seconds(Seconds(*row->measured_seconds)),
                     signed_percent(*relative_error(*row))});
  }
  table.left = "lrrr";
  return table;
}

ReportTable uncovered_table(const std::vector<ValidationRow>& rows, std::size_t most) {
  const std::vector<Reason> reasons = reasons_of(rows);
  if (reasons.empty()) return {};
  ReportTable table;
  auto& cells = table.cells;
  cells = {{"not covered", "rows", "because"}};
  int rest = 0;
  for (const Reason& reason : reasons) {
    if (cells.size() > most) {
      rest += reason.rows;
      continue;
    }
    cells.push_back({clipped(reason.kind.empty() ? "-" : reason.kind, 20),
                     fmt::format("{}", reason.rows), clipped(reason.what, 70)});
  }
  if (rest > 0) cells.push_back({"", fmt::format("{}", rest), "other reasons, see --json"});
  table.left = "lrl";
  return table;
}

}  // namespace stepcast
