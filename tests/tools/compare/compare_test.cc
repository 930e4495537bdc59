// Two reports against each other: what is compared, what is refused, and in which words. The
// reports are small enough to be computed by hand; one comes out of a forecast.
#include "tools/compare/compare.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <pugixml.hpp>

#include "sim/base/error.h"
#include "tests/support/shell.h"
#include "tests/tools/small_whatif.h"
#include "tools/base/files.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A step of 2 s: 1.2 s compute, 0.5 s bubble, 0.3 s of exposed gradient reduction.
Json report() {
  return Json::parse(R"({
    "format": "stepcast.report/1",
    "config": {"name": "a plan", "model": {"name": "m", "layers": 4, "dropout": true},
               "cluster": {"device": "h100-sxm", "nodes": 1}, "profile": null,
               "batch": {"micro": 2, "global": 64}, "parallel": {"tensor": 2, "data": 4},
               "sharding": {"zero": 1}, "recompute": "none", "precision": {"compute": "bf16"},
               "dropout": true, "expect": {"step_time": null}},
    "step": {"seconds": 2.0, "seconds_low": 1.9, "seconds_high": 2.1,
             "tokens_per_second_per_device": 1000.0, "mfu": 0.4, "hfu": 0.4,
             "bubble_fraction": 0.25},
    "breakdown_seconds": {"compute": 1.2, "recompute": 0.0, "bubble": 0.5, "tensor_exposed": 0.0,
                          "context_exposed": 0.0, "expert_exposed": 0.0, "pipeline_exposed": 0.0,
                          "data_exposed": 0.3, "optimizer": 0.0, "other": 0.0},
    "memory": {"allocated_peak_bytes": 1000000},
    "traffic": {"sent_bytes_per_device": {"tensor": 4000, "context": 0, "expert": 0,
                                          "pipeline": 0, "data": 8000}}
  })");
}

Document document(const Json& json, const std::string& file) {
  return parse_json(json.dump(2), file);
}

Comparison compare(const Json& predicted, const Json& measured, double tolerance = 0.05) {
  return compare_reports(document(predicted, "forecast.json"), document(measured, "run.json"),
                         tolerance);
}

// The same step, `seconds` long.
Json lasting(double seconds) {
  Json json = report();
  json["step"]["seconds"] = seconds;
  return json;
}

Json with_steps(const std::vector<double>& steps) {
  Json json = report();
  json["step_seconds"] = steps;
  return json;
}

const Metric& metric(const Comparison& comparison, const std::string& name) {
  for (const Metric& metric : comparison.metrics) {
    if (metric.name == name) return metric;
  }
  throw Error("test", "no metric is called " + name);
}

std::string refusal(const Json& predicted, const Json& measured) {
  try {
    compare(predicted, measured);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ----------------------------------------------------------------------------------- the verdict

TEST(Compare, FindsAForecastWithinAnyToleranceOfItself) {
  const Forecast answer = forecast(small_what_if());
  const Json json = write_report(answer.report, answer.job);
  const Comparison comparison = compare(json, json, 1e-6);
  EXPECT_EQ(comparison.verdict, Verdict::kWithin);
  EXPECT_THAT(comparison.notes, IsEmpty());
  EXPECT_THAT(comparison.metrics, SizeIs(1 + 10 + 2 + 1 + 5));
  EXPECT_GT(metric(comparison, "traffic.sent_bytes_per_device.data").measured, 0);
  for (const Metric& metric : comparison.metrics) EXPECT_EQ(metric.error.value_or(0), 0.0);
}

// The error is predicted / measured - 1, of 2.1 s against 2 s 5 %: at the tolerance is within.
TEST(Compare, TakesWhatIsExactlyAtTheToleranceForWithin) {
  EXPECT_EQ(compare(lasting(2.1), report()).verdict, Verdict::kWithin);
  EXPECT_EQ(compare(lasting(1.9), report()).verdict, Verdict::kWithin);
  EXPECT_NEAR(*compare(lasting(2.1), report()).metrics[0].error, 0.05, 1e-12);
}

TEST(Compare, CallsARunSlowerThanItsForecastARegression) {
  const Comparison comparison = compare(lasting(1.8), report());
  EXPECT_EQ(comparison.verdict, Verdict::kBeyond);
  EXPECT_NEAR(*comparison.metrics[0].error, -0.1, 1e-12);
  EXPECT_THAT(comparison.metrics[0].message,
              AllOf(HasSubstr("10 % too fast"), HasSubstr("regression")));
}

TEST(Compare, AsksForANewBaselineWhereARunIsFaster) {
  const Comparison comparison = compare(lasting(2.2), report());
  EXPECT_EQ(comparison.verdict, Verdict::kBeyond);
  EXPECT_THAT(comparison.metrics[0].message,
              AllOf(HasSubstr("10 % too slow"), HasSubstr("refresh the baseline")));
}

TEST(Compare, JudgesThePeakAndEachAxisByThemselves) {
  Json measured = report();
  measured["memory"]["allocated_peak_bytes"] = 1'040'000;            // -3.8 %
  measured["traffic"]["sent_bytes_per_device"]["tensor"] = 5000;     // -20 %
  const Comparison comparison = compare(report(), measured);
  EXPECT_EQ(metric(comparison, "step.seconds").verdict, Verdict::kWithin);
  EXPECT_EQ(metric(comparison, "memory.allocated_peak_bytes").verdict, Verdict::kWithin);
  EXPECT_EQ(metric(comparison, "traffic.sent_bytes_per_device.tensor").verdict, Verdict::kBeyond);
  EXPECT_EQ(metric(comparison, "traffic.sent_bytes_per_device.data").verdict, Verdict::kWithin);
  EXPECT_EQ(comparison.verdict, Verdict::kBeyond);
  EXPECT_THAT(summary_sentence(comparison),
              StartsWith("beyond the tolerance of 5 % (sent, tensor)"));
}

// There is no relative error of 0 bytes: equal is within, anything else beyond.
TEST(Compare, HasNoErrorWhereNothingWasMeasured) {
  Json predicted = report();
  predicted["traffic"]["sent_bytes_per_device"]["context"] = 1;
  const Comparison comparison = compare(predicted, report());
  const Metric& context = metric(comparison, "traffic.sent_bytes_per_device.context");
  EXPECT_EQ(context.error, std::nullopt);
  EXPECT_EQ(context.verdict, Verdict::kBeyond);
  EXPECT_EQ(metric(comparison, "traffic.sent_bytes_per_device.expert").verdict, Verdict::kWithin);
  EXPECT_TRUE(comparison_json(comparison)["metrics"][15]["relative_error"].is_null());
}

// Parts, bubble and rate explain; 1.2 s of 2 s are 60 %.
TEST(Compare, ShowsThePartsOfTheStepWithoutAVerdict) {
  Json predicted = report();
  predicted["breakdown_seconds"]["compute"] = 0.6;
  predicted["step"]["bubble_fraction"] = 0.75;
  const Comparison comparison = compare(predicted, report());
  const Metric& compute = metric(comparison, "breakdown_seconds.compute");
  EXPECT_NEAR(*compute.error, -0.5, 1e-12);
  EXPECT_NEAR(*compute.share, 0.6, 1e-12);
  EXPECT_EQ(compute.verdict, std::nullopt);
  EXPECT_NEAR(*metric(comparison, "step.bubble_fraction").error, 2.0, 1e-12);
  EXPECT_EQ(comparison.verdict, Verdict::kWithin);
}

// ------------------------------------------------------------------------------- steps of a run

// Without the first: 1.96 1.98 2.02 2.04 sorted, median (1.98 + 2.02) / 2 = 2.00. Quartiles at
// 0.75 and 2.25 of 0..3: 1.975 and 2.025, so the spread is 0.05 / 2 = 2.5 %.
TEST(Compare, MeasuresTheMedianStepWithoutTheFirst) {
  const Comparison comparison = compare(report(), with_steps({9.0, 2.04, 1.96, 2.02, 1.98}));
  EXPECT_NEAR(comparison.metrics[0].measured, 2.0, 1e-12);
  EXPECT_NEAR(comparison.measured_spread.value_or(0), 0.025, 1e-12);
  EXPECT_EQ(comparison.predicted_spread, std::nullopt);
  EXPECT_EQ(comparison.verdict, Verdict::kWithin);
  EXPECT_EQ(compare(report(), with_steps({9.0, 2.04, 1.96, 2.02, 1.98}), 0.02).verdict,
            Verdict::kInconclusive);
}

// The report's own step is the last one, 2 s at 1000 tokens/s; the median of 4 s has 500.
TEST(Compare, GivesTheTokenRateOfTheMedianStep) {
  const Comparison comparison = compare(lasting(4), with_steps({9, 4, 4, 2}));
  EXPECT_EQ(comparison.metrics[0].measured, 4.0);
  EXPECT_NEAR(metric(comparison, "step.tokens_per_second_per_device").measured, 500, 1e-9);
}

// Quartiles of 1, 2, 3 are 1.5 and 2.5: the spread is 1 / 2.
TEST(Compare, IsInconclusiveWhereTheMachineWasNotStill) {
  const Comparison comparison = compare(report(), with_steps({9, 1, 2, 3}));
  EXPECT_EQ(comparison.verdict, Verdict::kInconclusive);
  EXPECT_NEAR(comparison.measured_spread.value_or(0), 0.5, 1e-12);
  EXPECT_THAT(comparison.metrics[0].message, AllOf(HasSubstr("run.json"), HasSubstr("50 %"),
                                                   HasSubstr("not still")));
  EXPECT_EQ(compare(with_steps({9, 1, 2, 3}), report()).verdict, Verdict::kInconclusive);
}

TEST(Compare, LooksAtBothStepsWhereThereAreNoMore) {
  EXPECT_EQ(compare(report(), with_steps({2.0, 2.0})).verdict, Verdict::kWithin);
  EXPECT_EQ(compare(report(), with_steps({3.0, 2.0})).verdict, Verdict::kInconclusive);
  EXPECT_EQ(compare(report(), with_steps({2.0})).measured_spread, std::nullopt);
}

TEST(Compare, HoldsWrongBytesWorseThanARestlessMachine) {
  Json measured = with_steps({9, 1, 2, 3});
  measured["memory"]["allocated_peak_bytes"] = 2'000'000;
  EXPECT_EQ(compare(report(), measured).verdict, Verdict::kBeyond);
}

// ------------------------------------------------------------------------- questions and bad files

TEST(Compare, RefusesTwoQuestionsAndNamesTheFirstDifference) {
  Json measured = report();
  measured["config"]["parallel"]["tensor"] = 4;
  measured["config"]["sharding"]["zero"] = 3;
  EXPECT_THAT(refusal(report(), measured),
              AllOf(StartsWith("run.json:"), HasSubstr(": config.parallel.tensor: is 4, but 2 in "),
                    HasSubstr("forecast.json"), Not(HasSubstr("zero"))));
  measured = report();
  measured["config"]["recompute"] = {{"every", 2}};
  EXPECT_THAT(refusal(report(), measured), HasSubstr("config.recompute: is {\"every\":2}, but "));
  for (const char* path : {"/config/model/layers", "/config/batch/global"}) {
    measured = report();
    measured[Json::json_pointer(path)] = 7;
    EXPECT_THAT(refusal(report(), measured), HasSubstr("is 7, but ")) << path;
  }
}

TEST(Compare, NotesHowWellARunIsComposedAgain) {
  Json measured = report();
  measured["composition"] = {{"relative_error", -0.0025}, {"steps", 9}};
  EXPECT_THAT(compare(report(), measured).notes,
              ElementsAre("the measured steps, composed again of their own instructions' times, "
                          "are off by -0.25 %"));
  measured["composition"] = nullptr;  // of ranks whose clocks differ
  EXPECT_THAT(compare(report(), measured).notes, IsEmpty());
}

TEST(Compare, RefusesAKeyThatOnlyOneOfTheTwoHas) {
  Json more = report();
  more["config"]["batch"]["ramp"] = 3;
  EXPECT_THAT(refusal(report(), more), HasSubstr("config.batch.ramp: is 3, but absent in "));
  EXPECT_THAT(refusal(more, report()), HasSubstr("config.batch.ramp: is absent, but 3 in "));
}

TEST(Compare, NotesADifferenceThatAForecastMayHave) {
  Json measured = report();
  measured["config"]["precision"]["compute"] = "fp32";
  measured["config"]["dropout"] = false;
  measured["config"]["cluster"]["device"] = "cpu";
  measured["config"]["model"]["name"] = "n";
  measured["config"]["expect"]["step_time"] = "<= 3 s";  // changes nothing in a step
  const Comparison comparison = compare(report(), measured);
  EXPECT_EQ(comparison.verdict, Verdict::kWithin);
  EXPECT_THAT(
      comparison.notes,
      ElementsAre("config.model.name differs: predicted \"m\", measured \"n\"",
                  "config.cluster.device differs: predicted \"h100-sxm\", measured \"cpu\"",
                  "config.precision.compute differs: predicted \"bf16\", measured \"fp32\"",
                  "other precisions have other bytes and times",
                  "config.dropout differs: predicted true, measured false"));
  EXPECT_THAT(comparison_table(comparison), HasSubstr("note: config.dropout differs"));
}

TEST(Compare, SaysWhatIsNoReport) {
  Json json = report();
  json.erase("format");
  EXPECT_THAT(refusal(report(), json), HasSubstr("run.json:1: format: is missing"));
  json["format"] = "stepcast.report/2";
  EXPECT_THAT(refusal(report(), json), HasSubstr("reads stepcast.report/1, not stepcast.report/2"));
  json["format"] = "stepcast.profile/1";
  EXPECT_THAT(refusal(json, report()), HasSubstr("\"stepcast.profile/1\" is no report"));
  EXPECT_THAT(refusal(Json::array(), report()), HasSubstr("must be an object"));
}

TEST(Compare, MissesNoKeyInSilence) {
  for (const char* path :
       {"/config", "/config/model", "/config/recompute", "/step", "/step/seconds",
        "/step/bubble_fraction", "/breakdown_seconds/other", "/memory",
        "/memory/allocated_peak_bytes", "/traffic", "/traffic/sent_bytes_per_device/data"}) {
    Json json = report();
    const Json::json_pointer pointer(path);
    json[pointer.parent_pointer()].erase(pointer.back());
    EXPECT_THAT(refusal(report(), json), HasSubstr("\"" + pointer.back() + "\" is missing"))
        << path;
    EXPECT_THAT(refusal(json, report()), HasSubstr("is missing")) << path;
  }
  Json json = report();
  json["breakdown_seconds"]["moon"] = 1;
  EXPECT_THAT(refusal(report(), json), HasSubstr("breakdown_seconds.moon"));
}

TEST(Compare, RefusesNumbersThatCannotBe) {
  const auto with = [](const char* path, const Json& value) {
    Json json = report();
    json[Json::json_pointer(path)] = value;
    return refusal(report(), json);
  };
  EXPECT_THAT(with("/step/seconds", 0), HasSubstr("step.seconds: must be from"));
  EXPECT_THAT(with("/step/seconds", nullptr), HasSubstr("is missing"));  // a NaN, as some write it
  EXPECT_THAT(with("/step/seconds", "2 s"), HasSubstr("must be a number"));
  EXPECT_THAT(with("/step/bubble_fraction", 1.5), HasSubstr("from 0 to 1"));
  EXPECT_THAT(with("/memory/allocated_peak_bytes", -1), HasSubstr("allocated_peak_bytes"));
  EXPECT_THAT(with("/step_seconds", Json::array()), HasSubstr("has no step"));
  EXPECT_THAT(with("/step_seconds", Json::array({1, "x"})), HasSubstr("step 2 must be"));
  EXPECT_THAT(with("/step_seconds", Json::array({1, 0})), HasSubstr("step 2 must be"));
  EXPECT_THROW(parse_json(R"({"step": NaN})", "run.json"), Error);
}

TEST(Compare, ReadsTolerancesAsPercentAndAsShares) {
  EXPECT_DOUBLE_EQ(parse_tolerance("5%"), 0.05);
  EXPECT_DOUBLE_EQ(parse_tolerance("2.5 %"), 0.025);
  EXPECT_DOUBLE_EQ(parse_tolerance("0.05"), 0.05);
  EXPECT_DOUBLE_EQ(parse_tolerance("100%"), 1.0);
  for (const char* text : {"", "%", "0", "0%", "-1%", "101%", "5", "5 percent", "nan", "inf", "5%%",
                           "1e400", "0,05"}) {
    EXPECT_THROW(parse_tolerance(text), Error) << text;
  }
}

// ------------------------------------------------------------------------------ what is written

// Within 100 columns, a line a metric, the verdict last.
TEST(Compare, WritesATableForPeople) {
  const std::string table = comparison_table(compare(lasting(1.8), report()));
  EXPECT_THAT(table, HasSubstr("\nstep time"));
  EXPECT_THAT(table, HasSubstr("step time: predicted 10 % too fast: a regression"));
  EXPECT_THAT(table, HasSubstr("-10.0 %"));
  EXPECT_TRUE(table.ends_with("beyond the tolerance of 5 % (step time): step predicted 1.80 s, "
                              "measured 2.00 s (-10.0 %)\n"))
      << table;
  const std::string restless = comparison_table(compare(report(), with_steps({9, 1, 2, 3})));
  const std::string lines = table + restless;
  for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1) {
    EXPECT_LE(lines.find('\n', at) - at, 100u) << lines.substr(at, 120);
  }
}

TEST(Compare, WritesJsonThatHoldsEveryMetric) {
  const Json json = comparison_json(compare(lasting(1.8), with_steps({9, 2, 2})));
  EXPECT_EQ(json["format"], "stepcast.comparison/1");
  EXPECT_EQ(json["verdict"], "beyond");
  EXPECT_EQ(json["tolerance"], 0.05);
  EXPECT_EQ(json["measured_spread"], 0.0);
  EXPECT_TRUE(json["predicted_spread"].is_null());
  ASSERT_EQ(json["metrics"].size(), 19u);
  EXPECT_EQ(json["metrics"][0]["name"], "step.seconds");
  EXPECT_EQ(json["metrics"][0]["verdict"], "beyond");
  EXPECT_TRUE(json["metrics"][1]["verdict"].is_null());
  EXPECT_EQ(json["metrics"][13]["measured"].dump(), "1000000");
}

// Judged: the step, the peak, five axes. A parser gives back what was escaped.
TEST(Compare, WritesJUnitThatAParserReadsWhateverTheFilesAreCalled) {
  const Comparison comparison =
      compare_reports(document(report(), "a<b>&\"c'\x01.json"),
                      document(with_steps({9, 1, 2, 3}), "x]]>\xFF.json"), 0.05);
  const std::string text = comparison_junit(comparison);
  pugi::xml_document xml;
  ASSERT_TRUE(xml.load_buffer(text.data(), text.size())) << text;
  const pugi::xml_node suite = xml.child("testsuites").child("testsuite");
  EXPECT_STREQ(suite.attribute("name").value(),
               "stepcast compare a<b>&\"c'\xEF\xBF\xBD.json x]]>\xEF\xBF\xBD.json");
  EXPECT_EQ(suite.attribute("tests").as_int(), 7);
  EXPECT_EQ(suite.attribute("failures").as_int(), 1);
  int cases = 0;
  for (const pugi::xml_node test : suite.children("testcase")) {
    const bool step = std::string(test.attribute("name").value()) == "step.seconds";
    EXPECT_EQ(static_cast<bool>(test.child("failure")), step);
    ++cases;
  }
  EXPECT_EQ(cases, 7);
  const pugi::xml_node failure = suite.child("testcase").child("failure");
  EXPECT_STREQ(failure.attribute("type").value(), "inconclusive");
  EXPECT_THAT(failure.attribute("message").value(),
              HasSubstr("x]]>\xEF\xBF\xBD.json spread by 50 %"));
  EXPECT_THAT(text, Not(HasSubstr("a<b")));
}

TEST(Compare, WritesMarkdownWithASentenceAndATable) {
  Json measured = report();
  measured["config"]["cluster"]["device"] = "a|b";
  const std::string text = comparison_markdown(compare(lasting(2.2), measured));
  EXPECT_THAT(text, StartsWith("**stepcast compare**: beyond the tolerance of 5 % (step time): "
                               "step predicted 2.20 s, measured 2.00 s (+10.0 %).\n\n| metric |"));
  EXPECT_THAT(text, HasSubstr("\n| step time | 2.20 s | 2.00 s | +10.0 % | 100.0 % | beyond |\n"));
  EXPECT_THAT(text, HasSubstr("\n- step time: predicted 10 % too slow"));
  EXPECT_THAT(text, HasSubstr("a\\|b"));
}

// ---------------------------------------------------------------------------------- the command

class CompareCommand : public ::testing::Test {
 protected:
  CompareCommand() { std::filesystem::create_directories(directory_); }
  ~CompareCommand() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string put(const std::string& name, const std::string& text) const {
    write_file(path(name), text);
    return path(name);
  }

  // The exit code; what was printed is in `printed`.
  int run(const std::string& arguments, std::string& printed) const {
    const std::string line = "cd '" + directory_.string() + "' && { '" + STEPCAST_BINARY +
                             "' compare " + arguments + "\n} 2>&1";
    Outcome outcome = run_shell(line);
    printed = std::move(outcome.text);
    return outcome.code;
  }

 private:
  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) /
      ("stepcast_compare_" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(CompareCommand, EndsWithZeroWithinAndOneBeyondOrWithoutAnAnswer) {
  put("a.json", report().dump());
  put("fast.json", lasting(1.8).dump());
  put("restless.json", with_steps({9, 1, 2, 3}).dump());
  std::string out;
  EXPECT_EQ(run("a.json a.json", out), 0) << out;
  EXPECT_EQ(run("a.json fast.json", out), 1) << out;
  EXPECT_EQ(run("a.json fast.json --tolerance 12%", out), 0) << out;
  EXPECT_EQ(run("a.json restless.json", out), 1) << out;
  EXPECT_THAT(out, HasSubstr("inconclusive, the machine was not still"));
  EXPECT_EQ(run("- a.json < fast.json", out), 1) << out;
  EXPECT_EQ(run("--help", out), 0);
  EXPECT_THAT(out, HasSubstr("Example"));
}

TEST_F(CompareCommand, EndsWithTwoAndOneLineOnTrouble) {
  put("a.json", report().dump());
  put("text.json", "a line of text");
  put("empty.json", "");
  for (const char* arguments :
       {"a.json missing.json", "a.json text.json", "empty.json a.json", "- - < a.json", "a.json",
        "a.json a.json --tolerance 0", "a.json a.json --json - --junit -",
        "a.json a.json --toleranc 5%", "a.json a.json --json no/such/folder.json"}) {
    std::string out;
    EXPECT_EQ(run(arguments, out), 2) << arguments << "\n" << out;
    EXPECT_THAT(out, StartsWith("stepcast: ")) << arguments;
    EXPECT_EQ(out.find('\n'), out.size() - 1) << arguments << "\n" << out;
  }
}

// 2 s a step, as the forecast has it; two logs of one run, gzipped, or a folder of them.
TEST_F(CompareCommand, ReadsLogsWhateverTheyAreCalled) {
  put("a.json", report().dump());
  std::string log;
  for (int i = 1; i <= 5; ++i) {
    log += "0: iteration " + std::to_string(i) + "/ 5 | elapsed time per iteration (ms): " +
           (i == 1 ? "9000.0" : "2000.0") + " | global batch size: 64 |\n";
  }
  put("run", log);
  std::string out;
  EXPECT_EQ(run("a.json run", out), 0) << out;
  EXPECT_THAT(out, AllOf(HasSubstr("a Megatron-LM log"), HasSubstr("the first was dropped")));
  EXPECT_EQ(run("a.json - < run", out), 0) << out;
  std::filesystem::create_directories(path("logs"));
  put("logs/b.log", log);
  put("logs/ignored.py", "print()");
  EXPECT_EQ(run("a.json logs", out), 0) << out;
  EXPECT_EQ(run("a.json run logs/b.log", out), 0) << out;
  EXPECT_THAT(out, HasSubstr("for another time"));
  run_shell("cd '" + path("logs") + "' && gzip b.log");
  EXPECT_EQ(run("a.json logs/b.log.gz", out), 0) << out;
  EXPECT_EQ(run("a.json run a.json", out), 2);
  EXPECT_THAT(out, HasSubstr("is of another form"));
  put("other", "a line of text\n");
  EXPECT_EQ(run("a.json other", out), 2);
  EXPECT_THAT(out, HasSubstr("understood are reports"));
}

TEST_F(CompareCommand, WritesTheFilesAskedFor) {
  put("a.json", report().dump());
  std::string out;
  EXPECT_EQ(run("a.json a.json --json c.json --junit c.xml --markdown c.md", out), 0) << out;
  EXPECT_THAT(out, StartsWith("predicted"));
  EXPECT_EQ(Json::parse(read_file(path("c.json")))["verdict"], "within");
  EXPECT_THAT(read_file(path("c.xml")), StartsWith("<?xml"));
  EXPECT_THAT(read_file(path("c.md")), StartsWith("**stepcast compare**: within"));
  EXPECT_EQ(run("a.json a.json --json - 2>/dev/null", out), 0);
  EXPECT_EQ(Json::parse(out)["metrics"].size(), 19u);
}

}  // namespace
}  // namespace stepcast
