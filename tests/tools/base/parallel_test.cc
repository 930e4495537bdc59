#include "tools/base/parallel.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

TEST(Parallel, CallsEveryIndexOnceWhateverTheThreads) {
  for (const std::size_t threads : {1u, 3u, 200u}) {
    std::vector<std::atomic<int>> calls(100);
    std::atomic<std::size_t> most = 0;
    in_parallel(calls.size(), threads, [&](std::size_t i, std::size_t thread) {
      ++calls[i];
      if (thread > most) most = thread;
    });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    EXPECT_LT(most, threads);
  }
  in_parallel(0, 2, [](std::size_t, std::size_t) { FAIL(); });
}

TEST(Parallel, ThrowsWhatTheFirstIndexThrewOnceAllAreDone) {
  std::atomic<int> calls = 0;
  try {
    in_parallel(50, 4, [&](std::size_t i, std::size_t) {
      ++calls;
      if (i == 7 || i == 30) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
  EXPECT_EQ(calls, 50);
}

TEST(Parallel, HasAThreadAtHand) { EXPECT_GE(threads_at_hand(), 1u); }

}  // namespace
}  // namespace stepcast
