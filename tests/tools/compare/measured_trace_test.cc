// Traces of a profiler, written by hand in Kineto's form, and our own read back.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "sim/result/kineto.h"
#include "tests/tools/small_whatif.h"
#include "tools/compare/compare.h"
#include "tools/compare/measured.h"
#include "tools/compare/measured_parts.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kPicosecond = 1e-12;

std::string event(const std::string& category, const std::string& name, int process, double begin,
                  double length, const std::string& args = "") {
  return fmt::format(R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": 7, "ts": {}, )"
                     R"("dur": {}, "args": {{{}}}}})",
                     category, name, process, begin, length, args);
}

std::string step(int number, double begin, double length) {
  return event("user_annotation", fmt::format("ProfilerStep#{}", number), 4321, begin, length);
}

// A collective's kernel as PyTorch records it; `group` describes the group and its ranks.
std::string reduction(double begin, double length, const std::string& group) {
  return event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", 0, begin, length,
               R"("Collective name": "allreduce", )" + group);
}

std::string trace_text(const std::vector<std::string>& events, int rank = 0, int world = 2) {
  return fmt::format(R"({{"schemaVersion": 1, "distributedInfo": {{"backend": "nccl", "rank": {}, )"
                     R"("world_size": {}}}, "traceEvents": [{}], "traceName": "x"}})",
                     rank, world, fmt::join(events, ",\n"));
}

TraceFile read(std::string text) { return read_trace(text, "trace.json"); }

std::string trace_refusal(std::string text) {
  try {
    const MeasuredForm form = recognise(text, "trace.json");
    read_measured({{"trace.json", text, form}});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Mesh data_pair() {
  Mesh mesh;
  mesh.degree(Axis::kData) = 2;
  return mesh;
}

const std::string kPair = R"("Process Group Description": "default_pg", "Group size": 2, )"
                          R"("Process Group Ranks": "[0, 1]")";

// Rank 0 computes from 0 to 10 us and reduces from 5 to 20; rank 1 comes to the reduction at 10.
// The transfer is the shorter one, 10 us; rank 0 waits 5, in the mean 2.5. From 10 to 20 nothing
// covers it, and of 25 us the last 5 are idle.
TEST(MeasuredTrace, TellsTransferSkewExposureAndIdlenessApart) {
  const auto rank = [](int number, double begin) {
    return read(trace_text({step(3, 0, 25), event("kernel", "sm90_xmma_gemm_bf16", 0, 0, 10),
                            reduction(begin, 20 - begin, kPair)},
                           number));
  };
  const Mesh mesh = data_pair();
  const std::vector<PlacedRank> ranks = placed_ranks({rank(0, 5), rank(1, 10)}, mesh);
  const StepParts parts = step_parts(ranks, mesh, stages_of(ranks, mesh), 0);
  EXPECT_NEAR(parts.step, 25e-6, kPicosecond);
  EXPECT_NEAR(parts.kernels[static_cast<std::size_t>(KernelKind::kGemm)], 10e-6, kPicosecond);
  EXPECT_NEAR(parts.transfer.at("data"), 10e-6, kPicosecond);
  EXPECT_NEAR(parts.skew.at("data"), 2.5e-6, kPicosecond);
  EXPECT_NEAR(parts.exposed.at("data"), 10e-6, kPicosecond);
  EXPECT_NEAR(parts.idle, 5e-6, kPicosecond);
  const StepParts alone = step_parts({ranks[0]}, mesh, {0}, 0);
  EXPECT_NEAR(alone.transfer.at("data"), 15e-6, kPicosecond);
  EXPECT_THAT(alone.skew, IsEmpty());
}

// The device lags behind its host: what step 1 launched runs in step 2.
TEST(MeasuredTrace, CountsAKernelToTheStepThatLaunchedIt) {
  const TraceFile trace = read(
      trace_text({step(1, 0, 10), step(2, 10, 10),
                  event("cuda_runtime", "cudaLaunchKernel", 4321, 9, 1, R"("correlation": 77)"),
                  event("kernel", "some_kernel", 0, 12, 3, R"("correlation": 77)"),
                  event("kernel", "other_kernel", 0, 16, 3)}));
  ASSERT_THAT(trace.ranks, SizeIs(1));
  ASSERT_THAT(trace.ranks[0].kernels, SizeIs(2));
  EXPECT_EQ(trace.ranks[0].kernels[0].step, 0);
  EXPECT_EQ(trace.ranks[0].kernels[1].step, 1);
}

TEST(MeasuredTrace, FindsTheAxesOfAGroupByItsRanksItsWordsOrItsSize) {
  Mesh mesh;
  mesh.degree(Axis::kTensor) = 2;
  mesh.degree(Axis::kData) = 4;
  mesh.degree(Axis::kPipeline) = 2;
  const auto axes = [&](std::string description, std::vector<int> ranks, int size) {
    const auto set = axes_of_group({std::move(description), std::move(ranks), size}, mesh);
    return set ? axis_set_name(*set) : "none";
  };
  EXPECT_EQ(axes("default_pg", {0, 1}, 2), "tensor");
  EXPECT_EQ(axes("x", {1, 3, 5, 7}, 4), "data");
  EXPECT_EQ(axes("EMBEDDING_GROUP", {0, 8}, 2), "pipeline");
  EXPECT_EQ(axes("mesh_dp_shard_cp", {}, 4), "data");
  EXPECT_EQ(axes("TENSOR_MODEL_PARALLEL_GROUP", {0}, 2), "tensor");
  EXPECT_EQ(axes("PIPELINE_MODEL_PARALLEL_GROUP", {}, 2), "pipeline");
  EXPECT_EQ(axes("data+replica", {}, 4), "data");
  EXPECT_EQ(axes("7", {}, 4), "data");
  EXPECT_EQ(axes("7", {}, 2), "none");  // tensor or pipeline
  EXPECT_EQ(axes("", {0, 99}, 4), "data");
}

TEST(MeasuredTrace, ReadsGroupsFromTheHostsRecordAndRanksFromTheirStride) {
  const TraceFile trace = read(trace_text(
      {step(1, 0, 30),
       event("cpu_op", "record_param_comms", 4321, 0, 1,
             R"("External id": 5, "Group size": 4, "Process Group Ranks": "[0, 2, ...]", )"
             R"("Global rank start": 0, "Global rank stride": 2)"),
       event("kernel", "ncclKernel_AllGather_RING_LL_Sum_int8_t", 0, 3, 4, R"("External id": 5)")},
      0, 8));
  ASSERT_THAT(trace.groups, SizeIs(1));
  EXPECT_THAT(trace.groups[0].ranks, ::testing::ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(trace.ranks[0].kernels[0].group, 0);
}

TEST(MeasuredTrace, KnowsKindsByTheNamesOfLibraries) {
  const std::vector<std::pair<std::string, KernelKind>> names = {
      {"nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", KernelKind::kGemm},
      {"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", KernelKind::kGemm},
      {"Cijk_Alik_Bljk_BBS_BH_MT256x256x64", KernelKind::kGemm},
      {"void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>", KernelKind::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80", KernelKind::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop", KernelKind::kAttention},
      {"void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel", KernelKind::kNorm},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::add>",
       KernelKind::kPointwise},
      {"triton_poi_fused_add_mul_3", KernelKind::kPointwise},
      {"_unpermute_kernel", KernelKind::kPointwise},
      {"_sort_chunks_by_map_kernel", KernelKind::kPointwise},
      {"_row_id_map_pass_2_kernel", KernelKind::kPointwise},
      {"multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor>", KernelKind::kOptimizer},
      {"cross_entropy_kernel", KernelKind::kLoss},
      {"void at::native::embedding_backward_feature_kernel", KernelKind::kGather},
      {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", KernelKind::kCommunication},
      {"my_kernel", KernelKind::kOther}};
  for (const auto& [name, kind] : names) EXPECT_EQ(kind_of_name(name), kind) << name;
}

TEST(MeasuredTrace, ReadsThePeaksThatTheProfilerNoted) {
  const std::string memory =
      R"({"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": )"
      R"({"Total Reserved": 3000, "Total Allocated": 2000, "Device Type": 1, "Bytes": 8}})";
  std::string text = trace_text({step(1, 0, 9), event("kernel", "k", 0, 1, 2), memory});
  const Measured measured = read_measured({{"t", text, MeasuredForm::kTrace}});
  ASSERT_THAT(measured.peaks, SizeIs(1));
  EXPECT_EQ(measured.peaks[0].allocated, 2000);
  EXPECT_EQ(measured.peaks[0].reserved, 3000);
}

TEST(MeasuredTrace, ToleratesRawControlCharactersAndNamesThePlaceOfOtherFaults) {
  const std::string good =
      trace_text({step(1, 0, 9), event("kernel", "a\tb\x01 gemm\nx", 0, 1, 2)});
  EXPECT_EQ(read(good).ranks.at(0).kernels.at(0).kind, KernelKind::kGemm);
  EXPECT_EQ(trace_refusal(good), "no error");
  std::string bad = trace_text({step(1, 0, 9), event("kernel", "gemm", 0, 1, 2)});
  bad.replace(bad.find("},\n"), 1, "] ");
  EXPECT_THAT(trace_refusal(bad),
              AllOf(HasSubstr("trace.json:"), HasSubstr("no valid JSON (byte ")));
}

TEST(MeasuredTrace, SaysWhatATraceLacks) {
  EXPECT_THAT(trace_refusal(trace_text({event("kernel", "gemm", 0, 1, 2)})),
              HasSubstr("marks no step"));
  EXPECT_THAT(trace_refusal(trace_text({step(1, 0, 9)})), HasSubstr("has no kernel"));
  EXPECT_THAT(trace_refusal(trace_text({})), HasSubstr("marks no step"));
}

// Cut anywhere, and with any byte made another: an answer or an Error, never more.
TEST(MeasuredTrace, SurvivesDamage) {
  const std::string whole = trace_text(
      {step(1, 0, 25), event("kernel", "gemm", 0, 1e300, 10), reduction(5, 9, kPair),
       event("kernel", "gemm", 0, 0, 10, R"("correlation": 1e40, "op": "gemm nonsense")"),
       R"({"ph": 3, "args": [1, {"a": null}], "pid": "Spans", "ts": "x"})", "7", "null"});
  EXPECT_EQ(trace_refusal(whole), "no error");
  for (std::size_t i = 0; i < whole.size(); ++i) trace_refusal(whole.substr(0, i));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char c : {'\0', '"', '{', ']', '\\', '\xFF', '9'}) {
      std::string other = whole;
      other[i] = c;
      trace_refusal(other);
    }
  }
}

// ----------------------------------------------------------------------------- compare with a run

Json report_of(const Forecast& answer) { return write_report(answer.report, answer.job); }

TEST(CompareRun, FindsNoErrorBetweenAForecastAndItsOwnTrace) {
  const WhatIf what_if = small_what_if({"parallel.tensor=2", "parallel.data=2", "sharding.zero=1"});
  ForecastOptions options;
  options.trace = true;
  const Forecast answer = forecast(what_if, options);
  std::string text = write_kineto(answer.job, answer.report.timeline.trace, kAllTracedRanks);
  ASSERT_EQ(recognise(text, "own.json"), MeasuredForm::kTrace);
  const Comparison comparison =
      compare_run(parse_json(report_of(answer).dump(), "report.json"),
                  read_measured({{"own.json", text, MeasuredForm::kTrace}}), "own.json", 1e-3);
  EXPECT_EQ(comparison.verdict, Verdict::kWithin);
  std::vector<std::string> names;
  for (const Metric& metric : comparison.metrics) {
    names.push_back(metric.name);
    // The trace has whole nanoseconds, two of them wrong by less than one a kernel.
    EXPECT_NEAR(metric.measured, metric.predicted, 2e-3 * metric.predicted) << metric.name;
  }
  EXPECT_THAT(
      names,
      AllOf(Contains("trace.kernels_seconds.gemm"), Contains("trace.communication_seconds.tensor"),
            Contains("trace.exposed_seconds.tensor"), Contains("trace.bubble_seconds"),
            Contains("trace.kernels_seconds.optimizer")));
  EXPECT_THAT(comparison.notes, Not(Contains(HasSubstr("forecast of today"))));
}

class CompareWithLog : public ::testing::Test {
 protected:
  CompareWithLog() : what_if_(small_what_if()), answer_(forecast(what_if_)) {
    report_ = parse_json(report_of(answer_).dump(), "report.json");
    step_ = report_.root["step"]["seconds"].get<double>();
  }

  Measured steps(const std::vector<double>& seconds) const {
    Measured measured;
    measured.form = "a log";
    measured.durations = seconds;
    return measured;
  }
  Comparison compare(const Measured& measured) const {
    return compare_run(report_, measured, "train.log", 0.05);
  }
  const Metric* find(const Comparison& comparison, const std::string& name) const {
    for (const Metric& metric : comparison.metrics) {
      if (metric.name == name) return &metric;
    }
    return nullptr;
  }

  WhatIf what_if_;
  Forecast answer_;
  Document report_;
  double step_ = 0;
};

TEST_F(CompareWithLog, JudgesTheMedianStepAndItsSpread) {
  EXPECT_EQ(compare(steps({step_, step_, step_ * 1.01})).verdict, Verdict::kWithin);
  EXPECT_EQ(compare(steps({step_ * 0.5})).verdict, Verdict::kBeyond);
  EXPECT_THAT(compare(steps({step_ * 0.5})).metrics[0].message, HasSubstr("refresh the baseline"));
  EXPECT_EQ(compare(steps({step_ * 0.5, step_, step_ * 1.5})).verdict, Verdict::kInconclusive);
  EXPECT_THAT(compare(steps({step_})).notes, Contains(HasSubstr("one step was measured")));
}

// 64 sequences of 512 tokens on 8 devices are 4096 tokens a device.
TEST_F(CompareWithLog, TurnsRatesIntoSteps) {
  Measured measured = steps({step_ / 4096});
  measured.pace = Pace::kDeviceToken;
  EXPECT_NEAR(*compare(measured).metrics[0].error, 0, 1e-9);
  measured = steps({step_ / 64});
  measured.pace = Pace::kSample;
  EXPECT_NEAR(*compare(measured).metrics[0].error, 0, 1e-9);
}

// Ranks 4 to 7 of 8 are stage 1.
TEST_F(CompareWithLog, HoldsTheMemoryOfARankAgainstItsStage) {
  const Json& stage = report_.root["memory"]["stages"][1];
  const double peak = stage["allocated_peak_bytes"].get<double>() +
                      stage["workspace_bytes"].get<double>();  // as torch counts
  Measured measured = steps({step_});
  measured.peaks = {{5, peak, peak * 2}};
  const Comparison comparison = compare(measured);
  const Metric* allocated = find(comparison, "memory.stages.1.allocated_peak_bytes");
  ASSERT_NE(allocated, nullptr);
  EXPECT_EQ(allocated->error, 0.0);
  EXPECT_EQ(allocated->verdict, Verdict::kWithin);
  const Metric* reserved = find(comparison, "memory.stages.1.reserved_peak_bytes");
  ASSERT_NE(reserved, nullptr);
  EXPECT_EQ(reserved->verdict, std::nullopt);
  measured.peaks = {{kRankLast, std::nullopt, peak * 2}};
  const Comparison last = compare(measured);
  const Metric* alone = find(last, "memory.stages.1.reserved_peak_bytes");
  ASSERT_NE(alone, nullptr);
  EXPECT_EQ(alone->verdict, Verdict::kBeyond);
}

TEST_F(CompareWithLog, RefusesARunOfAnotherQuestion) {
  Measured measured = steps({step_});
  measured.global_batch = 32;
  try {
    compare(measured);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("train.log: the global batch is 32, but 64 in "),
                                    HasSubstr("report.json")));
  }
  measured = Measured();
  measured.traces = {read(trace_text({step(1, 0, 9), event("kernel", "gemm", 0, 1, 2)}))};
  EXPECT_THROW(compare(measured), Error);  // two ranks, not eight
}

}  // namespace
}  // namespace stepcast
