// The text of three small plans, to the letter: what lowering decides can be read there, and a
// change shows in the difference. STEPCAST_UPDATE_GOLDEN=1 writes the files anew.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

void expect_golden(const Job& job, const std::string& name) {
  ASSERT_EQ(verify(job), "");
  const std::string path = std::string(STEPCAST_SOURCE_DIR) + "/tests/golden/" + name + ".job";
  if (std::getenv("STEPCAST_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << print_job(job);
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  const std::string now = print_job(job), before = text.str();
  if (now == before) return;
  const auto differs = std::mismatch(now.begin(), now.end(), before.begin(), before.end()).first;
  const auto line = 1 + std::count(now.begin(), differs, '\n');
  ADD_FAILURE() << path << ":" << line << " differs; STEPCAST_UPDATE_GOLDEN=1 writes it anew";
}

TEST(Golden, TensorAndPipelineParallelGptWithZero1) {
  Plan plan = small_plan(16, 1, 1);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  plan.pipeline = 2;
  plan.data = 2;
  plan.zero = 1;
  plan.recompute = Recompute::kSelective;
  plan.fused_attention = false;
  plan.dropout = true;
  plan.global_batch = 2 * 3;
  expect_golden(lower(transformer(gpt_model(2, 32, 4, 64, 16), plan), plan), "gpt_tp2_pp2_zero1");
}

TEST(Golden, FullyShardedLlamaWithCheckpoints) {
  Plan plan = small_plan(16, 1, 1);
  plan.data = 4;
  plan.zero = 3;
  plan.shard_group = 2;
  plan.recompute = Recompute::kFull;
  plan.global_batch = 4 * 2;
  expect_golden(lower(transformer(llama_model(2, 32, 4, 2, 96, 64), plan), plan),
                "llama_zero3_hybrid");
}

TEST(Golden, TensorParallelLlamaWithEightBitProducts) {
  Plan plan = small_plan(16, 1, 1);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  plan.data = 2;
  plan.zero = 1;
  plan.eight_bit.scaling = Scaling::kTensor;
  plan.global_batch = 2 * 2;
  expect_golden(lower(transformer(llama_model(1, 32, 4, 2, 96, 64), plan), plan),
                "llama_tp2_fp8");
}

}  // namespace
}  // namespace stepcast
