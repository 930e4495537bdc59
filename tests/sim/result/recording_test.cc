// Marks by hand: who waited for whom, and what is left when the waiting is taken off. Times are
// whole picoseconds.
#include "sim/result/recording.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

Marks marks(std::int32_t rank, std::int64_t begin, std::initializer_list<std::int64_t> ends) {
  Marks result{rank, Instant(begin), {}};
  for (const std::int64_t end : ends) result.ends.emplace_back(end);
  return result;
}

std::vector<std::int64_t> durations(const Recording& recording, std::size_t rank) {
  std::vector<std::int64_t> result;
  for (const Duration d : recording.durations[rank]) result.push_back(d.picoseconds);
  return result;
}

// Stage 0: a kernel, a send. Stage 1: a receive, a kernel.
Job two_stages() {
  Job job;
  job.mesh.degree(Axis::kPipeline) = 2;
  job.names = {"x"};
  job.ops = {Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kFp32, Dtype::kFp32, false}};
  job.transfers = {{TransferKind::kSendReceive, {}, false, Bytes(4)}};
  job.bodies = {{"first", Phase::kForward, {Compute{}, Alloc{}, Send{}}, {}},
                {"second", Phase::kForward, {Receive{}, Compute{}}, {}}};
  job.programs = {{{}, {{0, 0, 0}}}, {{}, {{1, 0, 0}}}};
  return job;
}

// Two tensor ranks: a kernel, an all-reduce, a kernel.
Job two_members() {
  Job job;
  job.mesh.degree(Axis::kTensor) = 2;
  job.names = {"x"};
  job.ops = {Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kFp32, Dtype::kFp32, false}};
  job.transfers = {{TransferKind::kAllReduce, {Axis::kTensor}, false, Bytes(4)}};
  job.bodies = {{"only", Phase::kForward, {Compute{}, Collective{}, Compute{}}, {}}};
  job.programs = {{{}, {{0, 0, 0}}}};
  return job;
}

TEST(Recording, OfOneRankIsTheDifferencesOfItsMarks) {
  Job job = two_members();
  job.mesh.degree(Axis::kTensor) = 1;
  const Recording r = record(job, std::vector{marks(0, 100, {107, 110, 130})});
  EXPECT_EQ(r.step, Duration(30));
  EXPECT_EQ(durations(r, 0), (std::vector<std::int64_t>{7, 3, 20}));
}

TEST(Recording, OfAReceiveThatWaitedBeginsWhereItsSendDid) {
  const Recording r =
      record(two_stages(), std::vector{marks(0, 0, {50, 60}), marks(1, 5, {65, 90})});
  EXPECT_EQ(r.step, Duration(90));
  EXPECT_EQ(durations(r, 0), (std::vector<std::int64_t>{50, 10}));
  EXPECT_EQ(durations(r, 1), (std::vector<std::int64_t>{15, 25}));  // 65 - later(0, 50)
}

// The first rank's begin is everybody's: what a rank began late counts to its first instruction.
TEST(Recording, BeginsWithTheFirstRank) {
  const Recording r =
      record(two_stages(), std::vector{marks(0, 20, {50, 60}), marks(1, 10, {65, 90})});
  EXPECT_EQ(r.step, Duration(80));
  EXPECT_EQ(durations(r, 0), (std::vector<std::int64_t>{40, 10}));
}

TEST(Recording, OfAMessageThatLayThereIsTheReceiversOwnTime) {
  const Recording r =
      record(two_stages(), std::vector{marks(0, 0, {50, 60}), marks(1, 70, {75, 90})});
  // Its entry is the step's begin, 0: it is the send that came last.
  EXPECT_EQ(durations(r, 1), (std::vector<std::int64_t>{25, 15}));
}

TEST(Recording, OfACollectiveIsFromTheLastEntryToTheLastEnd) {
  const Recording r =
      record(two_members(), std::vector{marks(0, 0, {50, 72, 80}), marks(1, 0, {60, 70, 90})});
  EXPECT_EQ(durations(r, 0), (std::vector<std::int64_t>{50, 12, 8}));
  EXPECT_EQ(durations(r, 1), (std::vector<std::int64_t>{60, 12, 20}));
  // Waits included, the instances of a rank add up to its step.
  const std::vector<Duration> whole = {Duration(50), Duration(22), Duration(8)};
  EXPECT_EQ(r.whole[0], whole);
}

TEST(Recording, DoesNotTakeMarksOfAnotherJob) {
  EXPECT_DEATH(record(two_members(), std::vector{marks(0, 0, {1}), marks(1, 0, {1, 2, 3})}),
               "a mark for each instruction");
}

}  // namespace
}  // namespace stepcast
