// The rules of pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, one sequence each, worked by
// hand; then random sequences against a second allocator that searches everything in lists.
#include "sim/engine/allocator.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

constexpr Stream kMain = Stream::kCompute;
constexpr Stream kSide = Stream::kData;

AllocatorOptions limited(Bytes limit, bool expandable = false) { return {expandable, limit}; }

TEST(CachingAllocator, RoundsRequestsUpTo512Bytes) {
  CachingAllocator a;
  EXPECT_EQ(a.size(a.allocate(Bytes(1), kMain)), Bytes(512));
  EXPECT_EQ(a.size(a.allocate(Bytes(513), kMain)), Bytes(1024));
  EXPECT_EQ(a.allocated(), Bytes(1536));
  EXPECT_EQ(a.reserved(), mebibytes(2));
}

TEST(CachingAllocator, PacksUpToOneMebibyteIntoSegmentsOfTwo) {
  CachingAllocator a;
  a.allocate(mebibytes(1), kMain);
  a.allocate(mebibytes(1), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(2));
  a.allocate(Bytes(512), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(4));
}

// Two of 9 leave 2 of the 20.
TEST(CachingAllocator, CutsRequestsBelowTenMebibytesFromSegmentsOfTwenty) {
  CachingAllocator a;
  a.allocate(mebibytes(9), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(20));
  a.allocate(mebibytes(9), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(20));
  a.allocate(mebibytes(9), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(40));
  // One byte above the small pool's largest is the large pool's.
  a.allocate(mebibytes(1) + Bytes(1), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(40));
}

TEST(CachingAllocator, TakesTenMebibytesAndMoreAsTheyAreUpToTwoMebibytes) {
  CachingAllocator a;
  a.allocate(mebibytes(10), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(10));
  a.allocate(mebibytes(32) + Bytes(1), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(44));
}

// 11 MiB of a segment of 12: the rest is 1 MiB, not more, and stays with the block. 11 MiB less
// 512 B: the rest is more than 1 MiB.
TEST(CachingAllocator, SplitsLargeBlocksOnlyIfMoreThanOneMebibyteIsLeft) {
  CachingAllocator a;
  EXPECT_EQ(a.size(a.allocate(mebibytes(11), kMain)), mebibytes(12));
  EXPECT_EQ(a.size(a.allocate(mebibytes(11) - Bytes(512), kMain)), mebibytes(11) - Bytes(512));
  EXPECT_EQ(a.reserved(), mebibytes(24));
  // What was left over there, 1 MiB and 512 B, serves a request of the large pool.
  a.allocate(mebibytes(1) + Bytes(512), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(24));
}

TEST(CachingAllocator, TakesTheSmallestFreeBlockThatHoldsTheRequest) {
  CachingAllocator a;
  const BlockId b30 = a.allocate(mebibytes(30), kMain);
  const BlockId b12 = a.allocate(mebibytes(12), kMain);
  const BlockId b20 = a.allocate(mebibytes(20), kMain);
  const std::uint64_t at12 = a.address(b12), at20 = a.address(b20), at30 = a.address(b30);
  for (const BlockId block : {b30, b12, b20}) a.free(block);
  EXPECT_EQ(a.address(a.allocate(mebibytes(13), kMain)), at20);
  EXPECT_EQ(a.address(a.allocate(mebibytes(12), kMain)), at12);
  EXPECT_EQ(a.address(a.allocate(mebibytes(5), kMain)), at20 + (13u << 20));  // its rest of 7
  EXPECT_EQ(a.address(a.allocate(mebibytes(3), kMain)), at30);
  EXPECT_EQ(a.reserved(), mebibytes(62));
}

TEST(CachingAllocator, TakesTheLowestOfEqualBlocks) {
  CachingAllocator a;
  const BlockId low = a.allocate(mebibytes(16), kMain);
  const BlockId high = a.allocate(mebibytes(16), kMain);
  const std::uint64_t lowest = a.address(low);
  a.free(high);
  a.free(low);
  EXPECT_EQ(a.address(a.allocate(mebibytes(16), kMain)), lowest);
}

// 6, 6, 6 and a rest of 2. Freed: 6 | 6 | 6+2, then all 20, which a request of 15 finds.
TEST(CachingAllocator, JoinsFreeNeighboursOfOneSegment) {
  CachingAllocator a;
  const BlockId x = a.allocate(mebibytes(6), kMain);
  const BlockId y = a.allocate(mebibytes(6), kMain);
  const BlockId z = a.allocate(mebibytes(6), kMain);
  a.free(x);
  a.free(z);
  const BlockId eight = a.allocate(mebibytes(8), kMain);  // z and the rest
  EXPECT_EQ(a.reserved(), mebibytes(20));
  a.free(eight);
  a.free(y);
  EXPECT_EQ(a.size(a.allocate(mebibytes(20), kMain)), mebibytes(20));
  EXPECT_EQ(a.reserved(), mebibytes(20));
}

// Two segments lie side by side, but only blocks of one segment join: 12 and 12 hold no 20.
TEST(CachingAllocator, NeverJoinsBlocksOfTwoSegments) {
  CachingAllocator a;
  const BlockId x = a.allocate(mebibytes(12), kMain);
  const BlockId y = a.allocate(mebibytes(12), kMain);
  a.free(x);
  a.free(y);
  a.allocate(mebibytes(20), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(44));
}

TEST(CachingAllocator, NeverGivesABlockOfOneStreamToAnother) {
  CachingAllocator a;
  a.free(a.allocate(mebibytes(40), kSide));
  a.allocate(mebibytes(40), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(80));
  EXPECT_EQ(a.allocated(), mebibytes(40));
}

// 20 cached and 30 wanted of 40: the 20 go back.
TEST(CachingAllocator, GivesWholeFreeSegmentsBackBeforeItGivesUp) {
  CachingAllocator a(limited(mebibytes(40)));
  a.free(a.allocate(mebibytes(20), kSide));
  a.allocate(mebibytes(30), kMain);
  EXPECT_EQ(a.retries(), 1);
  EXPECT_FALSE(a.exhausted());
  EXPECT_EQ(a.reserved(), mebibytes(30));
  EXPECT_EQ(a.reserved_peak(), mebibytes(30));
}

// 9 of a segment of 20 are alive: the other 11 cannot go back. 20 + 30 exceed 40.
TEST(CachingAllocator, KeepsSegmentsThatHoldALiveBlock) {
  CachingAllocator a(limited(mebibytes(40)));
  a.allocate(mebibytes(9), kMain);
  a.allocate(mebibytes(30), kMain);
  EXPECT_EQ(a.retries(), 1);
  EXPECT_TRUE(a.exhausted());
  EXPECT_EQ(a.reserved(), mebibytes(50));
  a.allocate(mebibytes(30), kMain);  // no further retry: it has failed
  EXPECT_EQ(a.retries(), 1);
}

// 30 MiB map two pages of 20; the rest holds 10. 35 find all of it once both are free.
TEST(ExpandableSegments, GrowInPagesOfTwentyMebibytes) {
  CachingAllocator a({true});
  const BlockId x = a.allocate(mebibytes(30), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(40));
  const BlockId y = a.allocate(mebibytes(10), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(40));
  a.free(x);
  a.free(y);
  a.allocate(mebibytes(35), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(40));
}

// 15 of 20 leave 5; 10 take them and half of the next page.
TEST(ExpandableSegments, JoinWhatIsFreeAtTheEndWithNewPages) {
  CachingAllocator a({true});
  const BlockId x = a.allocate(mebibytes(15), kMain);
  const BlockId y = a.allocate(mebibytes(10), kMain);
  EXPECT_EQ(a.address(y), a.address(x) + (15u << 20));
  EXPECT_EQ(a.reserved(), mebibytes(40));
}

TEST(ExpandableSegments, HaveOneSegmentAStreamAndPool) {
  CachingAllocator a({true});
  a.allocate(mebibytes(5), kMain);
  a.allocate(mebibytes(5), kSide);
  EXPECT_EQ(a.reserved(), mebibytes(40));
  a.allocate(Bytes(1), kMain);
  EXPECT_EQ(a.reserved(), mebibytes(42));
}

// Both pools split from 512 B on: 11 MiB take no more than they ask for.
TEST(ExpandableSegments, SplitLargeBlocksAtTheLeastSize) {
  CachingAllocator a({true});
  EXPECT_EQ(a.size(a.allocate(mebibytes(11), kMain)), mebibytes(11));
}

// 15, 15 and a free 10 at the end, which could grow. The first 15 is free: 8 take from it.
TEST(ExpandableSegments, SpareTheBlockThatCanGrow) {
  CachingAllocator a({true});
  const BlockId x = a.allocate(mebibytes(15), kMain);
  const BlockId y = a.allocate(mebibytes(15), kMain);
  const std::uint64_t first = a.address(x);
  a.free(x);
  EXPECT_EQ(a.address(a.allocate(mebibytes(8), kMain)), first);
  EXPECT_EQ(a.address(y), first + (15u << 20));
}

// Three pages, the middle one free: it is unmapped for the other stream, and mapped again where it
// was when that stream's page is free.
TEST(ExpandableSegments, UnmapFreePagesForOtherStreams) {
  CachingAllocator a(limited(mebibytes(60), true));
  a.allocate(mebibytes(20), kMain);
  const BlockId middle = a.allocate(mebibytes(20), kMain);
  const std::uint64_t hole = a.address(middle);
  a.allocate(mebibytes(20), kMain);
  a.free(middle);
  const BlockId other = a.allocate(mebibytes(20), kSide);
  EXPECT_EQ(a.retries(), 1);
  EXPECT_EQ(a.reserved(), mebibytes(60));
  a.free(other);
  EXPECT_EQ(a.address(a.allocate(mebibytes(20), kMain)), hole);
  EXPECT_EQ(a.retries(), 2);
  EXPECT_FALSE(a.exhausted());
  EXPECT_EQ(a.reserved_peak(), mebibytes(60));
}

// A free block of 30 from 5 on covers one whole page, 20 to 40 (its front, 5 to 20, and nothing
// behind stay): that page alone goes back.
TEST(ExpandableSegments, KeepTheEndsOfAFreeBlockThatFillNoPage) {
  CachingAllocator a(limited(mebibytes(40), true));
  a.allocate(mebibytes(5), kMain);
  a.free(a.allocate(mebibytes(30), kMain));
  EXPECT_EQ(a.reserved(), mebibytes(40));
  a.allocate(mebibytes(12), kSide);
  EXPECT_EQ(a.reserved(), mebibytes(40));
  EXPECT_FALSE(a.exhausted());
  const BlockId front = a.allocate(mebibytes(15), kMain);
  EXPECT_EQ(a.address(front) & 0xffffffffffffff, std::uint64_t{5} << 20);
  EXPECT_EQ(a.reserved(), mebibytes(40));
}

TEST(CachingAllocatorDeathTest, AbortsWhenABlockIsFreedTwice) {
  CachingAllocator a;
  const BlockId block = a.allocate(mebibytes(16), kMain);
  a.free(block);
  EXPECT_DEATH(a.free(block), "not allocated");
}

// The same rules for ordinary segments of one stream, as lists that are searched from end to end.
class Lists {
 public:
  using Place = std::pair<std::size_t, std::int64_t>;  // segment, offset

  Place allocate(std::int64_t request) {
    const std::int64_t size = (request + 511) / 512 * 512;
    const bool small = size <= 1 << 20;
    std::size_t best = segments_.size();
    std::int64_t best_offset = 0, best_size = 0;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].small != small) continue;
      for (const auto& [offset, block] : segments_[s].blocks) {
        const bool fits = block.free && block.size >= size;
        if (!fits || (best < segments_.size() && block.size >= best_size)) continue;
        best = s;
        best_offset = offset;
        best_size = block.size;
      }
    }
    if (best == segments_.size()) {
      const std::int64_t mib = 1 << 20;
      best_size = small ? 2 * mib
                        : size < 10 * mib ? 20 * mib : (size + 2 * mib - 1) / (2 * mib) * 2 * mib;
      segments_.push_back({small, {{0, {best_size, true}}}});
      reserved += best_size;
    }
    auto& blocks = segments_[best].blocks;
    const std::int64_t rest = best_size - size;
    const bool splits = small ? rest >= 512 : rest > 1 << 20;
    blocks[best_offset] = {splits ? size : best_size, false};
    if (splits) blocks[best_offset + size] = {rest, true};
    return {best, best_offset};
  }
  void free(Place place) {
    auto& blocks = segments_[place.first].blocks;
    auto it = blocks.find(place.second);
    it->second.free = true;
    const auto next = std::next(it);
    if (next != blocks.end() && next->second.free) {
      it->second.size += next->second.size;
      blocks.erase(next);
    }
    if (it != blocks.begin() && std::prev(it)->second.free) {
      std::prev(it)->second.size += it->second.size;
      blocks.erase(it);
    }
  }

  std::int64_t reserved = 0;

 private:
  struct Block {
    std::int64_t size;
    bool free;
  };
  struct Segment {
    bool small;
    std::map<std::int64_t, Block> blocks;
  };
  std::vector<Segment> segments_;
};

TEST(CachingAllocator, AgreesWithAPlainSearchOnRandomSequences) {
  std::mt19937 random(7);
  const std::int64_t sizes[] = {100,     4096,    300'000,    1 << 20,    (1 << 20) + 1, 3 << 20,
                                9 << 20, 9 << 20, 10'485'760, 11'000'000, 20 << 20,      48 << 20};
  for (int round = 0; round < 20; ++round) {
    CachingAllocator a;
    Lists lists;
    std::vector<std::pair<BlockId, Lists::Place>> live;
    for (int step = 0; step < 600; ++step) {
      if (!live.empty() && random() % 100 < 48) {
        std::swap(live[random() % live.size()], live.back());
        a.free(live.back().first);
        lists.free(live.back().second);
        live.pop_back();
      } else {
        const std::int64_t size = sizes[random() % std::size(sizes)];
        live.emplace_back(a.allocate(Bytes(size), kMain), lists.allocate(size));
      }
      ASSERT_EQ(a.reserved(), Bytes(lists.reserved)) << "round " << round << ", step " << step;
    }
  }
}

// Live blocks never overlap, what is mapped holds what lives, and the limit is kept.
TEST(ExpandableSegments, StaySoundOnRandomSequencesUnderALimit) {
  std::mt19937 random(11);
  int retries = 0;
  for (int round = 0; round < 20; ++round) {
    CachingAllocator a(limited(mebibytes(440), true));
    std::map<std::uint64_t, BlockId> live;
    for (int step = 0; step < 600; ++step) {
      if (!live.empty() && (random() % 2 == 0 || a.allocated() > mebibytes(200))) {
        auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        a.free(it->second);
        live.erase(it);
      } else {
        const Stream stream = random() % 3 == 0 ? kSide : kMain;
        const auto size = static_cast<std::int64_t>(1 + random() % (45 << 20));
        const BlockId block = a.allocate(Bytes(size), stream);
        ASSERT_TRUE(live.emplace(a.address(block), block).second);
      }
      Bytes sum;
      std::uint64_t end = 0;
      for (const auto& [address, block] : live) {
        ASSERT_GE(address, end);
        end = address + static_cast<std::uint64_t>(a.size(block).count);
        sum += a.size(block);
      }
      ASSERT_EQ(sum, a.allocated());
      ASSERT_LE(sum, a.reserved());
      ASSERT_LE(a.reserved(), mebibytes(440));
      ASSERT_FALSE(a.exhausted());
    }
    retries += a.retries();
  }
  EXPECT_GT(retries, 0);
}

}  // namespace
}  // namespace stepcast
