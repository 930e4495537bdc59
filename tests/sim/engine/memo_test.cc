// What is remembered of a body must not depend on anything that its key leaves out. One rank calls
// a few long random bodies again and again, and between them short ones that push streams, events
// and the host about by small random amounts, so that nearly equal states are common.
#include <gtest/gtest.h>

#include <random>

#include "sim/engine/compile.h"
#include "sim/engine/memo.h"
#include "sim/engine/simulate.h"

namespace stepcast {
namespace {

constexpr int kEvents = 2, kDurations = 4, kCalls = 120;

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  Instruction instruction(int kernels_of_ten) {
    constexpr Stream kStreamsInUse[] = {Stream::kCompute, Stream::kData, Stream::kReceiveForward};
    const Stream stream = kStreamsInUse[below(3)];
    const auto event = static_cast<EventId>(below(kEvents));
    if (below(10) < kernels_of_ten) {
      return Compute{below(kDurations), {}, {}, static_cast<Phase>(below(kPhases))};
    }
    switch (below(3)) {
      case 0:
        if (stream == Stream::kReceiveForward) return Mark{};
        return Collective{below(kDurations), {}, {}, stream, Phase::kForward};
      case 1: return Record{stream, event};
      default: return Wait{stream, event};
    }
  }

  // A message to itself, over a wire that takes one of several times.
  void message(std::vector<Instruction>& code) {
    const TransferId wire = kDurations + below(kDurations);
    code.push_back(Send{wire, 0, {}, Stream::kSendForward, 1});
    code.push_back(Receive{wire, 0, {}, Stream::kReceiveForward, -1});
    code.push_back(Record{Stream::kReceiveForward, static_cast<EventId>(below(kEvents))});
  }

  Job job() {
    Job job;
    job.names = {"x"};
    job.events = kEvents;
    for (int i = 0; i < kDurations; ++i) {
      job.ops.push_back(
          Pointwise{PointwiseKind::kFill, i + 1, 1, Dtype::kBf16, Dtype::kBf16, false});
      job.transfers.push_back({TransferKind::kAllReduce, Axis::kTensor, false, Bytes(i)});
    }
    for (int i = 0; i < kDurations; ++i) {
      job.transfers.push_back({TransferKind::kSendReceive, Axis::kPipeline, false, Bytes(i)});
    }
    const int kernels = below(7);
    for (int b = 0; b < 6; ++b) {
      Body body{"body", Phase::kForward, {}, {}};
      const bool is_long = b < 2;
      if (is_long) body.code.push_back(Compute{0, {}, {}, Phase::kForward});
      if (!is_long && below(2) == 0) message(body.code);
      if (below(4) == 0) body.code.push_back(Synchronize{});
      if (below(4) == 0) body.code.push_back(HostWait{static_cast<EventId>(below(kEvents))});
      const int length = is_long ? 16 + below(10) : below(3);
      for (int i = 0; i < length; ++i) body.code.push_back(instruction(is_long ? kernels : 5));
      job.bodies.push_back(std::move(body));
    }
    Program program;
    for (int i = 0; i < kCalls; ++i) {
      program.schedule.push_back({below(2) == 0 ? below(2) : below(6), 0, i});
    }
    job.programs = {program};
    return job;
  }

  Prices prices(const Job& job) {
    Prices prices;
    for (int i = 0; i < kDurations; ++i) prices.ops.push_back(Duration(below(3)));
    prices.basis.assign(job.ops.size(), Basis::kFitted);
    for (int i = 0; i < 2 * kDurations; ++i) prices.transfers.push_back(Duration(below(5)));
    prices.issue = Duration(below(4) / 3);
    prices.fill = Duration(below(4) / 3);
    prices.pass = Duration(below(3));
    return prices;
  }

 private:
  std::mt19937_64 random_;
};

TEST(Memo, ChangesNothingWhereStatesAreNearlyEqual) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const Job job = generator.job();
    const Prices prices = generator.prices(job);
    SimulateOptions plain;
    plain.memoise = false;
    const Timeline with = simulate(job, prices);
    const Timeline without = simulate(job, prices, plain);
    ASSERT_EQ(with.step, without.step);
    ASSERT_EQ(with.ranks[0].end, without.ranks[0].end);
    ASSERT_EQ(with.ranks[0].pipeline_end, without.ranks[0].pipeline_end);
    ASSERT_EQ(with.ranks[0].breakdown, without.ranks[0].breakdown);
    ASSERT_EQ(with.ranks[0].basis, without.ranks[0].basis);
  }
}

// One body of 20 kernels, each followed by a collective next to it. Shifted in time, with the host
// and the idle streams anywhere behind, the state is one that was seen before.
TEST(Memo, RecallsWhereIdleStreamsAndTheHostLieBehind) {
  Job job;
  job.events = 3;
  job.ops = {Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kBf16, Dtype::kBf16, false}};
  job.transfers = {{TransferKind::kAllReduce, Axis::kTensor, false, Bytes(1)}};
  Body body{"body", Phase::kForward, {}, {}};
  for (int i = 0; i < 20; ++i) {
    body.code.push_back(Compute{0, {}, {}, Phase::kForward});
    body.code.push_back(Record{Stream::kCompute, 0});
    body.code.push_back(Wait{Stream::kTensor, 0});
    body.code.push_back(Collective{0, {}, {}, Stream::kTensor, Phase::kForward});
    body.code.push_back(Record{Stream::kTensor, 1});
  }
  body.code.push_back(Wait{Stream::kCompute, 1});
  body.code.push_back(Wait{Stream::kCompute, 2});  // of an earlier call
  job.bodies = {body};
  job.programs = {{{}, {{0, 0, 0}}}};
  Prices prices;
  prices.ops = {Duration(100)};
  prices.basis = {Basis::kFitted};
  prices.transfers = {Duration(10)};
  prices.issue = Duration(2);
  const Code code = compile(job, prices, job.mesh, true);
  ASSERT_EQ(code.segments.size(), 1u);

  Memo memo(code);
  std::vector<Instant> clocks(code.registers(), Instant(5000));
  clocks[kHostRegister] = Instant(100);
  std::vector<std::int32_t> causes = code.first_causes;
  Breakdown parts = {};
  ASSERT_FALSE(memo.recall(0, clocks.data(), causes.data(), parts));
  clocks[kHostRegister] += Duration(80);
  clocks[kComputeRegister] += Duration(2500);
  parts[0] = Duration(7);
  memo.remember(0, clocks.data(), parts);

  clocks.assign(clocks.size(), Instant(300));
  clocks[kHostRegister] = Instant(40);
  clocks[kComputeRegister] = Instant(9000);
  EXPECT_TRUE(memo.recall(0, clocks.data(), causes.data(), parts));
  EXPECT_EQ(clocks[kHostRegister], Instant(120));
  EXPECT_EQ(clocks[kComputeRegister], Instant(11500));
  EXPECT_EQ(parts[0], Duration(14));

  // An event that is late, a host that binds: not seen before.
  clocks[kFirstEventRegister + 2] = Instant(11501);
  EXPECT_FALSE(memo.recall(0, clocks.data(), causes.data(), parts));
  clocks[kFirstEventRegister + 2] = Instant(0);
  clocks[kHostRegister] = Instant(11499);
  EXPECT_FALSE(memo.recall(0, clocks.data(), causes.data(), parts));
}

}  // namespace
}  // namespace stepcast
