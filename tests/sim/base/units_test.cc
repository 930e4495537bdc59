#include "sim/base/units.h"

#include <type_traits>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) { a + b; };

// 989e12 FLOP / (989e12 FLOP/s) = 1 s; 400e9 B / (50e9 B/s) = 8 s.
TEST(Units, WorkOverRateIsTime) {
  EXPECT_EQ(Flops(989e12) / teraflops_per_second(989), Seconds(1));
  EXPECT_EQ(Bytes(400'000'000'000) / gigabytes_per_second(50), Seconds(8));
}

TEST(Units, DimensionsFollowFromTheFormula) {
  static_assert(std::is_same_v<decltype(Flops(1) / FlopRate(1)), Seconds>);
  static_assert(std::is_same_v<decltype(FlopRate(1) * Seconds(1)), Flops>);
  static_assert(std::is_same_v<decltype(Flops(1) / Seconds(1)), FlopRate>);
  static_assert(std::is_same_v<decltype(Seconds(1) / Seconds(1)), double>);
  EXPECT_EQ((FlopRate(3) * Seconds(2)).value, 6);
  EXPECT_EQ(Seconds(3) / Seconds(2), 1.5);
}

TEST(Units, UnlikeQuantitiesDoNotAdd) {
  static_assert(Addable<Seconds, Seconds>);
  static_assert(!Addable<Seconds, Flops>);
  static_assert(!Addable<Seconds, Duration>);
  static_assert(!Addable<Instant, Instant>);
  static_assert(!Addable<Bytes, int>);
  SUCCEED();
}

// 0.1 us = 100,000 ps although 0.1 has no exact double; 0.6 ps is nearer to 1 than to 0.
TEST(Units, SecondsRoundToTheNearestPicosecond) {
  EXPECT_EQ(to_duration(microseconds(0.1)).picoseconds, 100'000);
  EXPECT_EQ(to_duration(Seconds(0.6e-12)).picoseconds, 1);
  EXPECT_EQ(to_duration(Seconds(0.4e-12)).picoseconds, 0);
}

// A double holds whole numbers up to 2^53 = 9.007e15 exactly: 9,000 s in picoseconds come back.
TEST(Units, ADurationSurvivesTheWayThroughSeconds) {
  for (const std::int64_t ps : {std::int64_t{0}, std::int64_t{1}, std::int64_t{999'999'999'999},
                                std::int64_t{8'999'999'999'999}}) {
    EXPECT_EQ(to_duration(to_seconds(Duration(ps))).picoseconds, ps);
  }
}

TEST(Units, InstantsDifferByADuration) {
  const Instant start(10);
  EXPECT_EQ(start + Duration(5), Instant(15));
  EXPECT_EQ(Instant(15) - start, Duration(5));
  EXPECT_EQ(later(start, Instant(15)), Instant(15));
  EXPECT_EQ(later(Instant(15), start), Instant(15));
}

TEST(Units, BinaryBytesArePowersOf1024) {
  EXPECT_EQ(kibibytes(1), Bytes(1024));
  EXPECT_EQ(mebibytes(1), Bytes(1'048'576));
  EXPECT_EQ(gibibytes(80), Bytes(85'899'345'920));
}

}  // namespace
}  // namespace stepcast
