// The JSON of nccl-tests -J (NVIDIA/nccl-tests src/util.cu; versions 1 to 3): one test a file. Keys
// that are not needed are passed over, the environment first of all. Linear in the file.
#include <cmath>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/import/nccl_tests.h"
#include "tools/validate/fields.h"

namespace stepcast {
namespace {

int line_of(const Document& document, const std::string& pointer) {
  const auto found = document.lines.find(pointer);
  return found == document.lines.end() ? 1 : found->second;
}

int int_of(const Json& object, std::string_view key, int otherwise) {
  const Json* found = member(object, key);
  return found != nullptr && found->is_number_integer() ? found->get<int>() : otherwise;
}

// Ranks and nodes from the list of devices. Of a process only its first rank may be listed: then
// the numbers are multiples of what a process has.
void read_devices(const Json& root, NcclTestsLog& log, NcclTestsTable& table) {
  const Json* config = member(root, "config");
  const Json* devices = member(root, "devices");
  if (devices == nullptr && config != nullptr) devices = member(*config, "devices");
  if (devices == nullptr || !devices->is_array()) return;
  std::set<int> ranks, groups;
  std::set<std::string> hosts;
  for (const Json& device : *devices) {
    ranks.insert(int_of(device, "rank", 0));
    groups.insert(int_of(device, "group", 0));
    hosts.insert(text_of(device, "hostname"));
    const std::string product = text_of(device, "device_info");
    if (!product.empty()) log.products.insert(product);
  }
  if (ranks.empty()) return;
  std::int64_t process = 1;
  if (config != nullptr) {
    process = count_of(*config, "nthreads").value_or(1) * count_of(*config, "ngpus").value_or(1);
  }
  bool firsts = process > 1;
  for (const int rank : ranks) firsts = firsts && rank % process == 0;
  const auto listed = static_cast<std::int64_t>(ranks.size());
  const std::int64_t step = firsts ? process : 1;
  if (*ranks.begin() != 0 || *ranks.rbegin() != (listed - 1) * step || listed * step > 1 << 20) {
    table.fault = fmt::format("its list of {} ranks has gaps", listed);
    return;
  }
  table.ranks = static_cast<int>(listed * step);
  table.nodes = static_cast<int>(hosts.size());
  if (groups.size() > 1) {
    table.fault = fmt::format("its ranks are split into {} groups at work together "
                              "(NCCL_TESTS_SPLIT); only one group is covered", groups.size());
  }
}

// "" or why the row does not count.
std::string read_result(const Json& result, bool in_place, NcclTestsRow& row) {
  const std::optional<std::int64_t> size = count_of(result, "size");
  if (!size || *size > kNcclBytesMost) return "no size from 1 B to 1 PiB";
  row.bytes = Bytes(*size);
  row.type = text_of(result, "type");
  row.redop = text_of(result, "redop");
  const std::string root = text_of(result, "root");  // "    -1"
  if (const std::size_t start = root.find_first_not_of(' '); start != std::string::npos) {
    row.root = root[start] == '-' ? -1 : 0;
  }
  const char* key = in_place ? "in_place" : "out_of_place";
  const Json* times = member(result, key);
  if (times == nullptr) return fmt::format("no \"{}\"", key);
  if (member(*times, "cpu_time") != nullptr) return "its time is the CPU's (-C)";
  const std::optional<double> time = number_of(*times, "time");
  const std::optional<double> algorithm = number_of(*times, "alg_bw");
  const std::optional<double> bus = number_of(*times, "bus_bw");
  if (!time || *time >= 1e11) return "no time";
  row.time = parse_seconds(fmt::format("{} us", *time), "");
  row.algorithm_bandwidth = algorithm.value_or(0);  // a few bytes have 0.000000
  row.bus_bandwidth = bus.value_or(0);
  const Json* wrong = member(*times, "nwrong");
  if (wrong != nullptr && wrong->is_number()) row.wrong = std::abs(wrong->get<double>());
  if (wrong != nullptr && wrong->is_string()) return "its wrong values are no number";
  return "";
}

}  // namespace

NcclTestsLog read_nccl_tests_json(const Document& document, bool in_place) {
  const Json& root = document.root;
  const Json* results = member(root, "results");
  if (results == nullptr || !results->is_array()) {
    throw Error(document.file, "has no \"results\": not the JSON that nccl-tests -J writes");
  }
  NcclTestsLog log;
  log.file = document.file;
  NcclTestsTable table;
  table.line = line_of(document, "/results");
  if (const Json* args = member(root, "args"); args != nullptr && args->is_array() &&
                                               !args->empty() && args->front().is_string()) {
    const std::string path = args->front().get<std::string>();
    table.program = path.substr(path.rfind('/') + 1);
  }
  read_devices(root, log, table);
  if (const std::optional<std::int64_t> code = count_of(root, "nccl_version")) {
    log.provenance["nccl"].insert(fmt::format("{}.{}.{}", *code / 10000, *code % 10000 / 100,
                                              *code % 100));
  }
  const std::string date = text_of(root, "start_time");
  if (!date.empty()) log.provenance["date"].insert(date.substr(0, date.find(' ')));
  for (std::size_t i = 0; i < results->size(); ++i) {
    NcclTestsRow row;
    row.line = line_of(document, fmt::format("/results/{}", i));
    const std::string fault = read_result((*results)[i], in_place, row);
    if (fault.empty()) {
      table.rows.push_back(std::move(row));
    } else {
      log.words.push_back(fmt::format("{}:{}: {}: skipped", document.file, row.line, fault));
    }
  }
  log.tables.push_back(std::move(table));
  return log;
}

}  // namespace stepcast
