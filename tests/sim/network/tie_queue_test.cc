#include "sim/network/tie_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

TEST(TieQueue, GivesAllItemsOfTheLeastKeyAtOnce) {
  TieQueue queue(5);
  queue.push(0, 7);
  queue.push(1, 3);
  queue.push(2, 7);
  queue.push(3, 3);
  queue.push(4, 3);
  queue.erase(3);
  EXPECT_FALSE(queue.holds(3));
  EXPECT_EQ(queue.least(), 3);
  std::vector<std::int32_t> out;
  queue.pop(out);
  std::sort(out.begin(), out.end());
  EXPECT_EQ(out, (std::vector<std::int32_t>{1, 4}));
  EXPECT_EQ(queue.least(), 7);
  queue.clear();
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.holds(0));
}

// Against std::map over 20,000 random steps; few keys, so that many tie, or many, so that emptied
// buckets pile up.
TEST(TieQueue, DoesAsAMapOfSetsDoes) {
  for (const int keys : {5, 1000000}) {
    std::mt19937 random(20);
    TieQueue queue(300);
    std::map<std::int64_t, std::set<std::int32_t>> map;
    std::vector<std::int64_t> key_of(300, -1);
    for (int step = 0; step < 20000; ++step) {
      const auto item = static_cast<std::int32_t>(random() % 300);
      std::int64_t& key = key_of[static_cast<std::size_t>(item)];
      ASSERT_EQ(queue.holds(item), key >= 0);
      if (key >= 0) {
        queue.erase(item);
        map[key].erase(item);
        if (map[key].empty()) map.erase(key);
        key = -1;
      } else {
        key = static_cast<std::int64_t>(random()) % keys;
        queue.push(item, key);
        map[key].insert(item);
      }
      ASSERT_EQ(queue.empty(), map.empty());
      if (map.empty() || random() % 10 != 0) continue;
      ASSERT_EQ(queue.least(), map.begin()->first);
      std::vector<std::int32_t> out;
      queue.pop(out);
      ASSERT_EQ(std::set<std::int32_t>(out.begin(), out.end()), map.begin()->second);
      ASSERT_EQ(out.size(), map.begin()->second.size());
      for (const std::int32_t gone : out) key_of[static_cast<std::size_t>(gone)] = -1;
      map.erase(map.begin());
    }
  }
}

}  // namespace
}  // namespace stepcast
