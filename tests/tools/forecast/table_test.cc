#include "tools/forecast/table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "sim/base/units.h"
#include "tests/tools/small_whatif.h"
#include "tools/base/files.h"
#include "tools/forecast/layers.h"

namespace stepcast {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Told {
  WhatIf what_if;
  Json report;
  std::string text;
};

Told told(const WhatIf& what_if, bool advice = false) {
  const Forecast result = forecast(what_if);
  Json report = write_report(result.report, result.job);
  std::optional<Advice> advised;
  if (advice) advised = advise(what_if, result);
  std::string text = write_table(what_if, report, advised);
  return {what_if, std::move(report), std::move(text)};
}

std::string line_with(const std::string& text, const std::string& start) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find_first_not_of(' ');
    if (first != std::string::npos && line.compare(first, start.size(), start) == 0) return line;
  }
  return "";
}

void expect_plain_text(const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
    for (char c : line) EXPECT_TRUE(c >= ' ' && c <= '~') << line;
  }
}

TEST(Table, AlignsNumbersToTheRightAndWordsToTheLeft) {
  EXPECT_EQ(align({{"a", "1", "x"}, {"long", "100", ""}}, "lrl"), "a       1  x\nlong  100\n");
}

TEST(Table, TellsTheNumbersOfTheReport) {
  const Told it = told(small_what_if({"train.tokens=1B"}));
  const Json& step = it.report.at("step");
  const auto seconds = [](const Json& value) {
    return format_seconds(Seconds(value.get<double>()));
  };
  EXPECT_THAT(line_with(it.text, "step time"), HasSubstr(" " + seconds(step.at("seconds"))));
  EXPECT_THAT(line_with(it.text, "step time"), HasSubstr(seconds(step.at("seconds_low"))));
  EXPECT_THAT(line_with(it.text, "step time"), HasSubstr(seconds(step.at("seconds_high"))));
  EXPECT_THAT(line_with(it.text, "MFU"),
              HasSubstr(fmt::format("{:.1f} %", 100 * step.at("mfu").get<double>())));
  const double compute = it.report.at("breakdown_seconds").at("compute").get<double>();
  EXPECT_THAT(line_with(it.text, "compute"), HasSubstr(format_seconds(Seconds(compute))));
  for (const Json& stage : it.report.at("memory").at("stages")) {
    const std::string row =
        line_with(it.text, fmt::format("{}       2  ", stage.at("stage").get<int>()));
    for (const char* key : {"allocated_peak_bytes", "weights_bytes", "activations_bytes"}) {
      EXPECT_THAT(row, HasSubstr(fmt::format("{:.2f}", stage.at(key).get<double>() * 1e-9))) << key;
    }
    EXPECT_THAT(row, HasSubstr(stage.at("peak_at").get<std::string>()));
    // allocated + workspace + cached = reserved; with communicators and context the total
    std::string device = fmt::format("\n +{} +", stage.at("stage").get<int>());
    for (const char* key : {"allocated_peak_bytes", "workspace_bytes", "", "reserved_peak_bytes",
                            "communicators_bytes", "context_bytes", "device_total_bytes"}) {
      device += *key == 0 ? "[0-9.]+ +"
                          : fmt::format("{:.2f} *", stage.at(key).get<double>() * 1e-9);
    }
    EXPECT_THAT(it.text, testing::ContainsRegex(device + "\n"));
  }
  const double days = it.report.at("time_to_train").at("days").get<double>();
  EXPECT_THAT(it.text, HasSubstr(fmt::format("{:.1f} days", days)));
}

TEST(Table, IsPlainTextOfAtMostHundredColumns) {
  expect_plain_text(told(small_what_if(), true).text);
  expect_plain_text(told(small_what_if({"batch.sequence_length=1024", "attention=unfused",
                                        "recompute={\"modules\": [\"mlp\", \"norm\"]}"}),
                         true).text);
}

TEST(Table, SaysThatUnevenStagesAndAPaddedVocabularyWereDecided) {
  // 30 layers on 4 stages: 8, 8, 7, 7 (NVIDIA/Megatron-LM#1304 lost two of them silently).
  const WhatIf uneven = small_what_if({"model.layers=30", "parallel={\"pipeline\": 4}"});
  EXPECT_THAT(layers_of_chunks(uneven.model, uneven.plan), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(notes_on(uneven), Contains(HasSubstr("8,8,7,7")));
  const WhatIf padded = small_what_if(
      {"model.vocabulary=1001", "parallel={\"tensor\": 8}", "batch.global=64"});
  EXPECT_THAT(notes_on(padded), Contains(HasSubstr("padded from 1001 to 1008")));
  EXPECT_THAT(notes_on(small_what_if()), IsEmpty());
}

TEST(Table, SaysThatShardingOverOneRankDoesNothing) {
  const WhatIf what_if = small_what_if({"parallel={\"tensor\": 8}", "sharding.zero=3"});
  EXPECT_THAT(notes_on(what_if), Contains(HasSubstr("zero 3 shards nothing")));
}

TEST(Table, SaysByHowMuchItDoesNotFitAndWhatFillsIt) {
  const Told it = told(small_what_if({"model.positions=16384", "batch.sequence_length=16384",
                                      "batch.micro=1", "attention=unfused"}));
  const Json& memory = it.report.at("memory");
  ASSERT_FALSE(memory.at("fits").get<bool>());
  const Bytes over(memory.at("device_total_bytes").get<std::int64_t>() -
                   memory.at("capacity_bytes").get<std::int64_t>());
  EXPECT_THAT(it.text, HasSubstr("DOES NOT FIT"));
  EXPECT_THAT(it.text, HasSubstr("needs " + format_bytes(over) + " more"));
  EXPECT_THAT(it.text, HasSubstr("most of its peak: activations"));
}

TEST(Table, TellsWhichExpectationsAreMet) {
  const Told it =
      told(small_what_if({"expect.step_time=<= 1 us", "expect.peak_memory=<= 30 GiB"}));
  const std::vector<Expectation> found = check_expectations(it.what_if, it.report);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_FALSE(found[0].met);
  EXPECT_TRUE(found[1].met);
  EXPECT_THAT(line_with(it.text, "expect step_time"), HasSubstr("<= 1.00 us: NOT MET, "));
  EXPECT_THAT(line_with(it.text, "expect peak_memory"), HasSubstr("<= 30.0 GiB: met, "));
}

TEST(Table, ShowsOfManyStagesTheFirstTheLastAndTheFullest) {
  const WhatIf what_if = small_what_if(
      {"model.layers=16", "cluster.nodes=2", "parallel={\"pipeline\": 16}", "batch.global=64"});
  const Told it = told(what_if);
  EXPECT_THAT(it.text, HasSubstr("... 14 more"));
  EXPECT_THAT(line_with(it.text, "15       1  "), Not(IsEmpty()));
  EXPECT_THAT(line_with(it.text, "7       1  "), IsEmpty());
}

TEST(Table, StaysWithinItsColumnsForTheShippedExamples) {
  // What would make GPT-3 faster is some twenty simulations of all its micro-batches: a quarter.
  const std::vector<std::string> as_it_is, quarter = {"batch.global=384"};
  for (const auto& [name, sets] :
       {std::pair("llama3.1-70b-1024xh100", as_it_is), std::pair("gpt3-175b-1024xa100", quarter),
        std::pair("llama3.1-405b-16384xh100", as_it_is),
        std::pair("llama3.1-8b-8xh100-fsdp", as_it_is), std::pair("gpt2-1xa100", as_it_is)}) {
    SCOPED_TRACE(name);
    const WhatIf what_if = read_what_if(config_directory() + "/" + name + ".json", sets);
    const Told it = told(what_if, true);
    expect_plain_text(it.text);
    EXPECT_THAT(it.text, AnyOf(HasSubstr("Fits: "), HasSubstr("DOES NOT FIT: ")));
  }
}

}  // namespace
}  // namespace stepcast
