// Max-min rates and collectives played message by message: how long that takes us.
//   build/release/tests/stepcast_bench --benchmark_filter='MaxMin|Flows'
#include <algorithm>
#include <chrono>
#include <random>

#include <benchmark/benchmark.h>

#include "sim/network/collective_flows.h"
#include "sim/network/max_min.h"

namespace stepcast {
namespace {

// A three-level fat tree of k-port switches (Al-Fares, Loukissas and Vahdat 2008): k^3/4 hosts,
// full bisection, links of 50 GB/s. Flows between random hosts over random paths.
struct FatTree {
  std::vector<double> capacities;
  FlowRoutes routes;
};
FatTree fat_tree(std::int32_t k, std::int32_t flows) {
  const std::int32_t half = k / 2, hosts = k * half * half;
  FatTree tree;
  // Six layers of as many links: host up, edge up, aggregation up, and the same down.
  tree.capacities.assign(static_cast<std::size_t>(6 * hosts), 50e9);
  std::mt19937 random(7);
  const auto below = [&](std::int32_t n) {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(n));
  };
  std::vector<std::int32_t> route;
  for (std::int32_t f = 0; f < flows; ++f) {
    const std::int32_t from = below(hosts);
    std::int32_t to = below(hosts - 1);
    if (to >= from) ++to;
    const std::int32_t from_edge = from / half, to_edge = to / half;
    const std::int32_t from_pod = from_edge / half, to_pod = to_edge / half;
    const std::int32_t a = below(half), c = below(half);  // aggregation switch, its core switch
    route = {from, 3 * hosts + to};
    if (from_edge != to_edge) {
      route.push_back(hosts + from_edge * half + a);
      route.push_back(4 * hosts + to_edge * half + a);
    }
    if (from_pod != to_pod) {
      route.push_back(2 * hosts + (from_pod * half + a) * half + c);
      route.push_back(5 * hosts + (to_pod * half + a) * half + c);
    }
    tree.routes.add(route);
  }
  return tree;
}

// 8,192 hosts; all of it: routes read, tables built, rates found.
void BM_MaxMinFromScratch(benchmark::State& state) {
  const auto flows = static_cast<std::int32_t>(state.range(0));
  const FatTree tree = fat_tree(32, flows);
  const std::vector<std::int32_t> counts(static_cast<std::size_t>(flows), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(max_min_rates(tree.capacities, tree.routes, counts).data());
  }
}
BENCHMARK(BM_MaxMinFromScratch)->ArgName("flows")->Arg(10000)->Arg(100000)
    ->Unit(benchmark::kMillisecond);

// One flow of 10,000 goes or one comes, on k^3/4 hosts. `median` and `p90` in microseconds, of the
// single changes; the time of the benchmark is their mean.
void BM_MaxMinChange(benchmark::State& state) {
  constexpr std::int32_t kFlows = 10000;
  const FatTree tree = fat_tree(static_cast<std::int32_t>(state.range(0)), kFlows + 1000);
  MaxMin solver(tree.capacities, tree.routes);
  std::vector<std::int32_t> in, out;
  for (std::int32_t f = 0; f < kFlows + 1000; ++f) (f < kFlows ? in : out).push_back(f);
  for (const std::int32_t f : in) solver.add(f);
  solver.solve();
  std::mt19937 random(8);
  std::vector<double> times;
  double changed = 0;
  bool leaves = true;
  for (auto _ : state) {
    std::vector<std::int32_t>& from = leaves ? in : out;
    std::swap(from[random() % from.size()], from.back());
    const std::int32_t flow = from.back();
    from.pop_back();
    const auto begin = std::chrono::steady_clock::now();
    leaves ? solver.remove(flow) : solver.add(flow);
    changed += static_cast<double>(solver.solve().size());
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    (leaves ? out : in).push_back(flow);
    leaves = !leaves;
  }
  std::sort(times.begin(), times.end());
  state.counters["median"] = times[times.size() / 2];
  state.counters["p90"] = times[times.size() * 9 / 10];
  state.counters["rates_changed"] = changed / static_cast<double>(times.size());
}
BENCHMARK(BM_MaxMinChange)->ArgName("ports")->Arg(16)->Arg(32)->Unit(benchmark::kMicrosecond);

// Nodes of 8 devices at 450 GB/s with a NIC of 50 GB/s each.
FlowNetwork network_of(std::int32_t ranks) {
  TwoLevel shape;
  shape.nodes = ranks / 8;
  shape.devices_per_node = shape.nics_per_node = 8;
  shape.node_bandwidth = gigabytes_per_second(450);
  shape.node_latency = Duration(3'000'000);
  shape.nic_bandwidth = gigabytes_per_second(50);
  shape.nic_latency = Duration(10'000'000);
  return two_level_network(shape);
}

void play_all(benchmark::State& state, const FlowExchange& exchange, std::int32_t ranks,
              Folding folding) {
  const FlowNetwork network = network_of(ranks);
  std::int64_t flows = 0;
  for (auto _ : state) flows = play(std::span(&exchange, 1), network, folding).flows;
  state.counters["flows"] = static_cast<double>(flows);
  state.counters["messages"] = static_cast<double>(exchange.messages());
}

RankList ranks_of(benchmark::State& state) {
  RankList group(static_cast<std::size_t>(state.range(0)));
  for (std::size_t r = 0; r < group.size(); ++r) group[r] = static_cast<std::int32_t>(r);
  return group;
}

void BM_FlowsRingFolded(benchmark::State& state) {
  const RankList group = ranks_of(state);
  play_all(state, ring_all_reduce(std::span(&group, 1), gibibytes(1)),
           static_cast<std::int32_t>(group.size()), Folding::kEqualMessages);
}
BENCHMARK(BM_FlowsRingFolded)->ArgName("ranks")->Arg(256)->Arg(1024)->Arg(4096)
    ->Unit(benchmark::kMillisecond);

void BM_FlowsRingEveryMessage(benchmark::State& state) {
  const RankList group = ranks_of(state);
  play_all(state, ring_all_reduce(std::span(&group, 1), gibibytes(1)),
           static_cast<std::int32_t>(group.size()), Folding::kEveryMessage);
}
BENCHMARK(BM_FlowsRingEveryMessage)->ArgName("ranks")->Arg(256)->Arg(512)->Arg(1024)->Arg(2048)
    ->Unit(benchmark::kMillisecond);

void BM_FlowsAllToAllFolded(benchmark::State& state) {
  const RankList group = ranks_of(state);
  play_all(state, all_to_all(std::span(&group, 1), gibibytes(1)),
           static_cast<std::int32_t>(group.size()), Folding::kEqualMessages);
}
BENCHMARK(BM_FlowsAllToAllFolded)->ArgName("ranks")->Arg(1024)->Unit(benchmark::kMillisecond);

void BM_FlowsAllToAllEveryMessage(benchmark::State& state) {
  const RankList group = ranks_of(state);
  play_all(state, all_to_all(std::span(&group, 1), gibibytes(1)),
           static_cast<std::int32_t>(group.size()), Folding::kEveryMessage);
}
BENCHMARK(BM_FlowsAllToAllEveryMessage)->ArgName("ranks")->Arg(256)->Arg(512)->Arg(1024)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepcast
