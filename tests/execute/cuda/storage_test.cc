// bf16 against every one of its 65,536 values, and the ways of moving them.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/storage.h"

namespace stepcast::cuda {
namespace {

TEST(Bf16, ComesBackFromFp32AsItWas) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const Bf16 back = round_bf16(widen(value));
    ASSERT_EQ(back.bits, std::isnan(widen(value)) ? 0x7fff : bits);
  }
}

// Between each value and the next away from zero: just below the middle, the middle, just above.
TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) >= 0x7f80) continue;  // infinite or not a number
    const std::uint32_t middle = bits << 16 | 0x8000;
    ASSERT_EQ(round_bf16(float_of(middle - 1)).bits, bits);
    ASSERT_EQ(round_bf16(float_of(middle)).bits, bits + bits % 2);
    ASSERT_EQ(round_bf16(float_of(middle + 1)).bits, bits + 1);
  }
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // infinity
  EXPECT_EQ(round_bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(Bf16, PairsHoldTheLowerAddressBelow) { EXPECT_EQ(round_pair(1.0f, -2.0f), 0xc0003f80u); }

// Every element once, whether by eights or not.
TEST(Stretches, CoverEveryElementOnce) {
  for (const bool wide : {false, true}) {
    for (const std::int64_t size : {0, 1, 7, 8, 63, 64, 65, 1000}) {
      std::vector<int> times(static_cast<std::size_t>(size));
      for (std::int64_t thread = 0; thread < 5; ++thread) {
        for_stretches(thread, 5, size, wide, [&](std::int64_t at, auto count) {
          for (unsigned k = 0; k < decltype(count)::value; ++k) {
            ++times[static_cast<std::size_t>(at + k)];
          }
        });
      }
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << size << " wide " << wide;
    }
  }
}

}  // namespace
}  // namespace stepcast::cuda
