// Reads two reports, refuses what cannot be compared, and judges what can. The two resolved configs
// are walked side by side, depth first, in the order of the predicted one; only keys that change
// the work of a step make two questions of them. Linear in the reports, n log n in a run's steps.
#include "tools/compare/compare.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/json_text.h"
#include "sim/program/mesh.h"
#include "sim/result/result.h"
#include "tools/base/files.h"
#include "tools/base/text.h"
#include "tools/compare/judge.h"
#include "tools/compare/measured.h"

namespace stepcast {
namespace {

constexpr std::string_view kStdio = "-";
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
  if (p == predicted.end() && m == measured.end()) return std::nullopt;
  return Difference{parent, key, value_text(predicted, key), value_text(measured, key)};
}

// Within the model these do not say what is computed; whether dropout is on, the plan's key says.
constexpr std::array kFreeInModel = {"name", "dropout", "dropout_rate"};
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
  root.at("config");
  const Object config = root.object("config");
  for (const char* key : kQuestion) config.at(key);
  config.object("model");
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
  const Object composition = root.object("composition");
  composition.at("relative_error");  // throws where there is none
  const double error = composition.number("relative_error", 0, -1, 1);
  comparison.notes.push_back(fmt::format(
      "the measured steps, composed again of their own instructions' times, are off by {:+.2f} %",
      100 * error));
}

// ------------------------------------------------------------------------------------- judgement

// "tensor_exposed" -> "tensor exposed".
std::vector<Metric> metrics_of(const ReportFigures& p, const ReportFigures& m,
                               const Comparison& comparison) {
  using Unit = Metric::Unit;
  std::vector<Metric> metrics;
  metrics.push_back(make_metric("step.seconds", "step time", Unit::kSeconds, p.step, m.step));
  metrics.back().share = 1;
  judge_step(metrics.back(), comparison);
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::string_view key = part_name(static_cast<Part>(i));
    metrics.push_back(make_metric(fmt::format("breakdown_seconds.{}", key), "  " + key_words(key),
                                  Unit::kSeconds, p.parts[i], m.parts[i]));
    if (m.parts_sum > 0) metrics.back().share = m.parts[i] / m.parts_sum;
  }
  metrics.push_back(make_metric("step.tokens_per_second_per_device", "tokens/s/device", Unit::kRate,
                           p.rate, m.rate));
  metrics.push_back(make_metric("step.bubble_fraction", "pipeline bubble", Unit::kShare, p.bubble,
                           m.bubble));
  metrics.push_back(make_metric("memory.allocated_peak_bytes", "allocated peak", Unit::kBytes,
                           static_cast<double>(p.peak), static_cast<double>(m.peak)));
  judge(metrics.back(), comparison.tolerance);
  for (const Axis axis : kReportAxes) {
    const auto i = static_cast<std::size_t>(axis);
    metrics.push_back(make_metric(fmt::format("traffic.sent_bytes_per_device.{}", axis_name(axis)),
                             fmt::format("sent, {}", axis_name(axis)), Unit::kBytes,
                             static_cast<double>(p.sent[i]), static_cast<double>(m.sent[i])));
    judge(metrics.back(), comparison.tolerance);
  }
  return metrics;
}

void check_arguments(const CompareArguments& arguments) {
  const auto stdins = std::count(arguments.measured.begin(), arguments.measured.end(), kStdio) +
                      (arguments.predicted == kStdio ? 1 : 0);
  if (stdins > 1) throw Error("compare - -", "stdin holds one file; name the others");
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
  check_report_format(Object(document));
  return document;
}

Comparison compare_files(const CompareArguments& arguments, double tolerance) {
  const Document predicted = read_report(arguments.predicted);
  std::vector<MeasuredFile> files = read_measured_files(arguments.measured);
  const std::string name = files.size() == 1 ? files.front().name
                                             : fmt::format("{} and {} more", files.front().name,
                                                           files.size() - 1);
  if (files.front().form == MeasuredForm::kReport) {
    return compare_reports(predicted, parse_json(files.front().text, name), tolerance);
  }
  return compare_run(predicted, read_measured(std::move(files)), name, tolerance);
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
  check_report_format(Object(predicted));
  check_report_format(Object(measured));
  Comparison comparison;
  comparison.predicted = utf8_text(predicted.file);
  comparison.measured = utf8_text(measured.file);
  comparison.tolerance = tolerance;
  const ReportFigures p = read_report_figures(predicted), m = read_report_figures(measured);
  comparison.notes = notes_on_configs(predicted, measured);
  note_composition(measured, comparison);
  comparison.predicted_spread = p.spread;
  comparison.measured_spread = m.spread;
  comparison.metrics = metrics_of(p, m, comparison);
  conclude(comparison);
  return comparison;
}

int compare_command(const CompareArguments& arguments) {
  check_arguments(arguments);
  const double tolerance = parse_tolerance(arguments.tolerance);
  const Comparison comparison = compare_files(arguments, tolerance);
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
