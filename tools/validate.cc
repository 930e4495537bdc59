// `stepcast validate`: files of rows in, what they say about the forecast out. Rows are read one a
// line, so that a broken one is named by its line. Cost: that of the forecasts.
#include "tools/validate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/devices.h"
#include "tools/files.h"
#include "tools/validate_report.h"

namespace stepcast {
namespace {

constexpr std::string_view kStdout = "-";

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

std::vector<ValidationRow> validate_lines(std::string_view text, const std::string& file,
                                          const Shipped& shipped) {
  std::vector<ValidationRow> rows;
  RunForecasts known;
  for (const PlacedRow& placed : read_rows(text, file)) {
    rows.push_back(validate_row(placed.row, placed.place, shipped, known));
  }
  return rows;
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
  const Shipped shipped = read_shipped();
  std::vector<ValidationRow> rows;
  for (const std::string& file : arguments.files) {
    const std::string name = file == "-" ? "stdin" : file;
    for (ValidationRow& row : validate_lines(read_file(file), name, shipped)) {
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
