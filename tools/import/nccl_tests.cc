// From tables to curves: which collective, which rows can be believed, what repeats amount to.
//
// Which collective. The test's name says it; without one the ratio of bus to algorithm bandwidth
// does (NVIDIA/nccl-tests doc/PERFORMANCE.md): 2 (n-1)/n is all-reduce, (n-1)/n all-gather,
// all-to-all or, where something is reduced, reduce-scatter, 1 broadcast or, without a root, send.
// What that leaves open has to be said. The same ratio is held against a stated name, too, so that
// a wrong name or a wrong number of ranks does not pass. Cost: n log n in the rows.
#include "tools/import/nccl_tests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/time/time.h"

namespace stepcast {
namespace {

constexpr double kSpreadToSay = 0.25;
constexpr double kReadableBandwidth = 0.5;  // GB/s, below which two decimals say too little

// The rounding of two bandwidths as printed: two decimals, from 1000 on one.
double rounding(double factor, double bus) { return 0.006 * (1 + factor) + 1e-4 * bus; }

bool fits(const NcclTestsRow& row, double factor) {
  return std::abs(row.bus_bandwidth - factor * row.algorithm_bandwidth) <=
         rounding(factor, row.bus_bandwidth);
}

// The row that tells the ratio best; nullptr if none does.
const NcclTestsRow* telling_row(const NcclTestsTable& table) {
  const auto best = std::max_element(table.rows.begin(), table.rows.end(),
                                     [](const NcclTestsRow& a, const NcclTestsRow& b) {
                                       return a.algorithm_bandwidth < b.algorithm_bandwidth;
                                     });
  const bool tells = best != table.rows.end() && best->algorithm_bandwidth >= kReadableBandwidth;
  return tells ? &*best : nullptr;
}

// "all-reduce" of "all_reduce_perf"; nullopt for tests of what no forecast needs.
std::optional<TransferKind> kind_of_program(std::string_view program) {
  return transfer_kind(program.substr(0, program.find("_perf")));
}

// A kind, or why there is none.
struct KindOrFault {
  std::optional<TransferKind> kind;
  std::string fault;
};

KindOrFault kind_by_ratio(const NcclTestsRow& row, int ranks) {
  using enum TransferKind;
  const bool reduces = !row.redop.empty() && row.redop != "none";
  const bool rooted = row.root.has_value() && *row.root >= 0;
  const auto open = [](std::string_view which) {
    return KindOrFault{{}, fmt::format("is it {}? The log does not say: give --collective", which)};
  };
  // Of two ranks, 2 (n-1)/n is 1 as well.
  const bool reduced = reduces || row.redop.empty();
  if (reduced && !rooted && (ranks > 2 || reduces) && fits(row, bus_factor(kAllReduce, ranks))) {
    return {kAllReduce, ""};
  }
  if (fits(row, bus_factor(kAllGather, ranks)) && !rooted) {
    if (reduces) return {kReduceScatter, ""};
    return open("all-gather or all-to-all");
  }
  if (fits(row, 1) && !reduces) {
    if (rooted) return {kBroadcast, ""};
    if (row.root.has_value()) return {kSendReceive, ""};
    return open("broadcast or send");
  }
  return {{}, fmt::format("busbw / algbw is {:.4f}, that of no collective over {} ranks that a "
                          "forecast needs", row.bus_bandwidth / row.algorithm_bandwidth, ranks)};
}

KindOrFault judge_kind(const NcclTestsTable& table, int ranks, const NcclTestsDefaults& defaults) {
  const NcclTestsRow* row = telling_row(table);
  std::optional<TransferKind> kind = defaults.collective;
  if (!table.program.empty()) {
    kind = kind_of_program(table.program);
    if (!kind) {
      return {{}, fmt::format("{} tests nothing that a forecast needs", table.program)};
    }
  }
  if (!kind) {
    if (row != nullptr) return kind_by_ratio(*row, ranks);
    return {{}, "which collective? The log does not say: give --collective"};
  }
  if (row != nullptr && !fits(*row, bus_factor(*kind, ranks))) {
    return {{},
            fmt::format("busbw / algbw is {:.4f}, but of {} over {} ranks {:.4f}: another "
                        "collective, or another number of ranks",
                        row->bus_bandwidth / row->algorithm_bandwidth, collective_name(*kind),
                        ranks, bus_factor(*kind, ranks))};
  }
  return {kind, ""};
}

// The largest error that nccl-tests before 2022 let pass (src/common.cu, deltaMaxValue).
double error_most(std::string_view type) {
  if (type == "half" || type.starts_with("bf")) return 1e-2;
  if (type == "float") return 1e-5;
  if (type == "double") return 1e-12;
  return 0;
}

// "" or why the row is not believed.
std::string row_doubt(const NcclTestsRow& row) {
  if (row.wrong_is_error && row.wrong > error_most(row.type)) {
    return fmt::format("an error of {:g} in its values", row.wrong);
  }
  if (!row.wrong_is_error && row.wrong > 0) return fmt::format("{:g} wrong values", row.wrong);
  // A time of seven places with an exponent has two digits.
  constexpr double kDigits = 0.06;
  const double implied = static_cast<double>(row.bytes.count) / row.time.value * 1e-9;
  if (!(std::abs(implied - row.algorithm_bandwidth) <= 0.006 + kDigits * implied)) {
    return fmt::format("its time says {:.2f} GB/s, its algbw {:.2f}", implied,
                       row.algorithm_bandwidth);
  }
  return "";
}

std::string group_text(const WireCurve& curve) {
  return fmt::format("{} over {} ranks in {} {}", curve.collective, curve.ranks, curve.nodes,
                     curve.nodes == 1 ? "node" : "nodes");
}

using CurveKey = std::tuple<TransferKind, int, int>;  // kind, ranks, nodes
using TimesBySize = std::map<Bytes, std::vector<Seconds>>;

struct Collected {
  TimesBySize times;
  std::string where;  // the tables that it comes from
};

class Collector {
 public:
  Collector(const NcclTestsDefaults& defaults, std::vector<std::string>& words)
      : defaults_(defaults), words_(words) {}

  void add(const NcclTestsLog& log, const NcclTestsTable& table) {
    if (table.rows.empty()) return;
    const std::string place = fmt::format("{}:{}-{}", log.file, table.line,
                                          table.rows.back().line);
    std::string fault = table.fault;
    const int ranks = table.ranks > 0 ? table.ranks : defaults_.ranks;
    const int nodes = table.nodes > 0 ? table.nodes : defaults_.nodes;
    if (fault.empty() && (ranks == 0 || nodes == 0)) {
      fault = "how many ranks, in how many nodes? The log does not list them: give --ranks and "
              "--nodes";
    } else if (fault.empty() && ranks < 2) {
      fault = "a test of one rank measures no wires";
    }
    KindOrFault verdict;
    if (fault.empty()) {
      verdict = judge_kind(table, ranks, defaults_);
      fault = verdict.fault;
    }
    if (!fault.empty()) return refuse(place, fault + ": table skipped");
    Collected& collected = groups_[{*verdict.kind, ranks, nodes}];
    bool any = false;
    for (const NcclTestsRow& row : table.rows) {
      const std::string why = row_doubt(row);
      if (why.empty()) {
        collected.times[row.bytes].push_back(row.time);
        any = true;
      } else {
        refuse(fmt::format("{}:{}", log.file, row.line), why + ": row refused");
      }
    }
    if (any) collected.where += (collected.where.empty() ? "" : ", ") + place;
  }

  std::vector<WireCurve> curves() {
    std::vector<WireCurve> all;
    for (auto& [group, collected] : groups_) {
      if (collected.times.empty()) continue;
      const auto& [kind, ranks, nodes] = group;
      WireCurve curve;
      curve.collective = collective_name(kind);
      curve.ranks = ranks;
      curve.nodes = nodes;
      for (auto& [bytes, times] : collected.times) add_point(bytes, times, curve);
      words_.push_back(fmt::format(
          "{}: {} {}, {} to {}, from {}", group_text(curve), curve.points.size(),
          curve.points.size() == 1 ? "size" : "sizes",
          format_binary_bytes(curve.points.front().bytes),
          format_binary_bytes(curve.points.back().bytes), collected.where));
      if (curve.spread > kSpreadToSay) {
        words_.push_back(fmt::format("{}: times of one size differ by up to {:.0f} %; are they of "
                                     "one machine and one setting?", group_text(curve),
                                     100 * curve.spread));
      }
      all.push_back(std::move(curve));
    }
    return all;
  }

  const std::string& first_refusal() const { return first_refusal_; }

 private:
  static void add_point(Bytes bytes, std::vector<Seconds>& times, WireCurve& curve) {
    std::sort(times.begin(), times.end());
    const Seconds median = times[(times.size() - 1) / 2];
    curve.points.push_back({bytes, median});
    curve.samples = std::max(curve.samples, static_cast<int>(times.size()));
    curve.spread = std::max(curve.spread, (times.back() - times.front()) / median);
  }

  void refuse(const std::string& place, const std::string& why) {
    words_.push_back(place + ": " + why);
    if (first_refusal_.empty()) first_refusal_ = words_.back();
  }

  const NcclTestsDefaults& defaults_;
  std::vector<std::string>& words_;
  std::map<CurveKey, Collected> groups_;
  std::string first_refusal_;
};

}  // namespace

std::vector<WireCurve> wire_curves(const std::vector<NcclTestsLog>& logs,
                                   const NcclTestsDefaults& defaults,
                                   std::vector<std::string>& words) {
  Collector collector(defaults, words);
  std::string nothing = "import";
  for (const NcclTestsLog& log : logs) {
    words.insert(words.end(), log.words.begin(), log.words.end());
    for (const NcclTestsTable& table : log.tables) collector.add(log, table);
    nothing = log.file;
  }
  std::vector<WireCurve> curves = collector.curves();
  if (!curves.empty()) return curves;
  if (!collector.first_refusal().empty()) {
    throw Error("", fmt::format("nothing is left to import; first: {}", collector.first_refusal()));
  }
  for (const NcclTestsLog& log : logs) {
    if (log.words.empty()) continue;
    throw Error("", fmt::format("nothing is left to import; first: {}", log.words.front()));
  }
  throw Error(nothing, "has no row of nccl-tests: size, count, type, time, algbw, busbw ...");
}

}  // namespace stepcast
