#include "sim/result/result.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace stepcast {
namespace {

TEST(Result, NamesThePartsAsTheReportDoes) {
  EXPECT_EQ(part_name(Part::kCompute), "compute");
  EXPECT_EQ(part_name(Part::kRecompute), "recompute");
  EXPECT_EQ(part_name(Part::kBubble), "bubble");
  EXPECT_EQ(part_name(Part::kTensor), "tensor_exposed");
  EXPECT_EQ(part_name(Part::kContext), "context_exposed");
  EXPECT_EQ(part_name(Part::kExpert), "expert_exposed");
  EXPECT_EQ(part_name(Part::kPipeline), "pipeline_exposed");
  EXPECT_EQ(part_name(Part::kData), "data_exposed");
  EXPECT_EQ(part_name(Part::kOptimizer), "optimizer");
  EXPECT_EQ(part_name(Part::kOther), "other");
}

TEST(Result, GivesEveryPartAName) {
  std::set<std::string_view> names;
  for (int i = 0; i < kParts; ++i) names.insert(part_name(static_cast<Part>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kParts));
}

TEST(ResultDeathTest, RefusesAPartThatDoesNotExist) {
  EXPECT_DEATH(static_cast<void>(part_name(static_cast<Part>(kParts))), "unknown part");
}

}  // namespace
}  // namespace stepcast
