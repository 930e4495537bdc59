#include "models/schedule.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

// The most micro-batch-chunks that are past their forward and not yet past their backward.
std::int32_t most_in_flight(const std::vector<Slot>& slots) {
  std::int32_t now = 0, most = 0;
  for (const Slot& slot : slots) {
    now += slot.backward ? -1 : 1;
    most = std::max(most, now);
  }
  return most;
}

TEST(Schedule, RunsEveryChunkAndMicroBatchOnceForwardAndOnceBackwardInOrder) {
  for (PipelineSchedule kind : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b,
                                PipelineSchedule::kInterleaved}) {
    for (std::int32_t p = 1; p <= 5; ++p) {
      for (std::int32_t v = 1; v <= (kind == PipelineSchedule::kInterleaved ? 3 : 1); ++v) {
        for (std::int32_t m = 1; m <= 13; ++m) {
          const auto all = pipeline_schedule(kind, p, v, m);
          ASSERT_EQ(all.size(), static_cast<std::size_t>(p));
          for (const auto& slots : all) {
            std::set<std::tuple<bool, int, int>> seen;
            std::vector<std::int32_t> next(static_cast<std::size_t>(2 * v), 0);
            for (const Slot& slot : slots) {
              EXPECT_TRUE(seen.insert({slot.backward, slot.chunk, slot.micro_batch}).second);
              if (slot.backward) {
                EXPECT_TRUE(seen.count({false, slot.chunk, slot.micro_batch}));
              }
              auto& due = next[static_cast<std::size_t>(2 * slot.chunk + (slot.backward ? 1 : 0))];
              EXPECT_EQ(slot.micro_batch, due++);
            }
            EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * v * m));
          }
        }
      }
    }
  }
}

// GPipe keeps all m micro-batches; 1F1B keeps min(m, p - i) on stage i (Narayanan et al. 2019).
TEST(Schedule, KeepsAsManyMicroBatchesInFlightAsThePapersSay) {
  const std::int32_t p = 4;
  for (std::int32_t m : {1, 2, 3, 4, 7, 8, 16}) {
    const auto gpipe = pipeline_schedule(PipelineSchedule::kGpipe, p, 1, m);
    const auto one = pipeline_schedule(PipelineSchedule::k1f1b, p, 1, m);
    for (std::int32_t i = 0; i < p; ++i) {
      EXPECT_EQ(most_in_flight(gpipe[static_cast<std::size_t>(i)]), m);
      EXPECT_EQ(most_in_flight(one[static_cast<std::size_t>(i)]), std::min(m, p - i));
    }
  }
}

// Interleaved, m a multiple of p: 2 (p - i - 1) + (v - 1) p + 1 chunks are in flight on stage i, of
// v m (Narayanan et al. 2021; Megatron-LM's warm-up count). Stage 0: p (1 + (p - 1)/(p v)) stages'
// worth of layers.
TEST(Schedule, InterleavedKeepsTheWarmUpCountPlusOne) {
  for (std::int32_t p : {2, 4, 8}) {
    for (std::int32_t v : {2, 3}) {
      for (std::int32_t m : {p, 2 * p, 4 * p}) {
        const auto all = pipeline_schedule(PipelineSchedule::kInterleaved, p, v, m);
        for (std::int32_t i = 0; i < p; ++i) {
          const std::int32_t expected = std::min(v * m, 2 * (p - i - 1) + (v - 1) * p + 1);
          EXPECT_EQ(most_in_flight(all[static_cast<std::size_t>(i)]), expected)
              << p << " " << v << " " << m << " " << i;
        }
      }
    }
  }
}

// 10 micro-batches on 4 stages go as 5 + 5: no group is smaller than the pipeline.
TEST(Schedule, SpreadsTheRestOfTheMicroBatchesOverTheGroups) {
  const auto all = pipeline_schedule(PipelineSchedule::kInterleaved, 4, 2, 10);
  std::vector<std::pair<int, int>> forward;  // chunk, micro-batch
  for (const Slot& slot : all[3]) {
    if (!slot.backward) forward.emplace_back(slot.chunk, slot.micro_batch);
  }
  const std::vector<std::pair<int, int>> expected = {
      {0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4},
      {0, 5}, {0, 6}, {0, 7}, {0, 8}, {0, 9}, {1, 5}, {1, 6}, {1, 7}, {1, 8}, {1, 9}};
  EXPECT_EQ(forward, expected);
}

// One forward more before the first backward: those that stand side by side are of different
// micro-batches, on the last stage, too.
TEST(Schedule, GoesAheadByOneForward) {
  for (const auto kind : {PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved}) {
    const std::int32_t p = kind == PipelineSchedule::k1f1b ? 1 : 4;
    const std::int32_t v = kind == PipelineSchedule::k1f1b ? 1 : 2;
    const auto plain = pipeline_schedule(kind, p, v, 8);
    const auto ahead = pipeline_schedule(kind, p, v, 8, 1);
    for (std::size_t stage = 0; stage < plain.size(); ++stage) {
      EXPECT_EQ(most_in_flight(ahead[stage]), most_in_flight(plain[stage]) + 1);
      for (std::size_t i = 0; i + 1 < ahead[stage].size(); ++i) {
        const Slot &one = ahead[stage][i], &next = ahead[stage][i + 1];
        if (!one.alternates) continue;
        EXPECT_TRUE(next.backward);
        EXPECT_FALSE(one.chunk == next.chunk && one.micro_batch == next.micro_batch);
      }
    }
  }
  const auto one = pipeline_schedule(PipelineSchedule::k1f1b, 1, 1, 1, 1)[0];
  EXPECT_FALSE(one.at(0).alternates);  // its backward waits for it
  EXPECT_TRUE(one.at(1).backward);
}

}  // namespace
}  // namespace stepcast
