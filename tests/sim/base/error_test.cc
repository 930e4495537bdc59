#include "sim/base/error.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

TEST(Error, ReadsAsPlaceThenTrouble) {
  const Error error("plan.json:7: parallel.tensor", "must be from 1 to 8, is 0");
  EXPECT_STREQ(error.what(), "plan.json:7: parallel.tensor: must be from 1 to 8, is 0");
  EXPECT_EQ(error.where(), "plan.json:7: parallel.tensor");
  EXPECT_EQ(error.message(), "must be from 1 to 8, is 0");
}

TEST(Error, WithoutAPlaceIsTheTroubleAlone) {
  EXPECT_STREQ(Error("", "no such model").what(), "no such model");
}

TEST(NearestName, FindsEachKindOfSlip) {
  const std::vector<std::string> keys = {"data", "pipeline", "tensor"};
  EXPECT_EQ(nearest_name("tensr", keys), "tensor");     // a letter too few
  EXPECT_EQ(nearest_name("tensoor", keys), "tensor");   // a letter too many
  EXPECT_EQ(nearest_name("tensur", keys), "tensor");    // a wrong letter
  EXPECT_EQ(nearest_name("dtaa", keys), "data");        // neighbours swapped: one edit of four
  EXPECT_EQ(nearest_name("Pipeline", keys), "pipeline");
}

// The limit is a third of the word, at least 1: "tnsr" (4 letters) is 2 edits from "tensor", one
// beyond; "tensro1" (7) is 2 away, within.
TEST(NearestName, GivesNothingBeyondAThirdOfTheWord) {
  EXPECT_EQ(nearest_name("tnsr", {"tensor"}), "");
  EXPECT_EQ(nearest_name("tensro1", {"tensor"}), "tensor");
  EXPECT_EQ(nearest_name("x", {"tensor"}), "");
  EXPECT_EQ(nearest_name("", {"tensor"}), "");
  EXPECT_EQ(nearest_name("tensor", {}), "");
}

// Optimal string alignment edits no place twice: "ca" -> "abc" is 3 and not 2 (swap, then insert
// between), the textbook case that tells it from the full Damerau distance. With "cazzzz" the
// limit is 2.
TEST(NearestName, IsOptimalStringAlignment) {
  EXPECT_EQ(nearest_name("cazzzz", {"abczzzz"}), "");
  EXPECT_EQ(nearest_name("cazzzz", {"aczzzz"}), "aczzzz");
}

TEST(NearestName, PrefersTheSameBeginningThenTheSameCaseThenTheEarlier) {
  EXPECT_EQ(nearest_name("G", {"B", "GB"}), "GB");
  EXPECT_EQ(nearest_name("gb/s", {"GB/s", "Gb/s"}), "Gb/s");
  EXPECT_EQ(nearest_name("fp", {"fp8", "fp4"}), "fp8");
}

TEST(NearestName, IsPutAsAQuestion) {
  EXPECT_EQ(did_you_mean("tensr", {"tensor"}), " (did you mean \"tensor\"?)");
  EXPECT_EQ(did_you_mean("x", {"tensor"}), "");
}

TEST(CheckDeathTest, AbortsWithTheConditionAndTheMessage) {
  const int live = 3;
  STEPCAST_CHECK(live == 3, "not printed");
  EXPECT_DEATH(STEPCAST_CHECK(live == 0, "bytes are left over"),
               "error_test.cc:[0-9]+: bytes are left over .check failed: live == 0");
}

// A NUL would end the line, an escape sequence could move the terminal.
TEST(Error, PrintsControlCharactersOfItsInputAsQuestionMarks) {
  const Error error(std::string_view("a\0b", 3), "\x1b[31m\n");
  EXPECT_STREQ(error.what(), "a?b: ?[31m?");
}

}  // namespace
}  // namespace stepcast
