// Cases on time: public reports with a known answer, each named after its thread.
#include <gtest/gtest.h>

#include "sim/hardware/hardware.h"
#include "tests/support/case.h"
#include "tools/base/files.h"
#include "tools/time/time.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

// NVIDIA/Megatron-LM#1031: a 70B model on 128 H100 with tensor 8, pipeline 8, data 2 and full
// recomputation (groups of 5 layers) runs at 296.5 TFLOP/s a device, attention counted whole as
// Megatron-LM does. Without sequence parallelism: --distribute-saved-activations excludes it, and
// --tp-comm-overlap broke. The batch is not told; 64 micro-batches here. Recomputation alone makes
// the matrix products 4/3.
constexpr std::string_view kSeventyBillion = R"({
  "model": "llama2-70b", "cluster": "h100-sxm-16x8",
  "batch": {"sequence_length": 4096, "micro": 1, "global": 128},
  "parallel": {"tensor": 8, "pipeline": 8, "data": 2},
  "sharding": {"zero": 1}, "recompute": {"every": 5},
  "precision": {"compute": "bf16", "gradients": "fp32"} })";

TEST(CaseMegatron1031, ADeepPipelineWithRecomputationRunsAsReported) {
  const Case full = case_of(kSeventyBillion);
  const Flops token = model_flops_per_token(full.what_if.model, 4096, false);
  EXPECT_NEAR(full.report().tokens_per_second_per_device * token.value, 296.5e12, 29.65e12);
  const Case none = case_of(kSeventyBillion, {"recompute=none"});
  EXPECT_NEAR(full.step() / none.step(), 4.0 / 3, 0.1 * 4 / 3);
}

// Korthikanti et al. 2022 (arXiv 2205.05198), Table 4: milliseconds of one layer of the 22B model,
// forward and backward, on 8 A100 with tensor 8 and micro-batch 4. A step of three layers takes
// that much more than one of two, but for the third layer's update.
constexpr std::string_view kTwentyTwoBillion = R"({
  "framework": "megatron-lm-2022", "cluster": "a100-80gb-1x8",
  "model": {"style": "gpt", "layers": 2, "hidden": 6144, "heads": 64, "vocabulary": 51200,
            "positions": 2048},
  "batch": {"sequence_length": 2048, "micro": 4, "global": 4},
  "parallel": {"tensor": 8}, "precision": {"compute": "fp16"} })";

double layer_time(std::vector<std::string> sets) {
  const auto passes = [&](int layers) {
    sets.push_back("model.layers=" + std::to_string(layers));
    const Case one = case_of(kTwentyTwoBillion, sets);
    const RankTime& rank = one.report().timeline.ranks.at(0);
    return one.step() -
           to_seconds(rank.breakdown[static_cast<std::size_t>(Part::kOptimizer)]).value;
  };
  return passes(3) - passes(2);
}

TEST(CaseKorthikantiTable4, ALayerTakesWhatItTookWithEveryRecomputation) {
  const std::string sequence = "parallel.sequence_parallel=true";
  const auto expect = [](const std::vector<std::string>& sets, double milliseconds) {
    EXPECT_NEAR(layer_time(sets) * 1e3, milliseconds, 0.04 * milliseconds) << sets.front();
  };
  expect({"recompute=none"}, 19.6);
  expect({"recompute=none", sequence}, 19.0);
  expect({"recompute=full"}, 27.2);
  expect({"recompute=selective"}, 20.9);
  expect({"recompute=selective", sequence}, 20.3);
}

// NVIDIA/Megatron-LM#1000 (16 A100, tensor 8, pipeline 2): with one micro-batch half of the
// pipeline idles, (p - 1) / (m + p - 1) = 1/2; with eight, 1/9. Head and embedding make the stages
// uneven.
constexpr std::string_view kTwoStages = R"({
  "model": "llama3-70b", "cluster": "a100-80gb-2x8",
  "batch": {"sequence_length": 4096, "micro": 1, "global": 1},
  "parallel": {"tensor": 8, "sequence_parallel": true, "pipeline": 2}, "recompute": "full" })";

TEST(CaseMegatron1000, OneMicroBatchLeavesHalfOfThePipelineIdle) {
  EXPECT_NEAR(case_of(kTwoStages).report().timeline.bubble_fraction, 1.0 / 2, 0.05);
  EXPECT_NEAR(case_of(kTwoStages, {"batch.global=8"}).report().timeline.bubble_fraction, 1.0 / 9,
              0.05);
}

// bigscience-workshop/bigscience#70: 176B over 12 stages, micro-batch 2, data 16: below 384 = 12 x
// 2 x 16 sequences the pipeline is never full. With m micro-batches it works m / (m + 11).
constexpr std::string_view kBloom = R"({
  "model": {"style": "gpt", "layers": 72, "hidden": 14336, "heads": 112, "vocabulary": 250880,
            "positions": 2048},
  "cluster": "a100-80gb-96x8",
  "batch": {"sequence_length": 2048, "micro": 2, "global": 384},
  "parallel": {"tensor": 4, "pipeline": 12, "data": 16, "schedule": "1f1b"},
  "sharding": {"zero": 1}, "recompute": "full" })";

TEST(CaseBigscience70, ThroughputGrowsUntilThePipelineIsFull) {
  const auto rate = [](const std::string& global) {
    return case_of(kBloom, {"batch.global=" + global}).report().tokens_per_second_per_device;
  };
  const double one = rate("32"), full = rate("384"), many = rate("1536");
  EXPECT_NEAR(full / one, (12.0 / 23) / (1.0 / 12), 0.1 * 12 * 12 / 23);
  EXPECT_NEAR(many / full, (48.0 / 59) / (12.0 / 23), 0.1 * 1.56);
}

// alibaba/Megatron-LLaMA#22 and #27: reducing the gradients in every micro-batch multiplies that
// traffic by their number: 1,885.8 tokens/s fell to 1,126.3 on 16 nodes with 4 x 200 Gb/s.
TEST(CaseMegatronLlama22, ReducingEveryMicroBatchMultipliesTheTraffic) {
  const Case once = case_of(kLlama13b, {"sharding.zero=1"});
  const Case every = case_of(kLlama13b, {"sharding.zero=2"});
  const auto data = [](const Case& one) {
    const auto& sent = one.report().traffic.stages.at(0);
    return static_cast<double>(sent[static_cast<std::size_t>(Axis::kData)].count);
  };
  // Of P parameters: gradients 4 P each time and weights 2 P once; m = 1024 / (2 x 128) = 4.
  EXPECT_NEAR(data(every) / data(once), (4 * 4 + 2.0) / (4 + 2), 0.03);
  EXPECT_GT(every.step(), once.step());
}

// --------------------------------------------------------------------------- collectives

Cluster cluster_of(const std::string& device, int nodes, int per_node) {
  return standard_cluster(load_device(find_config("devices", device, "case")), nodes, per_node);
}

double bus_bandwidth(TransferKind kind, const Cluster& cluster, int ranks) {
  return time_collective(kind, gibibytes(8), ranks, cluster).bus_bandwidth.value;
}

// NVIDIA/nccl-tests#290: about 476 GB/s of bus bandwidth in a box of 8 H100 by NVLink SHARP;
// without it a ring of about 360; 46 to 48 GB/s by a card of 400 Gb/s.
TEST(CaseNcclTests290, AllReduceOnH100IsAsItsMaintainersSay) {
  Cluster box = cluster_of("h100-sxm", 1, 8);
  EXPECT_NEAR(bus_bandwidth(TransferKind::kAllReduce, box, 8), 465e9, 15e9);
  box.device.nccl->nvls = false;
  EXPECT_NEAR(bus_bandwidth(TransferKind::kAllReduce, box, 8), 360e9, 18e9);
  Cluster pair = cluster_of("h100-sxm", 2, 1);
  pair.nics_per_node = 1;
  EXPECT_NEAR(bus_bandwidth(TransferKind::kAllReduce, pair, 2), 47e9, 1e9);
}

// NVIDIA/nccl#780: eight devices share one card of 200 Gb/s: about 3 GB/s each leave the node. Of
// what a device sends in an all-to-all of 64, 56/64 do.
TEST(CaseNccl780, AllToAllThroughOneCardIsAnEighthOfItEach) {
  Cluster cluster = cluster_of("a100-80gb", 8, 8);
  cluster.nics_per_node = 1;
  cluster.nic_bandwidth = gigabytes_per_second(25) * cluster.device.nic_efficiency;
  const CollectiveTime time = time_collective(TransferKind::kAllToAll, gibibytes(8), 64, cluster);
  EXPECT_NEAR(time.algorithm_bandwidth.value * 56 / 64, 3e9, 0.2e9);
}

}  // namespace
}  // namespace stepcast
