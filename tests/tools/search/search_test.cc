// `stepcast search` as a whole: from a file and flags to a report, a table and an exit code.
#include "tools/search/search.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/support/shell.h"
#include "tests/tools/small_whatif.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using Sets = std::vector<std::string>;

class Search : public ::testing::Test {
 protected:
  Search()
      : file_((fs::path(::testing::TempDir()) / ("search_" + std::to_string(::getpid()) + ".json"))
                  .string()) {
    std::ofstream(file_) << kSmallWhatIf;
  }
  ~Search() override { fs::remove(file_); }

  // A small search; what a test changes of it goes last.
  SearchArguments small(const Sets& sets = {}) const {
    SearchArguments arguments;
    arguments.config = file_;
    arguments.sets = sets;
    arguments.vary = {"sharding.zero=0,1", "batch.micro=1,2"};
    arguments.fix = {"recompute"};
    return arguments;
  }

  std::string complaint(const SearchArguments& arguments) const {
    try {
      search(arguments);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  Outcome run(const std::string& words) const {
    return run_shell(binary() + "search '" + file_ + "' " + words);
  }

  std::string file_;
};

// The words that are shown, given to --set with those of the command line before them.
TEST_F(Search, NamesPlansByWordsThatSimulateTakes) {
  SearchArguments arguments = small({"batch.sequence_length=256", "parallel.data=null"});
  arguments.devices = "8,16";
  const Json json = search_json(search(arguments));
  ASSERT_GE(json.at("plans").size(), 6u);
  for (const Json& plan : json.at("plans")) {
    const WhatIf what_if = read_what_if(file_, plan.at("sets").get<Sets>());
    EXPECT_EQ(what_if.cluster.devices(), plan.at("devices").get<int>());
    EXPECT_EQ(what_if.plan.global_batch, 64);
    const Report report = forecast(what_if).report;
    EXPECT_EQ(to_seconds(report.timeline.step).value, plan.at("step").at("seconds"));
    EXPECT_EQ(device_peak(report.footprint).count, plan.at("memory").at("device_total_bytes"));
    EXPECT_EQ(what_if.resolved.at("parallel"), plan.at("parallel"));
  }
}

// What a framework does by itself depends on the plan (of these two: on its schedule, on ZeRO-3, on
// sequence parallelism); the words lead to what was forecast all the same.
TEST_F(Search, NamesPlansOfAFrameworkByWordsThatSimulateTakes) {
  for (const char* framework : {"framework=megatron-lm-2021", "framework=megatron-bridge"}) {
    SearchArguments arguments = small({framework, "parallel.tensor=2", "parallel.data=null"});
    arguments.vary.front() = "sharding.zero=1,3";
    const Json json = search_json(search(arguments));
    ASSERT_FALSE(json.at("plans").empty()) << framework;
    for (const Json& plan : json.at("plans")) {
      const WhatIf what_if = read_what_if(file_, plan.at("sets").get<Sets>());
      EXPECT_EQ(what_if.resolved.at("parallel"), plan.at("parallel"));
      EXPECT_EQ(to_seconds(forecast(what_if).report.timeline.step).value,
                plan.at("step").at("seconds"));
    }
  }
}

// Four ranks take a quarter of eight experts each, or all have all of them: both are found, told
// in the table and in JSON, and forecast from their words.
TEST_F(Search, VariesWhoSharesTheExpertsOfAMixture) {
  SearchArguments arguments =
      small({"model.style=llama", "model.experts=8", "model.experts_per_token=2",
             "model.expert_ffn=512", "parallel.tensor=1"});
  arguments.vary = {"sharding.zero=1", "batch.micro=1", "parallel.pipeline=2"};
  const SearchReport report = search(arguments);
  const Json json = search_json(report);
  std::set<std::int64_t> degrees;
  for (const Json& plan : json.at("plans")) {
    const std::int64_t degree = plan.at("parallel").at("expert");
    degrees.insert(degree);
    const Report found = forecast(read_what_if(file_, plan.at("sets").get<Sets>())).report;
    EXPECT_EQ(to_seconds(found.timeline.step).value, plan.at("step").at("seconds"));
    const Bytes sent = found.traffic.stages[0][static_cast<std::size_t>(Axis::kExpert)];
    EXPECT_EQ(sent > Bytes(0), degree > 1) << degree;
  }
  EXPECT_THAT(degrees, ::testing::ElementsAre(1, 2, 4));
  const std::string table = search_table(report);
  EXPECT_THAT(table, HasSubstr(" d4 e4 m1 "));
  EXPECT_THAT(table, HasSubstr("e expert"));
  EXPECT_THAT(search_table(search(small())), ::testing::Not(HasSubstr("e expert")));
}

TEST_F(Search, TellsTheFilesOwnPlanAndItsGain) {
  const SearchReport report = search(small());
  ASSERT_TRUE(report.own);
  EXPECT_EQ(report.own->step, forecast(read_what_if(file_, {})).report.timeline.step);
  EXPECT_THAT(search_table(report), HasSubstr("less than the file's own"));
}

// 12 sequences cannot be shared among 8 data-parallel ranks, but among those of other plans.
TEST_F(Search, SearchesWhereTheFilesOwnPlanIsNotLegal) {
  std::ofstream(file_) << R"({"model": "gpt2", "cluster": "a100-40gb-1x8",
    "batch": {"sequence_length": 512, "global": 12}})";
  const SearchReport report = search(small());
  EXPECT_FALSE(report.own);
  EXPECT_FALSE(report.findings.plans.empty());
  EXPECT_THAT(search_table(report), HasSubstr("own plan is not legal"));
}

TEST_F(Search, FixesWhatTheCommandLineSets) {
  const SearchReport report = search(small({"parallel.tensor=2", "parallel.data=2"}));
  ASSERT_FALSE(report.findings.plans.empty());
  for (const RankedPlan& plan : report.findings.plans) {
    EXPECT_EQ(plan.config.at("parallel").at("tensor"), 2);
  }
}

TEST_F(Search, CostsATrainingWhereTheFileSaysOfHowManyTokens) {
  SearchArguments arguments = small({"train.tokens=1B"});
  arguments.price = 2;
  const Json plan = search_json(search(arguments)).at("plans").front();
  const double steps = 1e9 / (64 * 512), step = plan.at("step").at("seconds");
  EXPECT_DOUBLE_EQ(plan.at("device_seconds"), step * 8);
  EXPECT_DOUBLE_EQ(plan.at("training").at("seconds"), steps * step);
  EXPECT_DOUBLE_EQ(plan.at("training").at("device_hours"), steps * step * 8 / 3600);
  EXPECT_DOUBLE_EQ(plan.at("training").at("price"), 2 * steps * step * 8 / 3600);
  const Json without = search_json(search(small())).at("plans").front();
  EXPECT_TRUE(without.at("training").is_null());
}

TEST_F(Search, ListsEveryCandidateOnceInItsCounts) {
  const Json counts = search_json(search(small())).at("counts");
  EXPECT_EQ(counts.at("candidates"), counts.at("refused").get<int>() +
                                         counts.at("too_large").get<int>() +
                                         counts.at("simulated").get<int>());
}

TEST_F(Search, RefusesAValueThatIsLegalInNoPlan) {
  SearchArguments arguments = small();
  arguments.fix.clear();
  arguments.vary = {"recompute=full,ful"};
  EXPECT_THAT(complaint(arguments), HasSubstr("recompute=ful: is legal in no plan"));
  arguments.vary = {"parallel.tensor=1,3"};
  EXPECT_THAT(complaint(arguments), HasSubstr("parallel.tensor=3: is legal in no plan"));
}

TEST_F(Search, RefusesAQuestionOfWhichNoPlanIsLegal) {
  EXPECT_THAT(complaint(small({"parallel=3"})), HasSubstr("parallel: must be an object, is 3"));
  SearchArguments arguments = small({"batch.global=3"});
  arguments.vary = {"parallel.data=2,4"};
  EXPECT_THAT(complaint(arguments), HasSubstr("batch.global: no plan is legal: global batch 3"));
  arguments = small();
  arguments.vary = {"parallel.data=3"};
  EXPECT_THAT(complaint(arguments), HasSubstr("leave the data degree that is asked for"));
}

TEST_F(Search, RefusesFlagsThatMakeNoSense) {
  SearchArguments arguments = small();
  arguments.price = 2;
  EXPECT_THAT(complaint(arguments), HasSubstr("--set train.tokens=15T"));
  arguments = small({"train.tokens=1B"});
  for (const double price : {0.0, -1.0, 1e300}) {
    arguments.price = price;
    EXPECT_THAT(complaint(arguments), HasSubstr("--price-per-device-hour: must be"));
  }
  arguments = small();
  for (const std::int64_t top : {-1, 0, 100'000'000}) {
    arguments.top = top;
    EXPECT_THAT(complaint(arguments), HasSubstr("--top: must be from 1"));
  }
  arguments = small();
  arguments.fix = {"sharding.zero"};
  EXPECT_THAT(complaint(arguments), HasSubstr("given twice"));
  arguments = small();
  arguments.devices = "12";
  EXPECT_THAT(complaint(arguments), HasSubstr("use 8 or 16"));
  arguments = small();
  arguments.json = "/none/x.json";
  EXPECT_THAT(complaint(arguments), HasSubstr("/none/x.json"));
}

TEST_F(Search, PrintsATableOfOneHundredColumnsAtMost) {
  SearchArguments arguments = small({"train.tokens=1T"});
  arguments.devices = "8..64";
  std::string line;
  for (std::istringstream table(search_table(search(arguments))); std::getline(table, line);) {
    if (line.find("/search_") != std::string::npos) continue;  // the file's name may be longer
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(Search, ExitsWithOneWhereNothingFitsAndSaysWhatComesNearest) {
  const std::string tight = "--set 'expect.peak_memory=<= 100 MB' --fix batch.micro";
  const Outcome none = run(tight);
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.text, HasSubstr("No plan fits in 100 MB. Nearest to it:"));
  EXPECT_THAT(none.text, HasSubstr("too much"));
  const Outcome json = run(tight + " --json -");
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(Json::parse(json.text).at("nearest").size(), 3u);
}

TEST_F(Search, ExitsWithOneWhereNoPlanIsFastEnough) {
  const std::string narrow = "--fix recompute --fix batch.micro --fix sharding.zero ";
  EXPECT_EQ(run(narrow + "--set 'expect.step_time=<= 1 us'").code, 1);
  EXPECT_EQ(run(narrow + "--set 'expect.step_time=<= 1 h'").code, 0);
}

TEST_F(Search, WritesDataToStdoutAndNothingElse) {
  const Outcome out = run("--fix recompute --fix batch.micro --json - 2>&1");
  EXPECT_EQ(out.code, 0);
  EXPECT_EQ(Json::parse(out.text).at("format"), "stepcast.search/1");
}

}  // namespace
}  // namespace stepcast
