#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/base/json.h"

namespace stepcast {
namespace {

template <class Parse>
std::string trouble_of(Parse parse, std::string_view text) {
  try {
    parse(text, "here");
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), "here");
    return error.message();
  }
  return "";
}

TEST(ParseBytes, ReadsPowersOf1000And1024) {
  EXPECT_EQ(parse_bytes("80 GB", ""), Bytes(80'000'000'000));
  EXPECT_EQ(parse_bytes("80 GiB", ""), gibibytes(80));
  EXPECT_EQ(parse_bytes("7 B", ""), Bytes(7));
  EXPECT_EQ(parse_bytes("3 kB", ""), Bytes(3'000));
  EXPECT_EQ(parse_bytes("3 KiB", ""), Bytes(3'072));
  EXPECT_EQ(parse_bytes("2 TiB", ""), gibibytes(2048));
  EXPECT_EQ(parse_bytes("2 PB", ""), Bytes(2'000'000'000'000'000));
}

TEST(ParseBytes, TakesOrLeavesTheSpace) {
  EXPECT_EQ(parse_bytes("80GB", ""), Bytes(80'000'000'000));
  EXPECT_EQ(parse_bytes("0B", ""), Bytes(0));
}

// 8.03e9 is 8029999999.999999 as the product of doubles; in decimal it is whole. 0.375 KiB = 384 B.
TEST(ParseBytes, IsExactInDecimal) {
  EXPECT_EQ(parse_bytes("1.5 GB", ""), Bytes(1'500'000'000));
  EXPECT_EQ(parse_bytes("8.03 GB", ""), Bytes(8'030'000'000));
  EXPECT_EQ(parse_bytes("0.375 KiB", ""), Bytes(384));
  EXPECT_EQ(parse_bytes("1.500000000000000000000000 kB", ""), Bytes(1'500));
  EXPECT_EQ(parse_bytes("2e3 kB", ""), Bytes(2'000'000));
  EXPECT_EQ(parse_bytes("2.5E+1 B", ""), Bytes(25));
  EXPECT_EQ(parse_bytes("2500e-2 B", ""), Bytes(25));
  EXPECT_EQ(parse_bytes("0.0e999 GB", ""), Bytes(0));
}

// 2^63 - 1 = 9223372036854775807 is the last that fits, and no double holds it. 8192 PiB = 2^63.
TEST(ParseBytes, RefusesWhatIsNotAWholeInt64) {
  EXPECT_EQ(parse_bytes("9223372036854775807 B", ""), Bytes(INT64_MAX));
  const std::string expected = "must be a whole number of bytes below 2^63, is ";
  for (const char* text : {"9223372036854775808 B", "8192 PiB", "10000 PB", "1e30 B", "1e99999 B",
                           "0.5 B", "1.0001 kB", "0.3 KiB", "1e-1 B"}) {
    EXPECT_EQ(trouble_of(parse_bytes, text), expected + '"' + text + '"');
  }
}

TEST(ParseBytes, AsksForAUnitWhereThereIsNone) {
  EXPECT_EQ(trouble_of(parse_bytes, "200"),
            "\"200\" has no unit; write a unit, such as \"200 MB\"");
}

TEST(ParseBytes, NamesTheNearestUnit) {
  EXPECT_EQ(trouble_of(parse_bytes, "80 gb"), "unknown unit \"gb\" (did you mean \"GB\"?)");
  EXPECT_EQ(trouble_of(parse_bytes, "80 Gb"), "unknown unit \"Gb\" (did you mean \"GB\"?)");
  EXPECT_EQ(trouble_of(parse_bytes, "80 KB"), "unknown unit \"KB\" (did you mean \"kB\"?)");
  EXPECT_EQ(trouble_of(parse_bytes, "80 gib"), "unknown unit \"gib\" (did you mean \"GiB\"?)");
  EXPECT_EQ(trouble_of(parse_bytes, "80G"), "unknown unit \"G\" (did you mean \"GB\"?)");
  EXPECT_EQ(trouble_of(parse_bytes, "80 apples"),
            "unknown unit \"apples\"; use B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB");
}

TEST(ParseBytes, RefusesNegativeAndNotANumber) {
  EXPECT_EQ(trouble_of(parse_bytes, "-1 GB"), "must not be negative, is \"-1 GB\"");
  for (const char* text : {"", "GB", "nan GB", "inf GB", "+1 GB", ".5 GB", " 5 GB"}) {
    EXPECT_NE(trouble_of(parse_bytes, text).find("does not begin with a number"),
              std::string::npos) << text;
  }
  for (const char* text : {"1,000 MB", "1_0 MB", "5. GB", "5 GB ", "5 e3 B", "0x10 B"}) {
    EXPECT_NE(trouble_of(parse_bytes, text).find("unknown unit"), std::string::npos) << text;
  }
}

// 400 Gb/s = 400e9 / 8 = 50e9 B/s.
TEST(ParseBandwidth, CountsBitsByTheSmallLetter) {
  EXPECT_EQ(parse_bandwidth("400 Gb/s", ""), Bandwidth(50e9));
  EXPECT_EQ(parse_bandwidth("400 GB/s", ""), Bandwidth(400e9));
  EXPECT_EQ(parse_bandwidth("1 GiB/s", ""), Bandwidth(1073741824.0));
  EXPECT_EQ(parse_bandwidth("3.35TB/s", ""), Bandwidth(3.35e12));
  EXPECT_EQ(parse_bandwidth("8 b/s", ""), Bandwidth(1));
}

TEST(ParseBandwidth, NamesTheNearestUnit) {
  EXPECT_EQ(trouble_of(parse_bandwidth, "400 gb/S"),
            "unknown unit \"gb/S\" (did you mean \"Gb/s\"?)");
  EXPECT_EQ(trouble_of(parse_bandwidth, "400 Gbps"),
            "unknown unit \"Gbps\" (did you mean \"Gb/s\"?)");
  EXPECT_EQ(trouble_of(parse_bandwidth, "1e308 TB/s"), "\"1e308 TB/s\" is out of range");
  EXPECT_EQ(trouble_of(parse_bandwidth, "1e999 B/s"), "\"1e999 B/s\" is out of range");
}

// The nearest double to 3e-6, which 3 * 1e-6 is not.
TEST(ParseSeconds, IsTheNearestDouble) {
  EXPECT_EQ(parse_seconds("3 us", ""), Seconds(3e-6));
  EXPECT_EQ(parse_seconds("1.7 ms", ""), Seconds(1.7e-3));
  EXPECT_EQ(parse_seconds("250ns", ""), Seconds(250e-9));
  EXPECT_EQ(parse_seconds("12 s", ""), Seconds(12));
}

TEST(ParseSeconds, ReadsLongTimes) {
  EXPECT_EQ(parse_seconds("1.5 min", ""), Seconds(90));
  EXPECT_EQ(parse_seconds("2 h", ""), Seconds(7200));
  EXPECT_EQ(parse_seconds("54 d", ""), Seconds(54 * 86400));
  EXPECT_EQ(trouble_of(parse_seconds, "5 US"), "unknown unit \"US\" (did you mean \"us\"?)");
}

TEST(ParseFlopRate, ReadsBothSpellings) {
  EXPECT_EQ(parse_flop_rate("989 TFLOP/s", ""), FlopRate(989e12));
  EXPECT_EQ(parse_flop_rate("989 TFLOPS", ""), FlopRate(989e12));
  EXPECT_EQ(parse_flop_rate("2.25 PFLOP/s", ""), FlopRate(2.25e15));
  EXPECT_EQ(parse_flop_rate("800GFLOP/s", ""), FlopRate(800e9));
  EXPECT_EQ(trouble_of(parse_flop_rate, "989 tflop/s"),
            "unknown unit \"tflop/s\" (did you mean \"TFLOP/s\"?)");
}

TEST(FormatBytes, WritesThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(Bytes(80'000'000'000)), "80.0 GB");
  EXPECT_EQ(format_bytes(Bytes(1'234)), "1.23 kB");
  EXPECT_EQ(format_bytes(Bytes(512'300'000)), "512 MB");
  EXPECT_EQ(format_bytes(Bytes(-1'500'000)), "-1.50 MB");
  EXPECT_EQ(format_bytes(Bytes(INT64_MIN)), "-9.22 EB");
}

TEST(FormatBytes, WritesFewBytesWhole) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_bytes(Bytes(5)), "5 B");
  EXPECT_EQ(format_bytes(Bytes(-999)), "-999 B");
  EXPECT_EQ(format_binary_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_binary_bytes(Bytes(1023)), "1023 B");
}

// 999,499 rounds down to 999 kB, 999,500 up to 1000 kB, which is 1.00 MB.
TEST(FormatBytes, RoundsUpIntoTheNextUnit) {
  EXPECT_EQ(format_bytes(Bytes(999'499)), "999 kB");
  EXPECT_EQ(format_bytes(Bytes(999'500)), "1.00 MB");
  EXPECT_EQ(format_bytes(Bytes(9'994)), "9.99 kB");
  EXPECT_EQ(format_bytes(Bytes(9'996)), "10.0 kB");
}

// 80e9 / 2^30 = 74.506.
TEST(FormatBytes, WritesBinaryUnits) {
  EXPECT_EQ(format_binary_bytes(Bytes(80'000'000'000)), "74.5 GiB");
  EXPECT_EQ(format_binary_bytes(gibibytes(80)), "80.0 GiB");
  EXPECT_EQ(format_binary_bytes(kibibytes(1)), "1.00 KiB");
  EXPECT_EQ(format_binary_bytes(mebibytes(1000)), "1000 MiB");
  EXPECT_EQ(format_binary_bytes(gibibytes(-3)), "-3.00 GiB");
}

TEST(FormatSeconds, PicksTheUnit) {
  EXPECT_EQ(format_seconds(Seconds(0)), "0 s");
  EXPECT_EQ(format_seconds(Seconds(2e-12)), "2.00 ps");
  EXPECT_EQ(format_seconds(Seconds(250e-9)), "250 ns");
  EXPECT_EQ(format_seconds(Seconds(5e-6)), "5.00 us");
  EXPECT_EQ(format_seconds(Seconds(1.234e-3)), "1.23 ms");
  EXPECT_EQ(format_seconds(Seconds(12.345)), "12.3 s");
  EXPECT_EQ(format_seconds(Seconds(-0.5)), "-500 ms");
  EXPECT_EQ(format_seconds(Seconds(0.9999)), "1.00 s");
  EXPECT_EQ(format_seconds(Seconds(120)), "120 s");
}

// 150 s = 2.5 min; 11,520 s = 3.2 h; 1,071,360 s = 12.4 days.
TEST(FormatSeconds, WritesLongTimesAsPeopleSayThem) {
  EXPECT_EQ(format_seconds(Seconds(150)), "2.5 min");
  EXPECT_EQ(format_seconds(Seconds(11'520)), "3.2 h");
  EXPECT_EQ(format_seconds(Seconds(1'071'360)), "12.4 days");
  EXPECT_EQ(format_seconds(Seconds(-150)), "-2.5 min");
  EXPECT_EQ(format_seconds(Seconds(std::numeric_limits<double>::infinity())), "inf s");
}

TEST(FormatCount, WritesParametersAsPapersDo) {
  EXPECT_EQ(format_count(8.03e9), "8.03 B");
  EXPECT_EQ(format_count(70.55e9), "70.5 B");  // 70.55 lies just below in binary
  EXPECT_EQ(format_count(1.008e12), "1.01 T");
  EXPECT_EQ(format_count(124e6), "124 M");
  EXPECT_EQ(format_count(4096), "4.10 k");
  EXPECT_EQ(format_count(-4096), "-4.10 k");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(3.14159), "3.14");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(3.8e25), "3.80e+25");
}

// Three digits are within half of the third: 0.5 %.
TEST(FormatBytes, ReadsBackWithinHalfAPercent) {
  for (double value = 1; value < 9e17; value *= 1.37) {
    const Bytes bytes(static_cast<std::int64_t>(value));
    const Bytes back = parse_bytes(format_bytes(bytes), "");
    EXPECT_NEAR(static_cast<double>(back.count), static_cast<double>(bytes.count),
                0.00501 * static_cast<double>(bytes.count));
  }
}

TEST(ExactText, ReadsBackToTheSameBitsAndIsShort) {
  EXPECT_EQ(exact_seconds(parse_seconds("183.71 us", "")), "183.71 us");
  EXPECT_EQ(exact_seconds(parse_seconds("1.5 s", "")), "1.5e+06 us");
  EXPECT_EQ(exact_bandwidth(parse_bandwidth("400 Gb/s", "")), "50 GB/s");
  for (double value = 1e-9; value < 1e6; value *= 1.7) {
    EXPECT_EQ(parse_seconds(exact_seconds(Seconds(value)), "").value, value);
    EXPECT_EQ(parse_bandwidth(exact_bandwidth(Bandwidth(value * 1e6)), "").value, value * 1e6);
  }
}

}  // namespace
}  // namespace stepcast
