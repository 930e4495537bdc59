// Training in bf16 with fp32 master weights: 8 bits of fraction in weights, activations and, where
// the plan says so, gradients. It follows fp32's losses, whatever the plan, and its bytes are those
// that the other readers of the Job count.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "execute/arena.h"
#include "execute/convert.h"
#include "sim/engine/simulate.h"
#include "tests/support/as_counted.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

constexpr std::int64_t kMixedSteps = 50;

// Half of the numbers between two bf16 neighbours go to each; halfway, to the even one.
TEST(Bf16, RoundsToTheNearestAndHalfwayToTheEvenOne) {
  EXPECT_EQ(round_bf16(1.0f), 0x3f80);
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f), 0x3f80);  // halfway between 1 and 1 + 2^-7
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_EQ(round_bf16(1.0f + 0x1.8p-7f), 0x3f82);  // halfway, above an odd one
  EXPECT_EQ(round_bf16(-3.0e38f * 1.2f), 0xff80);   // infinity
  EXPECT_TRUE(std::isnan(widen_bf16(round_bf16(std::nanf("")))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = widen_bf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(round_bf16(value), bits);
  }
}

Model small_gpt() { return gpt_model(2, 32, 4, 61, 12); }
Model small_llama() { return llama_model(2, 32, 4, 2, 48, 61); }
Model small_qwen() {
  Model model = llama_model(2, 32, 4, 4, 48, 61);
  model.qk_norm = model.qkv_bias = model.tied_embeddings = true;
  return model;
}

// All take every token, so that bf16's logits choose no others than fp32's.
Model small_experts() {
  Model model = small_llama();
  model.experts = model.experts_per_token = 2;
  model.expert_ffn = 24;
  return model;
}

Plan mixed_plan(Dtype gradients) {
  Plan plan = executable_plan(8, 8);
  plan.compute = Dtype::kBf16;
  plan.gradients = gradients;
  plan.master = true;
  return plan;
}

struct MixedCase {
  std::string name;
  Model (*model)();
  Dtype gradients = Dtype::kFp32;
  std::function<void(Plan&)> change;
};
void PrintTo(const MixedCase& one, std::ostream* out) { *out << one.name; }

std::vector<MixedCase> cases() {
  constexpr Dtype kMain = Dtype::kFp32, kNarrow = Dtype::kBf16;
  return {
      {"one_rank", small_gpt, kMain, [](Plan&) {}},
      {"one_rank_bf16_gradients", small_llama, kNarrow, [](Plan&) {}},
      {"gradient_copy", small_gpt, kNarrow, [](Plan& p) { p.gradient_copy = true; }},
      {"without_clipping", small_gpt, kMain, [](Plan& p) { p.clip_gradients = false; }},
      {"bf16_moments", small_gpt, kMain, [](Plan& p) { p.moments = Dtype::kBf16; }},
      {"unfused_recompute", small_qwen, kMain,
       [](Plan& p) { p.fused_attention = false, p.recompute = Recompute::kSelective; }},
      {"softmax_of_megatron", small_gpt, kMain,
       [](Plan& p) { p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatron; }},
      {"full_recompute_micro2", small_qwen, kMain,
       [](Plan& p) { p.recompute = Recompute::kFull, p.micro_batch = 2; }},
      {"data2_zero0", small_llama, kNarrow, [](Plan& p) { p.data = 2; }},
      {"data4_zero1", small_gpt, kMain, [](Plan& p) { p.data = 4, p.zero = 1; }},
      {"data2_zero1_gradient_copy", small_llama, kNarrow,
       [](Plan& p) { p.data = 2, p.zero = 1, p.gradient_copy = true; }},
      {"data2_zero2", small_qwen, kNarrow, [](Plan& p) { p.data = 2, p.zero = 2; }},
      {"data4_zero3_hybrid", small_llama, kMain,
       [](Plan& p) { p.data = 4, p.zero = 3, p.shard_group = 2; }},
      {"tensor2_sequence_pipeline2", small_llama, kMain,
       [](Plan& p) { p.tensor = p.pipeline = 2, p.sequence_parallel = true; }},
      {"experts2_data2_zero1", small_experts, kNarrow,
       [](Plan& p) { p.expert = p.data = 2, p.zero = 1; }},
      {"tensor2_pipeline2_zero1_tied", small_qwen, kNarrow,
       [](Plan& p) { p.tensor = p.pipeline = p.data = 2, p.zero = 1; }},
  };
}

class MixedPrecision : public testing::TestWithParam<MixedCase> {};

TEST_P(MixedPrecision, FollowsTheLossesOfSinglePrecision) {
  const MixedCase& one = GetParam();
  Plan plan = mixed_plan(one.gradients);
  one.change(plan);
  const Job job = lowered(one.model(), plan);
  Plan alone = executable_plan(8, 8);
  alone.clip_gradients = plan.clip_gradients;
  ExecuteOptions options = train_options(kMixedSteps);
  options.optimizer.rate = 2e-3;
  const std::vector<double> expected = train(lowered(one.model(), alone), options)[0].losses;
  const std::vector<RankRun> runs = train(job, options);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(runs[0].losses[i], expected[i], 0.01 * expected[i]) << "step " << i;
  }
  EXPECT_LT(expected.back(), 0.95 * expected.front());
  EXPECT_NE(runs[0].losses, expected);  // it was not fp32 after all

  expect_as_counted(job, runs);
}

INSTANTIATE_TEST_SUITE_P(Plans, MixedPrecision, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

// What the CUDA device asks for is known before there is one: a walk over the schedule with the
// places of a 512-byte layout. No two live tensors share a byte, and the bytes that are counted at
// the peak are the simulator's. GPT-2 in bf16, with four micro-batches on two pipeline stages.
TEST(CudaArena, HoldsTheBytesThatTheJobAccounts) {
  Plan plan = mixed_plan(Dtype::kFp32);
  plan.sequence_length = 256;
  plan.global_batch = 8;
  plan.micro_batch = 2;
  plan.pipeline = 2;
  plan.schedule = PipelineSchedule::k1f1b;
  const Job job = lowered(gpt_model(4, 192, 6, 1024, 256), plan);
  const Footprint memory = account(job);
  for (std::size_t stage = 0; stage < job.programs.size(); ++stage) {
    const Program& program = job.programs[stage];
    const MemoryPlan places = plan_memory(job, program, kCudaAlignment, {true, 0});
    Arena arena(places, nullptr);
    std::size_t resident = 0;
    std::map<std::size_t, std::size_t> live;  // begin, end
    const auto take = [&](std::size_t at, const Tensor& tensor) {
      EXPECT_EQ(at % kCudaAlignment, 0u);
      const std::size_t end = at + static_cast<std::size_t>(tensor.bytes().count);
      const auto next = live.lower_bound(at);
      EXPECT_TRUE(next == live.end() || next->first >= end);
      EXPECT_TRUE(next == live.begin() || std::prev(next)->second <= at);
      EXPECT_LE(end, places.size);
      live.emplace(at, end);
    };
    for (const Resident& one : program.residents) {
      for (const TensorId id : job.resident_sets[static_cast<std::size_t>(one.set)]) {
        const Tensor& tensor = job.tensors[static_cast<std::size_t>(id)];
        take(places.residents[resident], tensor);
        arena.resident(resident++, tensor);
      }
    }
    std::map<std::pair<TensorId, std::int64_t>, std::size_t> where;
    std::size_t next = 0;
    for (const Call& call : program.schedule) {
      for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
        if (const auto* alloc = std::get_if<Alloc>(&i)) {
          const Tensor& tensor = job.tensors[static_cast<std::size_t>(alloc->tensor)];
          const std::int64_t micro = tensor.scope == Scope::kMicroBatch ? call.micro_batch : -1;
          where[{alloc->tensor, micro}] = places.allocs[next];
          take(places.allocs[next++], tensor);
          arena.allocate(tensor);
        } else if (const auto* free = std::get_if<Free>(&i)) {
          const Tensor& tensor = job.tensors[static_cast<std::size_t>(free->tensor)];
          const std::int64_t micro = tensor.scope == Scope::kMicroBatch ? call.micro_batch : -1;
          live.erase(where.at({free->tensor, micro}));
          arena.free(tensor);
        }
      }
    }
    EXPECT_EQ(arena.peak(), memory.stages[stage].peak);
    EXPECT_EQ(arena.at_peak(), memory.stages[stage].at_peak);
    // What rounding and gaps cost beyond them.
    const auto peak = static_cast<double>(arena.peak().count);
    EXPECT_GE(static_cast<double>(places.size), peak);
    EXPECT_LE(static_cast<double>(places.size), 1.05 * peak);
  }
}

TEST(Executable, WantsAMasterCopyOfNarrowWeights) {
  Plan plan = mixed_plan(Dtype::kBf16);
  EXPECT_EQ(executable(lowered(small_gpt(), plan)), "");
  plan.master = false;
  EXPECT_NE(executable(lowered(small_gpt(), plan)).find("master"), std::string::npos);
  plan.compute = Dtype::kFp16;
  EXPECT_NE(executable(lowered(small_gpt(), plan)).find("only fp32 and bf16"), std::string::npos);
}

}  // namespace
}  // namespace stepcast
