#include "tools/validate/causes.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

std::vector<MissCause> causes(const std::string& list) {
  return read_causes(
      parse_json(R"({"format": "stepcast.causes/1", "causes": [)" + list + "]}", "causes.json"));
}

std::string causes_trouble(const std::string& list) {
  try {
    causes(list);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A run that was forecast to take `predicted` seconds and took one.
ValidationRow run(double predicted) {
  ValidationRow row;
  row.kind = "run";
  row.covered = true;
  row.gpu = "H100";
  row.assumed = {"recompute (none)"};
  row.run = RunDetails();
  row.run->plan = "tp+dp";
  row.predicted_seconds = predicted;
  row.measured_seconds = 1;
  return row;
}

const Json kCausesRow = {{"software", {{"framework", "MaxText 2024"}}}, {"parallel", {{"tp", 4}}}};

std::string cause(const std::string& conditions, double predicted = 0.5,
                  const std::string& more = "") {
  return cause_of(
      kCausesRow, run(predicted),
      causes(R"({"name": "it", "why": "so", "when": [)" + conditions + "]" + more + "}"));
}

TEST(Causes, HoldByFactsOfTheRow) {
  EXPECT_EQ(cause(R"({"fact": "software.framework", "has": ["paxml", "maxtext"]})"), "it");
  EXPECT_EQ(cause(R"({"fact": "software.framework", "has": ["megatron"]})"), "");
  EXPECT_EQ(cause(R"({"fact": "parallel.tp", "is": [2, 4]})"), "it");
  EXPECT_EQ(cause(R"({"fact": "parallel.tp", "is": [2]})"), "");
  EXPECT_EQ(cause(R"({"fact": "parallel.tp", "least": 3, "most": 4})"), "it");
  EXPECT_EQ(cause(R"({"fact": "parallel.tp", "least": 5})"), "");
  EXPECT_EQ(cause(R"({"fact": "parallel.pp", "stated": false})"), "it");
  EXPECT_EQ(cause(R"({"fact": "parallel.pp", "stated": true})"), "");
  EXPECT_EQ(cause(R"({"fact": "assumed", "has": ["recompute"]})"), "it");
  EXPECT_EQ(cause(R"({"fact": "plan", "is": ["tp+dp"]})"), "it");
  EXPECT_EQ(cause(R"({"fact": "plan", "is": ["tp+dp"]}, {"fact": "gpu", "is": ["B200"]})"), "");
}

TEST(Causes, ExplainMissesInTheirDirectionOnly) {
  const std::string all = R"({"fact": "gpu", "is": ["H100"]})";
  EXPECT_EQ(cause(all, 0.9), "");  // 10 % is no miss
  EXPECT_EQ(cause(all, 0.8), "it");
  EXPECT_EQ(cause(all, 0.8, R"(, "forecast": "too fast")"), "it");
  EXPECT_EQ(cause(all, 1.2, R"(, "forecast": "too fast")"), "");
  EXPECT_EQ(cause(all, 1.2, R"(, "forecast": "too slow")"), "it");
}

TEST(Causes, ApplyHoweverFarOffTheForecastIs) {
  const std::vector<MissCause> slow = causes(
      R"({"name": "it", "why": "", "forecast": "too slow",
          "when": [{"fact": "gpu", "is": ["H100"]}, {"fact": "parallel.tp", "least": 4}]})");
  EXPECT_TRUE(has_cause(kCausesRow, run(0.99), slow));
  Json other = kCausesRow;
  other["parallel"]["tp"] = 2;
  EXPECT_FALSE(has_cause(other, run(2), slow));
}

TEST(Causes, GoToTheFirstThatFits) {
  const std::vector<MissCause> two = causes(R"(
      {"name": "first", "why": "", "when": [{"fact": "gpu", "is": ["H100"]}]},
      {"name": "second", "why": "", "when": [{"fact": "gpu", "is": ["H100"]}]})");
  EXPECT_EQ(cause_of(kCausesRow, run(2), two), "first");
}

TEST(Causes, NameWhatIsWrongInTheirFile) {
  EXPECT_THAT(causes_trouble(R"({"name": "a", "why": "", "when": []})"), HasSubstr("when"));
  EXPECT_THAT(causes_trouble(R"({"name": "a", "why": "", "when": [{"fact": "gpu"}]})"),
              HasSubstr("needs one test"));
  EXPECT_THAT(causes_trouble(R"({"name": "a", "why": "", "whne": []})"), HasSubstr("when"));
  EXPECT_THAT(causes_trouble(R"({"name": "a", "why": "", "forecast": "wrong", "when": []})"),
              HasSubstr("forecast"));
}

// The shipped rules can be read, and explain what they are for.
TEST(Causes, ShippedOnesAreReadAndNamedOnce) {
  std::vector<std::string> names;
  for (const MissCause& one : shipped_causes()) {
    EXPECT_FALSE(one.why.empty()) << one.name;
    names.push_back(one.name);
  }
  EXPECT_FALSE(names.empty());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace stepcast
