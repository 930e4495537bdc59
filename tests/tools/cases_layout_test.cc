// Cases on layouts: layers lost or shared out badly, each named after its thread.
#include <algorithm>

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tests/support/case.h"
#include "tools/forecast/layers.h"

namespace stepcast {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

constexpr std::string_view kPipeline = R"({
  "model": {"style": "llama", "layers": 30, "hidden": 1024, "heads": 8, "ffn": 4096,
            "vocabulary": 32000, "positions": 2048},
  "cluster": "a100-80gb-2x8",
  "batch": {"sequence_length": 2048, "micro": 1, "global": 32},
  "parallel": {"pipeline": 4} })";

std::vector<std::int64_t> layers(const Case& one) {
  return layers_of_chunks(one.what_if.model, one.what_if.plan);
}

std::string layout_trouble(const std::vector<std::string>& sets) {
  try {
    case_of(kPipeline, sets);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// NVIDIA/Megatron-LM#1304: 30 layers on 4 stages became 4 x 7, and two were lost without a word.
TEST(CaseMegatron1304, NoLayerIsLost) {
  EXPECT_THAT(layers(case_of(kPipeline)), ElementsAre(8, 8, 7, 7));
  EXPECT_THAT(layout_trouble({"parallel.stages=[7, 7, 7, 7]"}), ::testing::HasSubstr("30"));
}

// deepspeedai/DeepSpeed#5078: 42 layers on 16 stages left two of them without any. 10 x 3 + 6 x 2.
TEST(CaseDeepSpeed5078, NoStageIsEmpty) {
  const std::vector<std::int64_t> even =
      layers(case_of(kPipeline, {"model.layers=42", "parallel.pipeline=16"}));
  EXPECT_THAT(even, Each(Ge(2)));
  EXPECT_EQ(std::count(even.begin(), even.end(), 3), 10);
  EXPECT_EQ(std::count(even.begin(), even.end(), 2), 6);
}

// NVIDIA/Megatron-LM#381 and #857, modelscope/ms-swift#5737: 46 layers on 4 stages, uneven on
// purpose. The slowest stage sets the pace: with many micro-batches 16 layers take 16/12 of 12.
TEST(CaseMegatron381, AnUnevenSplitIsTakenAndItsSlowestStageSetsThePace) {
  const std::vector<std::string> many = {"model.layers=46", "batch.global=512",
                                         "model.vocabulary=1024", "model.hidden=4096",
                                         "model.heads=32"};
  const auto with = [&](const std::string& stages) {
    std::vector<std::string> sets = many;
    sets.push_back("parallel.stages=" + stages);
    return case_of(kPipeline, sets);
  };
  const Case fair = with("[12, 11, 11, 12]"), unfair = with("[16, 10, 10, 10]");
  EXPECT_THAT(layers(fair), ElementsAre(12, 11, 11, 12));
  EXPECT_NEAR(unfair.step() / fair.step(), 16.0 / 12, 0.05 * 16 / 12);
}

}  // namespace
}  // namespace stepcast
