// A search by one thread: what a candidate costs, from its words to its place.
//   build/release/tests/stepcast_bench --benchmark_filter=Search
#include <benchmark/benchmark.h>

#include "tools/search/explore.h"
#include "tools/search/space.h"

namespace stepcast {
namespace {

constexpr std::string_view k70b = R"({
  "model": "llama3.1-70b", "cluster": "h100-sxm-128x8",
  "batch": {"sequence_length": 8192, "global": 2048},
  "parallel": {"sequence_parallel": true}, "sharding": {"zero": 1}
})";

void BM_Search70bOn1024(benchmark::State& state) {
  const WhatIfFile question(parse_json(k70b, "benchmark"));
  const std::vector<Choice> fixed = {fixed_choice("sharding.zero", question),
                                     fixed_choice("parallel.sequence_parallel", question)};
  const std::vector<ClusterPlans> clusters = {
      {1024, question, {}, candidates(question, 2048, fixed)}};
  ExploreOptions options;
  options.threads = 1;
  for (auto _ : state) benchmark::DoNotOptimize(explore(clusters, options).fit);
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(clusters.front().candidates.size()));
}
BENCHMARK(BM_Search70bOn1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepcast
