#include "sim/result/report.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/sim/result/small_job.h"

namespace stepcast {
namespace {

// Two stages; the second rank is the slowest: 1 + 2 + ... + 10 = 55 ms.
Report small_report() {
  Report report;
  report.config = Json{{"name", "small"}, {"batch", {{"micro", 1}}}};
  report.timeline.step = Duration(55'000'000'000);
  report.timeline.ranks.resize(2);
  report.timeline.slowest = 1;
  for (std::size_t i = 0; i < kParts; ++i) {
    report.timeline.ranks[0].breakdown[i] = Duration(5'500'000'000);
    const auto part = static_cast<std::int64_t>(i + 1);
    report.timeline.ranks[1].breakdown[i] = Duration(part * 1'000'000'000);
  }
  report.timeline.ranks[0].basis = {Duration(100), Duration(0), Duration(200), Duration(100)};
  report.timeline.ranks[1].basis = {Duration(100), Duration(0), Duration(200), Duration(100)};
  report.timeline.bubble_fraction = 0.25;
  report.footprint.stages = {
      {Bytes(210), {Bytes(10), Bytes(20), Bytes(30), Bytes(40), Bytes(50), Bytes(60)}, Bytes(60),
       3, 1, Bytes(220), Bytes(5), Bytes(7), Bytes(3), 2},
      {Bytes(100), {Bytes(100), Bytes(0), Bytes(0), Bytes(0), Bytes(0), Bytes(0)}, Bytes(100), 0,
       -1, Bytes(240), Bytes(0), Bytes(0), Bytes(0), 0}};
  report.footprint.not_modelled = {"context"};
  // by Axis: tensor, context, expert, data, replica, pipeline
  report.traffic.stages = {{Bytes(5), Bytes(0), Bytes(1), Bytes(30), Bytes(4), Bytes(7)},
                           {Bytes(9), Bytes(0), Bytes(0), Bytes(10), Bytes(25), Bytes(6)}};
  report.capacity = Bytes(240);
  report.low = Seconds(0.050);
  report.high = Seconds(0.060);
  report.tokens_per_second_per_device = 1000;
  report.mfu = 0.4;
  report.hfu = 0.5;
  report.parameters = 8'030'261'248;
  report.flops_per_token = Flops(5.2e10);
  return report;
}

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> result;
  for (const auto& item : object.items()) result.push_back(item.key());
  return result;
}

using Keys = std::vector<std::string>;

TEST(Report, HasEveryKeyOfItsFormat) {
  const Json json = write_report(small_report(), small_job());
  EXPECT_EQ(json.at("format"), "stepcast.report/1");
  EXPECT_EQ(keys(json), (Keys{"format", "config", "step", "breakdown_seconds", "memory", "traffic",
                              "basis", "model"}));
  EXPECT_EQ(keys(json.at("step")),
            (Keys{"seconds", "seconds_low", "seconds_high", "range_from",
                  "tokens_per_second_per_device", "mfu", "hfu", "bubble_fraction"}));
  EXPECT_EQ(keys(json.at("breakdown_seconds")),
            (Keys{"compute", "recompute", "bubble", "tensor_exposed", "context_exposed",
                  "expert_exposed", "pipeline_exposed", "data_exposed", "optimizer", "other"}));
  EXPECT_EQ(keys(json.at("memory")),
            (Keys{"capacity_bytes", "fits", "allocated_peak_bytes", "reserved_peak_bytes",
                  "device_total_bytes", "not_modelled", "stages"}));
  for (const Json& stage : json.at("memory").at("stages")) {
    EXPECT_EQ(keys(stage), (Keys{"stage", "allocated_peak_bytes", "peak_at", "weights_bytes",
                                 "gradients_bytes", "master_weights_bytes", "optimizer_bytes",
                                 "activations_bytes", "buffers_bytes", "workspace_bytes",
                                 "reserved_peak_bytes", "communicators_bytes", "context_bytes",
                                 "device_total_bytes", "allocation_retries"}));
  }
  EXPECT_EQ(keys(json.at("traffic")), (Keys{"sent_bytes_per_device", "links"}));
  EXPECT_TRUE(json.at("traffic").at("links").is_array());
  EXPECT_EQ(keys(json.at("traffic").at("sent_bytes_per_device")),
            (Keys{"tensor", "context", "expert", "pipeline", "data"}));
  EXPECT_EQ(keys(json.at("basis")), (Keys{"measured", "interpolated", "fitted", "datasheet"}));
  EXPECT_EQ(keys(json.at("model")), (Keys{"parameters", "flops_per_token"}));
}

TEST(Report, GivesTheStepItsRangeAndTheConfigAsItIs) {
  const Report report = small_report();
  const Json json = write_report(report, small_job());
  const Json& step = json.at("step");
  EXPECT_DOUBLE_EQ(step.at("seconds").get<double>(), 0.055);
  EXPECT_EQ(step.at("seconds_low"), 0.050);
  EXPECT_EQ(step.at("seconds_high"), 0.060);
  EXPECT_EQ(step.at("tokens_per_second_per_device"), 1000.0);
  EXPECT_EQ(step.at("mfu"), 0.4);
  EXPECT_EQ(step.at("hfu"), 0.5);
  EXPECT_EQ(step.at("bubble_fraction"), 0.25);
  EXPECT_EQ(json.at("config"), report.config);
  EXPECT_EQ(json.at("model").at("parameters"), 8'030'261'248);
  EXPECT_EQ(json.at("model").at("flops_per_token"), 5.2e10);
}

TEST(Report, BreaksDownTheSlowestRankIntoPartsThatSumToTheStep) {
  const Json json = write_report(small_report(), small_job());
  double sum = 0;
  for (const auto& item : json.at("breakdown_seconds").items()) sum += item.value().get<double>();
  const double step = json.at("step").at("seconds").get<double>();
  EXPECT_NEAR(sum, step, 1e-9 * step);
  EXPECT_DOUBLE_EQ(json.at("breakdown_seconds").at("compute").get<double>(), 0.001);
  EXPECT_DOUBLE_EQ(json.at("breakdown_seconds").at("other").get<double>(), 0.010);
}

TEST(Report, GivesEachStagesPeakItsCategoriesAndItsMoment) {
  const Json memory = write_report(small_report(), small_job()).at("memory");
  const Json& first = memory.at("stages").at(0);
  EXPECT_EQ(first.at("stage"), 0);
  EXPECT_EQ(first.at("allocated_peak_bytes"), 210);
  EXPECT_EQ(first.at("peak_at"), "backward 1 chunk 1");  // call 3 of small_job's schedule
  EXPECT_EQ(first.at("weights_bytes"), 10);
  EXPECT_EQ(first.at("gradients_bytes"), 20);
  EXPECT_EQ(first.at("master_weights_bytes"), 30);
  EXPECT_EQ(first.at("optimizer_bytes"), 40);
  EXPECT_EQ(first.at("activations_bytes"), 50);
  EXPECT_EQ(first.at("buffers_bytes"), 60);
  EXPECT_EQ(memory.at("stages").at(1).at("peak_at"), "rest");
  EXPECT_EQ(memory.at("allocated_peak_bytes"), 210);
  EXPECT_EQ(first.at("workspace_bytes"), 5);
  EXPECT_EQ(first.at("reserved_peak_bytes"), 220);
  EXPECT_EQ(first.at("communicators_bytes"), 7);
  EXPECT_EQ(first.at("context_bytes"), 3);
  EXPECT_EQ(first.at("device_total_bytes"), 230);
  EXPECT_EQ(first.at("allocation_retries"), 2);
  // The most of any stage, number by number.
  EXPECT_EQ(memory.at("reserved_peak_bytes"), 240);
  EXPECT_EQ(memory.at("device_total_bytes"), 240);
  EXPECT_EQ(memory.at("not_modelled"), Json::array({"context"}));
}

TEST(Report, NamesThePeakInTheFirstChunkAndInTheOptimizerShortly) {
  Report report = small_report();
  report.footprint.stages[0].peak_call = 1;
  report.footprint.stages[1].peak_call = 4;
  report.footprint.stages[1].peak_instruction = 0;
  const Json memory = write_report(report, small_job()).at("memory");
  EXPECT_EQ(memory.at("stages").at(0).at("peak_at"), "forward 1");
  EXPECT_EQ(memory.at("stages").at(1).at("peak_at"), "optimizer");
}

TEST(Report, FitsUpToTheLastByte) {
  Report report = small_report();
  EXPECT_EQ(write_report(report, small_job()).at("memory").at("fits"), true);
  report.capacity = Bytes(239);
  EXPECT_EQ(write_report(report, small_job()).at("memory").at("fits"), false);
}

// data + replica: stage 0 sends 30 + 4, stage 1 sends 10 + 25, the most; not 30 + 25.
TEST(Report, TakesTheBusiestStageOfEachAxisAndCountsReplicasAsData) {
  const Json json = write_report(small_report(), small_job());
  EXPECT_EQ(json.at("traffic").at("sent_bytes_per_device"),
            Json::parse(R"({"tensor": 9, "context": 0, "expert": 1, "pipeline": 7, "data": 35})"));
}

TEST(Report, SharesTheKernelTimeOutByBasis) {
  Report report = small_report();
  EXPECT_EQ(write_report(report, small_job()).at("basis"),
            Json::parse(R"({"measured": 0.25, "interpolated": 0.0, "fitted": 0.5,
                            "datasheet": 0.25})"));
  for (RankTime& rank : report.timeline.ranks) rank.basis = {};
  EXPECT_EQ(write_report(report, small_job()).at("basis").at("datasheet"), 1.0);
}

// 4 ranks at 1000 tokens/s each: 345.6e6 tokens take 86,400 s, a day of 4 devices.
TEST(Report, TellsTheTimeToTrainIfAsked) {
  Report report = small_report();
  report.training_tokens = 345'600'000;
  const Json json = write_report(report, small_job()).at("time_to_train");
  EXPECT_EQ(keys(json), (Keys{"tokens", "days", "device_hours"}));
  EXPECT_EQ(json.at("tokens"), 345'600'000);
  EXPECT_DOUBLE_EQ(json.at("days").get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(json.at("device_hours").get<double>(), 96.0);
}

TEST(Report, SaysTheSameTwice) {
  EXPECT_EQ(write_report(small_report(), small_job()).dump(),
            write_report(small_report(), small_job()).dump());
}

TEST(ReportDeathTest, RefusesNumbersThatAreNotFinite) {
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto death = [](auto change, const char* message) {
    Report report = small_report();
    change(report);
    EXPECT_DEATH(write_report(report, small_job()), message);
  };
  death([](Report& r) { r.mfu = kNan; }, "mfu is not a finite number");
  death([](Report& r) { r.high = Seconds(kInfinity); }, "seconds_high");
  death([](Report& r) { r.flops_per_token = Flops(kNan); }, "flops_per_token");
  death([](Report& r) { r.config["batch"]["deep"] = {1.0, kInfinity}; }, "in config");
  death([](Report& r) {
    r.training_tokens = 1;
    r.tokens_per_second_per_device = 0;
  }, "time_to_train");
}

TEST(ReportDeathTest, RefusesSumsThatDoNotClose) {
  Report parts = small_report();
  parts.timeline.ranks[1].breakdown[0] += Duration(1);
  EXPECT_DEATH(write_report(parts, small_job()), "do not sum to the step");
  Report bytes = small_report();
  bytes.footprint.stages[0].at_peak[0] += Bytes(1);
  EXPECT_DEATH(write_report(bytes, small_job()), "do not sum to the peak");
  Report range = small_report();
  range.high = Seconds(0.054);
  EXPECT_DEATH(write_report(range, small_job()), "outside its range");
}

}  // namespace
}  // namespace stepcast
