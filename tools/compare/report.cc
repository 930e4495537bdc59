// A comparison for people, programs, test reports and comments on a change. The JUnit form is what
// CI systems read (test suites, cases, failures); its characters are those of XML 1.0, section 2.2.
// Linear in the metrics.
#include "tools/compare/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/units.h"
#include "tools/compare/judge.h"
#include "tools/forecast/table.h"

namespace stepcast {
namespace {

using Cells = std::vector<std::vector<std::string>>;

// "+2.7 %"; what rounds to nothing has no sign.
std::string error_text(const Metric& metric) {
  if (!metric.error) return "-";
  const double error = 100 * *metric.error;
  if (std::abs(error) < 0.05) return "0.0 %";
  return fmt::format("{:+.1f} %", error);
}

std::string value_text(Metric::Unit unit, double value) {
  switch (unit) {
    case Metric::Unit::kSeconds: return format_seconds(Seconds(value));
    case Metric::Unit::kBytes: return format_bytes(Bytes(static_cast<std::int64_t>(value)));
    case Metric::Unit::kShare: return fmt::format("{:.1f} %", 100 * value);
    case Metric::Unit::kRate: return fmt::format("{:.1f}", value);
  }
  return "";
}

std::vector<std::string> cells_of(const Metric& metric) {
  return {metric.label,
          value_text(metric.unit, metric.predicted),
          value_text(metric.unit, metric.measured),
          error_text(metric),
          metric.share ? fmt::format("{:.1f} %", 100 * *metric.share) : "",
          metric.verdict ? std::string(verdict_name(*metric.verdict)) : ""};
}

std::vector<std::string> head_cells() {
  return {"metric", "predicted", "measured", "error", "of step", "verdict"};
}

bool unwelcome(const Metric& metric) {
  return metric.verdict && *metric.verdict != Verdict::kWithin;
}

std::string steps_text(const std::optional<double>& spread) {
  return spread ? fmt::format(" (median step, spread {})", percent_text(*spread)) : "";
}

// -------------------------------------------------------------------------------------------- XML

enum class Lines { kKept, kEscaped };

// Markup and quotes are escaped, in an attribute line ends too (it would lose them); the control
// characters that XML 1.0 cannot hold become U+FFFD.
std::string xml_text(std::string_view text, Lines lines = Lines::kEscaped) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&apos;"; break;
      case '\t': out += "&#9;"; break;
      case '\n': out += lines == Lines::kKept ? "\n" : "&#10;"; break;
      case '\r': out += "&#13;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? "\xEF\xBF\xBD" : std::string(1, c);
    }
  }
  return out;
}

// ------------------------------------------------------------------------------------- Markdown

// A cell ends at "|", a table at a line's end; "<" would begin HTML, "`" and "*" and "_" style.
std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
      continue;
    }
    if (std::string_view("\\|`*_<>[]").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + markdown_text(cell) + " |";
  return out + "\n";
}

}  // namespace

std::string summary_sentence(const Comparison& comparison) {
  const Metric& step = comparison.metrics.front();
  std::vector<std::string> beyond;
  for (const Metric& metric : comparison.metrics) {
    if (metric.verdict == Verdict::kBeyond) beyond.push_back(metric.label);
  }
  const std::string tolerance = "the tolerance of " + percent_text(comparison.tolerance);
  std::string verdict = "within " + tolerance;
  if (comparison.verdict == Verdict::kInconclusive) {
    verdict = "inconclusive, the machine was not still";
  } else if (comparison.verdict == Verdict::kBeyond) {
    verdict = fmt::format("beyond {} ({})", tolerance, fmt::join(beyond, "; "));
  }
  return fmt::format("{}: step predicted {}, measured {}{}", verdict,
                     value_text(step.unit, step.predicted), value_text(step.unit, step.measured),
                     step.error ? fmt::format(" ({})", error_text(step)) : "");
}

std::string comparison_table(const Comparison& comparison) {
  std::string out = align({{"predicted", comparison.predicted +
                                             steps_text(comparison.predicted_spread)},
                           {"measured", comparison.measured +
                                            steps_text(comparison.measured_spread)}},
                          "ll");
  for (const std::string& note : comparison.notes) out += "note: " + note + "\n";
  Cells rows = {head_cells()};
  for (const Metric& metric : comparison.metrics) rows.push_back(cells_of(metric));
  out += "\n" + align(rows, "lrrrrl") + "\n";
  for (const Metric& metric : comparison.metrics) {
    if (unwelcome(metric)) out += fmt::format("{}: {}\n", metric.label, metric.message);
  }
  return out + summary_sentence(comparison) + "\n";
}

Json comparison_json(const Comparison& comparison) {
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  Json metrics = Json::array();
  for (const Metric& metric : comparison.metrics) {
    const bool whole = metric.unit == Metric::Unit::kBytes;
    const auto value = [whole](double v) {
      return whole ? Json(static_cast<std::int64_t>(v)) : Json(v);
    };
    metrics.push_back(
        {{"name", metric.name},
         {"predicted", value(metric.predicted)},
         {"measured", value(metric.measured)},
         {"relative_error", number(metric.error)},
         {"share_of_measured_step", number(metric.share)},
         {"verdict", metric.verdict ? Json(verdict_name(*metric.verdict)) : Json()},
         {"message", metric.message}});
  }
  return Json{{"format", "stepcast.comparison/1"},
              {"predicted", comparison.predicted},
              {"measured", comparison.measured},
              {"tolerance", comparison.tolerance},
              {"verdict", verdict_name(comparison.verdict)},
              {"predicted_spread", number(comparison.predicted_spread)},
              {"measured_spread", number(comparison.measured_spread)},
              {"notes", comparison.notes},
              {"metrics", std::move(metrics)}};
}

std::string comparison_junit(const Comparison& comparison) {
  std::string cases;
  int judged = 0, failed = 0;
  for (const Metric& metric : comparison.metrics) {
    if (!metric.verdict) continue;
    ++judged;
    const std::string head = fmt::format("    <testcase classname=\"stepcast.compare\" name=\"{}\"",
                                         xml_text(metric.name));
    if (!unwelcome(metric)) {
      cases += head + "/>\n";
      continue;
    }
    ++failed;
    const std::string message = fmt::format(
        "{} predicted {}, measured {}: {}", metric.label, value_text(metric.unit, metric.predicted),
        value_text(metric.unit, metric.measured), metric.message);
    cases += fmt::format("{}>\n      <failure type=\"{}\" message=\"{}\"/>\n    </testcase>\n",
                         head, verdict_name(*metric.verdict), xml_text(message));
  }
  const std::string title =
      fmt::format("stepcast compare {} {}", comparison.predicted, comparison.measured);
  return fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                     "<testsuites tests=\"{0}\" failures=\"{1}\" errors=\"0\">\n"
                     "  <testsuite name=\"{2}\" tests=\"{0}\" failures=\"{1}\" errors=\"0\" "
                     "skipped=\"0\">\n{3}    <system-out>{4}</system-out>\n"
                     "  </testsuite>\n</testsuites>\n",
                     judged, failed, xml_text(title), cases,
                     xml_text(comparison_table(comparison), Lines::kKept));
}

std::string comparison_markdown(const Comparison& comparison) {
  std::string out = fmt::format("**stepcast compare**: {}.\n\n",
                                markdown_text(summary_sentence(comparison)));
  out += markdown_row(head_cells()) + "| :-- | --: | --: | --: | --: | :-- |\n";
  for (const Metric& metric : comparison.metrics) out += markdown_row(cells_of(metric));
  std::vector<std::string> items;
  for (const Metric& metric : comparison.metrics) {
    if (unwelcome(metric)) items.push_back(metric.label + ": " + metric.message);
  }
  for (const std::string& note : comparison.notes) items.push_back("note: " + note);
  if (!items.empty()) out += "\n";
  for (const std::string& item : items) out += "- " + markdown_text(item) + "\n";
  return out;
}

}  // namespace stepcast
