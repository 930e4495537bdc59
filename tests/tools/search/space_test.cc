#include "tools/search/space.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/tools/small_whatif.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Sets = std::vector<std::string>;

WhatIfFile small_question(const Sets& sets = {}) {
  return WhatIfFile(parse_json(kSmallWhatIf, "plan.json")).changed(sets);
}

std::vector<Choice> choices(const Sets& texts) {
  std::vector<Choice> given;
  for (const std::string& text : texts) given.push_back(parse_choice(text));
  return given;
}

// All but the micro-batch and the recomputation, which multiply what is looked at here.
const Sets kNarrow = {"batch.micro=2", "recompute=none", "sharding.zero=0",
                      "parallel.sequence_parallel=false"};

std::vector<Sets> narrow(const WhatIfFile& question, Sets texts = {}) {
  texts.insert(texts.end(), kNarrow.begin(), kNarrow.end());
  return candidates(question, 64, choices(texts));
}

std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// Eight devices, four layers: tensor 1, 2, 4 or 8; pipeline 1, 2 or 4 of what is left; and where
// the pipeline has p > 1 stages, as many virtual stages as divide 4 / p layers.
//   tensor 1: 1; 2 x {1, 2}; 4     tensor 2: the same     tensor 4: 1; 2 x {1, 2}     tensor 8: 1
TEST(SearchSpace, CutsTheDevicesOfANodeAndTheLayersOfAStage) {
  EXPECT_EQ(narrow(small_question()).size(), 4u + 4u + 3u + 1u);
}

// Of sequences of 32,768 tokens no rank gets fewer than 8,192: context 1, 2 or 4.
TEST(SearchSpace, CutsLongSequencesAmongContextRanks) {
  const Sets fixed = {"parallel.tensor=2", "parallel.pipeline=1", "parallel.virtual_stages=1"};
  EXPECT_EQ(narrow(small_question(), fixed).size(), 1u);
  const std::vector<Sets> found = narrow(small_question({"batch.sequence_length=32768"}), fixed);
  EXPECT_EQ(found.size(), 3u);
  EXPECT_THAT(found, Contains(Contains("parallel.context=4")));
  // Of short ones it is 1, or what the file says.
  const std::vector<Sets> own = narrow(small_question({"parallel.context=2"}), fixed);
  EXPECT_EQ(own.size(), 2u);
  EXPECT_THAT(own, Contains(Contains("parallel.context=1")));
  EXPECT_THAT(own, Contains(Contains("parallel.data=2")));
}

// Eight experts on tensor 2 x data 4: an expert group is both tensor ranks and 1, 2 or 4 of the
// data ranks. Where each expert is cut over the tensor ranks, it is of data ranks alone.
TEST(SearchSpace, SpreadsExpertsOverTensorRanksAndAPartOfTheDataRanks) {
  const Sets mixture = {"model.experts=8", "model.experts_per_token=2", "model.expert_ffn=256"};
  const Sets fixed = {"parallel.tensor=2", "parallel.pipeline=1", "parallel.virtual_stages=1"};
  const std::vector<Sets> found = narrow(small_question(mixture), fixed);
  EXPECT_EQ(found.size(), 3u);
  for (const char* degree : {"parallel.expert=2", "parallel.expert=4", "parallel.expert=8"}) {
    EXPECT_THAT(found, Contains(Contains(degree)));
  }
  Sets cut = mixture;
  cut.emplace_back("parallel.expert_tensor=4");
  const std::vector<Sets> of_data = narrow(small_question(cut), fixed);
  EXPECT_EQ(of_data.size(), 3u);
  EXPECT_THAT(of_data, Each(Contains("parallel.expert_tensor=2")));
  EXPECT_THAT(of_data, Contains(Contains("parallel.expert=4")));
  EXPECT_THAT(of_data, Contains(Each(Not(StartsWith("parallel.expert=")))));
  // Dense models have none.
  for (const Sets& sets : narrow(small_question(), fixed)) {
    EXPECT_THAT(sets, Each(Not(StartsWith("parallel.expert"))));
  }
}

TEST(SearchSpace, SaysOnlyWhatTheFileDoesNot) {
  // The file has pipeline 2, data 4, micro 2.
  const std::vector<Sets> found = narrow(small_question());
  EXPECT_THAT(found, Contains(IsEmpty()));
  EXPECT_THAT(found, Contains(ElementsAre("parallel.tensor=2", "parallel.data=2")));
  EXPECT_THAT(found, Contains(ElementsAre("parallel.virtual_stages=2")));
  for (const Sets& sets : found) EXPECT_THAT(sets, Each(Not(StartsWith("batch.micro"))));
}

TEST(SearchSpace, LeavesTheDataDegreeToFollowWhereTheFileDoes) {
  const std::vector<Sets> found = narrow(small_question({"parallel.data=null"}));
  EXPECT_THAT(found, Contains(ElementsAre("parallel.tensor=2")));
}

TEST(SearchSpace, KeepsTheGlobalBatchThatFollowsInTheFile) {
  const std::vector<Sets> found = narrow(small_question({"batch.global=null"}));
  EXPECT_THAT(found,
              Contains(ElementsAre("parallel.pipeline=1", "parallel.data=8", "batch.global=64")));
}

TEST(SearchSpace, GivesVirtualStagesTheirScheduleAndTakesItBack) {
  const WhatIfFile question =
      small_question({"parallel.schedule=interleaved", "parallel.virtual_stages=2"});
  const std::vector<Sets> found = narrow(question);
  EXPECT_THAT(found, Contains(IsEmpty()));
  EXPECT_THAT(found, Contains(ElementsAre("parallel.virtual_stages=1", "parallel.schedule=1f1b")));
  const std::vector<Sets> other = narrow(small_question({"parallel.schedule=1f1b"}));
  EXPECT_THAT(other,
              Contains(ElementsAre("parallel.virtual_stages=2", "parallel.schedule=interleaved")));
}

TEST(SearchSpace, LaysOutAgainWhatAListNoLongerFits) {
  const std::vector<Sets> found = narrow(small_question({"parallel.stages=[3,1]"}));
  EXPECT_THAT(found, Contains(IsEmpty()));
  EXPECT_THAT(found, Contains(ElementsAre("parallel.pipeline=4", "parallel.stages=balanced",
                                          "parallel.data=2")));
}

TEST(SearchSpace, TakesGivenValuesInPlaceOfItsOwn) {
  const std::vector<Sets> found =
      narrow(small_question(), {"parallel.tensor=4", "parallel.pipeline=1,2"});
  EXPECT_EQ(found.size(), 1u + 2u);
  for (const Sets& sets : found) EXPECT_THAT(sets, Contains("parallel.tensor=4"));
}

TEST(SearchSpace, VariesAnyOtherKeyOfAPlan) {
  const Sets texts = {"parallel.tensor=1", "parallel.pipeline=2", "parallel.virtual_stages=1",
                      "precision.compute=bf16,fp16"};
  const std::vector<Sets> found = narrow(small_question(), texts);
  EXPECT_THAT(found, ElementsAre(IsEmpty(), ElementsAre("precision.compute=fp16")));
}

TEST(SearchSpace, KeepsTheDegreesOfTheGivenDataDegreesOnly) {
  for (const Sets& sets : narrow(small_question(), {"parallel.data=2"})) {
    EXPECT_EQ(small_question().with(sets).plan.data, 2);
  }
}

TEST(SearchSpace, FixesAKeyToWhatTheFileSaysOrToItsDefault) {
  EXPECT_THAT(fixed_choice("parallel.pipeline", small_question()).values, ElementsAre("2"));
  EXPECT_THAT(fixed_choice("parallel.tensor", small_question()).values, ElementsAre("1"));
  EXPECT_THAT(complaint([] { fixed_choice("sharding.bucket", small_question()); }),
              HasSubstr("not searched unless --vary names it"));
}

TEST(SearchSpace, PartsValuesAtCommasOutsideOfBrackets) {
  EXPECT_THAT(parse_choice(R"(recompute=none,{"modules": ["norm", "mlp"]},full)").values,
              ElementsAre("none", R"({"modules":["norm","mlp"]})", "full"));
}

TEST(SearchSpace, RefusesChoicesThatAreNone) {
  EXPECT_THAT(complaint([] { parse_choice("parallel.tensor"); }), HasSubstr("write KEY=value"));
  EXPECT_THAT(complaint([] { parse_choice("parallel.tensor="); }), HasSubstr("write KEY=value"));
  EXPECT_THAT(complaint([] { parse_choice("parallel.tensor=4,,8"); }), HasSubstr("empty value"));
  EXPECT_THAT(complaint([] { parse_choice("parallel.tensor=4,4"); }), HasSubstr("\"4\" twice"));
  EXPECT_THAT(complaint([] { parse_choice("parallel.tensr=4"); }),
              HasSubstr("did you mean \"parallel.tensor\"?"));
  EXPECT_THAT(complaint([] { parse_choice("batch.global=4"); }), HasSubstr("the same work"));
  EXPECT_THAT(complaint([] { parse_choice("model.layers=4"); }), HasSubstr("no key of a plan"));
}

TEST(SearchSpace, ReadsClusterSizesAsARangeOrAList) {
  EXPECT_THAT(parse_devices("64..1024", 8), ElementsAre(64, 128, 256, 512, 1024));
  EXPECT_THAT(parse_devices("24..64", 8), ElementsAre(24, 48));
  EXPECT_THAT(parse_devices("64,16,64", 8), ElementsAre(16, 64));
  EXPECT_THAT(complaint([] { parse_devices("60", 8); }), HasSubstr("use 56 or 64"));
  EXPECT_THAT(complaint([] { parse_devices("64..32", 8); }), HasSubstr("more than the last"));
  for (const char* wrong : {"", "x", "8,", "8..", "-8", "0", "8...16", "99999999999999999999"}) {
    EXPECT_THAT(complaint([&] { parse_devices(wrong, 8); }), HasSubstr("write 64..1024")) << wrong;
  }
}

TEST(SearchSpace, RefusesMorePlansThanItMayLookAt) {
  EXPECT_THAT(complaint([] { candidates(small_question(), 64, {}, 3); }),
              HasSubstr("more than 3 plans"));
}

}  // namespace
}  // namespace stepcast
