// How many instructions a second the event loop takes, and how long a folded plan.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/engine/simulate.h"

namespace stepcast {
namespace {

constexpr std::int64_t kMicrosecond = 1'000'000;
enum : TransferId { kTensorWise, kDataWise, kWire };

void reduce(std::vector<Instruction>& code, TransferId transfer, Stream stream, EventId done) {
  code.push_back(Record{Stream::kCompute, 0});
  code.push_back(Wait{stream, 0});
  code.push_back(Collective{transfer, {}, {}, stream, Phase::kForward});
  code.push_back(Record{stream, done});
}

// Layers of two branches: six kernels each, then an all-reduce that the next branch waits for.
Body layers(int count, bool backward, bool receives, bool sends, bool reduces) {
  Body body{"layers", backward ? Phase::kBackward : Phase::kForward, {}, {}};
  const Stream in = backward ? Stream::kReceiveBackward : Stream::kReceiveForward;
  const Stream out = backward ? Stream::kSendBackward : Stream::kSendForward;
  const auto step = static_cast<std::int8_t>(backward ? -1 : 1);
  if (receives) {
    body.code.push_back(Receive{kWire, 0, {}, in, static_cast<std::int8_t>(-step)});
    body.code.push_back(Record{in, 2});
    body.code.push_back(Wait{Stream::kCompute, 2});
  }
  for (int branch = 0; branch < 2 * count; ++branch) {
    for (OpId op = 0; op < 6; ++op) {
      body.code.push_back(Compute{op, {}, {}, body.phase});
    }
    reduce(body.code, kTensorWise, Stream::kTensor, 1);
    body.code.push_back(Wait{Stream::kCompute, 1});
    if (reduces && branch % 2 == 1) reduce(body.code, kDataWise, Stream::kData, 3);
  }
  if (sends) {
    body.code.push_back(Record{Stream::kCompute, 0});
    body.code.push_back(Wait{out, 0});
    body.code.push_back(Send{kWire, 0, {}, out, step});
  }
  return body;
}

// 1F1B without virtual stages.
Job synthetic(int tensor, int data, int stages, int micro_batches, int layers_a_stage) {
  Job job;
  job.mesh.degree(Axis::kTensor) = tensor;
  job.mesh.degree(Axis::kData) = data;
  job.mesh.degree(Axis::kPipeline) = stages;
  job.names = {"x"};
  job.events = 4;
  for (std::int64_t i = 0; i < 6; ++i) {
    job.ops.push_back(Pointwise{PointwiseKind::kFill, i + 1, 1, Dtype::kBf16, Dtype::kBf16, false});
  }
  job.transfers = {{TransferKind::kAllReduce, Axis::kTensor, false, Bytes(1 << 20)},
                   {TransferKind::kAllReduce, Axis::kData, false, Bytes(1 << 24)},
                   {TransferKind::kSendReceive, Axis::kPipeline, false, Bytes(1 << 20)}};
  // First, middle, last (or only) stage; forward, backward, last backward.
  for (const bool first : {true, false}) {
    for (const bool last : {true, false}) {
      job.bodies.push_back(layers(layers_a_stage, false, !first, !last, false));
      job.bodies.push_back(layers(layers_a_stage, true, !last, !first, false));
      job.bodies.push_back(layers(layers_a_stage, true, !last, !first, true));
    }
  }
  for (int s = 0; s < stages; ++s) {
    const BodyId base = 3 * ((s == 0 ? 0 : 2) + (s + 1 == stages ? 0 : 1));
    const int warm_up = std::min(micro_batches, stages - 1 - s);
    Program program;
    const auto backward = [&](int m) {
      program.schedule.push_back({base + (m + 1 == micro_batches ? 2 : 1), 0, m});
    };
    for (int m = 0; m < micro_batches; ++m) {
      program.schedule.push_back({base, 0, m});
      if (m >= warm_up) backward(m - warm_up);
    }
    for (int m = micro_batches - warm_up; m < micro_batches; ++m) backward(m);
    job.programs.push_back(std::move(program));
  }
  return job;
}

Prices synthetic_prices(const Job& job) {
  Prices prices;
  for (std::size_t i = 0; i < job.ops.size(); ++i) {
    prices.ops.push_back(Duration((20 + 35 * static_cast<std::int64_t>(i)) * kMicrosecond));
  }
  prices.basis.assign(job.ops.size(), Basis::kDatasheet);
  prices.transfers = {Duration(120 * kMicrosecond), Duration(900 * kMicrosecond),
                      Duration(60 * kMicrosecond)};
  prices.issue = Duration(5 * kMicrosecond);
  return prices;
}

void run(benchmark::State& state, const Job& job, const SimulateOptions& options,
         double slow = 1.0) {
  Prices prices = synthetic_prices(job);
  if (slow != 1.0) {
    prices.slow.assign(static_cast<std::size_t>(job.mesh.ranks()), 1.0);
    prices.slow.back() = slow;
  }
  std::int64_t instructions = 0;
  for (auto _ : state) {
    const Timeline timeline = simulate(job, prices, options);
    instructions += timeline.instructions;
    benchmark::DoNotOptimize(timeline.step);
  }
  state.SetItemsProcessed(instructions);
}

// range(0): ranks = tensor 8 x data x pipeline (up to 16).
Job all_ranks_job(const benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const int stages = ranks >= 128 ? 16 : 1;
  return synthetic(8, ranks / 8 / stages, stages, 32, 4);
}

void all_ranks(benchmark::State& state) { run(state, all_ranks_job(state), {Ranks::kAll}); }
BENCHMARK(all_ranks)->Arg(8)->Arg(128)->Arg(1024)->Arg(16384)->Unit(benchmark::kMillisecond);

void all_ranks_one_slow(benchmark::State& state) {
  run(state, all_ranks_job(state), {Ranks::kAll}, 1.3);
}
BENCHMARK(all_ranks_one_slow)->Arg(1024)->Arg(16384)->Unit(benchmark::kMillisecond);

// range(0): micro-batches on 8 stages of 10 layers.
void folded(benchmark::State& state) {
  run(state, synthetic(8, 4, 8, static_cast<int>(state.range(0)), 10), {});
}
BENCHMARK(folded)->Arg(32)->Arg(512)->Unit(benchmark::kMicrosecond);

void folded_without_memory(benchmark::State& state) {
  SimulateOptions options;
  options.memoise = false;
  run(state, synthetic(8, 4, 8, static_cast<int>(state.range(0)), 10), options);
}
BENCHMARK(folded_without_memory)->Arg(32)->Unit(benchmark::kMicrosecond);

void account_memory(benchmark::State& state) {
  const Job job = synthetic(8, 4, 8, 512, 10);
  for (auto _ : state) benchmark::DoNotOptimize(account(job));
}
BENCHMARK(account_memory)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stepcast
