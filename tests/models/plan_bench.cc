// One plan evaluated in process: what a search over plans pays for each.
//   build/release/tests/stepcast_bench --benchmark_filter=Plan
#include <malloc.h>

#include <benchmark/benchmark.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "sim/hardware/hardware.h"

namespace stepcast {
namespace {

Model llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn) {
  Model m;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = heads;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn = ffn;
  m.vocabulary = 128256;
  m.positions = 131072;
  return m;
}

// Llama-3-70B on 512 devices: tensor 8, pipeline 8, data 8, 32 micro-batches.
Plan plan_70b() {
  Plan p;
  p.sequence_length = 8192;
  p.tensor = 8;
  p.sequence_parallel = true;
  p.pipeline = 8;
  p.data = 8;
  p.zero = 1;
  p.global_batch = 32 * 8;
  return p;
}

// Llama-3.1-405B on 16,384 devices: tensor 8, pipeline 16 with 8 chunks a stage (126 layers: the
// first and the last chunk have none but embedding and head), data 128, 16 micro-batches.
Plan plan_405b() {
  Plan p = plan_70b();
  p.pipeline = 16;
  p.virtual_stages = 8;
  p.schedule = PipelineSchedule::kInterleaved;
  p.layout = StageLayout::kGiven;
  p.stages.assign(128, 1);
  p.stages.front() = p.stages.back() = 0;
  p.data = 128;
  p.global_batch = 2048;
  return p;
}

// A device of round numbers: this measures our time, not its.
Cluster cluster(int nodes) {
  Device d;
  d.memory = gibibytes(80);
  d.memory_bandwidth = gigabytes_per_second(3350);
  d.kernels.memory = 0.9;
  d.matrix_rate[Dtype::kBf16] = teraflops_per_second(989);
  d.matrix_rate[Dtype::kFp32] = teraflops_per_second(67);
  d.kernels.matrix.efficiency = 0.8;
  d.vector_rate = teraflops_per_second(67);
  d.multiprocessors = 132;
  d.cache = mebibytes(50);
  d.launch = microseconds(4);
  d.kernel_start = microseconds(2);
  d.kernels.attention["generic"] = {0.6, 0.6};
  d.kernels.usual_attention = "generic";
  d.node_bandwidth = gigabytes_per_second(450);
  d.node_latency = microseconds(3);
  d.nic_bandwidth = gigabytes_per_second(50);
  d.nic_latency = microseconds(10);
  return standard_cluster(d, nodes, 8);
}

// As the command does: freed memory is kept for the next plan, not given back page by page.
const bool kKeepsMemory = mallopt(M_MMAP_THRESHOLD, 1 << 30) + mallopt(M_TRIM_THRESHOLD, 1 << 30);

void evaluate(benchmark::State& state, const Model& model, const Plan& plan,
              const Cluster& cluster, bool with_verify) {
  for (auto _ : state) {
    const Job job = lower(transformer(model, plan), plan);
    if (with_verify && !verify(job).empty()) state.SkipWithError("does not verify");
    const Timeline timeline = simulate(job, price(job, cluster));
    const Footprint memory = account(job);
    benchmark::DoNotOptimize(timeline.step);
    benchmark::DoNotOptimize(memory.stages.front().peak);
  }
}

void BM_Plan70bOn512(benchmark::State& state) {
  evaluate(state, llama(80, 8192, 64, 28672), plan_70b(), cluster(64), state.range(0) != 0);
}
BENCHMARK(BM_Plan70bOn512)->ArgName("verify")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

void BM_Plan405bOn16384(benchmark::State& state) {
  evaluate(state, llama(126, 16384, 128, 53248), plan_405b(), cluster(2048), state.range(0) != 0);
}
BENCHMARK(BM_Plan405bOn16384)->ArgName("verify")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Where the time of one plan goes.
void BM_PlanLower(benchmark::State& state) {
  const Model model = llama(80, 8192, 64, 28672);
  const Plan plan = plan_70b();
  for (auto _ : state) benchmark::DoNotOptimize(lower(transformer(model, plan), plan).events);
}
BENCHMARK(BM_PlanLower)->Unit(benchmark::kMicrosecond);

template <class Read>
void read_job(benchmark::State& state, Read read) {
  const Plan plan = plan_70b();
  const Job job = lower(transformer(llama(80, 8192, 64, 28672), plan), plan);
  const Cluster hardware = cluster(64);
  const Prices prices = price(job, hardware);
  for (auto _ : state) read(job, prices, hardware);
}
void BM_PlanVerify(benchmark::State& state) {
  read_job(state, [](const Job& job, const Prices&, const Cluster&) {
    benchmark::DoNotOptimize(verify(job).size());
  });
}
BENCHMARK(BM_PlanVerify)->Unit(benchmark::kMicrosecond);
void BM_PlanPrice(benchmark::State& state) {
  read_job(state, [](const Job& job, const Prices&, const Cluster& hardware) {
    benchmark::DoNotOptimize(price(job, hardware).issue);
  });
}
BENCHMARK(BM_PlanPrice)->Unit(benchmark::kMicrosecond);
void BM_PlanSimulate(benchmark::State& state) {
  read_job(state, [](const Job& job, const Prices& prices, const Cluster&) {
    benchmark::DoNotOptimize(simulate(job, prices).step);
  });
}
BENCHMARK(BM_PlanSimulate)->Unit(benchmark::kMicrosecond);
void BM_PlanMemory(benchmark::State& state) {  // live bytes, the allocator's replay, communicators
  read_job(state, [](const Job& job, const Prices&, const Cluster& hardware) {
    benchmark::DoNotOptimize(account(job, hardware).stages.front().reserved);
  });
}
BENCHMARK(BM_PlanMemory)->Unit(benchmark::kMicrosecond);
void BM_PlanAccount(benchmark::State& state) {
  read_job(state, [](const Job& job, const Prices&, const Cluster&) {
    benchmark::DoNotOptimize(account(job).stages.front().peak);
  });
}
BENCHMARK(BM_PlanAccount)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stepcast
