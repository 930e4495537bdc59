// `stepcast validate`: the rows' errors, summed up by source, GPU and kind.
//
// A group is what one bench measured on one machine, so that a good number of one source cannot
// hide a bad one of another. Kendall's tau (Kendall 1938) says whether a group is in the right
// order, which is what a choice between plans rests on; it is counted pair by pair, n^2 a group.
// All else is linear in the text.
#include "tools/validate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/files.h"
#include "tools/table.h"

namespace stepcast {
namespace {

constexpr std::string_view kStdout = "-";
constexpr double kClose = 0.1;
constexpr std::size_t kWorst = 10;

using Pointers = std::vector<const ValidationRow*>;

// ----------------------------------------------------------------------------------------- lines

// parse_json counts lines from 1; here the text is one line of a file.
Document parse_line(std::string_view line, const std::string& file, int number) {
  try {
    return parse_json(line, file);
  } catch (const Error& error) {
    const std::string first = file + ":1";
    std::string_view rest = error.where();
    if (!rest.starts_with(first)) throw;
    rest.remove_prefix(first.size());
    throw Error(fmt::format("{}:{}{}", file, number, rest), error.message());
  }
}

// ------------------------------------------------------------------------------------- summaries

double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

std::optional<double> kendall_tau(const Pointers& rows) {
  if (rows.size() < 2) return std::nullopt;
  double balance = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      balance += sign_of(*rows[i]->predicted_seconds - *rows[j]->predicted_seconds) *
                 sign_of(*rows[i]->measured_seconds - *rows[j]->measured_seconds);
    }
  }
  const double n = static_cast<double>(rows.size());
  return balance / (n * (n - 1) / 2);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// All but the names.
ValidationSummary summary_of(const Pointers& rows) {
  ValidationSummary summary;
  summary.rows = static_cast<int>(rows.size());
  Pointers covered;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(covered),
               [](const ValidationRow* row) { return row->covered; });
  summary.count = static_cast<int>(covered.size());
  if (covered.empty()) return summary;
  std::vector<double> absolute;
  double sum = 0, close = 0;
  for (const ValidationRow* row : covered) {
    const double error = *relative_error(*row);
    sum += error;
    absolute.push_back(std::abs(error));
    if (absolute.back() <= kClose) ++close;
  }
  const double n = static_cast<double>(covered.size());
  summary.mean_absolute_error = std::accumulate(absolute.begin(), absolute.end(), 0.0) / n;
  summary.median_absolute_error = median(absolute);
  summary.signed_bias = sum / n;
  summary.within_10_percent = close / n;
  summary.kendall_tau = kendall_tau(covered);
  return summary;
}

// --------------------------------------------------------------------------------------- output

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json row_json(const ValidationRow& row) {
  std::optional<double> memory_error;
  if (row.predicted_bytes && row.measured_bytes) {
    memory_error = *row.predicted_bytes / *row.measured_bytes - 1;
  }
  return {{"id", row.id},
          {"source", row.source},
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
          {"memory_relative_error", or_null(memory_error)}};
}

// Errors are null where no row is covered: 0 would read as perfect.
Json summary_json(const ValidationSummary& s) {
  const auto of_covered = [&](double value) { return s.count > 0 ? Json(value) : Json(nullptr); };
  return {{"source", s.source},
          {"gpu", s.gpu},
          {"kind", s.kind},
          {"variant", s.variant},
          {"rows", s.rows},
          {"count", s.count},
          {"mean_absolute_error", of_covered(s.mean_absolute_error)},
          {"median_absolute_error", of_covered(s.median_absolute_error)},
          {"signed_bias", of_covered(s.signed_bias)},
          {"within_10_percent", of_covered(s.within_10_percent)},
          {"kendall_tau", or_null(s.kendall_tau)}};
}

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

std::vector<std::string> summary_cells(const ValidationSummary& s, std::string source) {
  const auto percent = [](double share) { return fmt::format("{:.1f}", 100 * share); };
  const std::string kind = s.variant.empty() ? s.kind : s.kind + " " + s.variant;
  return {std::move(source), clipped(s.gpu, 16), clipped(kind, 21), fmt::format("{}", s.count),
          percent(s.mean_absolute_error), percent(s.median_absolute_error),
          fmt::format("{:+.1f}", 100 * s.signed_bias), percent(s.within_10_percent)};
}

std::string groups_table(const std::vector<ValidationRow>& rows) {
  std::vector<std::vector<std::string>> cells = {
      {"source", "GPU", "kind", "rows", "mean %", "med. %", "bias %", "< 10 %"}};
  for (const ValidationSummary& summary : summarise(rows)) {
    if (summary.count > 0) cells.push_back(summary_cells(summary, short_source(summary.source)));
  }
  std::map<std::string, Pointers> kinds;
  for (const ValidationRow& row : rows) {
    if (row.covered && row.variant != "degraded") kinds[row.kind].push_back(&row);
  }
  for (const auto& [kind, members] : kinds) {
    ValidationSummary summary = summary_of(members);
    summary.kind = kind;
    cells.push_back(summary_cells(summary, "all but degraded"));
  }
  return cells.size() == 1 ? "" : align(cells, "lllrrrrr");
}

std::string worst_table(const std::vector<ValidationRow>& rows) {
  Pointers worst;
  for (const ValidationRow& row : rows) {
    if (row.covered) worst.push_back(&row);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const auto* a, const auto* b) {
    return std::abs(*relative_error(*a)) > std::abs(*relative_error(*b));
  });
  if (worst.empty()) return "";
  if (worst.size() > kWorst) worst.resize(kWorst);
  std::vector<std::vector<std::string>> cells = {
      {"worst rows", "predicted", "measured", "error %"}};
  for (const ValidationRow* row : worst) {
    cells.push_back({clipped(row->id, 60), format_seconds(Seconds(*row->predicted_seconds)),
                     format_seconds(Seconds(*row->measured_seconds)),
                     fmt::format("{:+.1f}", 100 * *relative_error(*row))});
  }
  return "\n" + align(cells, "lrrr");
}

std::string uncovered_table(const std::vector<ValidationRow>& rows) {
  std::map<std::pair<std::string, std::string>, int> reasons;
  for (const ValidationRow& row : rows) {
    if (!row.covered) ++reasons[{row.kind, row.reason}];
  }
  if (reasons.empty()) return "";
  std::vector<std::pair<std::pair<std::string, std::string>, int>> sorted(reasons.begin(),
                                                                         reasons.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::vector<std::string>> cells = {{"not covered", "rows", "because"}};
  for (const auto& [key, count] : sorted) {
    cells.push_back({clipped(key.first.empty() ? "-" : key.first, 27), fmt::format("{}", count),
                     clipped(key.second, 64)});
  }
  return "\n" + align(cells, "lrl");
}

}  // namespace

std::vector<Device> shipped_devices() {
  std::vector<Device> devices;
  for (const std::string& name : config_names("devices")) {
    const std::string file = find_config("devices", name, "validate");
    devices.push_back(read_device(parse_json(read_file(file), file)));
  }
  return devices;
}

std::vector<ValidationRow> validate_lines(std::string_view text, const std::string& file,
                                          const std::vector<Device>& devices) {
  std::vector<ValidationRow> rows;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Document document = parse_line(line, file, number);
    const std::string place = fmt::format("{}:{}", file, number);
    if (!document.root.is_object()) throw Error(place, "a row must be a JSON object");
    rows.push_back(validate_row(document.root, place, devices));
  }
  return rows;
}

std::optional<double> relative_error(const ValidationRow& row) {
  if (!row.predicted_seconds || !row.measured_seconds) return std::nullopt;
  return *row.predicted_seconds / *row.measured_seconds - 1;
}

std::vector<ValidationSummary> summarise(const std::vector<ValidationRow>& rows) {
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<Key, Pointers> groups;
  for (const ValidationRow& row : rows) {
    groups[{row.kind, row.source, row.gpu, row.variant}].push_back(&row);
  }
  std::vector<ValidationSummary> summaries;
  for (const auto& [key, members] : groups) {
    summaries.push_back(summary_of(members));
    std::tie(summaries.back().kind, summaries.back().source, summaries.back().gpu,
             summaries.back().variant) = key;
  }
  return summaries;
}

Json validation_json(const std::vector<ValidationRow>& rows) {
  Json json = {{"format", "stepcast.validation/1"},
               {"rows", Json::array()},
               {"summary", Json::array()}};
  for (const ValidationRow& row : rows) json["rows"].push_back(row_json(row));
  for (const ValidationSummary& one : summarise(rows)) {
    json["summary"].push_back(summary_json(one));
  }
  return json;
}

std::string validation_table(const std::vector<ValidationRow>& rows) {
  const auto covered = std::count_if(rows.begin(), rows.end(),
                                     [](const ValidationRow& row) { return row.covered; });
  return fmt::format("{} row{}, {} of them covered; errors are of times, predicted / measured - 1"
                     "\n\n",
                     rows.size(), rows.size() == 1 ? "" : "s", covered) +
         groups_table(rows) + worst_table(rows) + uncovered_table(rows);
}

int validate_command(const ValidateArguments& arguments) {
  const std::vector<Device> devices = shipped_devices();
  std::vector<ValidationRow> rows;
  for (const std::string& file : arguments.files) {
    const std::string name = file == "-" ? "stdin" : file;
    for (ValidationRow& row : validate_lines(read_file(file), name, devices)) {
      rows.push_back(std::move(row));
    }
  }
  if (!arguments.json.empty()) {
    // A file's name, which may stand in an id, may hold bytes that are no UTF-8.
    constexpr auto kReplace = Json::error_handler_t::replace;
    write_file(arguments.json, validation_json(rows).dump(2, ' ', false, kReplace) + "\n");
  }
  if (arguments.json != kStdout) write_file("-", validation_table(rows));
  return 0;
}

}  // namespace stepcast
