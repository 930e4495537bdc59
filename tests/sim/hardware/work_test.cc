// Timed work in a profile: read, written, refused.
#include "sim/hardware/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/hardware/profile.h"
#include "tests/support/replaced.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

const std::string kWorkText = R"({"format": "stepcast.profile/1", "name": "here", "device": "cpu",
"machine": {"processor": "A 1", "onednn": "2.6.0"},
"work": [
{"ranks": 2, "threads": 1,
"kernels": [
{"op": "gemm forward 512x768x768 fp32", "phase": "forward", "micro_batch": "first",
"seconds": "8.5 ms", "spread": 0.04, "samples": 48},
{"op": "gemm forward 512x768x768 fp32", "phase": "recompute", "micro_batch": "later",
"seconds": "8 ms"}],
"transfers": [
{"transfer": "send", "ranks": 2, "bytes": "4 MiB", "seconds": "3 ms"},
{"transfer": "receive", "ranks": 2, "bytes": 1000, "seconds": "1 us", "samples": 3}]}]})";

Profile read(const std::string& text) { return read_profile(parse_json(text, "p.json")); }

std::string work_error(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TimedWork, ReadsKernelsAndTransfers) {
  const Profile profile = read(kWorkText);
  ASSERT_EQ(profile.work.size(), 1u);
  const TimedWork& work = profile.work[0];
  EXPECT_EQ(work.ranks, 2);
  EXPECT_EQ(work.threads, 1);
  ASSERT_EQ(work.kernels.size(), 2u);
  EXPECT_EQ(to_text(work.kernels[0].op), "gemm forward 512x768x768 fp32");
  EXPECT_EQ(work.kernels[0].phase, "forward");
  EXPECT_TRUE(work.kernels[0].first);
  EXPECT_EQ(work.kernels[0].time, (Timing{Seconds(8.5e-3), 0.04, 48}));
  EXPECT_FALSE(work.kernels[1].first);
  EXPECT_EQ(work.kernels[1].time.samples, 1);
  ASSERT_EQ(work.transfers.size(), 2u);
  EXPECT_EQ(work.transfers[0].transfer, "send");
  EXPECT_EQ(work.transfers[0].bytes, mebibytes(4));
  EXPECT_EQ(work.transfers[1].bytes, Bytes(1000));
}

TEST(TimedWork, WrittenReadsBackToTheSame) {
  const Profile profile = read(kWorkText);
  const Profile again = read(write_profile(profile).dump());
  EXPECT_EQ(again.work, profile.work);
  EXPECT_EQ(again.machine, profile.machine);
}

TEST(TimedWork, WrongInputNamesThePlaceAndTheCure) {
  const auto error = [](const std::string& from, const std::string& to) {
    return work_error(replaced(kWorkText, from, to));
  };
  EXPECT_THAT(error("gemm forward 512x768x768", "gemm sideways 512x768x768"),
              HasSubstr("p.json:6: work.0.kernels.0.op"));
  EXPECT_THAT(error("\"recompute\"", "\"rest\""), HasSubstr("recompute"));
  EXPECT_THAT(error("\"later\"", "\"last\""), HasSubstr("micro_batch"));
  EXPECT_THAT(error("\"8 ms\"", "\"0 ms\""), HasSubstr("must be more than zero"));
  EXPECT_THAT(error("\"8 ms\"", "\"-8 ms\""), HasSubstr("p.json:9"));
  EXPECT_THAT(error("\"samples\": 48", "\"samples\": 0"), HasSubstr("samples"));
  EXPECT_THAT(error("\"send\"", "\"sent\""), HasSubstr("did you mean \"send\"?"));
  EXPECT_THAT(error("\"bytes\": 1000", "\"bytes\": 0"), HasSubstr("bytes"));
  EXPECT_THAT(error("\"phase\": \"forward\", ", ""), HasSubstr("phase"));
  EXPECT_THAT(error("\"threads\": 1,", "\"threads\": 1, \"thread\": 2,"), HasSubstr("thread"));
  EXPECT_THAT(
      error("\"recompute\", \"micro_batch\": \"later\"", "\"forward\", \"micro_batch\": \"first\""),
      HasSubstr("is there twice"));
}

TEST(TimedWork, OfOneNumberOfRanksIsThereOnce) {
  const std::string twice =
      replaced(kWorkText, "\"work\": [",
               R"("work": [{"ranks": 2, "threads": 2, "kernels": [], "transfers": []},)");
  EXPECT_THAT(work_error(twice), HasSubstr("work of 2 ranks is there twice"));
}

TEST(TimedWork, IsFoundByTheNearestNumberOfRanks) {
  Profile profile = read(kWorkText);
  EXPECT_EQ(work_of(Profile(), 2), nullptr);
  TimedWork one = profile.work[0];
  one.ranks = 8;
  profile.work.push_back(one);
  EXPECT_EQ(work_of(profile, 2)->ranks, 2);
  EXPECT_EQ(work_of(profile, 1)->ranks, 2);
  EXPECT_EQ(work_of(profile, 7)->ranks, 8);
}

TEST(ProfileOfAnotherMachine, SaysWhatDiffers) {
  const Profile profile = read(kWorkText);
  EXPECT_EQ(machine_difference(profile, {{"processor", "A 1"}, {"onednn", "2.6.0"}}), "");
  EXPECT_EQ(machine_difference(profile, {{"processor", "A 1"}}), "");  // nobody knows better
  EXPECT_EQ(machine_difference(profile, {{"processor", "A 1"}, {"onednn", "3.1.0"}}),
            "its onednn is 2.6.0, here it is 3.1.0");
}

}  // namespace
}  // namespace stepcast
