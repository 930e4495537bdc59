// Microbenchmarks, and ranks that run without the others, on a machine of GPUs that are none: what
// is issued is in order, and nothing is left over. Its clock tells no speed.
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "calibrate/probe.h"
#include "tests/support/fake_cuda/run_on_fake.h"

namespace stepcast {
namespace {

Job job_of(std::int64_t tensor, std::int64_t pipeline, std::int64_t data) {
  Plan plan = mixed_plan(4, 4 * data);
  plan.tensor = tensor;
  plan.pipeline = pipeline;
  plan.data = data;
  plan.zero = data > 1 ? 1 : 0;
  return lowered(llama_model(2 * pipeline, 16, 4, 2, 24, 30), plan);
}

// Late: the stream that receives.
void start(int devices, fake::Order order = fake::Order::kRandom) {
  fake::MachineOptions machine;
  machine.order = order;
  machine.stream = 2;
  machine.devices = devices;
  machine.memory = std::size_t{64} << 20;
  fake::start(machine);
}

void expect_clean() {
  EXPECT_EQ(fake::complaints(), std::vector<std::string>());
  EXPECT_EQ(fake::leaks(), std::vector<std::string>());
}

TEST(FakeBench, RunsEachLoadAloneAndBesideOthers) {
  start(1);
  {
    const auto control = make_lone_transport(0);
    const std::atomic<bool> stop = false;
    const auto bench = make_cuda_bench(nullptr, *control, 0, stop);
    EXPECT_EQ(bench->sizes().most, mebibytes(8));
    for (const BenchLoad& load :
         {BenchLoad(ProductLoad{16}), BenchLoad(MemoryLoad{true, kibibytes(12)}),
          BenchLoad(MemoryLoad{false, kibibytes(8)})}) {
      const BenchLane lane{load, 3, 2};
      const auto spans = bench->run({&lane, 1});
      ASSERT_EQ(spans.size(), 1u);
      ASSERT_EQ(spans[0].size(), 3u);
      EXPECT_GE(spans[0][0].begin, 0);
      for (const BenchSpan& span : spans[0]) EXPECT_LE(span.begin, span.end);
    }
    const LaunchTimes times = bench->launches(5);
    EXPECT_GT(times.issue, 0);
    EXPECT_GE(times.gap, 0);
    EXPECT_GE(times.graph_gap, 0);
    EXPECT_EQ(fake::calls("cudaGraphLaunch"), 3);
  }
  expect_clean();
}

// Two tensors of three tenths of the memory each: the second copy has no room behind the first.
TEST(FakeBench, BeginsAnewWhereMemoryEnds) {
  start(1);
  {
    const auto control = make_lone_transport(0);
    const std::atomic<bool> stop = false;
    const auto bench = make_cuda_bench(nullptr, *control, 0, stop);
    const BenchLane lane{MemoryLoad{false, Bytes(bench->sizes().most.count * 6 / 10)}, 1, 2};
    EXPECT_EQ(bench->run({&lane, 1})[0].size(), 1u);
  }
  expect_clean();
}

// All kinds of a plan's transfers, over groups of one axis each and the ends of the pipeline. No
// lane begins before all can, and none is under way when they are said to have ended.
TEST(FakeBench, CarriesTheTransfersOfAPlanOnAllRanks) {
  for (const Job& job : {job_of(2, 1, 2), job_of(1, 3, 1), job_of(1, 2, 2)}) {
    start(job.mesh.ranks(), fake::Order::kLate);
    std::mutex mutex;
    std::set<std::string> spans_of;
    bench_cuda_threads(job, [&](Bench& bench, Transport& control) {
      for (const ProbedTransfer& one : probed_transfers(job)) {
        TransferLoad load = one.load;
        load.transfer.bytes = Bytes(std::int64_t{96} * one.ranks);
        const BenchLane lanes[] = {{ProductLoad{16}, 4, 1}, {load, 3, 2}};
        const auto spans = bench.run(lanes);
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(fake::idle(control.rank()));
        EXPECT_EQ(spans[0].size(), 4u);
        for (const auto& lane : spans) {
          for (const BenchSpan& span : lane) EXPECT_TRUE(span.begin >= 0 && span.end >= span.begin);
        }
        if (spans[1].empty()) continue;  // between the ends of the pipeline
        EXPECT_EQ(spans[1].size(), 3u);
        spans_of.insert(std::string(transfer_name(load.transfer.kind)) +
                        std::to_string(control.rank()));
      }
    });
    EXPECT_GE(std::ssize(spans_of), job.mesh.ranks());
    expect_clean();
  }
}

// Each stage of a plan for eight, on one GPU: kernels as in a step of all, and no communicator.
TEST(FakeAlone, ARankNeedsNoOther) {
  const Job job = job_of(2, 2, 2);
  for (const int rank : {0, 7}) {
    start(1);
    const auto corpus = make_language(job.batch.vocabulary, 7);
    ExecuteOptions options = train_options(3);
    options.record = 2;
    {
      const auto control = make_lone_transport(rank);
      CudaOptions cuda;
      cuda.alone = true;
      const CudaRun run = run_cuda_rank(job, options, *corpus, *control, 0, cuda);
      ASSERT_EQ(run.recorded.size(), 2u);
      std::size_t timed = 0;
      for_each_timed(job, job.programs[static_cast<std::size_t>(job.mesh.stage(rank))],
                     [&](const auto&...) { ++timed; });
      for (const auto& spans : run.recorded) EXPECT_EQ(spans.size(), timed);
    }
    EXPECT_EQ(fake::calls("ncclCommInitRank"), 0);
    expect_clean();
  }
}

}  // namespace
}  // namespace stepcast
