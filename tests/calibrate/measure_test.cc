// Means over instances, whether they come one by one, in parts, or out of a file.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "calibrate/measure.h"
#include "calibrate/sentinel.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

// 2, 4, 9: mean 5, variance (9 + 1 + 16) / 2 = 13.
TEST(Statistic, IsTheMeanAndTheDeviationOverIt) {
  Statistic statistic;
  EXPECT_EQ(statistic.count(), 0);
  EXPECT_EQ(statistic.spread(), 0);
  for (const double value : {2.0, 4.0, 9.0}) statistic.add(value);
  EXPECT_EQ(statistic.count(), 3);
  EXPECT_DOUBLE_EQ(statistic.mean(), 5);
  EXPECT_DOUBLE_EQ(statistic.spread(), std::sqrt(13.0) / 5);
}

TEST(Statistic, OfTwoPartsIsThatOfTheWhole) {
  Statistic whole, left, right;
  for (int i = 0; i < 40; ++i) {
    const double value = 1 + std::fmod(i * 0.37, 1.0);
    whole.add(value);
    (i < 13 ? left : right).add(value);
  }
  left.add(Statistic());
  left.add(right);
  EXPECT_EQ(left.count(), 40);
  EXPECT_NEAR(left.mean(), whole.mean(), 1e-12);
  EXPECT_NEAR(left.spread(), whole.spread(), 1e-12);
  const Statistic read = Statistic::of({Seconds(whole.mean()), whole.spread(), whole.count()});
  EXPECT_NEAR(read.spread(), whole.spread(), 1e-12);
}

Recording recording_of(const Job& job, Duration each) {
  Recording recording;
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    std::vector<Duration> durations;
    const Program& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(job, program, [&](const auto&...) { durations.push_back(each); });
    recording.durations.push_back(durations);
    recording.whole.push_back(durations);
  }
  return recording;
}

Job two_stages() {
  Plan plan = executable_plan(8, 4);
  plan.pipeline = 2;
  return lowered(gpt_model(2, 16, 4, 61, 12), plan);
}

TEST(Measurements, HoldTheMeanOfEveryKeyOfTheJob) {
  const Job job = two_stages();
  Measurements measurements;
  EXPECT_EQ(measurements.steps(job), 0);
  measurements.add(job, recording_of(job, Duration(1'000'000)));
  measurements.add(job, recording_of(job, Duration(3'000'000)));
  Catalog catalog;
  catalog.add(job);
  EXPECT_EQ(measurements.size(), catalog.keys().size());
  for (std::size_t i = 0; i < catalog.keys().size(); ++i) {
    const Statistic* found = measurements.find(catalog.keys()[i]);
    ASSERT_NE(found, nullptr) << to_text(catalog.keys()[i]);
    EXPECT_EQ(found->count(), 2 * catalog.instances(i));
    EXPECT_NEAR(found->mean(), 2e-6, 1e-15);
  }
  EXPECT_EQ(measurements.steps(job), 2);
}

// Of a collective among ranks that run the same program the own time counts, the wait included; of
// one across stages, and of a message, what is left without it.
TEST(Measurements, CountWaitingWhereItIsChance) {
  Plan plan = executable_plan(8, 8);
  plan.data = 2;
  plan.pipeline = 2;
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), plan);
  Recording recording = recording_of(job, Duration(1'000'000));
  for (auto& rank : recording.whole) {
    for (Duration& time : rank) time = Duration(4'000'000);
  }
  Measurements measurements;
  measurements.add(job, recording);
  int waits = 0;
  for (const Transfer& transfer : job.transfers) {
    if (transfer.kind != TransferKind::kAllReduce) continue;
    const bool across = transfer.axes.has(Axis::kPipeline);
    const int ranks = transfer.ends_only ? 2 : job.mesh.group_size(transfer.axes);
    const Statistic* found =
        measurements.find(TransferKey{transfer.kind, false, ranks, transfer.bytes});
    ASSERT_NE(found, nullptr);
    EXPECT_NEAR(found->mean(), across ? 1e-6 : 4e-6, 1e-15);
    waits += across ? 0 : 1;
  }
  EXPECT_GT(waits, 0);
  for (const TimedTransfer& timed : measurements.work(4, 1).transfers) {
    if (timed.transfer == "receive" || timed.transfer == "send") {
      EXPECT_NEAR(timed.time.mean.value, 1e-6, 1e-15);
    }
  }
}

TEST(Measurements, GoOnFromWhatAFileHolds) {
  const Job job = two_stages();
  Measurements whole, first, second;
  whole.add(job, recording_of(job, Duration(1'000'000)));
  first.add(job, recording_of(job, Duration(1'000'000)));
  whole.add(job, recording_of(job, Duration(5'000'000)));
  const TimedWork kept = first.work(2, 1);
  EXPECT_EQ(kept.ranks, 2);
  EXPECT_FALSE(kept.transfers.empty());
  second.add(kept);
  second.add(job, recording_of(job, Duration(5'000'000)));
  const TimedWork a = whole.work(2, 1), b = second.work(2, 1);
  ASSERT_EQ(a.kernels.size(), b.kernels.size());
  for (std::size_t i = 0; i < a.kernels.size(); ++i) {
    EXPECT_EQ(a.kernels[i].op, b.kernels[i].op);
    EXPECT_EQ(a.kernels[i].time.samples, b.kernels[i].time.samples);
    EXPECT_NEAR(a.kernels[i].time.mean.value, b.kernels[i].time.mean.value, 2e-12);
    EXPECT_NEAR(a.kernels[i].time.spread, b.kernels[i].time.spread, 2e-4);  // rounded
  }
}

TEST(Sentinel, TakesTimeOnEveryThread) {
  EXPECT_GT(run_sentinel(1).value, 0);
  EXPECT_GT(run_sentinel(2).value, 0);
}

TEST(Slices, HaveASentinelBeforeAndAfter) {
  bool stepped = false;
  const MeasuredSlice slice = measure_slice(1, [&]() -> std::optional<Recording> {
    stepped = true;
    return std::nullopt;
  });
  EXPECT_TRUE(stepped);
  EXPECT_GT(slice.before.value, 0);
  EXPECT_GT(slice.after.value, 0);
  EXPECT_FALSE(slice.recording);
}

// One rank of each of two stages, with two data ranks each: all kernels, and no message.
TEST(Measurements, OfRanksThatRunAloneAreOfTheirKernels) {
  Plan plan = executable_plan(8, 8);
  plan.data = 2;
  plan.pipeline = 2;
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), plan);
  Measurements measurements;
  for (int step = 0; step < 3; ++step) {
    for (const int stage : {0, 1}) {
      EXPECT_EQ(measurements.kernel_steps(job), step);
      int rank = 0;
      while (job.mesh.stage(rank) != stage) ++rank;
      std::vector<Span> spans;
      for_each_timed(job, job.programs[static_cast<std::size_t>(stage)], [&](const auto&...) {
        Span span;
        span.end = Instant(2'000'000);
        spans.push_back(span);
      });
      measurements.add_kernels(job, rank, spans);
    }
  }
  EXPECT_EQ(measurements.kernel_steps(job), 3);
  EXPECT_EQ(measurements.steps(job), 0);  // of transfers nothing is known
  const TimedWork work = measurements.work(1, 1);
  EXPECT_TRUE(work.transfers.empty());
  EXPECT_FALSE(work.kernels.empty());
  for (const TimedKernel& kernel : work.kernels) EXPECT_DOUBLE_EQ(kernel.time.mean.value, 2e-6);
}

}  // namespace
}  // namespace stepcast
