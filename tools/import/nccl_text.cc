// The text of nccl-tests, line by line: a small state (which test, on which devices, which columns)
// and four kinds of lines that matter. Everything else, NCCL's own lines among it, is passed over.
// A prefix ends before the first whole number that is followed by another and by a data type, so no
// launcher has to be known. Linear in the text.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/import/nccl_tests.h"

namespace stepcast {
namespace {

using Tokens = std::vector<std::string_view>;

constexpr std::size_t kPrefixTokensMost = 8;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

Tokens split(std::string_view line) {
  Tokens tokens;
  for (std::size_t at = 0; at < line.size();) {
    if (is_blank(line[at])) {
      ++at;
      continue;
    }
    const std::size_t start = at;
    while (at < line.size() && !is_blank(line[at])) ++at;
    tokens.push_back(line.substr(start, at - start));
  }
  return tokens;
}

// Without the colours of a terminal (ESC [ ... letter).
std::string without_colours(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      text += line[i];
      continue;
    }
    if (i + 1 < line.size() && line[i + 1] == '[') {
      for (i += 2; i < line.size() && !std::isalpha(static_cast<unsigned char>(line[i]));) ++i;
    }
  }
  return text;
}

template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number value{};
  const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (trouble != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "[1,0]<stdout>:1048576" ends in what counts.
std::string_view behind_prefix(std::string_view token) {
  const std::size_t last = token.find_last_of(":>|]");
  return last == std::string_view::npos ? token : token.substr(last + 1);
}

bool is_type(std::string_view token) {
  static constexpr std::array<std::string_view, 12> kTypes = {
      "int", "uint", "half", "float", "double", "bfloat", "bf16", "fp16", "f8", "fp8", "char",
      "uchar"};
  return std::any_of(kTypes.begin(), kTypes.end(),
                     [&](std::string_view type) { return token.starts_with(type); });
}

bool is_redop(std::string_view token) {
  static constexpr std::array<std::string_view, 8> kOps = {"sum", "prod", "max",    "min",
                                                           "avg", "none", "mulsum", "all"};
  return std::find(kOps.begin(), kOps.end(), token) != kOps.end();
}

// Where a row begins among the tokens; the number of tokens if none does.
std::size_t row_start(const Tokens& tokens) {
  for (std::size_t i = 0; i + 2 < tokens.size() && i <= kPrefixTokensMost; ++i) {
    if (parsed<std::int64_t>(behind_prefix(tokens[i])) && parsed<std::int64_t>(tokens[i + 1]) &&
        is_type(tokens[i + 2])) {
      return i;
    }
  }
  return tokens.size();
}

// Where a table's header begins; the number of tokens if none does.
std::size_t header_start(const Tokens& tokens) {
  for (std::size_t i = 0; i + 2 < tokens.size(); ++i) {
    if (tokens[i].ends_with("size") && tokens[i + 1] == "count" && tokens[i + 2] == "type") {
      return i;
    }
  }
  return tokens.size();
}

bool is_time(std::string_view column) { return column == "time" || column == "cputime"; }

// All "..._perf" in the line, each once.
std::set<std::string> programs_in(std::string_view line) {
  constexpr std::string_view kEnd = "_perf";
  const auto is_part = [](char c) {
    return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  std::set<std::string> names;
  for (std::size_t at = line.find(kEnd); at != std::string_view::npos;
       at = line.find(kEnd, at + 1)) {
    const std::size_t end = at + kEnd.size();
    if (end < line.size() && is_part(line[end])) continue;
    std::size_t start = at;
    while (start > 0 && is_part(line[start - 1])) --start;
    if (start < at) names.emplace(line.substr(start, end - start));
  }
  return names;
}

// 22902 is 2.29.2; before 2.9 the code was 2708.
std::string nccl_version(std::string_view code) {
  const std::optional<int> number = parsed<int>(code);
  if (!number) return std::string(code);
  const int major = *number >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", *number / major, *number % major / 100, *number % 100);
}

class TextReader {
 public:
  TextReader(const std::string& file, bool in_place) : in_place_(in_place) { log_.file = file; }

  NcclTestsLog read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      read_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return std::move(log_);
  }

 private:
  struct Rank {
    std::string host;
    int group = 0;
  };

  void read_line(std::string_view raw) {
    const std::string clean =
        raw.find('\x1b') == std::string_view::npos ? std::string() : without_colours(raw);
    const std::string_view line = clean.empty() ? raw : std::string_view(clean);
    const Tokens tokens = split(line);
    if (read_rank(tokens)) return;
    if (const std::size_t start = header_start(tokens); start < tokens.size()) {
      columns_.clear();
      // Behind "size count type": the rest are columns.
      for (std::size_t i = start + 3; i < tokens.size(); ++i) columns_.emplace_back(tokens[i]);
      open_ = false;
      return;
    }
    if (const std::size_t start = row_start(tokens); start < tokens.size()) {
      read_row(Tokens(tokens.begin() + static_cast<std::ptrdiff_t>(start), tokens.end()));
      return;
    }
    read_note(line, tokens);
  }

  // "#  Rank  0 Group  0 Pid 12 on HOST device  0 [0000:1b:00] NVIDIA H100 80GB HBM3"; older ones
  // have no group, and [0x1b].
  bool read_rank(const Tokens& tokens) {
    const auto rank_word = std::find(tokens.begin(), tokens.end(), "Rank");
    const auto device_word = std::find(rank_word, tokens.end(), "device");
    if (device_word == tokens.end() || device_word - rank_word < 4) return false;
    const std::optional<int> rank = parsed<int>(*(rank_word + 1));
    const auto bracket = std::find_if(device_word, tokens.end(), [](std::string_view token) {
      return token.ends_with(']');
    });
    if (!rank || *rank < 0 || *(device_word - 2) != "on" || bracket == tokens.end()) return false;
    Rank entry{std::string(*(device_word - 1)), 0};
    if (*(rank_word + 2) == "Group") entry.group = parsed<int>(*(rank_word + 3)).value_or(0);
    const bool fresh = ranks_.emplace(*rank, entry).second;
    if (!fresh && ranks_.at(*rank).host != entry.host) twice_ = true;
    std::string product;
    for (auto word = bracket + 1; word != tokens.end(); ++word) {
      product += (product.empty() ? "" : " ") + std::string(*word);
    }
    if (!product.empty()) log_.products.insert(product);
    open_ = false;
    return true;
  }

  void read_note(std::string_view line, const Tokens& tokens) {
    const auto has = [&](std::string_view part) {
      return line.find(part) != std::string_view::npos;
    };
    if (has("Using devices")) {
      ranks_.clear();
      twice_ = open_ = false;
    } else if (has("Out of bounds values") || has("Avg bus bandwidth")) {
      open_ = false;
    } else if (has("Collective test concluded")) {
      open_ = false;
      program_.clear();
    } else if (const std::set<std::string> names = programs_in(line); names.size() == 1) {
      program_ = *names.begin();
      open_ = false;
    }
    if (has("nThread ") && has("minBytes")) {
      const std::size_t start = line.find("nThread ");
      log_.provenance["options"].emplace(line.substr(start, line.find_last_not_of(" \t\r") + 1 -
                                                                start));
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      constexpr std::string_view kLibrary = "nccl-library=";
      if (tokens[i].starts_with(kLibrary)) {
        log_.provenance["nccl"].insert(nccl_version(tokens[i].substr(kLibrary.size())));
      }
      const bool tests = tokens[i] == "nccl-tests" || tokens[i] == "rccl-tests:";
      if (tests && i + 2 < tokens.size() && (tokens[i + 1] == "version" ||
                                             tokens[i + 1] == "Version")) {
        log_.provenance["tests"].emplace(tokens[i + 2]);
      }
    }
  }

  // Size, count and type are the first tokens.
  void read_row(const Tokens& tokens) {
    if (!open_) open_table();
    NcclTestsRow row;
    row.line = line_;
    row.bytes = Bytes(*parsed<std::int64_t>(behind_prefix(tokens[0])));
    row.type = tokens[2];
    if (!read_columns(Tokens(tokens.begin() + 3, tokens.end()), row)) {
      refuse("does not have the columns of its table, or was cut: row skipped");
    } else if (row.bytes < Bytes(1)) {
      refuse("a row of 0 bytes: skipped");
    } else if (row.bytes > Bytes(kNcclBytesMost)) {
      refuse("more than 1 PiB: row skipped");
    } else {
      log_.tables.back().rows.push_back(std::move(row));
    }
  }

  // What follows the type, by the header; without one, as most versions have it.
  bool read_columns(const Tokens& tokens, NcclTestsRow& row) const {
    static const std::vector<std::string> kUsual = {"time", "algbw", "busbw", "#wrong",
                                                    "time", "algbw", "busbw", "#wrong"};
    std::size_t at = 0;
    if (at < tokens.size() && is_redop(tokens[at])) row.redop = tokens[at++];
    const auto first = std::find_if(columns_.begin(), columns_.end(), is_time);
    const std::vector<std::string> columns =
        first == columns_.end() ? kUsual : std::vector<std::string>(first, columns_.end());
    std::size_t expected = columns.size();
    if (columns.back() == "timestamp") ++expected;  // a date and a time of day
    const bool has_root = columns_.empty() ? tokens.size() == at + expected + 1
                                           : std::find(columns_.begin(), first, "root") != first;
    if (has_root) {
      if (at == tokens.size()) return false;
      row.root = parsed<int>(tokens[at++]);
      if (!row.root) return false;
    }
    if (tokens.size() != at + expected) return false;

    auto group = std::find_if(columns.begin(), columns.end(), is_time);
    if (in_place_) group = std::find_if(group + 1, columns.end(), is_time);
    if (columns.end() - group < 4) return false;
    const Tokens values(tokens.begin() + static_cast<std::ptrdiff_t>(at) +
                            (group - columns.begin()),
                        tokens.end());
    return read_values(values, *(group + 3), row);
  }

  // Time, algorithm and bus bandwidth, and in the column `check` what was wrong.
  static bool read_values(const Tokens& values, const std::string& check, NcclTestsRow& row) {
    const std::optional<double> time = parsed<double>(values[0]);
    const std::optional<double> algorithm = parsed<double>(values[1]);
    const std::optional<double> bus = parsed<double>(values[2]);
    if (!time || !(*time > 0 && *time < 1e11) || !algorithm || !bus) return false;
    row.time = parse_seconds(std::string(values[0]) + " us", "");
    row.algorithm_bandwidth = *algorithm;
    row.bus_bandwidth = *bus;
    row.wrong_is_error = check == "error";
    if (values[3] == "N/A") return true;
    const std::optional<double> wrong = parsed<double>(values[3]);
    row.wrong = wrong ? std::abs(*wrong) : std::numeric_limits<double>::infinity();
    return wrong.has_value();
  }

  void open_table() {
    NcclTestsTable table;
    table.line = line_;
    table.program = program_;
    table.ranks = static_cast<int>(ranks_.size());
    std::set<std::string> hosts;
    std::set<int> groups;
    for (const auto& [rank, entry] : ranks_) {
      hosts.insert(entry.host);
      groups.insert(entry.group);
    }
    table.nodes = static_cast<int>(hosts.size());
    const bool cpu = std::find(columns_.begin(), columns_.end(), "cputime") != columns_.end();
    if (cpu) {
      table.fault = "its times are the CPU's (-C), not the collective's";
    } else if (twice_) {
      table.fault = "ranks of one number on several hosts: several tests at once (nccl-tests "
                    "built without MPI=1?)";
    } else if (groups.size() > 1) {
      table.fault = fmt::format("its ranks are split into {} groups at work together "
                                "(NCCL_TESTS_SPLIT); only one group is covered", groups.size());
    } else if (!ranks_.empty() && ranks_.rbegin()->first + 1 != table.ranks) {
      table.fault = fmt::format("its list of ranks has {} of {} lines", table.ranks,
                                std::int64_t{ranks_.rbegin()->first} + 1);
    }
    log_.tables.push_back(std::move(table));
    open_ = true;
  }

  void refuse(std::string_view why) {
    log_.words.push_back(fmt::format("{}:{}: {}", log_.file, line_, why));
  }

  NcclTestsLog log_;
  bool in_place_;
  int line_ = 0;
  std::string program_;                // of the test that runs
  std::map<int, Rank> ranks_;          // of the last list of devices
  bool twice_ = false;
  std::vector<std::string> columns_;   // behind "type"; empty before any header
  bool open_ = false;                  // rows go to the last table
};

}  // namespace

NcclTestsLog read_nccl_tests_text(std::string_view text, const std::string& file, bool in_place) {
  return TextReader(file, in_place).read(text);
}

NcclTestsLog read_nccl_tests(std::string_view text, const std::string& file, bool in_place) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  const bool json = start != std::string_view::npos && text[start] == '{';
  return json ? read_nccl_tests_json(parse_json(text, file), in_place)
              : read_nccl_tests_text(text, file, in_place);
}

}  // namespace stepcast
