#include "tools/validate/runs.h"

#include <functional>
#include <numeric>

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tests/support/shipped.h"
#include "tools/forecast/forecast.h"
#include "tools/validate/report.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::string_view kRow = R"({"id": "r", "group": "g", "source": {"repo": "a/b"},
  "model": {"name": "gpt", "layers": 8, "hidden": 1024, "heads": 16, "ffn_hidden": 4096,
    "gated_mlp": false, "vocab": 51200, "seq_len": 1024, "tied_embeddings": true},
  "hardware": {"gpu": "A100-80GB-SXM", "gpus_per_node": 8, "gpus_total": 8},
  "software": {"framework": "Megatron-LM", "precision": "bf16"},
  "parallel": {"tp": 2, "sequence_parallel": true, "pp": 2, "dp": 2, "zero_stage": 0,
    "micro_batch": 4, "global_batch": 32},
  "recompute": "none", "measured": {"step_time_s": 0.5}})";

Json row_with(const std::vector<std::pair<std::string, std::string>>& sets = {}) {
  Document document = parse_json(kRow, "row");
  for (const auto& [path, value] : sets) set_value(document, path, value);
  return document.root;
}

ValidationRow validated(const Json& row) {
  RunForecasts known;
  return validate_row(row, "f:1", shipped(), known);
}

TEST(ValidateRun, ForecastsWhatSimulateWould) {
  const ValidationRow row = validated(row_with());
  ASSERT_TRUE(row.covered) << row.reason;
  EXPECT_EQ(row.kind, "run");
  EXPECT_EQ(row.measured_seconds, 0.5);
  ASSERT_TRUE(row.run.has_value());
  const Forecast result = forecast(read_what_if(Document{"w", row.run->what_if, {}}, "."));
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, to_seconds(result.report.timeline.step).value);
  const std::vector<StageMemory>& stages = result.report.footprint.stages;
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_DOUBLE_EQ(*row.predicted_bytes,
                   static_cast<double>(std::max(stages[0].peak + stages[0].workspace,
                                                stages[1].peak + stages[1].workspace).count));
  EXPECT_EQ(row.run->plan, "tp+sp+pp+dp");
  const double parts = std::accumulate(row.run->seconds.begin(), row.run->seconds.end(), 0.0);
  EXPECT_NEAR(parts, *row.predicted_seconds, 1e-9);
}

TEST(ValidateRun, AsksTheSameQuestionOnce) {
  RunForecasts known;
  validate_row(row_with(), "f:1", shipped(), known);
  validate_row(row_with({{"measured.step_time_s", "0.7"}}), "f:2", shipped(), known);
  EXPECT_EQ(known.size(), 1u);
  validate_row(row_with({{"parallel.micro_batch", "8"}}), "f:3", shipped(), known);
  EXPECT_EQ(known.size(), 2u);
}

// 32 sequences of 1,024 tokens at 8 x 4,096 tokens a second: one second.
TEST(ValidateRun, TurnsARateIntoAStep) {
  Json row = row_with();
  row["measured"] = {{"tokens_per_s_per_gpu", 4096}};
  const ValidationRow result = validated(row);
  EXPECT_DOUBLE_EQ(*result.measured_seconds, 1);
  EXPECT_THAT(result.assumed, Contains("step_time_s (from tokens/s)"));
  row["measured"] = {{"mfu", 0.4}};
  EXPECT_THAT(validated(row).reason, HasSubstr("neither a time, a rate nor a peak"));
}

TEST(ValidateRun, HoldsThePeakOfTheLastRankAgainstTheLastStage) {
  Json row = row_with({{"measured.extra.peak_memory_bytes", "3000000000"},
                       {"measured.extra.steady_allocated_bytes", "1000000000"}});
  const ValidationRow fullest = validated(row);
  row["notes"] = "memory of the LAST rank";
  const ValidationRow last = validated(row);
  EXPECT_EQ(last.measured_bytes, 3e9);
  EXPECT_EQ(fullest.run->memory, "allocated, fullest rank");
  EXPECT_EQ(last.run->memory, "allocated, last rank");
  EXPECT_EQ(last.run->measured_resident, 1e9);
  const Forecast result = forecast(read_what_if(Document{"w", last.run->what_if, {}}, "."));
  const std::vector<StageMemory>& stages = result.report.footprint.stages;
  ASSERT_NE(stages[0].peak, stages[1].peak);
  const Bytes workspace = stages[1].workspace;  // torch counts it as allocated
  EXPECT_GT(workspace, Bytes(0));
  EXPECT_EQ(*last.predicted_bytes, static_cast<double>((stages[1].peak + workspace).count));
  EXPECT_EQ(*last.run->predicted_resident,
            static_cast<double>((stages[1].resident + workspace).count));
}

// Eight ranks on two stages: pipeline is outermost, so ranks 0-3 are the first stage.
TEST(ValidateRun, SharesTheRanksPeaksAmongTheStages) {
  Json row = row_with({{"measured.peak_memory_gib", "2"}});
  row["measured"]["extra"]["peak_allocated_mib_by_rank"] = {
      {"0", 100}, {"3", 120}, {"4", 80}, {"7", 70}, {"8", 999}, {"x", 5}, {"5", -1}};
  const ValidationRow result = validated(row);
  ASSERT_EQ(result.run->stages.size(), 2u);
  EXPECT_EQ(result.run->stages[0].measured, 120.0 * (1 << 20));
  EXPECT_EQ(result.run->stages[1].measured, 80.0 * (1 << 20));
}

TEST(ValidateRun, SaysWhereOnlyReservedMemoryIsGiven) {
  const ValidationRow row = validated(row_with({{"measured.extra.peak_reserved_gib", "4"}}));
  EXPECT_EQ(row.measured_bytes, 4.0 * (1 << 30));
  EXPECT_THAT(row.run->memory, HasSubstr("reserved"));
  EXPECT_THAT(row.assumed, Contains(HasSubstr("reserved")));
}

TEST(ValidateRun, ScoresAMeasuredPeakWithoutATime) {
  Json row = row_with({{"measured.peak_memory_gib", "2"}});
  row["measured"].erase("step_time_s");
  const ValidationRow result = validated(row);
  EXPECT_TRUE(result.covered) << result.reason;
  EXPECT_FALSE(relative_error(result).has_value());
  EXPECT_TRUE(memory_relative_error(result).has_value());
}

TEST(ValidateRun, PassesOnWhyAPlanIsNotLegal) {
  const ValidationRow row = validated(row_with({{"model.heads", "8"}, {"model.ffn_hidden", "4098"},
                                                {"parallel.tp", "4"}, {"parallel.pp", "1"}}));
  EXPECT_FALSE(row.covered);
  EXPECT_THAT(row.reason, HasSubstr("4098 columns of the FFN cannot be divided by tensor 4"));
}

// A layer's forward on one rank does (24 h^2 + 2 s h) b s / t FLOPs, causal: at h = 1,024,
// s = 1,024, b = 4, t = 2 that is 55.8e9, or 179 us of 312 TFLOP/s.
TEST(ValidateRun, ComparesALayersWorkWithLaunches) {
  const ValidationRow row = validated(row_with());
  const double h = 1024, s = 1024, b = 4, t = 2;
  const double seconds = (24 * h * h + 2 * s * h) * b * s / t / 312e12;
  EXPECT_NEAR(row.run->layer_launches, seconds / 4.5e-6, 1e-6);
  EXPECT_EQ(row.variant, "");
  EXPECT_EQ(validated(row_with({{"parallel.micro_batch", "1"}})).variant, "launch-bound");
}

// A median of 1.2 times the fastest step is noise, 1.3 times is a host that was disturbed. Such a
// run counts for memory, in a table of its own, but for no error of the step.
TEST(ValidateRun, SetsARunApartWhoseOwnStepsDiffer) {
  const auto run = [](double fastest, const char* micro) {
    Json row = row_with({{"measured.peak_memory_gib", "2"}, {"parallel.micro_batch", micro}});
    const double median = row["measured"]["step_time_s"];
    row["measured"]["extra"]["step_time_min_s"] = median / fastest;
    return row;
  };
  EXPECT_EQ(validated(run(1.2, "4")).variant, "");
  EXPECT_EQ(validated(run(1.3, "4")).variant, "unsteady");
  EXPECT_EQ(validated(run(1.3, "1")).variant, "unsteady");
  const std::vector<ValidationRow> rows = {validated(run(1.2, "4")), validated(run(1.3, "4"))};
  const Json json = validation_json(rows);
  EXPECT_EQ(json.at("overall").at("count"), 1);
  EXPECT_EQ(json.at("unsteady").at(0).at("count"), 1);
  EXPECT_TRUE(json.at("launch_bound").empty());
  EXPECT_EQ(json.at("summary").size(), 2u);
  EXPECT_THAT(validation_table(rows), HasSubstr("unsteady runs"));
}

// All-reduces of a source that differ by a half are a network as it is; by five times, one that
// others use.
TEST(ValidateRun, SetsARunApartWhoseNetworkOthersUse) {
  const auto variant = [](const char* spread) {
    return validated(row_with({{"hardware.all_reduce_spread", spread}})).variant;
  };
  EXPECT_EQ(variant("1.5"), "");
  EXPECT_EQ(variant("5"), "unsteady");
}

TEST(ValidateRun, NamesPlansByTheirAxes) {
  Plan plan;
  EXPECT_EQ(plan_word(plan), "one device");
  plan.data = 8;
  EXPECT_EQ(plan_word(plan), "dp");
  plan.zero = 3;
  EXPECT_EQ(plan_word(plan), "zero3");
  plan.tensor = 2;
  plan.pipeline = 4;
  EXPECT_EQ(plan_word(plan), "tp+pp+zero3");
  plan.sequence_parallel = true;
  plan.virtual_stages = 2;
  EXPECT_EQ(plan_word(plan), "tp+sp+vpp+zero3");
}

// Every value of a good row, one after the other, is replaced by something else: each row must
// come back, with a reason or a number.
TEST(ValidateRun, LivesThroughAnyFieldBeingAnythingElse) {
  std::vector<std::string> pointers;
  const Json good = row_with({{"hardware.inter_node_link", "8x NDR400"},
                              {"measured.peak_memory_gib", "3"},
                              {"software.extra.flags.swiglu", "false"}});
  const std::function<void(const Json&, const std::string&)> collect =
      [&](const Json& value, const std::string& at) {
        if (!at.empty()) pointers.push_back(at);
        if (!value.is_object()) return;
        for (const auto& [key, child] : value.items()) collect(child, at + "/" + key);
      };
  collect(good, "");
  const std::vector<Json> others = {nullptr, true, -3, 0, 1e300, 7.5, "", "many", "12",
                                    Json::array({1}), Json::object()};
  int covered = 0, uncovered = 0;
  RunForecasts known;
  for (const std::string& pointer : pointers) {
    for (const Json& other : others) {
      Json row = good;
      row[Json::json_pointer(pointer)] = other;
      const ValidationRow result = validate_row(row, "f:1", shipped(), known);
      EXPECT_EQ(result.covered, result.reason.empty()) << pointer << " " << other;
      ++(result.covered ? covered : uncovered);
      if (result.covered && result.kind == "run") {
        EXPECT_GT(*result.predicted_seconds, 0) << pointer << " " << other;
      }
    }
  }
  EXPECT_GT(covered, 100);
  EXPECT_GT(uncovered, 50);
}

TEST(ValidationReport, SetsLaunchBoundRunsApart) {
  std::string lines;
  for (const char* micro : {"1", "4", "8"}) {
    Json row = row_with({{"id", "micro-" + std::string(micro)}, {"parallel.micro_batch", micro}});
    lines += row.dump() + "\n";
  }
  lines += row_with({{"parallel.ep", "2"}}).dump();
  const std::vector<ValidationRow> rows = validate_lines(lines, "f", shipped());
  const Json json = validation_json(rows);
  EXPECT_EQ(json.at("by_source").at(0).at("count"), 2);
  EXPECT_EQ(json.at("launch_bound").at(0).at("count"), 1);
  EXPECT_EQ(json.at("overall").at("count"), 2);
  EXPECT_EQ(json.at("uncovered").at(0).at("rows"), 1);
  EXPECT_EQ(json.at("rows").at(0).at("run").at("plan"), "tp+sp+pp+dp");
  const std::string table = validation_table(rows);
  EXPECT_THAT(table, HasSubstr("launch-bound runs"));
  EXPECT_THAT(table, HasSubstr("micro-4"));
  EXPECT_THAT(table, HasSubstr("the model has no experts"));
  for (std::size_t at = 0; at < table.size();) {
    const std::size_t end = std::min(table.find('\n', at), table.size());
    EXPECT_LE(end - at, 100u) << table.substr(at, end - at);
    at = end + 1;
  }
}

}  // namespace
}  // namespace stepcast
