// The emulation itself: that it finds what a GPU would punish only sometimes.
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/team.h"
#include "tests/support/emulated_block.h"

namespace stepcast::cuda {
namespace {

// Each thread writes its number, meets the lanes of its warp, then reads the number of the thread
// on the other side of the block: of the other warp, which may not have begun.
std::vector<int> exchange(bool barrier, WarpOrder order) {
  Geometry geometry;
  geometry.threads = 64;
  geometry.shared_bytes = 64 * 4;
  std::vector<int> read(64);
  const auto body = [&](const Thread& t) {
    int* numbers = reinterpret_cast<int*>(t.shared);
    numbers[t.thread] = t.thread;
    if (barrier) sync();
    for (int i = 0; i < 3; ++i) (void)shuffle_xor(t, 0.0f, 1);
    read[static_cast<std::size_t>(t.thread)] = numbers[63 - t.thread];
  };
  emulate(geometry, body, order);
  return read;
}

TEST(EmulatedBlock, GivesAnotherResultWhereABarrierIsMissing) {
  EXPECT_EQ(exchange(true, WarpOrder::kUp), exchange(true, WarpOrder::kDown));
  EXPECT_NE(exchange(false, WarpOrder::kUp), exchange(false, WarpOrder::kDown));
}

TEST(EmulatedBlock, ThrowsWhereThreadsWaitForEver) {
  Geometry geometry;
  geometry.threads = 64;
  EXPECT_THROW(emulate(geometry,
                       [](const Thread& t) {
                         if (t.warp() == 0) sync();
                       }),
               EmulationError);
  EXPECT_THROW(emulate(geometry,
                       [](const Thread& t) {
                         if (t.lane() < 16) (void)shuffle_xor(t, 1.0f, 1);
                       }),
               EmulationError);
}

// A copy that nobody waited for has not landed.
TEST(EmulatedBlock, LandsACopyNoSoonerThanItMust) {
  Geometry geometry;
  geometry.shared_bytes = 2 * 16 * kWarp;
  alignas(16) const int source[4] = {1, 2, 3, 4};
  std::vector<int> early(kWarp), late(kWarp), zero(kWarp);
  emulate(geometry, [&](const Thread& t) {
    int* mine = reinterpret_cast<int*>(t.shared) + 8 * t.lane();
    copy_async(mine, source, true);
    commit_copies();
    copy_async(mine + 4, nullptr, false);
    commit_copies();
    const auto i = static_cast<std::size_t>(t.lane());
    early[i] = mine[3];
    wait_copies<1>();
    late[i] = mine[3];
    wait_copies<0>();
    zero[i] = mine[7];
  });
  EXPECT_NE(early, std::vector<int>(kWarp, 4));
  EXPECT_EQ(late, std::vector<int>(kWarp, 4));
  EXPECT_EQ(zero, std::vector<int>(kWarp, 0));
}

TEST(Team, GivesEveryThreadOfABlockTheSumAndTheMaximum) {
  Geometry geometry = team_geometry(1, 2 * kShortRowMax);
  std::vector<float> sums(kTeamThreads), most(kTeamThreads);
  emulate(geometry, [&](const Thread& t) {
    const Team team(t, true);
    const auto i = static_cast<std::size_t>(t.thread);
    sums[i] = team.join(t, static_cast<float>(t.thread), Sum());
    most[i] = team.join(t, -static_cast<float>(t.thread), Most());
  });
  EXPECT_EQ(sums, std::vector<float>(kTeamThreads, 255 * 256 / 2));
  EXPECT_EQ(most, std::vector<float>(kTeamThreads, 0));
}

}  // namespace
}  // namespace stepcast::cuda
