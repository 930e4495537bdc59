// A forecast's report against a run's logs or traces. What a report does not hold, the kernels of a
// step, is forecast again from its config: a report's config reads back as the what-if that it is
// of. The cost is that of one forecast and of the traces.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tools/compare/judge.h"
#include "tools/compare/measured.h"
#include "tools/compare/measured_parts.h"
#include "tools/forecast/forecast.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

using Unit = Metric::Unit;

constexpr double kSameForecast = 1e-6;  // relative; a report holds its step to the last digit

struct Question {
  const Document& report;
  const ReportFigures& figures;
  std::optional<WhatIf> what_if;  // none: its config does not read back here
  std::string trouble;            // why
};

Question question_of(const Document& report, const ReportFigures& figures) {
  Question question{report, figures, std::nullopt, ""};
  try {
    const Object root(report);
    const std::string config = root.at("config").dump(2);
    question.what_if = read_what_if(parse_json(config, report.file + " (config)"), ".");
  } catch (const Error& error) {
    question.trouble = error.what();
  }
  return question;
}

// ------------------------------------------------------------------------------- one question?

void check_same_batch(const Question& question, const Measured& measured, const std::string& name) {
  const Object batch = Object(question.report).object("config").object("batch");
  const auto same = [&](std::string_view key, std::string_view words,
                        const std::optional<std::int64_t>& of_run) {
    if (!of_run || !batch.has(key)) return;
    const std::int64_t of_forecast = batch.integer(key, {1, INT64_MAX});
    if (of_forecast == *of_run) return;
    throw Error(name, fmt::format("{} is {}, but {} in {}; two different questions cannot be "
                                  "compared",
                                  words, *of_run, of_forecast, question.report.file));
  };
  same("global", "the global batch", measured.global_batch);
  same("sequence_length", "the sequence length", measured.sequence_length);
}

// ---------------------------------------------------------------------------------------- time

std::vector<double> step_seconds(const Question& question, const Measured& measured) {
  const ReportFigures& figures = question.figures;
  double scale = 1;
  if (measured.pace == Pace::kDeviceToken) scale = figures.rate * figures.step;
  if (measured.pace == Pace::kSample) {
    const Object batch = Object(question.report).object("config").object("batch");
    scale = static_cast<double>(batch.integer("global", {1, INT64_MAX}));
  }
  std::vector<double> seconds = measured.durations;
  for (double& one : seconds) one *= scale;
  return seconds;
}

// Where ranks differ, the step is the slowest one's.
std::vector<double> step_seconds(const std::vector<PlacedRank>& ranks) {
  std::vector<double> seconds(ranks.front().steps.size(), 0);
  for (const PlacedRank& rank : ranks) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i] = std::max(seconds[i], rank.steps[i]);
    }
  }
  return seconds;
}

void add_step(const ReportFigures& figures, const std::vector<double>& seconds,
              Comparison& comparison) {
  const double step = median_of(seconds);
  comparison.predicted_spread = figures.spread;
  if (seconds.size() >= 2) {
    comparison.measured_spread = spread_of(seconds);
  } else {
    comparison.notes.push_back(
        "one step was measured, so that nothing tells how still the "
        "machine was");
  }
  Metric metric = make_metric("step.seconds", "step time", Unit::kSeconds, figures.step, step);
  metric.share = 1;
  judge_step(metric, comparison);
  comparison.metrics.push_back(std::move(metric));
  comparison.metrics.push_back(make_metric("step.tokens_per_second_per_device", "tokens/s/device",
                                           Unit::kRate, figures.rate,
                                           figures.rate * figures.step / step));
}

// --------------------------------------------------------------------------------------- parts

void add_part(const std::string& name, const std::string& label, double predicted, double measured,
              double step, Comparison& comparison) {
  if (predicted == 0 && measured == 0) return;
  Metric metric = make_metric(name, "  " + label, Unit::kSeconds, predicted, measured);
  metric.share = measured / step;
  comparison.metrics.push_back(std::move(metric));
}

double at_or_zero(const std::map<std::string, double>& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

void add_parts(const StepParts& predicted, const StepParts& measured, Comparison& comparison) {
  for (std::size_t i = 0; i < kKernelKinds; ++i) {
    const std::string_view name = kernel_kind_name(static_cast<KernelKind>(i));
    add_part(fmt::format("trace.kernels_seconds.{}", name), fmt::format("{} kernels", name),
             predicted.kernels[i], measured.kernels[i], measured.step, comparison);
  }
  std::map<std::string, double> axes = predicted.transfer;
  axes.insert(measured.transfer.begin(), measured.transfer.end());
  const auto each = [&](std::string_view key, std::string_view words, auto member) {
    for (const auto& [axis, ignored] : axes) {
      add_part(fmt::format("trace.{}_seconds.{}", key, axis), fmt::format("{} {}", axis, words),
               at_or_zero(predicted.*member, axis), at_or_zero(measured.*member, axis),
               measured.step, comparison);
    }
  };
  each("communication", "communication", &StepParts::transfer);
  each("skew", "skew", &StepParts::skew);
  each("exposed", "exposed", &StepParts::exposed);
  add_part("trace.idle_seconds", "idle", predicted.idle, measured.idle, measured.step, comparison);
  const std::string pipeline(axis_name(Axis::kPipeline));
  add_part("trace.bubble_seconds", "bubble: idle, pipeline",
           predicted.idle + at_or_zero(predicted.exposed, pipeline),
           measured.idle + at_or_zero(measured.exposed, pipeline), measured.step, comparison);
}

void note_on_trace(const StepParts& parts, const std::set<int>& stages, const Mesh& mesh,
                   Comparison& comparison) {
  if (parts.skew.empty() && !parts.transfer.empty()) {
    comparison.notes.push_back(
        "no two ranks of a group are traced: communication includes "
        "waiting for the slowest rank");
  }
  if (static_cast<int>(stages.size()) < mesh.stages()) {
    comparison.notes.push_back(
        fmt::format("the traces are of stage {} of {}, and so are the "
                    "parts",
                    fmt::join(stages, ", "), mesh.stages()));
  }
  if (parts.transfer.contains(std::string(kUnknownAxis))) {
    comparison.notes.push_back("some communication is of groups that fit no axis of the plan");
  }
}

void add_trace(const Question& question, const Measured& measured, Comparison& comparison) {
  if (!question.what_if) {
    throw Error(question.report.file, fmt::format("a trace needs the plan, but the config of the "
                                                  "report does not read back: {}",
                                                  question.trouble));
  }
  const Mesh mesh = question.what_if->plan.mesh();
  std::vector<PlacedRank> ranks = placed_ranks(measured.traces, mesh);
  std::vector<double> seconds = step_seconds(ranks);
  const std::size_t first = warm_up_steps(seconds);
  drop_warm_up(seconds, comparison.notes);
  add_step(question.figures, seconds, comparison);

  const std::set<int> stages = stages_of(ranks, mesh);
  const StepParts of_run = step_parts(ranks, mesh, stages, first);
  note_on_trace(of_run, stages, mesh, comparison);
  if (Object(question.report).has("losses")) {
    comparison.notes.push_back("the first file is of a run too, which tells no kernels");
    return;
  }
  ForecastOptions options;
  options.trace = true;
  const Forecast again = forecast(*question.what_if, options);
  const double step = to_seconds(again.report.timeline.step).value;
  if (std::abs(step / question.figures.step - 1) > kSameForecast) {
    comparison.notes.push_back(fmt::format(
        "the parts are of the forecast of today, a step of {}; the report was written for another",
        format_seconds(Seconds(step))));
  }
  const Trace& trace = again.report.timeline.trace;
  add_parts(step_parts(placed_ranks(again.job, trace), mesh, stages, 0), of_run, comparison);
}

// -------------------------------------------------------------------------------------- memory

// Of the ranks that a run tells of, by stage; -1 is a rank that nobody knows.
std::map<int, RankPeak> peaks_by_stage(const std::vector<RankPeak>& peaks, int stages,
                                       const std::optional<Mesh>& mesh) {
  std::map<int, RankPeak> by_stage;
  for (const RankPeak& peak : peaks) {
    int stage = stages == 1 ? 0 : -1;
    if (peak.rank == kRankLast) stage = stages - 1;
    if (peak.rank >= 0 && mesh && peak.rank < mesh->ranks()) stage = mesh->stage(peak.rank);
    RankPeak& most = by_stage[stage];
    const auto raise = [](std::optional<double>& into, const std::optional<double>& from) {
      if (from) into = std::max(into.value_or(0), *from);
    };
    raise(most.allocated, peak.allocated);
    raise(most.reserved, peak.reserved);
  }
  return by_stage;
}

std::size_t fullest_stage(const Object& memory) {
  std::size_t fullest = 0;
  std::int64_t most = -1;
  for (std::size_t i = 0; i < memory.array_size("stages"); ++i) {
    const std::int64_t peak =
        memory.element("stages", i).integer("allocated_peak_bytes", kReportBytes);
    if (peak <= most) continue;
    most = peak;
    fullest = i;
  }
  return fullest;
}

void add_memory(const Question& question, const Measured& measured, Comparison& comparison) {
  const Object memory = Object(question.report).object("memory");
  const int stages = static_cast<int>(memory.array_size("stages"));
  if (stages == 0) return;  // a report without stages is not of this program
  std::optional<Mesh> mesh;
  if (question.what_if) mesh = question.what_if->plan.mesh();
  for (const auto& [stage, peak] : peaks_by_stage(measured.peaks, stages, mesh)) {
    const bool known = stage >= 0 && stage < stages;
    if (!known) {
      comparison.notes.push_back(
          "the run does not tell of which stage its memory is; it is held "
          "against the fullest");
    }
    const Object one =
        memory.element("stages", known ? static_cast<std::size_t>(stage) : fullest_stage(memory));
    const std::string of = stages > 1 && known ? fmt::format(", stage {}", stage) : "";
    const std::string place =
        stages > 1 && known ? fmt::format("memory.stages.{}", stage) : "memory";
    const auto add = [&](std::string_view key, std::string_view words,
                         const std::optional<double>& bytes, bool judged) {
      if (!bytes || !one.has(key)) return;
      std::int64_t predicted = one.integer(key, kReportBytes);
      // torch's counter has the workspaces of matrix products among what is allocated.
      const bool workspace = key == "allocated_peak_bytes" && one.has("workspace_bytes");
      if (workspace) predicted += one.integer("workspace_bytes", kReportBytes);
      Metric metric = make_metric(fmt::format("{}.{}", place, key), fmt::format("{}{}", words, of),
                                  Unit::kBytes, static_cast<double>(predicted), *bytes);
      if (judged) judge(metric, comparison.tolerance);
      comparison.metrics.push_back(std::move(metric));
    };
    // What is allocated is the plan's; what is reserved is the allocator's luck besides.
    add("allocated_peak_bytes", "allocated peak", peak.allocated, true);
    add("reserved_peak_bytes", "reserved peak", peak.reserved, !peak.allocated);
  }
}

}  // namespace

Comparison compare_run(const Document& predicted, const Measured& measured, const std::string& name,
                       double tolerance) {
  check_report_format(Object(predicted));
  const ReportFigures figures = read_report_figures(predicted);
  const Question question = question_of(predicted, figures);
  check_same_batch(question, measured, name);
  Comparison comparison;
  comparison.predicted = utf8_text(predicted.file);
  comparison.measured = utf8_text(name);
  comparison.tolerance = tolerance;
  comparison.notes.push_back(fmt::format("measured is {}", measured.form));
  for (const std::string& note : measured.notes) comparison.notes.push_back(utf8_text(note));
  if (measured.traces.empty()) {
    add_step(figures, step_seconds(question, measured), comparison);
  } else {
    add_trace(question, measured, comparison);
  }
  add_memory(question, measured, comparison);
  conclude(comparison);
  return comparison;
}

}  // namespace stepcast
