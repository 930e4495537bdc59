// nccl-tests (and rccl-tests): what their logs measured, as curves of a Profile.
//
// A log may be text, of any version and as it comes out of srun -l, mpirun --tag-output, kubectl or
// a page of documentation, or the JSON of `-J`. A text has tables of rows
//   size count type [redop] [root] time algbw busbw #wrong time algbw busbw #wrong
// whose header names the columns (NVIDIA/nccl-tests src/util.cu, writeResultHeader; older ones, in
// src/<collective>.cu, print_header, had no root, and no redop where nothing is reduced). Sizes are
// whole bytes, times us, bandwidths 1e9 bytes a second; the first group of columns is out of place.
//
// Nothing is guessed: a row that was cut, that has wrong values, or whose time and bandwidth do not
// agree is refused, and so is a table whose bus bandwidth does not fit its collective. What was
// refused is said, by line. Of a JSON log the environment ("env") is not looked at: it may hold
// secrets.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/hardware/profile.h"
#include "sim/program/program.h"

namespace stepcast {

inline constexpr std::int64_t kNcclBytesMost = std::int64_t{1} << 50;  // as profiles limit it

struct NcclTestsRow {
  int line = 0;                // 1 is the first
  Bytes bytes;
  std::string type;            // "float"
  std::string redop;           // "sum", "none"; "" if there is no such column
  std::optional<int> root;     // -1: none
  Seconds time;                // of the buffers that were asked for
  double algorithm_bandwidth = 0, bus_bandwidth = 0;  // GB/s, rounded as printed
  double wrong = 0;            // elements, or before 2022 the largest error; 0 if not checked
  bool wrong_is_error = false;
};

struct NcclTestsTable {
  int line = 0;
  std::string program;         // "all_reduce_perf"; "" if not stated
  int ranks = 0, nodes = 0;    // 0: not stated
  std::string fault;           // why no row of it counts; "" if they do
  std::vector<NcclTestsRow> rows;
};

struct NcclTestsLog {
  std::string file;
  std::vector<NcclTestsTable> tables;
  std::set<std::string> products;                          // "NVIDIA H100 80GB HBM3"
  std::map<std::string, std::set<std::string>> provenance; // versions, options, dates
  std::vector<std::string> words;                          // what was skipped, by line
};

// Text or JSON, whichever it is. `in_place`: the second group of columns. Throws Error for JSON
// that is none; of a text that is none there are no tables.
NcclTestsLog read_nccl_tests(std::string_view text, const std::string& file, bool in_place);

// Its two halves.
NcclTestsLog read_nccl_tests_text(std::string_view text, const std::string& file, bool in_place);
NcclTestsLog read_nccl_tests_json(const Document& document, bool in_place);

// For tables that do not say it themselves.
struct NcclTestsDefaults {
  std::optional<TransferKind> collective;
  int ranks = 0, nodes = 0;
};

// One curve for each collective, number of ranks and number of nodes. A size that was measured more
// than once has the median time (of an even number the lower middle one). Appends to `words` what
// was taken and what was refused. Throws Error if nothing is left, with the first reason.
std::vector<WireCurve> wire_curves(const std::vector<NcclTestsLog>& logs,
                                   const NcclTestsDefaults& defaults,
                                   std::vector<std::string>& words);

}  // namespace stepcast
