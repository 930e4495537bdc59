// `stepcast validate`: files of rows in, what they say about the forecast out. Rows are read one a
// line, so that a broken one is named by its line. Cost: that of the forecasts.
#include "tools/validate/validate.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/base/parallel.h"
#include "tools/forecast/fidelity.h"
#include "tools/validate/causes.h"
#include "tools/validate/error_classes.h"
#include "tools/validate/page.h"
#include "tools/validate/published.h"
#include "tools/validate/report.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

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

}  // namespace

Shipped read_shipped() {
  Shipped shipped;
  for (const std::string& name : config_names("devices")) {
    shipped.devices.push_back(load_device(find_config("devices", name, "validate")));
  }
  for (const std::string& name : config_names("models")) {
    const std::string file = find_config("models", name, "validate");
    const Document document = parse_json(read_file(file), file);
    shipped.models.push_back(read_model(Object(document), name));
    shipped.models.back().name = name;
  }
  shipped.frameworks = read_frameworks();
  for (const Framework& framework : shipped.frameworks) {
    shipped.fitted.insert(framework.fitted_to.begin(), framework.fitted_to.end());
  }
  for (const Device& device : shipped.devices) {
    const std::optional<Profile> profile = shipped_profile(device.name, "validate");
    if (!profile) continue;
    for (const Residual& residual : profile->residuals) {
      constexpr std::string_view kRuns = "runs ";  // of fit_runs()
      if (residual.rows.starts_with(kRuns)) {
        shipped.fitted.insert(residual.rows.substr(kRuns.size()));
      }
    }
  }
  return shipped;
}

std::vector<PlacedRow> read_rows(std::string_view text, const std::string& file) {
  std::vector<PlacedRow> rows;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    PlacedRow row{parse_line(line, file, number).root, fmt::format("{}:{}", file, number)};
    if (!row.row.is_object()) throw Error(row.place, "a row must be a JSON object");
    rows.push_back(std::move(row));
  }
  return rows;
}

// Rows that stand together often ask the same, so a thread takes a block of them at a time; what a
// row comes to does not depend on who took it.
std::vector<ValidationRow> validate_rows(const std::vector<PlacedRow>& rows,
                                         const Shipped& shipped) {
  constexpr std::size_t kBlock = 32;
  const std::vector<MissCause> causes = shipped_causes();
  std::vector<ValidationRow> results(rows.size());
  const std::size_t blocks = (rows.size() + kBlock - 1) / kBlock;
  std::vector<RunForecasts> known(threads_at_hand());
  in_parallel(blocks, known.size(), [&](std::size_t block, std::size_t thread) {
    for (std::size_t i = block * kBlock; i < std::min((block + 1) * kBlock, rows.size()); ++i) {
      results[i] = validate_row(rows[i].row, rows[i].place, shipped, known[thread]);
      results[i].cause = cause_of(rows[i].row, results[i], causes);
    }
  });
  return results;
}

std::vector<ValidationRow> validate_lines(std::string_view text, const std::string& file,
                                          const Shipped& shipped) {
  return validate_rows(read_rows(text, file), shipped);
}

std::optional<double> relative_error(const ValidationRow& row) {
  if (!row.predicted_seconds || !row.measured_seconds) return std::nullopt;
  return *row.predicted_seconds / *row.measured_seconds - 1;
}

std::optional<double> memory_relative_error(const ValidationRow& row) {
  if (!row.predicted_bytes || !row.measured_bytes) return std::nullopt;
  return *row.predicted_bytes / *row.measured_bytes - 1;
}

int validate_command(const ValidateArguments& arguments) {
  const bool own = !arguments.files.empty();
  if (own && !(arguments.markdown + arguments.errors).empty()) {
    throw Error("validate", "--markdown and --errors are of the shipped runs: name no FILE");
  }
  std::vector<PlacedRow> placed;
  for (const std::string& file : arguments.files) {
    std::vector<PlacedRow> some = read_rows(read_file(file), file == "-" ? "stdin" : file);
    std::move(some.begin(), some.end(), std::back_inserter(placed));
  }
  if (!own) placed = shipped_runs();
  const std::vector<ValidationRow> rows = validate_rows(placed, read_shipped());
  if (!arguments.json.empty()) {
    // A file's name, which may stand in an id, may hold bytes that are no UTF-8.
    constexpr auto kReplace = Json::error_handler_t::replace;
    write_file(arguments.json, validation_json(rows).dump(2, ' ', false, kReplace) + "\n");
  }
  if (!arguments.markdown.empty()) {
    write_file(arguments.markdown, validation_page(rows, shipped_left_out(), shipped_causes()));
  }
  if (!arguments.errors.empty()) {
    write_file(arguments.errors, write_error_classes(error_classes(rows)));
  }
  const std::array files = {arguments.json, arguments.markdown, arguments.errors};
  const bool taken = std::find(files.begin(), files.end(), kStdout) != files.end();
  if (!taken) write_file("-", validation_table(rows));
  return 0;
}

}  // namespace stepcast
