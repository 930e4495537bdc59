// Probes on a device that is none: what it says it takes is what is found, on every rank.
#include "calibrate/probe.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

constexpr double kProduct = 200e-6, kLatency = 20e-6;
constexpr double kMemory = 2e12, kWire = 1e11;  // bytes a second
constexpr double kSlowProduct = 1.3, kSlowCopy = 1.8, kSlowWire = 1.1;

// A product takes 200 us, a transfer 20 us and its bytes at 100 GB/s, on the second rank a tenth
// more. Of two lanes each is slower while the other is at work.
class FakeBench : public Bench {
 public:
  explicit FakeBench(int rank = 0) : slow_(rank == 0 ? 1 : 1.1) {}

  BenchSizes sizes() const override { return {mebibytes(256), 4096}; }

  std::vector<std::vector<BenchSpan>> run(std::span<const BenchLane> lanes) override {
    runs_ += lanes.size();
    std::vector<std::vector<BenchSpan>> spans(lanes.size());
    std::vector<double> now(lanes.size(), 0.0);
    const auto left = [&](std::size_t i) {
      return spans[i].size() < static_cast<std::size_t>(lanes[i].batches);
    };
    const auto all_left = [&] {
      bool all = true;
      for (std::size_t i = 0; i < lanes.size(); ++i) all = all && left(i);
      return all;
    };
    for (;;) {
      std::size_t next = lanes.size();
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (left(i) && (next == lanes.size() || now[i] < now[next])) next = i;
      }
      if (next == lanes.size()) return spans;
      const bool beside = lanes.size() > 1 && all_left();
      const double each = seconds(lanes[next].load) * (beside ? factor(lanes[next].load) : 1);
      const double begin = now[next];
      now[next] += each * lanes[next].runs;
      spans[next].push_back({begin, now[next]});
    }
  }

  LaunchTimes launches(int kernels) override {
    return {4e-6 * slow_, 2e-6 * slow_, 0.1e-6 * kernels * slow_, 1e-6 * slow_};
  }

  std::size_t runs() const { return runs_; }

 private:
  double seconds(const BenchLoad& load) const {
    const auto bytes = [](Bytes b) { return static_cast<double>(b.count); };
    return slow_ *
           match(
               load, [](const ProductLoad&) { return kProduct; },
               [&](const MemoryLoad& m) { return bytes(m.bytes) / kMemory; },
               [&](const TransferLoad& t) { return kLatency + bytes(t.transfer.bytes) / kWire; });
  }
  static double factor(const BenchLoad& load) {
    return match(
        load, [](const ProductLoad&) { return kSlowProduct; },
        [](const MemoryLoad&) { return kSlowCopy; }, [](const TransferLoad&) { return kSlowWire; });
  }

  double slow_;
  std::size_t runs_ = 0;
};

ProbedTransfer reduction() {
  return {{{TransferKind::kAllReduce, Axis::kData, false, mebibytes(16)}, Stream::kData}, 2, 1, 1};
}

void probe_all(Prober& prober) {
  prober.measure_memory();
  prober.measure_launches();
  prober.measure_wires(reduction());
  prober.measure_beside(reduction());
}

TEST(Prober, FindsWhatADeviceTakes) {
  FakeBench bench;
  const auto control = make_lone_transport(0);
  Probed probed;
  int kept = 0;
  Prober prober(bench, *control, probed, [&] { ++kept; });
  probe_all(prober);
  EXPECT_NEAR(prober.sentinel().value, kProduct, 1e-12);
  EXPECT_EQ(kept, 10 + 1 + 1 + 2);
  std::set<std::string> kernels;
  for (const MemoryPoint& point : probed.probes.memory) {
    kernels.insert(point.kernel);
    EXPECT_NEAR(static_cast<double>(point.bytes.count) / point.time.mean.value / kMemory, 1, 1e-5);
    EXPECT_EQ(point.time.samples, 10);
  }
  EXPECT_EQ(kernels, (std::set<std::string>{"add", "copy"}));
  EXPECT_GT(probed.probes.memory.back().bytes, mebibytes(255));
  ASSERT_TRUE(probed.probes.launch);
  EXPECT_NEAR(probed.probes.launch->issue.mean.value, 4e-6, 1e-12);
  EXPECT_NEAR(probed.probes.launch->graph_issue.mean.value, 50e-6, 1e-12);
  ASSERT_EQ(probed.wires.size(), 1u);
  const WireCurve& curve = probed.wires[0];
  EXPECT_EQ(curve.collective, "all-reduce");
  EXPECT_EQ(curve.points.front().bytes, kibibytes(1));
  EXPECT_EQ(curve.points.back().bytes, mebibytes(64));
  for (const WirePoint& point : curve.points) {
    const double expected = kLatency + static_cast<double>(point.bytes.count) / kWire;
    EXPECT_NEAR(point.time.value, expected, 1e-11) << point.bytes.count;
  }
  ASSERT_EQ(probed.probes.beside.size(), 2u);
  EXPECT_EQ(probed.probes.beside[0].kernel, "product");
  EXPECT_NEAR(probed.probes.beside[0].kernel_factor, kSlowProduct, 1e-4);
  EXPECT_NEAR(probed.probes.beside[1].kernel_factor, kSlowCopy, 1e-4);
  for (const BesidePoint& point : probed.probes.beside) {
    EXPECT_NEAR(point.collective_factor, kSlowWire, 1e-4);
    EXPECT_EQ(point.bytes, mebibytes(16));
    EXPECT_GT(point.samples, 10);
  }
}

// What a file holds already takes no run but the sentinel's.
TEST(Prober, MeasuresNothingTwice) {
  FakeBench bench;
  const auto control = make_lone_transport(0);
  Probed probed;
  Prober first(bench, *control, probed, [] {});
  probe_all(first);
  const Probed before = probed;
  FakeBench rested;
  Prober again(rested, *control, probed, [] { FAIL(); });
  probe_all(again);
  EXPECT_EQ(rested.runs(), 0u);
  EXPECT_EQ(probed.probes, before.probes);
  EXPECT_EQ(probed.wires, before.wires);
  probed.probes.memory.pop_back();
  int kept = 0;
  Prober rest(rested, *control, probed, [&] { ++kept; });
  probe_all(rest);
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(probed.probes, before.probes);
}

// Rank 1 is slower by a tenth, so the mean by a twentieth; it holds a file of its own, but rank 0's
// word counts.
TEST(Prober, TakesTheMeanOfTheRanksAndTheWordOfTheFirst) {
  const auto transports = make_thread_transports(2);
  std::vector<Probed> probed(2);
  probed[1].probes.memory = {{"copy", mebibytes(1), {Seconds(1), 0, 1}}};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      FakeBench bench(rank);
      Prober prober(bench, *transports[r], probed[r], [] {});
      probe_all(prober);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(probed[0].probes.launch->gap.mean.value, 2.1e-6, 1e-12);
  const WirePoint& last = probed[0].wires.at(0).points.back();
  EXPECT_NEAR(last.time.value, 1.05 * (kLatency + 64.0 * (1 << 20) / kWire), 1e-11);
  EXPECT_EQ(probed[0].wires, probed[1].wires);
  EXPECT_EQ(probed[0].probes.memory.size(), 10u);
  EXPECT_EQ(probed[1].probes.memory.size(), 11u);
}

// Batches from 0 to 8 alone take 1; those of the other from 2 to 5 lie in its time.
TEST(Slowdown, CountsWhatLiesWithinTheOthersTime) {
  const std::vector<BenchSpan> lane = {{0, 1}, {1, 2}, {2, 3.5}, {3.5, 5}, {5, 6}};
  const std::vector<BenchSpan> other = {{1.9, 3}, {3, 5.1}};
  const Slowdown slow = slowdown(lane, 1, other);
  EXPECT_EQ(slow.count, 2);
  EXPECT_DOUBLE_EQ(slow.factor, 1.5);
  EXPECT_EQ(slowdown(lane, 1, std::vector<BenchSpan>{}).count, 0);
  EXPECT_EQ(slowdown(lane, 1, std::vector<BenchSpan>{{9, 10}}).count, 0);
}

TEST(ProbedTransfers, AreTheGroupsOfAJobWithTheirLargestTransfers) {
  Plan plan = executable_plan(8, 16);
  plan.tensor = 2;
  plan.pipeline = 2;
  plan.data = 2;
  plan.zero = 1;
  const Job job = lowered(llama_model(4, 16, 4, 2, 24, 62), plan);
  std::set<std::pair<TransferKind, int>> found;
  for (const ProbedTransfer& one : probed_transfers(job)) {
    const Transfer& t = one.load.transfer;
    EXPECT_TRUE(found.insert({t.kind, t.axes.bits * 2 + (t.ends_only ? 1 : 0)}).second);
    EXPECT_GE(one.ranks, 2);
    EXPECT_EQ(one.nodes, 1);
    EXPECT_EQ(one.groups_per_node * job.mesh.group_size(t.axes), job.mesh.ranks());
    for (const Transfer& other : job.transfers) {
      const bool same =
          other.kind == t.kind && other.axes == t.axes && other.ends_only == t.ends_only;
      if (same) {
        EXPECT_LE(other.bytes, t.bytes);
      }
    }
  }
  const auto has = [&](TransferKind kind, Axis axis) {
    return found.contains({kind, AxisSet(axis).bits * 2});
  };
  EXPECT_TRUE(has(TransferKind::kAllReduce, Axis::kTensor));
  EXPECT_TRUE(has(TransferKind::kReduceScatter, Axis::kData));
  EXPECT_TRUE(has(TransferKind::kAllGather, Axis::kData));
  EXPECT_TRUE(has(TransferKind::kSendReceive, Axis::kPipeline));
  EXPECT_TRUE(
      probed_transfers(lowered(gpt_model(2, 16, 4, 61, 12), executable_plan(8, 4))).empty());
}

}  // namespace
}  // namespace stepcast
