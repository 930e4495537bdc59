// Cases on memory: public reports with a known answer, each named after its thread.
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/support/case.h"

namespace stepcast {
namespace {

constexpr std::string_view kSevenBillion = R"({
  "model": "llama2-7b", "cluster": "h100-sxm-1x8",
  "batch": {"sequence_length": 512, "micro": 1, "global": 8},
  "parallel": {"tensor": 1, "data": 8},
  "sharding": {"zero": 0},
  "precision": {"compute": "bf16", "gradients": "fp32"} })";

double per_parameter(const std::vector<std::string>& sets) {
  return case_of(kSevenBillion, sets).bytes_per_parameter();
}

const std::vector<std::string> kOneDevice = {"cluster=h100-sxm-1x1", "parallel.data=1",
                                             "batch.global=1"};
std::vector<std::string> on_one_device(std::vector<std::string> sets) {
  sets.insert(sets.end(), kOneDevice.begin(), kOneDevice.end());
  return sets;
}

// NVIDIA/Megatron-LM#654: 18 bytes a parameter, of which the distributed optimizer divides 12: bf16
// weights 2, fp32 gradients 4, fp32 weights 4, moments 8. Exact but for the padding of buffers.
TEST(CaseMegatron654, MixedPrecisionHolds18BytesAParameterAnd6Plus12OverD) {
  EXPECT_NEAR(per_parameter(on_one_device({})), 18, 0.01);
  EXPECT_NEAR(per_parameter({"sharding.zero=1"}), 6 + 12.0 / 8, 0.01);
  EXPECT_NEAR(per_parameter({"sharding.zero=1", "cluster=h100-sxm-8x8", "parallel.data=64",
                             "batch.global=64"}),
              6 + 12.0 / 64, 0.01);
}

// deepspeedai/DeepSpeed#5102: 16, 4 + 12/d, 2 + 14/d and 16/d for stages 0 to 3 with gradients in
// the type of the weights.
TEST(CaseDeepSpeed5102, EveryStageDividesWhatItSays) {
  const std::string half = "precision.gradients=bf16";
  EXPECT_NEAR(per_parameter({half, "sharding.zero=0"}), 16, 0.01);
  EXPECT_NEAR(per_parameter({half, "sharding.zero=1"}), 4 + 12.0 / 8, 0.01);
  EXPECT_NEAR(per_parameter({half, "sharding.zero=2"}), 2 + 14.0 / 8, 0.01);
  EXPECT_NEAR(per_parameter({half, "sharding.zero=3"}), 16.0 / 8, 0.01);
}

// NVIDIA/Megatron-LM#1349: fp16 with an fp32 copy of the gradients takes more than fp32: 20 and 16.
// The copy is made for the update, when no activations are left.
TEST(CaseMegatron1349, Fp16TakesMoreStateThanFp32) {
  const Case half =
      case_of(kSevenBillion, on_one_device({"precision.compute=fp16", "precision.gradients=fp16",
                                            "precision.gradient_copy=fp32"}));
  const double fp16 = static_cast<double>(half.stage(0).peak.count) /
                      static_cast<double>(parameters(half.what_if.model));
  const double fp32 =
      per_parameter(on_one_device({"precision.compute=fp32", "precision.gradients=fp32"}));
  EXPECT_NEAR(fp16, 20, 0.01);
  EXPECT_NEAR(half.bytes_per_parameter(), 16, 0.01);
  EXPECT_NEAR(fp32, 16, 0.01);
}

// huggingface/accelerate#3379: 70.55e9 parameters are 141.1 GB of bf16, not 64.73.
TEST(CaseAccelerate3379, SeventyBillionWeightsTake141Gigabytes) {
  const Case one = case_of(kSevenBillion, on_one_device({"model=llama3.1-70b"}));
  const auto weights = one.stage(0).at_peak[static_cast<std::size_t>(Category::kWeights)];
  EXPECT_NEAR(static_cast<double>(weights.count), 141.1e9, 0.001 * 141.1e9);
}

// mosaicml/llm-foundry#468: MPT-7B on one A100-80GB runs out of memory at batch 1; the maintainer
// counts 6.66e9 x 12 bytes of states alone.
constexpr std::string_view kMpt7b = R"({
  "model": {"style": "gpt", "layers": 32, "hidden": 4096, "heads": 32, "vocabulary": 50432,
            "positions": 2048, "learned_positions": false, "mlp_bias": false, "qkv_bias": false,
            "attention_output_bias": false},
  "cluster": "a100-80gb-1x1",
  "batch": {"sequence_length": 2048, "micro": 1, "global": 1},
  "recompute": "full" })";

TEST(CaseLlmFoundry468, SevenBillionDoNotFitOneDeviceOf80Gigabytes) {
  const Case one = case_of(kMpt7b);
  EXPECT_NEAR(static_cast<double>(parameters(one.what_if.model)), 6.66e9, 0.01 * 6.66e9);
  EXPECT_GE(static_cast<double>(one.stage(0).resident.count), 12 * 6.6e9);
  EXPECT_GT(one.stage(0).peak, one.report().capacity);
}

// NVIDIA/Megatron-LM#1000: Llama-3-70B on 8 A100: the states alone, 18 x 70.6e9 / 8 bytes, are
// about twice what a device has.
constexpr std::string_view kLlama70bOn8 = R"({
  "model": "llama3-70b", "cluster": "a100-80gb-1x8",
  "batch": {"sequence_length": 4096, "micro": 1, "global": 1},
  "parallel": {"tensor": 8}, "recompute": "full",
  "precision": {"compute": "bf16", "gradients": "fp32"} })";

TEST(CaseMegatron1000, SeventyBillionDoNotFitEightDevices) {
  const Case one = case_of(kLlama70bOn8);
  const auto resident = static_cast<double>(one.stage(0).resident.count);
  EXPECT_NEAR(resident, 18 * 70.6e9 / 8, 0.01 * 18 * 70.6e9 / 8);
  EXPECT_GT(resident, 1.8 * static_cast<double>(one.report().capacity.count));
}

// deepspeedai/DeepSpeed#4477: a model of 2,048 equal layers over 2, 4 and 8 stages fills the first
// device most. In 1F1B stage i of p keeps the activations of p - i micro-batches.
constexpr std::string_view kDeep = R"({
  "model": {"style": "gpt", "layers": 2048, "hidden": 128, "heads": 2, "vocabulary": 256,
            "positions": 128},
  "cluster": "a100-80gb-1x8",
  "batch": {"sequence_length": 128, "micro": 4, "global": 64},
  "parallel": {"pipeline": 8, "schedule": "1f1b"} })";

TEST(CaseDeepSpeed4477, MemoryFallsFromStageToStage) {
  for (const std::size_t stages : {2u, 4u, 8u}) {
    const std::string p = std::to_string(stages);
    const Case one = case_of(kDeep, {"parallel.pipeline=" + p, "cluster=a100-80gb-1x" + p});
    const auto activations = [&](std::size_t i) {
      const auto& peak = one.stage(i).at_peak;
      return static_cast<double>(peak[static_cast<std::size_t>(Category::kActivations)].count);
    };
    for (std::size_t i = 1; i < stages; ++i) {
      EXPECT_LT(one.stage(i).peak, one.stage(i - 1).peak) << p << " stages, " << i;
      const double share = static_cast<double>(stages - i) / static_cast<double>(stages);
      EXPECT_NEAR(activations(i) / activations(0), share, 0.03) << p << " stages, " << i;
    }
  }
}

// alibaba/Megatron-LLaMA#22: LLaMA-13B on 128 A800: an optimizer that shards the gradients during
// accumulation (44,028 MiB) takes less memory than one that shards only its own states (66,438).
TEST(CaseMegatronLlama22, ShardedGradientsTakeLessMemory) {
  const Case whole = case_of(kLlama13b, {"sharding.zero=1"});
  const Case sharded = case_of(kLlama13b, {"sharding.zero=2"});
  EXPECT_LT(sharded.stage(0).peak.count, whole.stage(0).peak.count);
}

}  // namespace
}  // namespace stepcast
