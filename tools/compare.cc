// Reads two reports, refuses what cannot be compared, and judges what can. The two resolved configs
// are walked side by side, depth first, in the order of the predicted one; only keys that change
// the work of a step make two questions of them. Linear in the reports, n log n in a run's steps.
#include "tools/compare.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "sim/base/json_text.h"
#include "sim/program/mesh.h"
#include "sim/result/result.h"
#include "tools/files.h"

namespace stepcast {
namespace {

constexpr std::string_view kStdio = "-";
constexpr double kSecondsMost = 1e12;
constexpr double kStepLeast = 1e-12;  // a picosecond, the resolution of a report
constexpr double kRateMost = 1e15;    // tokens a second
constexpr Limits kBytes = {0, std::int64_t{1} << 53};  // a double holds them exactly

// ------------------------------------------------------------------------------ reading a report

struct Figures {
  double step = 0;                                 // the median, of a run with several steps
  std::optional<double> spread;                    // of such a run
  double parts_sum = 0;                            // the step that the parts belong to
  std::array<double, kParts> parts = {};
  std::int64_t peak = 0;
  std::array<std::int64_t, kAxes> sent = {};       // replicas count as data
  double bubble = 0;
  double rate = 0;                                 // tokens a second and device, at `step`
};

double required(const Object& object, std::string_view key, double least, double most) {
  object.at(key);
  return object.number(key, 0, least, most);
}

Object required_object(const Object& object, std::string_view key) {
  object.at(key);
  return object.object(key);
}

constexpr std::array kReportAxes = {Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kPipeline,
                                    Axis::kData};

void check_format(const Object& root) {
  constexpr const char* kWriters = "`stepcast simulate --json` and `stepcast execute --json` write "
                                   "reports";
  if (!root.has("format")) {
    root.fail("format", fmt::format("is missing, so this is no report; {}", kWriters));
  }
  const std::string format = root.string("format");
  if (format == "stepcast.report/1") return;
  if (format.starts_with("stepcast.report/")) {
    root.fail("format", fmt::format("this program reads stepcast.report/1, not {}; write the "
                                    "report again with it", shortened(format)));
  }
  root.fail("format", fmt::format("\"{}\" is no report; {}", shortened(format), kWriters));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

double spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (quantile(values, 0.75) - quantile(values, 0.25)) / quantile(values, 0.5);
}

std::vector<double> step_times(const Object& root) {
  const std::size_t count = root.array_size("step_seconds");
  if (count == 0) root.fail("step_seconds", "has no step");
  const Json& values = root.at("step_seconds");
  std::vector<double> steps;
  for (std::size_t i = 0; i < count; ++i) {
    const Json& value = values[i];
    const double seconds = value.is_number() ? value.get<double>() : 0;
    if (!(seconds >= kStepLeast && seconds <= kSecondsMost)) {
      root.fail("step_seconds", fmt::format("step {} must be a number of seconds above 0, is {}",
                                            i + 1, shortened(value.dump())));
    }
    steps.push_back(seconds);
  }
  return steps;
}

void read_steps(const Object& root, Figures& figures) {
  const std::vector<double> steps = step_times(root);
  const double reported = figures.step;
  figures.step = median({steps.begin() + (steps.size() >= 2 ? 1 : 0), steps.end()});
  figures.rate *= reported / figures.step;
  if (steps.size() < 2) return;  // one step says nothing about how still the machine was
  figures.spread = spread_of({steps.begin() + (steps.size() >= 3 ? 1 : 0), steps.end()});
}

Figures read_figures(const Document& document) {
  const Object root(document);
  Figures figures;
  const Object step = required_object(root, "step");
  figures.step = required(step, "seconds", kStepLeast, kSecondsMost);
  figures.bubble = required(step, "bubble_fraction", 0, 1);
  figures.rate = required(step, "tokens_per_second_per_device", 0, kRateMost);

  const Object breakdown = required_object(root, "breakdown_seconds");
  for (std::size_t i = 0; i < kParts; ++i) {
    figures.parts[i] = required(breakdown, part_name(static_cast<Part>(i)), 0, kSecondsMost);
    figures.parts_sum += figures.parts[i];
  }
  breakdown.done();  // a part that nobody compares would pass unseen

  figures.peak = required_object(root, "memory").integer("allocated_peak_bytes", kBytes);
  const Object sent = required_object(required_object(root, "traffic"), "sent_bytes_per_device");
  for (const Axis axis : kReportAxes) {
    figures.sent[static_cast<std::size_t>(axis)] = sent.integer(axis_name(axis), kBytes);
  }
  sent.done();
  if (root.has("step_seconds")) read_steps(root, figures);
  return figures;
}

// -------------------------------------------------------------------- one question, or two of them

struct Difference {
  std::string parent;  // a pointer: an object in both documents
  std::string key;
  std::string predicted, measured;
};

std::string value_text(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? "absent" : shortened(found->dump());
}

std::optional<Difference> first_difference(const Json& predicted, const Json& measured,
                                           const std::string& parent, const std::string& key);

std::optional<Difference> difference_inside(const Json& predicted, const Json& measured,
                                            const std::string& pointer) {
  for (const auto& member : predicted.items()) {
    if (auto found = first_difference(predicted, measured, pointer, member.key())) return found;
  }
  for (const auto& member : measured.items()) {
    if (!predicted.contains(member.key())) {
      return first_difference(predicted, measured, pointer, member.key());
    }
  }
  return std::nullopt;
}

std::optional<Difference> first_difference(const Json& predicted, const Json& measured,
                                           const std::string& parent, const std::string& key) {
  const auto p = predicted.find(key), m = measured.find(key);
  if (p != predicted.end() && m != measured.end()) {
    if (p->is_object() && m->is_object()) {
      return difference_inside(*p, *m, parent + "/" + escaped_key(key));
    }
    if (*p == *m) return std::nullopt;
  }
  return Difference{parent, key, value_text(predicted, key), value_text(measured, key)};
}

// Within the model these do not say what is computed; a run leaves dropout out.
constexpr std::array kFreeInModel = {"name", "dropout"};
constexpr std::array kQuestion = {"model", "batch", "parallel", "sharding", "recompute"};
constexpr std::array kUnasked = {"expect", "train"};  // change nothing in a step

template <class Keys>
bool among(const Keys& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

[[noreturn]] void refuse(const Document& predicted, const Document& measured,
                         const Difference& difference) {
  Object(measured, difference.parent)
      .fail(difference.key,
            fmt::format("is {}, but {} in {}; two different questions cannot be compared",
                        difference.measured, difference.predicted, predicted.file));
}

std::string note_on(const Difference& difference) {
  const std::string path = dotted_path(difference.parent + "/" + escaped_key(difference.key));
  return fmt::format("{} differs: predicted {}, measured {}", path, difference.predicted,
                     difference.measured);
}

Json config_of(const Document& document) {
  const Object root(document);
  required_object(root, "config");
  const Object config(document, "/config");
  for (const char* key : kQuestion) config.at(key);
  required_object(config, "model");
  return document.root.at("config");
}

// Refuses two questions; otherwise says what differs.
std::vector<std::string> notes_on_configs(const Document& predicted, const Document& measured) {
  Json p = config_of(predicted), m = config_of(measured);
  std::vector<std::string> notes;
  for (const char* key : kFreeInModel) {
    if (const auto found = first_difference(p["model"], m["model"], "/config/model", key)) {
      notes.push_back(note_on(*found));
    }
    p["model"].erase(key);
    m["model"].erase(key);
  }
  for (const char* key : kQuestion) {
    if (const auto found = first_difference(p, m, "/config", key)) {
      refuse(predicted, measured, *found);
    }
  }
  for (const Json* config : {&p, &m}) {
    for (const auto& member : config->items()) {
      const std::string& key = member.key();
      if (among(kQuestion, key) || among(kUnasked, key)) continue;
      if (config == &m && p.contains(key)) continue;
      if (const auto found = first_difference(p, m, "/config", key)) {
        notes.push_back(note_on(*found));
        if (key == "precision") notes.push_back("other precisions have other bytes and times");
      }
    }
  }
  return notes;
}

// What a run says of itself: the least error that a forecast of it could have.
void note_composition(const Document& measured, Comparison& comparison) {
  const Object root(measured);
  if (!root.has("composition") || !root.at("composition").is_object()) return;
  const double error = required(root.object("composition"), "relative_error", -1, 1);
  comparison.notes.push_back(fmt::format(
      "the measured steps, composed again of their own instructions' times, are off by {:+.2f} %",
      100 * error));
}

// ------------------------------------------------------------------------------------- judgement

std::string percent(double share) { return fmt::format("{:.3g} %", 100 * share); }

Metric metric(std::string name, std::string label, Metric::Unit unit, double predicted,
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
                                 percent(*metric.error), time ? "too slow" : "too much");
  } else {
    metric.message = fmt::format("predicted {} {}: a regression, or a forecast that is wrong",
                                 percent(-*metric.error), time ? "too fast" : "too little");
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
  step.message = fmt::format(
      "the steps of {} spread by {}, over {}: the machine was not still; run longer",
      measured >= predicted ? comparison.measured : comparison.predicted,
      percent(std::max(predicted, measured)), percent(tolerance));
}

// "tensor_exposed" -> "tensor exposed".
std::string words_of(std::string_view key) {
  std::string words(key);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::vector<Metric> metrics_of(const Figures& p, const Figures& m, const Comparison& comparison) {
  using Unit = Metric::Unit;
  std::vector<Metric> metrics;
  metrics.push_back(metric("step.seconds", "step time", Unit::kSeconds, p.step, m.step));
  metrics.back().share = 1;
  judge_step(metrics.back(), comparison);
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::string_view key = part_name(static_cast<Part>(i));
    metrics.push_back(metric(fmt::format("breakdown_seconds.{}", key), "  " + words_of(key),
                             Unit::kSeconds, p.parts[i], m.parts[i]));
    if (m.parts_sum > 0) metrics.back().share = m.parts[i] / m.parts_sum;
  }
  metrics.push_back(metric("step.tokens_per_second_per_device", "tokens/s/device", Unit::kRate,
                           p.rate, m.rate));
  metrics.push_back(metric("step.bubble_fraction", "pipeline bubble", Unit::kShare, p.bubble,
                           m.bubble));
  metrics.push_back(metric("memory.allocated_peak_bytes", "allocated peak", Unit::kBytes,
                           static_cast<double>(p.peak), static_cast<double>(m.peak)));
  judge(metrics.back(), comparison.tolerance);
  for (const Axis axis : kReportAxes) {
    const auto i = static_cast<std::size_t>(axis);
    metrics.push_back(metric(fmt::format("traffic.sent_bytes_per_device.{}", axis_name(axis)),
                             fmt::format("sent, {}", axis_name(axis)), Unit::kBytes,
                             static_cast<double>(p.sent[i]), static_cast<double>(m.sent[i])));
    judge(metrics.back(), comparison.tolerance);
  }
  return metrics;
}

// A path may hold any bytes; what is written must be UTF-8.
std::string utf8(const std::string& text) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  return Json::parse(Json(text).dump(-1, ' ', false, kReplace)).get<std::string>();
}

void check_arguments(const CompareArguments& arguments) {
  if (arguments.predicted == kStdio && arguments.measured == kStdio) {
    throw Error("compare - -", "stdin holds one report; name a file for the other");
  }
  const std::array<std::pair<const char*, const std::string*>, 3> outputs = {
      {{"--json", &arguments.json}, {"--junit", &arguments.junit},
       {"--markdown", &arguments.markdown}}};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t k = i + 1; k < outputs.size(); ++k) {
      if (outputs[i].second->empty() || *outputs[i].second != *outputs[k].second) continue;
      throw Error(fmt::format("{} {}", outputs[k].first, *outputs[k].second),
                  fmt::format("is taken by {}; name another file", outputs[i].first));
    }
  }
}

Document read_report(const std::string& path) {
  const std::string name = path == kStdio ? "stdin" : path;
  Document document = parse_json(read_file(path), name);
  check_format(Object(document));
  return document;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWithin: return "within";
    case Verdict::kInconclusive: return "inconclusive";
    case Verdict::kBeyond: return "beyond";
  }
  STEPCAST_CHECK(false, "no such verdict");
}

double parse_tolerance(std::string_view text) {
  std::string_view digits = text;
  const bool percent_sign = digits.ends_with('%');
  if (percent_sign) digits.remove_suffix(1);
  if (percent_sign && digits.ends_with(' ')) digits.remove_suffix(1);
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, trouble] = std::from_chars(digits.data(), end, value);
  if (percent_sign) value /= 100;
  if (trouble == std::errc() && stop == end && value > 0 && value <= 1) return value;
  throw Error("--tolerance", fmt::format("must be above 0 and at most 100 %, such as 5% or 0.05, "
                                         "is \"{}\"", shortened(text)));
}

Comparison compare_reports(const Document& predicted, const Document& measured, double tolerance) {
  check_format(Object(predicted));
  check_format(Object(measured));
  Comparison comparison;
  comparison.predicted = utf8(predicted.file);
  comparison.measured = utf8(measured.file);
  comparison.tolerance = tolerance;
  const Figures p = read_figures(predicted), m = read_figures(measured);
  comparison.notes = notes_on_configs(predicted, measured);
  note_composition(measured, comparison);
  comparison.predicted_spread = p.spread;
  comparison.measured_spread = m.spread;
  comparison.metrics = metrics_of(p, m, comparison);
  for (const Metric& metric : comparison.metrics) {
    comparison.verdict = std::max(comparison.verdict, metric.verdict.value_or(Verdict::kWithin));
  }
  return comparison;
}

int compare_command(const CompareArguments& arguments) {
  check_arguments(arguments);
  const double tolerance = parse_tolerance(arguments.tolerance);
  const Comparison comparison = compare_reports(read_report(arguments.predicted),
                                                read_report(arguments.measured), tolerance);
  const std::array<std::pair<std::string, std::string>, 3> outputs = {
      {{arguments.json, comparison_json(comparison).dump(2) + "\n"},
       {arguments.junit, comparison_junit(comparison)},
       {arguments.markdown, comparison_markdown(comparison)}}};
  bool stdout_taken = false;
  for (const auto& [path, text] : outputs) {
    if (path.empty()) continue;
    write_file(path, text);
    stdout_taken = stdout_taken || path == kStdio;
  }
  if (!stdout_taken) {
    write_file("-", comparison_table(comparison));
  } else {
    for (const std::string& note : comparison.notes) {
      std::fputs(fmt::format("stepcast: note: {}\n", note).c_str(), stderr);
    }
    std::fputs(fmt::format("stepcast: {}\n", summary_sentence(comparison)).c_str(), stderr);
  }
  return comparison.verdict == Verdict::kWithin ? 0 : 1;
}

}  // namespace stepcast
