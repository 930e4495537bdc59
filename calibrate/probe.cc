// Each time is asked for twice: a few runs, which warm up and say how many a batch needs to last as
// long as a clock wants; then batches. Cost: some 20 ms a point, more where one run is longer.
#include "calibrate/probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calibrate/catalog.h"
#include "calibrate/fit.h"
#include "calibrate/measure.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr int kBatches = 10;
constexpr int kRunsMost = 80;    // of a batch: all are in a stream's queue before the first begins
constexpr double kBatch = 1e-3;  // seconds, some thousand ticks of an event's clock
constexpr double kTogether = 20e-3, kShortestSpan = 50e-6;  // of two lanes, and of a batch in them
constexpr int kSpansLeast = 8, kSpansMost = 200;
constexpr int kLaunches = 500;
constexpr std::int64_t kMemoryLeast = std::int64_t{1} << 20, kWiresLeast = std::int64_t{1} << 10;
constexpr std::int64_t kWiresMost = std::int64_t{64} << 20;  // at least so far
constexpr Bytes kCopy{std::int64_t{512} << 20};              // beside a collective, at most

// Each rank's part of the bytes is whole: 16 bytes, as the widest loads are.
Bytes whole_parts(Bytes bytes, int ranks) {
  const std::int64_t part = std::int64_t{16} * ranks;
  return Bytes(std::max<std::int64_t>(1, bytes.count / part) * part);
}

Timing timing_of(const std::vector<double>& times) {
  Statistic statistic;
  for (const double time : times) statistic.add(time);
  return timing_of(statistic);
}

// As curves name it: of a message not by its ends.
std::string collective_of(const ProbedTransfer& transfer) {
  TransferKey key;
  key.kind = transfer.load.transfer.kind;
  return key.kind == TransferKind::kSendReceive ? "send-receive" : transfer_key_name(key);
}

// As long as `seconds`, in spans that a clock can tell.
BenchLane lane_of(const BenchLoad& load, double alone, double seconds) {
  const double runs = std::clamp(std::ceil(kShortestSpan / alone), 1.0, double{kRunsMost});
  const double batches = std::clamp(std::ceil(seconds / alone / runs), 1.0, double{kSpansMost});
  return {load, static_cast<int>(batches), static_cast<int>(runs)};
}

template <class Function>
void each_transfer(const Job& job, Function function) {
  for (const Body& body : job.bodies) {
    for (const Instruction& i : body.code) {
      if (const auto* c = std::get_if<Collective>(&i)) function(c->transfer, c->stream);
      if (const auto* s = std::get_if<Send>(&i)) function(s->transfer, s->stream);
    }
  }
}

}  // namespace

std::vector<ProbedTransfer> probed_transfers(const Job& job) {
  std::vector<ProbedTransfer> all;
  each_transfer(job, [&](TransferId id, Stream stream) {
    const Transfer& t = job.transfers[static_cast<std::size_t>(id)];
    const int along = job.mesh.group_size(t.axes);
    const int ranks = t.ends_only ? std::min(2, along) : along;
    if (ranks < 2) return;
    const auto found = std::find_if(all.begin(), all.end(), [&](const ProbedTransfer& one) {
      const Transfer& other = one.load.transfer;
      return other.kind == t.kind && other.axes == t.axes && other.ends_only == t.ends_only;
    });
    if (found == all.end()) {
      all.push_back({{t, stream}, ranks, 1, job.mesh.ranks() / along});
    } else if (t.bytes > found->load.transfer.bytes) {
      found->load.transfer.bytes = t.bytes;
    }
  });
  return all;
}

Slowdown slowdown(std::span<const BenchSpan> lane, double alone, std::span<const BenchSpan> other) {
  Slowdown result;
  if (lane.empty() || other.empty()) return result;
  double sum = 0;
  for (const BenchSpan& span : lane) {
    if (span.begin < other.front().begin || span.end > other.back().end) continue;
    sum += (span.end - span.begin) / alone;
    ++result.count;
  }
  if (result.count > 0) result.factor = sum / static_cast<double>(result.count);
  return result;
}

std::int64_t agreed(Transport& control, std::int64_t value) {
  double said = control.rank() == 0 ? static_cast<double>(value) : 0;
  control.sum_everywhere({&said, 1});
  return static_cast<std::int64_t>(said);
}

Prober::Prober(Bench& bench, Transport& control, Probed& probed, std::function<void()> kept)
    : bench_(bench),
      control_(control),
      sizes_(bench.sizes()),
      probed_(probed),
      kept_(std::move(kept)) {}

TransferLoad Prober::largest(const ProbedTransfer& transfer) const {
  TransferLoad load = transfer.load;
  load.transfer.bytes = whole_parts(std::min(load.transfer.bytes, sizes_.most), transfer.ranks);
  return load;
}

bool Prober::known(bool here) { return agreed(control_, here ? 1 : 0) != 0; }

// The mean of those ranks that take part.
std::vector<double> Prober::over_ranks(std::vector<double> values, bool takes_part) {
  if (!takes_part) std::fill(values.begin(), values.end(), 0.0);
  values.push_back(takes_part ? 1 : 0);
  control_.sum_everywhere(values);
  const double ranks = values.back();
  STEPCAST_CHECK(ranks > 0, "a rank that takes part in what is timed");
  values.pop_back();
  for (double& value : values) value /= ranks;
  return values;
}

// Seconds of one run, by batch.
std::vector<double> Prober::times(const BenchLoad& load) {
  const auto run = [&](int batches, int runs) {
    const BenchLane lane{load, batches, runs};
    const auto spans = bench_.run({&lane, 1}).front();
    std::vector<double> each(static_cast<std::size_t>(batches), 0.0);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      each[i] = (spans[i].end - spans[i].begin) / runs;
    }
    return over_ranks(std::move(each), !spans.empty());
  };
  const double rough = std::max(run(2, 2).back(), 1e-9);
  const auto runs = static_cast<int>(std::clamp(kBatch / rough, 1.0, double{kRunsMost}));
  std::vector<double> each = run(kBatches + 1, runs);
  each.erase(each.begin());  // begins while others still end
  return each;
}

double Prober::mean_time(const BenchLoad& load) { return timing_of(times(load)).mean.value; }

Seconds Prober::sentinel() { return Seconds(mean_time(ProductLoad{sizes_.product})); }

void Prober::measure_memory() {
  for (const bool add : {false, true}) {
    const std::string& kernel = memory_kernel_names()[add ? 1 : 0];
    for (std::int64_t size = kMemoryLeast; size <= sizes_.most.count; size *= 4) {
      // Whole elements of bf16 in each of what is read and written.
      const Bytes bytes = whole_parts(Bytes(size), add ? 3 : 2);
      const auto& all = probed_.probes.memory;
      const bool here = std::any_of(all.begin(), all.end(), [&](const MemoryPoint& point) {
        return point.kernel == kernel && point.bytes == bytes;
      });
      if (known(here)) continue;
      const Timing time = timing_of(times(MemoryLoad{add, bytes}));
      probed_.probes.memory.push_back({kernel, bytes, time});
      kept_();
    }
  }
}

void Prober::measure_launches() {
  if (known(probed_.probes.launch.has_value())) return;
  bench_.launches(kLaunches);  // warms up
  std::vector<double> issue, gap, graph_issue, graph_gap;
  for (int i = 0; i < kBatches; ++i) {
    const LaunchTimes one = bench_.launches(kLaunches);
    const std::vector<double> mean =
        over_ranks({one.issue, one.gap, one.graph_issue, one.graph_gap}, true);
    issue.push_back(mean[0]);
    gap.push_back(mean[1]);
    graph_issue.push_back(mean[2]);
    graph_gap.push_back(mean[3]);
  }
  probed_.probes.launch =
      LaunchCosts{timing_of(issue), timing_of(gap), timing_of(graph_issue), timing_of(graph_gap)};
  kept_();
}

void Prober::measure_wires(const ProbedTransfer& transfer) {
  WireCurve curve;
  curve.collective = collective_of(transfer);
  curve.ranks = transfer.ranks;
  curve.nodes = transfer.nodes;
  curve.groups_per_node = transfer.groups_per_node;
  curve.samples = kBatches;
  const bool here =
      std::any_of(probed_.wires.begin(), probed_.wires.end(), [&](const WireCurve& other) {
        return other.collective == curve.collective && other.ranks == curve.ranks &&
               other.nodes == curve.nodes && other.groups_per_node == curve.groups_per_node;
      });
  if (known(here)) return;
  TransferLoad load = transfer.load;
  const std::int64_t most =
      std::min(sizes_.most.count, std::max(kWiresMost, 2 * transfer.load.transfer.bytes.count));
  for (std::int64_t size = kWiresLeast; size <= most; size *= 2) {
    load.transfer.bytes = whole_parts(Bytes(size), transfer.ranks);
    if (!curve.points.empty() && curve.points.back().bytes == load.transfer.bytes) continue;
    const std::vector<double> each = times(load);
    const auto [least, greatest] = std::minmax_element(each.begin(), each.end());
    const double median = median_of(each);
    curve.points.push_back({load.transfer.bytes, timing_of({median}).mean});
    curve.spread = std::max(curve.spread, (*greatest - *least) / median);
  }
  curve.spread = std::round(curve.spread * 1e4) / 1e4;
  probed_.wires.push_back(std::move(curve));
  kept_();
}

void Prober::measure_beside(const ProbedTransfer& transfer) {
  for (const std::string& kernel : beside_kernel_names()) {
    BesidePoint point;
    point.kernel = kernel;
    point.collective = collective_of(transfer);
    point.ranks = transfer.ranks;
    point.nodes = transfer.nodes;
    point.groups_per_node = transfer.groups_per_node;
    const TransferLoad wires = largest(transfer);
    point.bytes = wires.transfer.bytes;
    const bool here = find_beside(probed_.probes, kernel, point.collective, point.ranks,
                                  point.nodes, point.groups_per_node) != nullptr;
    if (known(here)) continue;
    const bool product = kernel == beside_kernel(Gemm{});
    const BenchLoad load = product ? BenchLoad(ProductLoad{sizes_.product})
                                   : MemoryLoad{false, std::min(kCopy, sizes_.most)};
    const double alone[] = {mean_time(load), mean_time(wires)};
    const double together = std::max(kTogether, kSpansLeast * std::max(alone[0], alone[1]));
    const BenchLane lanes[] = {lane_of(load, alone[0], together),
                               lane_of(wires, alone[1], together)};
    const auto spans = bench_.run(lanes);
    std::vector<double> sums;
    for (const std::size_t i : {0u, 1u}) {
      const Slowdown slow = slowdown(spans[i], alone[i] * lanes[i].runs, spans[1 - i]);
      const auto count = static_cast<double>(slow.count);
      sums.insert(sums.end(), {slow.factor * count, count});
    }
    control_.sum_everywhere(sums);
    if (sums[1] == 0 || sums[3] == 0) continue;  // never at once: nothing is known of it
    point.kernel_factor = std::round(sums[0] / sums[1] * 1e4) / 1e4;
    point.collective_factor = std::round(sums[2] / sums[3] * 1e4) / 1e4;
    point.samples = static_cast<std::int64_t>(std::min(sums[1], sums[3]));
    probed_.probes.beside.push_back(std::move(point));
    kept_();
  }
}

}  // namespace stepcast
