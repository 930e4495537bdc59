// The tables of tables.h in Markdown, with the words that a reader needs to judge them.
// Linear in what is written.
#include "tools/validate/page.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "tools/forecast/fidelity.h"
#include "tools/validate/error_classes.h"
#include "tools/validate/runs.h"
#include "tools/validate/summary.h"
#include "tools/validate/tables.h"

namespace stepcast {
namespace {

// What a cell may not hold in Markdown: "|" ends it.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown(const ReportTable& table) {
  if (table.empty()) return "None.\n\n";
  std::string text;
  for (std::size_t row = 0; row < table.cells.size(); ++row) {
    for (const std::string& cell : table.cells[row]) text += "| " + escaped(cell) + " ";
    text += "|\n";
    if (row > 0) continue;
    for (std::size_t i = 0; i < table.cells.front().size(); ++i) {
      const bool left = i < table.left.size() && table.left[i] == 'l';
      text += left ? "| --- " : "| ---: ";
    }
    text += "|\n";
  }
  return text + "\n";
}

std::string section(std::string_view title, std::string_view words, const ReportTable& table) {
  return fmt::format("## {}\n\n{}{}{}", title, words, words.empty() ? "" : "\n\n", markdown(table));
}

std::string method() {
  return fmt::format(
      "Written by `stepcast validate --markdown configs/published/FIDELITY.md --errors\n"
      "configs/published/errors.json`; a test holds it to that. What the rows are and where they\n"
      "come from: [README.md](README.md).\n\n"
      "Every run is asked as a what-if, as a person would write it from what the source states, "
      "and\n"
      "forecast as `stepcast simulate` does. An error is predicted / measured - 1 of the step "
      "time:\n"
      "below 0 the forecast is too fast. The bias is the mean of the errors, \"mean\" and \"med.\" "
      "are of\n"
      "their absolute values, \"< 5 %\" and \"< 10 %\" the share of runs that are that close, and "
      "tau\n"
      "Kendall's tau-b among plans for the same work. In the line \"each weighs the same\" a "
      "source\n"
      "counts once, however many rows it has; the line below it is of the sources that no number "
      "of\n"
      "a device's profile or of a framework was fitted to.\n\n"
      "A run is launch-bound, and reported apart, where one micro-batch's forward through one "
      "layer\n"
      "keeps the matrix units busy for less than {:.0f} kernel launches of 4.5 us take: then most "
      "of\n"
      "the step is the host issuing kernels. This asks the configuration and the data sheet "
      "alone;\n"
      "neither a measurement nor what was fitted to some decides how a run is scored.\n\n",
      kLayerKernels);
}

ReportTable assumptions_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  table.left = "lr";
  table.cells = {{"filled in", "runs"}};
  for (const Reason& one : assumptions_of(rows)) {
    table.cells.push_back({one.what, fmt::format("{}", one.rows)});
  }
  return table;
}

ReportTable left_out_table(const std::vector<LeftOut>& left_out) {
  std::map<std::string, std::pair<int, std::string>> reasons;
  for (const LeftOut& one : left_out) {
    auto& [rows, groups] = reasons[one.because];
    rows += one.rows;
    groups += fmt::format("{}{} {}", groups.empty() ? "" : ", ", one.group, one.rows);
  }
  ReportTable table;
  table.left = "lrl";
  table.cells = {{"because", "rows", "in"}};
  for (const auto& [because, counts] : reasons) {
    table.cells.push_back({because, fmt::format("{}", counts.first), counts.second});
  }
  return table;
}

std::string cause_list(const std::vector<ValidationRow>& rows,
                       const std::vector<MissCause>& causes) {
  std::string text;
  for (const MissCause& cause : causes) {
    const bool used = std::any_of(rows.begin(), rows.end(), [&](const ValidationRow& row) {
      return row.cause == cause.name && ordinary_run(row);
    });
    if (used) text += fmt::format("* **{}**: {}\n", cause.name, cause.why);
  }
  return text + "\n";
}

std::string percents(double share) { return fmt::format("{:+.1f}", 100 * share); }

ReportTable classes_table(const std::vector<ValidationRow>& rows) {
  ReportTable table;
  table.left = "llrrrrrr";
  table.cells = {{"device", "plans", "runs", "sources", "bias %", "mean %", "p10 %", "p90 %"}};
  for (const ErrorClass& one : error_classes(rows)) {
    table.cells.push_back(
        {one.device.empty() ? "all" : one.device, one.kind.empty() ? "all" : one.kind,
         fmt::format("{}", one.runs), fmt::format("{}", one.sources), percents(one.bias),
         fmt::format("{:.1f}", 100 * one.mean_absolute), percents(one.low), percents(one.high)});
  }
  return table;
}

std::string first_words(const std::vector<ValidationRow>& rows) {
  int covered = 0, timed = 0, launch_bound = 0, unsteady = 0;
  for (const ValidationRow& row : rows) {
    if (!row.covered) continue;
    ++covered;
    if (row.variant == kLaunchBound) ++launch_bound;
    if (row.variant == "unsteady") ++unsteady;
    if (ordinary_run(row) && relative_error(row)) ++timed;
  }
  return fmt::format(
      "# Fidelity\n\nOf {} published training runs, {} are covered: {} with a step time, {} more "
      "are\n"
      "launch-bound, {} unsteady. The others say why not, below; none is dropped.\n\n",
      rows.size(), covered, timed, launch_bound, unsteady);
}

}  // namespace

std::string validation_page(const std::vector<ValidationRow>& rows,
                            const std::vector<LeftOut>& left_out,
                            const std::vector<MissCause>& causes) {
  constexpr std::size_t kAllReasons = 200, kWorstOfSource = 3;
  const std::vector<ValidationSummary> sources = runs_by_source(rows);
  std::string page = first_words(rows) + method();
  page += section("Step time, by source", "", runs_table("source", sources, true));
  page += section("By GPU", "", runs_table("GPU", runs_by_gpu(rows), false));
  page += section(
      "By plan",
      "tp: tensor parallel, sp: with sequence parallelism, cp: context, ep: experts spread,\n"
      "pp: pipeline, vpp: with virtual stages, dp: data, zeroN: its states sharded to stage N.",
      runs_table("plan", runs_by_plan(rows), false));
  page += section(
      "Plans for the same work",
      "One model, batch and cluster, cut in several ways. The spread is the slowest over the\n"
      "fastest measured step; the regret is what taking the forecast's first choice costs over\n"
      "the best measured plan, which stands at the place \"best at\" of the forecast's order.\n"
      "\"tau at 2 %\" is what forecasts off by 2 % at random would have on average: plans that\n"
      "took nearly the same time have no order that a forecast could find.",
      cuts_table(rows));
  page += section("Launch-bound runs", "", runs_table("source", launch_bound_runs(rows), false));
  page += section(
      "Unsteady runs",
      fmt::format("Runs whose own steps differ: the median took more than {:.2f} times as long as\n"
                  "the fastest; or whose network is shared: all-reduces that the source timed on\n"
                  "it differ by more than {:.0f} times. They count for memory only.",
                  kUnsteady, kUnsteadyFabric),
      runs_table("source", unsteady_runs(rows), false));
  page += section(
      "Memory",
      "Peaks of the step, predicted / measured - 1; launch-bound runs count here, for bytes do\n"
      "not wait for the host. What the source means by memory stands beside it.",
      memory_table(rows));
  page += section("Where the forecast step goes", "", shares_table(sources));
  page += section("Misses beyond 15 %",
                  "By cause: a rule by facts of the row (causes.json), never by how far off it is.",
                  misses_table(rows));
  page += cause_list(rows, causes);
  page += section("The worst of each source", "With the shares, in percent, of the forecast step.",
                  worst_of_sources_table(rows, kWorstOfSource));
  page += section(
      "The range of a forecast",
      "What `stepcast simulate` takes its range from: errors by device and kind of plan, each\n"
      "source weighing the same. 8 of 10 published runs of a class lie between p10 and p90.",
      classes_table(rows));
  page +=
      section("Assumed",
              "What sources do not state and was filled in, by the rules of\n"
              "`tools/validate/question.h`; `stepcast validate --json` says for every run which.",
              assumptions_table(rows));
  page += section("Not covered", "", uncovered_table(rows, kAllReasons));
  page += section("Left out of this repository", "Rows of the same sources that are no evidence.",
                  left_out_table(left_out));
  while (page.ends_with("\n\n")) page.pop_back();
  return page;
}

}  // namespace stepcast
