// What training logs and golden values say, from lines in the form that the frameworks print.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tools/compare/measured.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Measured read_log(const std::string& text) {
  return read_training_logs({{"train.log", text, MeasuredForm::kLog}});
}

std::string megatron(int iteration, const std::string& milliseconds, int batch = 64) {
  return " [2026-01-02 03:04:05] iteration " + std::to_string(iteration) +
         "/     500 | consumed samples: 640 | elapsed time per iteration (ms): " + milliseconds +
         " | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 1.0E-04 | global batch "
         "size: " +
         std::to_string(batch) +
         " | lm loss: 9.1E+00 | number of skipped iterations: 0 | number of "
         "nan iterations: 0 |\n";
}

std::string log_refusal(const std::string& text) {
  try {
    std::string copy = text;
    const MeasuredForm form = recognise(copy, "a.txt");
    read_measured({{"a.txt", copy, form}});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MeasuredLog, ReadsTheIterationsOfMegatronWithoutTheFirst) {
  const Measured log = read_log(megatron(1, "9000.0") + "loading data\n" + megatron(2, "2000.5") +
                                megatron(3, "2001.5/2100.0"));
  EXPECT_EQ(log.form, "a Megatron-LM log");
  EXPECT_EQ(log.pace, Pace::kStep);
  EXPECT_THAT(log.durations, ElementsAre(2.0005, 2.0015));
  EXPECT_EQ(log.global_batch, 64);
  EXPECT_THAT(log.notes, ElementsAre("of 3 steps the first was dropped, which warms up"));
}

// The second half's median is 2: 9, 4 and 2.3 lie more than 10 % above it, one after the other.
TEST(MeasuredLog, DropsAsManyStepsAsWarmUpAndAtMostHalf) {
  EXPECT_EQ(warm_up_steps({9, 4, 2.3, 2, 2.5, 2, 2, 2, 2, 2}), 3u);
  EXPECT_EQ(warm_up_steps({9, 8, 7, 1}), 2u);  // 7 is above 4 too, but half is enough
  EXPECT_EQ(warm_up_steps({2, 2}), 1u);
  EXPECT_EQ(warm_up_steps({2}), 0u);
  EXPECT_EQ(warm_up_steps({}), 0u);
}

TEST(MeasuredLog, LooksBehindPrefixesColoursAndOrder) {
  const std::string tail = " | elapsed time per iteration (ms): 1500.0 | iteration 7/ 9 | x\n";
  for (const std::string prefix :
       {"0: ", "[1,0]<stdout>:", "pod/trainer-0 2026-01-02T03:04:05Z ", "\x1B[32m", "[rank0]: "}) {
    EXPECT_THAT(read_log(prefix + tail).durations, ElementsAre(1.5)) << prefix;
  }
}

TEST(MeasuredLog, KeepsOnlyTheLastGlobalBatch) {
  const Measured log = read_log(megatron(1, "500", 16) + megatron(2, "500", 16) +
                                megatron(3, "1000", 32) + megatron(4, "1000", 32));
  EXPECT_THAT(log.durations, ElementsAre(1.0));
  EXPECT_EQ(log.global_batch, 32);
  EXPECT_THAT(log.notes, Contains(HasSubstr("2 iterations of another global batch than 32")));
}

TEST(MeasuredLog, SkipsIterationsThatAreNoNumber) {
  const Measured log = read_log(megatron(1, "nan") + megatron(2, "2000") + megatron(3, "1e999") +
                                megatron(4, "-5") + megatron(5, "2000"));
  EXPECT_THAT(log.durations, ElementsAre(2.0));
  EXPECT_THAT(log.notes, Contains(HasSubstr("3 lines whose time is no number above 0")));
  EXPECT_THAT(log_refusal(megatron(1, "nan")), HasSubstr("nothing that compare can read"));
}

TEST(MeasuredLog, TakesTheMedianOfASeveralTimesToldStep) {
  const Measured log = read_log(megatron(1, "1000") + megatron(2, "1000") + megatron(2, "3000") +
                                megatron(2, "1200"));
  EXPECT_THAT(log.durations, ElementsAre(1.2));
  EXPECT_THAT(log.notes, Contains(HasSubstr("2 lines tell of a step for another time")));
}

// MB of Megatron are 2^20 bytes.
TEST(MeasuredLog, ReadsThePeaksOfEachRank) {
  const Measured log = read_log(
      megatron(1, "1000") +
      "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: 20.0 | "
      "reserved: 30.0 | max reserved: 40.0\n"
      "[Rank 8] (after 1 iterations) memory (MB) | max reserved: 4.0 | max allocated: 2.0\n");
  ASSERT_THAT(log.peaks, SizeIs(2));
  EXPECT_EQ(log.peaks[0].rank, 0);
  EXPECT_EQ(log.peaks[0].allocated, 20.0 * (1 << 20));
  EXPECT_EQ(log.peaks[0].reserved, 40.0 * (1 << 20));
  EXPECT_EQ(log.peaks[1].rank, 8);
  EXPECT_EQ(log.peaks[1].allocated, 2.0 * (1 << 20));
}

// 2,500 tokens a second and device are 0.4 ms a token; the memory is what the allocator reserved.
TEST(MeasuredLog, ReadsTheRateAndTheReservedMemoryOfTorchtitan) {
  const Measured log = read_log(
      "[titan] root - INFO - \x1B[31mstep:  1  \x1B[32mloss: 12.2  memory: 10.00GiB(12.6%)  "
      "\x1B[34mtps: 118  mfu: 1.1%\x1B[39m\n"
      "[titan] root - INFO - step: 10  loss:  8.1  memory: 12.50GiB(15.8%)  tps: 2,500  mfu: "
      "N/A\n");
  EXPECT_EQ(log.form, "a torchtitan log");
  EXPECT_EQ(log.pace, Pace::kDeviceToken);
  EXPECT_THAT(log.durations, ElementsAre(DoubleNear(4e-4, 1e-12)));
  ASSERT_THAT(log.peaks, SizeIs(1));
  EXPECT_EQ(log.peaks[0].rank, kRankUnknown);
  EXPECT_EQ(log.peaks[0].reserved, 12.5 * (1 << 30));
  EXPECT_FALSE(log.peaks[0].allocated);
}

TEST(MeasuredLog, ReadsDeepSpeedNemoAndBridge) {
  const Measured speed = read_log(
      "[2026-01-02 03:04:05] [INFO] [timer.py:264:stop] epoch=0/micro_step=8/global_step=4, "
      "RunningAvgSamplesPerSec=9.0, CurrSamplesPerSec=8.0, MemAllocated=1.0GB, "
      "MaxMemAllocated=2.0GB\n");
  EXPECT_EQ(speed.pace, Pace::kSample);
  EXPECT_THAT(speed.durations, ElementsAre(0.125));
  EXPECT_EQ(speed.peaks.at(0).allocated, 2.0 * (1 << 30));
  const Measured nemo = read_log(
      "Training epoch 0, iteration 3/9 | lr: 1e-05 | global_batch_size: 512 | global_step: 3 | "
      "reduced_train_loss: 10.3 | train_step_timing in s: 5.25\r"
      "Epoch 0: 40%| 4/9 [train_step_timing in s=5.0, global_step=4.0]\r");
  EXPECT_EQ(nemo.form, "a NeMo log");
  EXPECT_THAT(nemo.durations, ElementsAre(5.0));
  const Measured bridge = read_log("Step Time : 1.23s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n");
  EXPECT_THAT(bridge.durations, ElementsAre(1.23));
}

TEST(MeasuredLog, ReadsGoldenValuesOfTheLastRank) {
  const std::string text = R"({"lm loss": {"values": {"1": 12.5}},
      "iteration-time": {"start_step": 1, "end_step": 4, "step_interval": 1,
                         "values": {"1": "nan", "2": 5.5, "10": 1.25, "3": 1.5}},
      "mem-max-allocated-bytes": {"values": {"1": 1000.0, "2": 3000.0}}})";
  std::string copy = text;
  ASSERT_EQ(recognise(copy, "golden.json"), MeasuredForm::kGolden);
  const Measured golden = read_golden_values({"golden.json", copy, MeasuredForm::kGolden});
  EXPECT_THAT(golden.durations, ElementsAre(1.5, 1.25));  // by step, not by text
  ASSERT_THAT(golden.peaks, SizeIs(1));
  EXPECT_EQ(golden.peaks[0].rank, kRankLast);
  EXPECT_EQ(golden.peaks[0].allocated, 3000.0);
  EXPECT_THAT(golden.notes, Contains(HasSubstr("1 steps without a time")));
  EXPECT_THAT(log_refusal(R"({"iteration-time": {"values": {"1": "nan"}}})"),
              AllOf(HasSubstr("a.txt:1"), HasSubstr("iteration-time: has no time")));
  EXPECT_THAT(log_refusal(R"({"iteration-time": 3})"), HasSubstr("iteration-time"));
  EXPECT_THAT(log_refusal(R"({"iteration-time": {"values": {"one": 1}}})"),
              HasSubstr("no step number"));
}

TEST(MeasuredLog, SaysWhatIsUnderstoodWhereItRecognisesNothing) {
  for (const std::string text : {"", " \n ", "hello\n", "{\"a\": 1}", "[]", "[1, 2]",
                                 "\x01\x02\x03", "tps: 5\n", "iteration 1/ 2 | lm loss: 3\n"}) {
    EXPECT_THAT(log_refusal(text), AllOf(HasSubstr("a.txt: is "), HasSubstr("torchtitan"),
                                         HasSubstr("golden values"), HasSubstr("profiler")))
        << text;
  }
  EXPECT_THAT(log_refusal("{\"a\": "), HasSubstr("a.txt:1: is no valid JSON"));
}

// Every cut of a log, and every byte of it made another: an answer or an Error, never more.
TEST(MeasuredLog, SurvivesDamage) {
  const std::string whole = "\x1B[3" + megatron(1, "9000.0") + megatron(2, "2000.5") +
                            "[Rank 0] memory (MB) | max allocated: 20.0\n";
  for (std::size_t i = 0; i <= whole.size(); ++i) log_refusal(whole.substr(0, i));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char c : {'\0', '\n', '\x1B', '\xFF', '9', '/'}) {
      std::string other = whole;
      other[i] = c;
      log_refusal(other);
    }
  }
}

TEST(MeasuredLog, LeavesTextAndTruncatedGzipToTheirReaders) {
  EXPECT_EQ(unpacked("plain", "x"), "plain");
  EXPECT_THROW(unpacked(std::string("\x1F\x8B\x08\x00\x00", 5), "x"), Error);
  EXPECT_THROW(unpacked("\x1F\x8Bgarbage that is no gzip file at all", "x"), Error);
}

}  // namespace
}  // namespace stepcast
