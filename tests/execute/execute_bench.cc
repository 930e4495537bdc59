// How fast the executor's kernels are, and what of a step is not matrix products:
//   stepcast_bench --benchmark_filter='Product|Step'
// Product: through the backend, and oneDNN's own sgemm of the same shape beside it ("oneDNN").
// Step: the shares of a step's time by kind of work; "between" is interpreting and loading tokens.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/cpu/gemm.h"
#include "execute/execute.h"
#include "sim/result/recording.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

Tensor matrix(std::int64_t rows, std::int64_t columns, Scope scope) {
  Tensor tensor;
  tensor.shape = {rows, columns};
  tensor.dtype = Dtype::kFp32;
  tensor.scope = scope;
  return tensor;
}

// One product of a linear layer of `hidden` to 4 `hidden`, over 512 tokens.
struct Layer {
  std::int64_t m, n, k;
  Tensor a, b, c;
  std::vector<float> a_data, b_data, c_data;

  Layer(GemmRole role, std::int64_t hidden) {
    const std::int64_t tokens = 512, wide = 4 * hidden;
    switch (role) {
      case GemmRole::kForward: m = tokens, n = wide, k = hidden; break;
      case GemmRole::kInputGradient: m = tokens, n = hidden, k = wide; break;
      case GemmRole::kWeightGradient: m = wide, n = hidden, k = tokens; break;
    }
    const bool weight_gradient = role == GemmRole::kWeightGradient;
    a = weight_gradient ? matrix(k, m, Scope::kMicroBatch) : matrix(m, k, Scope::kMicroBatch);
    b = matrix(role == GemmRole::kForward ? n : k, role == GemmRole::kForward ? k : n,
               weight_gradient ? Scope::kMicroBatch : Scope::kChunk);
    c = matrix(m, n, weight_gradient ? Scope::kChunk : Scope::kMicroBatch);
    a_data.assign(static_cast<std::size_t>(m * k), 0.5f);
    b_data.assign(static_cast<std::size_t>(n * k), 0.25f);
    c_data.assign(static_cast<std::size_t>(m * n), 0.0f);
  }
};

void rate(benchmark::State& state, const Layer& layer) {
  state.counters["FLOP/s"] = benchmark::Counter(
      2.0 * static_cast<double>(layer.m * layer.n * layer.k),
      benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void Product(benchmark::State& state, GemmRole role) {
  Layer layer(role, state.range(0));
  Gemm gemm;
  gemm.role = role;
  gemm.m = layer.m, gemm.n = layer.n, gemm.k = layer.k;
  gemm.dtype = gemm.output = Dtype::kFp32;
  const Op op = gemm;
  const std::vector<Operand> reads = {{layer.a_data.data(), &layer.a},
                                      {layer.b_data.data(), &layer.b}};
  const std::vector<Operand> writes = {{layer.c_data.data(), &layer.c}};
  const Place place;
  const auto backend = make_cpu_backend(1);
  for (auto _ : state) backend->compute({op, reads, writes, place});
  rate(state, layer);
}

void ProductOneDnn(benchmark::State& state, GemmRole role) {
  Layer layer(role, state.range(0));
  cpu::set_gemm_threads(1);
  const bool forward = role == GemmRole::kForward, weight = role == GemmRole::kWeightGradient;
  for (auto _ : state) {
    cpu::multiply<float>(layer.m, layer.n, layer.k, 1,
                         {layer.a_data.data(), weight ? layer.m : layer.k, weight},
                         {layer.b_data.data(), forward ? layer.k : layer.n, forward}, 0,
                         layer.c_data.data(), layer.n);
  }
  rate(state, layer);
}

#define STEPCAST_PRODUCT(role)                                                     \
  BENCHMARK_CAPTURE(Product, role, GemmRole::role)->Arg(256)->Arg(768)->Arg(1024); \
  BENCHMARK_CAPTURE(ProductOneDnn, role, GemmRole::role)->Arg(256)->Arg(768)->Arg(1024)
STEPCAST_PRODUCT(kForward);
STEPCAST_PRODUCT(kInputGradient);
STEPCAST_PRODUCT(kWeightGradient);

// Two layers of a GPT, four micro-batches of 512 tokens, on one rank.
void Step(benchmark::State& state) {
  const std::int64_t hidden = state.range(0);
  Plan plan = executable_plan(256, 8);
  plan.micro_batch = 2;
  const Job job = lowered(gpt_model(2, hidden, hidden / 64, 2048, 256), plan);
  ExecuteOptions options = train_options(1);
  options.poison = false;
  options.check_numbers = true;
  options.record = 1;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  ThreadRanks ranks(job, options, *corpus, [] { return make_cpu_backend(1); });
  ranks.step();
  double all = 0, products = 0, attention = 0, update = 0;
  for (auto _ : state) {
    ranks.step();
    const Recording recording = record(job, ranks.last_marks());
    for_each_timed(job, job.programs[0],
                   [&](const Call&, std::size_t, const Instruction& what, std::size_t at) {
                     const double seconds = to_seconds(recording.durations[0][at]).value;
                     all += seconds;
                     const auto* compute = std::get_if<Compute>(&what);
                     if (compute == nullptr) return;
                     const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
                     if (std::holds_alternative<Gemm>(op)) products += seconds;
                     if (std::holds_alternative<Attention>(op)) attention += seconds;
                     if (std::holds_alternative<Update>(op)) update += seconds;
                   });
  }
  const RankRun run = ranks.finish()[0];
  state.counters["products"] = products / all;
  state.counters["attention"] = attention / all;
  state.counters["updates"] = update / all;
  state.counters["rest"] = (all - products - attention) / all;
  state.counters["between"] = to_seconds(run.between).value / run.seconds.back();
}
BENCHMARK(Step)->Arg(256)->Arg(768)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace stepcast
