// Whole steps through the caching allocator: by hand, and repetitions skipped against all replayed.
#include "sim/engine/replay.h"

#include <random>

#include <gtest/gtest.h>

#include "sim/engine/simulate.h"
#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

const Pointwise kFill{PointwiseKind::kFill, 1, 1};

TensorId bytes(JobBuilder& b, const std::string& name, std::int64_t count,
               Scope scope = Scope::kMicroBatch, Category category = Category::kActivations) {
  return b.tensor(name, {count}, scope, category, Dtype::kUint8);
}
TensorId mebi(JobBuilder& b, const std::string& name, std::int64_t count,
              Scope scope = Scope::kMicroBatch, Category category = Category::kActivations) {
  return bytes(b, name, count << 20, scope, category);
}

Replay run(const JobBuilder& b, bool expandable = false) {
  ReplayOptions options;
  options.allocator.expandable_segments = expandable;
  return replay_stage(b.job, 0, allocation_streams(b.job), options);
}

// Weights of 30 MiB, activations of 400, optimizer state of 200 that the first update makes.
//   first step   30, 400; the update's 200 take half of the 400 that are free by then
//   second       400 find 200 and take a segment of their own: 830, where 630 are alive
// With expandable segments 400 take the free 210 (10 of the pages of the weights) and map the rest:
// 40 + 400 - 10 in pages of 20 are 440, then 640. marin-community/marin#7668 ran out in its second
// step so.
TEST(Replay, MakesOptimizerStateInTheFirstUpdate) {
  JobBuilder b;
  const TensorId weights = mebi(b, "weights", 30, Scope::kChunk, Category::kWeights);
  const TensorId moments = mebi(b, "moments", 200, Scope::kChunk, Category::kOptimizer);
  b.job.resident_sets[0] = {weights, moments};
  const TensorId x = mebi(b, "x", 400);
  const BodyId forward = b.body("forward", Phase::kForward);
  b.alloc(x).free(x);
  const BodyId update = b.body("update", Phase::kOptimizer);
  b.call(0, forward, 0).call(0, update, 0);
  EXPECT_EQ(account(b.job).stages[0].peak, mebibytes(630));
  EXPECT_EQ(run(b).reserved_peak, mebibytes(830));
  EXPECT_EQ(run(b, true).reserved_peak, mebibytes(640));
}

// An FSDP-like sequence (pytorch/pytorch#82001, #147179: far more reserved than is alive). Units of
// 300, 200 and 300 MiB are gathered on the data stream, the third while the second is in use;
// before them, 150 MiB come and go on the compute stream, whose block the gathers cannot have.
//   alive      at most 200 + 300 = 500
//   reserved   150 + 300, the second unit cuts it to 200 | 100, and so 300 more: 750
//   expandable 160, and 500 without a gap: 660
TEST(Replay, ReservesMoreThanLivesInAShardedStep) {
  JobBuilder b;
  const Transfer gather{TransferKind::kAllGather, Axis::kData, false, mebibytes(300)};
  const TensorId shard = bytes(b, "shard", 512, Scope::kChunk, Category::kWeights);
  const TensorId x = mebi(b, "x", 150);
  const TensorId units[] = {mebi(b, "a", 300, Scope::kChunk), mebi(b, "b", 200, Scope::kChunk),
                            mebi(b, "c", 300, Scope::kChunk)};
  const BodyId forward = b.body("forward", Phase::kForward);
  const auto bring = [&](TensorId unit) {
    b.alloc(unit).collective(gather, Stream::kData, {shard}, {unit});
  };
  b.alloc(x).compute(kFill, {}, {x}).free(x);
  bring(units[0]);
  b.free(units[0]);
  bring(units[1]);
  bring(units[2]);
  b.free(units[1]).free(units[2]);
  b.call(0, forward, 0);
  EXPECT_EQ(account(b.job).stages[0].peak, mebibytes(500));
  EXPECT_EQ(run(b).reserved_peak, mebibytes(750));
  EXPECT_EQ(run(b, true).reserved_peak, mebibytes(660));
}

TEST(AllocationStreams, AreComputesButForWhatDataParallelCollectivesMake) {
  JobBuilder b;
  const Transfer gather{TransferKind::kAllGather, Axis::kData, false, Bytes(1)};
  const TensorId computed = b.tensor("computed", {1}), gathered = b.tensor("gathered", {1});
  const TensorId reduced = b.tensor("reduced", {1}), tensor_wise = b.tensor("tensor_wise", {1});
  const TensorId received = b.tensor("received", {1});
  b.body("forward", Phase::kForward);
  b.compute(kFill, {}, {computed}).collective(gather, Stream::kData, {computed}, {computed});
  b.collective(gather, Stream::kData, {computed}, {gathered}).compute(kFill, {}, {gathered});
  b.collective(gather, Stream::kReplica, {computed}, {reduced});
  b.collective(gather, Stream::kTensor, {computed}, {tensor_wise}).receive(received);
  const std::vector<Stream> expected = {Stream::kCompute, Stream::kData, Stream::kReplica,
                                        Stream::kCompute, Stream::kCompute};
  EXPECT_EQ(allocation_streams(b.job), expected);
}

// The forward pass multiplies on the main thread, the backward pass on the autograd engine's.
TEST(Replay, CountsAWorkspaceForEachThreadThatMultiplies) {
  JobBuilder b;
  const TensorId x = mebi(b, "x", 12);
  const BodyId forward = b.body("forward", Phase::kForward);
  b.alloc(x).compute(Gemm{}, {x, x}, {x});
  const BodyId backward = b.body("backward", Phase::kBackward);
  b.compute(kFill, {}, {x}).free(x);
  b.call(0, forward, 0).call(0, backward, 0);
  ReplayOptions options;
  options.workspace = mebibytes(32);
  const auto replay = [&] {
    return replay_stage(b.job, 0, allocation_streams(b.job), options);
  };
  EXPECT_EQ(replay().workspaces, mebibytes(32));
  EXPECT_EQ(replay().reserved_peak, mebibytes(44));
  b.compute(Gemm{}, {x, x}, {x});
  EXPECT_EQ(replay().workspaces, mebibytes(64));
  EXPECT_EQ(replay().reserved_peak, mebibytes(76));
}

// 1F1B of a stage with `ahead` micro-batches in flight, tensors of random sizes on two streams.
JobBuilder pipelined(std::mt19937& random, int ahead, int micro_batches) {
  JobBuilder b;
  const Transfer gather{TransferKind::kAllGather, Axis::kData, false, Bytes(1)};
  const auto any_size = [&] {
    const std::int64_t sizes[] = {700, 90'000, 1'500'000, 6 << 20, 14 << 20, 25 << 20, 64 << 20};
    return sizes[random() % std::size(sizes)] + static_cast<std::int64_t>(random() % 3) * 4096;
  };
  std::vector<TensorId> kept, passing;
  for (int i = 0; i < 12; ++i) kept.push_back(bytes(b, "kept", any_size()));
  for (int i = 0; i < 8; ++i) passing.push_back(bytes(b, "passing", any_size(), Scope::kChunk));
  const auto pass = [&](TensorId t) {
    b.alloc(t);
    if (random() % 2 == 0) b.collective(gather, Stream::kData, {}, {t});
    b.free(t);
  };
  const BodyId forward = b.body("forward", Phase::kForward);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    b.alloc(kept[i]);
    if (random() % 2 == 0) pass(passing[random() % 4]);
  }
  const BodyId backward = b.body("backward", Phase::kBackward);
  for (std::size_t i = kept.size(); i-- > 0;) {
    if (random() % 2 == 0) pass(passing[4 + random() % 4]);
    b.free(kept[i]);
  }
  const BodyId update = b.body("update", Phase::kOptimizer);
  pass(passing[0]);
  for (int m = 0; m < micro_batches + ahead; ++m) {
    if (m < micro_batches) b.call(0, forward, m);
    if (m >= ahead) b.call(0, backward, m - ahead);
  }
  b.call(0, update, 0);
  return b;
}

TEST(Replay, SkipsRepetitionsWithoutChangingTheResult) {
  std::mt19937 random(3);
  std::int64_t replayed = 0, all = 0;
  for (int round = 0; round < 40; ++round) {
    const JobBuilder b = pipelined(random, 1 + round % 5, 64);
    const std::vector<Stream> streams = allocation_streams(b.job);
    ReplayOptions options;
    options.allocator.expandable_segments = round % 2 == 1;
    // Without a limit, then with one that what is reserved does not reach.
    for (int limited = 0; limited < 2; ++limited) {
      const Replay quick = replay_stage(b.job, 0, streams, options);
      options.skips = false;
      const Replay full = replay_stage(b.job, 0, streams, options);
      EXPECT_EQ(quick.reserved_peak, full.reserved_peak) << round;
      EXPECT_EQ(quick.retries, full.retries) << round;
      EXPECT_EQ(quick.exhausted, full.exhausted) << round;
      replayed += quick.events;
      all += full.events;
      options.skips = true;
      options.allocator.limit = Bytes(full.reserved_peak.count * 9 / 10);
    }
  }
  EXPECT_LT(replayed, all / 2);
}

}  // namespace
}  // namespace stepcast
