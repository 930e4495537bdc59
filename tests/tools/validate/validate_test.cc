#include "tools/validate/validate.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "sim/cost/cost.h"
#include "tests/support/shipped.h"
#include "tests/support/validation.h"
#include "tools/time/time.h"
#include "tools/validate/report.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Device& device(const std::string& name) {
  for (const Device& one : shipped().devices) {
    if (one.name == name) return one;
  }
  throw Error(name, "is not shipped");
}

// Written over several lines, for people.
ValidationRow row_of(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return validate_lines(text, "rows.jsonl", shipped()).at(0);
}

std::string reason_of(const std::string& text) {
  const ValidationRow row = row_of(text);
  EXPECT_EQ(row.covered, row.reason.empty());
  return row.reason;
}

// As a benchmark runs it: on a rested device.
double seconds(const Op& op, const Device& on) {
  return op_cost(op, on, {.rested = true}).time.value;
}

// 2 m n k / rate = 2 * 4096 * 8192 * 1024 / 500e12 s.
TEST(Validate, MapsAProductAndTurnsItsRateIntoATime) {
  const ValidationRow row = row_of(R"({"id": "a", "kind": "gemm", "gpu": "NVIDIA H100 SXM",
      "dtype": "bf16", "m": 4096, "n": 8192, "k": "1024", "achieved_tflops": 500})");
  EXPECT_TRUE(row.covered) << row.reason;
  const Gemm gemm{4096, 8192, 1024, 1, GemmRole::kForward, Dtype::kBf16, Dtype::kBf16, false,
                  false};
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, seconds(gemm, device("h100-sxm")));
  EXPECT_DOUBLE_EQ(*row.measured_seconds, 2.0 * 4096 * 8192 * 1024 / 500e12);
  EXPECT_DOUBLE_EQ(*relative_error(row), *row.predicted_seconds / *row.measured_seconds - 1);
  EXPECT_THAT(row.assumed, ElementsAre("role (forward)"));
}

// torch.mm between two reads of the host's clock, each waited for (EleutherAI/cookbook,
// sizing/benchmarks/mm_flops.py at 27dff48): the time of the device and that of the host.
TEST(Validate, AddsWhatTheHostTakesBetweenProducts) {
  const ValidationRow row = row_of(R"({"kind": "gemm", "gpu": "A100-40GB-SXM", "dtype": "fp16",
      "m": 2304, "n": 1536, "k": 4096, "batch": 2, "time_us": 250, "gap_us": 17})");
  ASSERT_TRUE(row.covered) << row.reason;
  const Gemm gemm{2304, 1536, 4096, 2, GemmRole::kForward, Dtype::kFp16, Dtype::kFp16};
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, seconds(gemm, device("a100-40gb")) + 17e-6);
  EXPECT_DOUBLE_EQ(*row.measured_seconds, 250e-6);
}

TEST(Validate, ReadsSizesThatStandInOneText) {
  const ValidationRow one = row_of(R"({"kind": "gemm", "gpu": "H200", "dtype": "fp8",
      "m_n_k": "1280x4096x12032", "achieved_tflops": 1000,
      "notes": "best over a scan of shapes"})");
  const Gemm gemm{1280, 4096, 12032, 1, GemmRole::kForward, Dtype::kFp8, Dtype::kBf16, false,
                  false};
  EXPECT_DOUBLE_EQ(*one.predicted_seconds, seconds(gemm, device("h200")));
  EXPECT_THAT(one.assumed, Contains(HasSubstr("upper bound")));
  EXPECT_EQ(reason_of(R"({"kind": "gemm", "gpu": "H200", "m_n_k": "1280x4096"})"),
            "m, n and k are not stated");
}

TEST(Validate, ReadsTheLayoutOfAProductAsItsRole) {
  const ValidationRow row = row_of(R"({"kind": "gemm", "gpu": "B200-180GB-SXM", "dtype": "bf16",
      "params": {"b": "1", "m": "512", "n": "256", "k": "4096", "layout": "NT",
                 "accumulate": "True", "out_dtype": "fp32"}, "achieved_tflops": 300})");
  const Gemm gemm{512, 256, 4096, 1, GemmRole::kWeightGradient, Dtype::kBf16, Dtype::kFp32, true,
                  false};
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, seconds(gemm, device("b200")));
  EXPECT_THAT(row.assumed, IsEmpty());
}

// Tokens M, columns out N, columns in K: the weight's gradient is (N, K), summed over M tokens, and
// the input's is (M, K), summed over N. All three do 2 ng M N K FLOPs.
TEST(Validate, TurnsTheStagesOfAGroupedProductIntoItsThreeProducts) {
  const auto row = [](const std::string& stage) {
    return row_of(R"({"kind": "gemm", "gpu": "B200", "dtype": "bf16", "op": "group_matmul",
        "achieved_tflops": 700, "params": {"ng": "8", "M": "300", "N": "3072", "K": "5120",
        "out_dtype": "bf16", "main_grad_dtype": "fp32", "accumulate": "False", "stage": ")" +
                  stage + "\"}}");
  };
  Device b200 = device("b200");
  b200.kernels.fusion.groups = false;  // TransformerEngine's
  const auto expect = [&](const std::string& stage, Gemm gemm) {
    gemm.batch = 8;
    gemm.grouped = true;
    EXPECT_DOUBLE_EQ(*row(stage).predicted_seconds, seconds(gemm, b200)) << stage;
  };
  expect("fwd", {300, 3072, 5120});
  expect("bwd_grad_act", {300, 5120, 3072, 1, GemmRole::kInputGradient});
  expect("bwd_grad_w", {3072, 5120, 300, 1, GemmRole::kWeightGradient, Dtype::kBf16, Dtype::kFp32});
  EXPECT_DOUBLE_EQ(*row("bwd_grad_w").measured_seconds, 2.0 * 8 * 300 * 3072 * 5120 / 700e12);
  EXPECT_EQ(row("fwd").variant, "group_matmul");
}

// 160 products of a microsecond or two each: the host, 9 us for each but the first, sets the pace.
TEST(Validate, TakesTheHostsPaceForProductsThatAreAKernelEach) {
  const ValidationRow row = row_of(R"({"kind": "gemm", "gpu": "B200", "dtype": "bf16",
      "op": "group_matmul", "achieved_tflops": 20, "params": {"ng": "160", "M": "64", "N": "512",
      "K": "512", "out_dtype": "bf16", "stage": "fwd"}})");
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, 159 * 9e-6);
}

// deepseek-ai/DeepGEMM README.md: one kernel for all groups, fp8 with scales in blocks.
TEST(Validate, TakesAGroupedKernelsRowAsOneProductOfAllGroups) {
  const std::string head = R"({"kind": "grouped_gemm", "gpu": "H800-80GB-SXM", "dtype": "fp8",
      "groups": 4, "m_per_group": 8192, "n": 4096, "achieved_tflops": 1297)";
  const ValidationRow row = row_of(head + R"(, "k": 7168})");
  ASSERT_TRUE(row.covered) << row.reason;
  Gemm gemm{8192, 4096, 7168, 4, GemmRole::kForward, Dtype::kFp8, Dtype::kBf16};
  gemm.block_scales = gemm.grouped = true;
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, seconds(gemm, device("h800-sxm")));
  EXPECT_NEAR(*row.predicted_seconds / *row.measured_seconds, 1, 0.1);
  EXPECT_EQ(row_of(head + "}").reason, "groups, m, n and k are not stated");
}

// FlashAttention's figures: 16k tokens and hidden 2,048, so at 4,096 and head_dim 128 it is 4
// sequences of 16 heads. FLOPs: forward 4 b h s^2 d, half of it causal; with backward 3.5 times.
TEST(Validate, FillsInWhatABarOfFlashAttentionsFiguresLeavesOut) {
  const ValidationRow row = row_of(R"({"kind": "attention", "gpu": "A100-80GB-SXM",
      "kernel": "flash2", "direction": "fwd+bwd", "causal": true, "head_dim": 128, "seq_len": 4096,
      "dtype": "fp16/bf16", "achieved_tflops": 180,
      "source": {"repo": "Dao-AILab/flash-attention"}})");
  ASSERT_TRUE(row.covered) << row.reason;
  Attention attention{Pass::kForward, 4, 16, 16, 4096, 4096, 128, true, false, Dtype::kBf16};
  const Device& a100 = device("a100-80gb");
  double predicted = seconds(attention, a100);
  attention.pass = Pass::kBackward;
  predicted += seconds(attention, a100);
  EXPECT_DOUBLE_EQ(*row.predicted_seconds, predicted);
  EXPECT_DOUBLE_EQ(*row.measured_seconds, 3.5 * 2 * 4 * 16 * 4096.0 * 4096 * 128 / 180e12);
  EXPECT_THAT(row.assumed, Contains("heads (hidden 2,048)"));
  EXPECT_THAT(row.assumed, Contains("batch (16k tokens)"));
  EXPECT_EQ(row.variant, "flash2");
  EXPECT_EQ(reason_of(R"({"kind": "attention", "gpu": "H100", "head_dim": 128, "seq_len": 4096,
                          "achieved_tflops": 180})"),
            "heads are not stated");
}

// Forward 2 b h s^2 (d_qk + d_v), backward 2.5 times, all of a causal kernel's square counted.
TEST(Validate, TakesTheFlopsAsTheSourceCountsThem) {
  const ValidationRow row = row_of(R"({"kind": "attention", "op": "sdp_bwd", "gpu": "B200",
      "dtype": "bf16", "achieved_tflops": 1500, "params": {"batch": "2", "seq_len": "4096",
      "head_num": "64", "kv_head_num": "8", "qk_head_dim": "192", "v_head_dim": "128"},
      "flops_convention": "full attention counted, causal kernel"})");
  ASSERT_TRUE(row.covered) << row.reason;
  EXPECT_DOUBLE_EQ(*row.measured_seconds, 2.5 * 2 * 2 * 64 * 4096.0 * 4096 * (192 + 128) / 1500e12);
  Attention kernel{Pass::kBackward, 2, 64, 8, 4096, 4096, 192, true, false, Dtype::kBf16};
  kernel.value_dim = 128;
  EXPECT_DOUBLE_EQ(*row.predicted_seconds,
                   seconds(kernel, device("b200")));
  EXPECT_THAT(row.assumed, ElementsAre("kernel (the device's usual one)", "causal"));
}

// busbw = S / t * 2 (n - 1) / n, so t = S * 1.75 / busbw for 8 ranks.
TEST(Validate, TurnsBusBandwidthIntoATime) {
  const ValidationRow row = row_of(R"({"kind": "collective", "collective": "all_reduce",
      "gpu": "H100-80GB-SXM", "ranks": 8, "nodes": 1, "size_bytes": 1073741824,
      "busbw_GBps": 350})");
  ASSERT_TRUE(row.covered) << row.reason;
  EXPECT_DOUBLE_EQ(*row.measured_seconds, 1073741824.0 * 1.75 / 350e9);
  const Cluster cluster = standard_cluster(device("h100-sxm"), 1, 8);
  EXPECT_EQ(Seconds(*row.predicted_seconds),
            time_collective(TransferKind::kAllReduce, gibibytes(1), 8, cluster).time);
  EXPECT_THAT(row.assumed, IsEmpty());
}

TEST(Validate, BuildsTheNetworkThatARowStates) {
  const std::string head = R"j({"kind": "collective", "gpu": "A100-80GB-SXM (p4de)",
      "collective": "alltoall (16 ranks)", "ranks": 16, "nodes": 2, "size_bytes": 1073741824,
      "time_us": 30000)j";
  const ValidationRow stated = row_of(head + R"(, "inter_node_link": "4x100 Gb/s EFA per node"})");
  ASSERT_TRUE(stated.covered) << stated.reason;
  Cluster cluster = standard_cluster(device("a100-80gb"), 2, 8);
  cluster.nics_per_node = 4;
  cluster.nic_bandwidth = gigabytes_per_second(12.5 * cluster.device.nic_efficiency);
  cluster.nic_latency = microseconds(310);  // EFA's, as configs/clusters/aws-p4de-16x8.json has it
  EXPECT_DOUBLE_EQ(
      *stated.predicted_seconds,
      time_collective(TransferKind::kAllToAll, gibibytes(1), 16, cluster).time.value);
  EXPECT_EQ(stated.gpu, "A100-80GB-SXM");
  EXPECT_THAT(stated.assumed, IsEmpty());

  const ValidationRow left_out = row_of(head + "}");
  EXPECT_LT(*left_out.predicted_seconds, *stated.predicted_seconds);  // the box has 8 x 200 Gb/s
  EXPECT_THAT(left_out.assumed, ElementsAre("inter_node_link (the standard box's)"));
}

TEST(Validate, KeepsClustersThatWereNotSetUpWellApart) {
  const ValidationRow row =
      row_of(R"j({"kind": "collective", "inter_node_link": "8x NDR400 (misconfigured)"})j");
  EXPECT_EQ(row.variant, "degraded");
}

TEST(Validate, SaysWhyARowIsNotCovered) {
  const std::string gemm = R"("kind": "gemm", "m": 8, "n": 8, "k": 8, "achieved_tflops": 1)";
  EXPECT_EQ(reason_of("{" + gemm + R"(, "gpu": "NVIDIA P100 SXM"})"),
            "no device is shipped for NVIDIA P100 SXM");
  EXPECT_EQ(reason_of("{" + gemm + "}"), "gpu is not stated");
  EXPECT_EQ(reason_of("{" + gemm + R"(, "gpu": "H100", "dtype": "nvfp4"})"),
            "dtype nvfp4 is not modelled");
  EXPECT_EQ(reason_of("{" + gemm + R"(, "gpu": "H100", "source_checked": false})"),
            "its source has not been checked");
  EXPECT_EQ(reason_of("{" + gemm + R"(, "gpu": "H100", "kind_of_row": "analytic"})"),
            "not a measurement: analytic");
  EXPECT_EQ(reason_of("{" + gemm + R"(, "gpu": "H100", "trust": 4})"), "its source is not trusted");
  EXPECT_EQ(reason_of(R"({"kind": "gemm", "m": 8, "n": 8, "k": 8, "gpu": "H100"})"),
            "neither a time nor a rate is stated");
  EXPECT_THAT(reason_of(R"({"kind": "gemm", "m": 1e12, "n": 8, "k": 8, "gpu": "H100",
                            "achieved_tflops": 1})"),
              HasSubstr("--m: must be 1 to"));
  EXPECT_THAT(reason_of(R"({"kind": "attention", "gpu": "H100", "kernel": "pytorch"})"),
              HasSubstr("not fused"));
  EXPECT_EQ(reason_of(R"({"kind": "moe_layer"})"), "kind moe_layer is not mapped");
  EXPECT_EQ(reason_of("{}"), "kind is not stated");
}

TEST(Validate, RefusesACollectiveThatItCannotPlace) {
  const auto reason = [](const std::string& rest) {
    return reason_of(R"({"kind": "collective", "gpu": "H100", "time_us": 9)" + rest + "}");
  };
  const std::string sized = R"(, "collective": "all_gather", "size_bytes": 1024)";
  EXPECT_EQ(reason(R"(, "collective": "epoch_end")"), "collective \"epoch_end\" is not modelled");
  EXPECT_EQ(reason(R"(, "collective": "all_gather", "size_bytes": 0)"),
            "size_bytes is not stated");
  EXPECT_EQ(reason(sized), "ranks are not stated");
  EXPECT_EQ(reason(sized + R"(, "ranks": 1)"), "a group of this many ranks");
  EXPECT_EQ(reason(sized + R"(, "ranks": 9, "nodes": 2)"), "ranks do not divide among the nodes");
  EXPECT_EQ(reason(sized + R"(, "ranks": 9)"), "ranks do not divide among the nodes");
  EXPECT_EQ(reason(sized + R"(, "ranks": 6)"), "");
  // An H800 on PCIe has the compute of such an H100 and less of its links.
  EXPECT_EQ(reason_of(R"({"kind": "collective", "gpu": "H800 PCIe", "time_us": 9)" + sized + "}"),
            "no device has the links of H800 PCIe");
}

TEST(Validate, KeepsWhatADoubtfulTrainingRunMeasured) {
  const ValidationRow row = row_of(R"({"id": "r", "model": {"name": "x"}, "parallel": {"tp": 8},
      "hardware": {"gpu": "H100-80GB-SXM"}, "source": {"repo": "a/b"}, "trust": 3, "group": "g",
      "measured": {"step_time_s": 8.5, "peak_memory_gib": 2}})");
  EXPECT_EQ(row.kind, "run");
  EXPECT_FALSE(row.covered);
  EXPECT_EQ(row.reason, "its source is not trusted");
  EXPECT_EQ(row.measured_seconds, 8.5);
  EXPECT_EQ(row.measured_bytes, 2.0 * (1 << 30));
  EXPECT_EQ(row.gpu, "H100-80GB-SXM");
  EXPECT_EQ(row.group, "g");
}

TEST(Validate, NamesTheSource) {
  EXPECT_EQ(row_of(R"({"source": {"repo": "a/b", "url": "https://x"}})").source, "a/b");
  EXPECT_EQ(row_of(R"({"source": {"url": "https://github.com/NVIDIA/nccl-tests/issues/290"}})")
                .source,
            "NVIDIA/nccl-tests#290");
  EXPECT_EQ(row_of(R"j({"source": {"note": "copy 7 (an example)"}})j").source, "an example");
  EXPECT_EQ(row_of(R"({"source": "a paper"})").source, "a paper");
  EXPECT_EQ(row_of("{}").source, "not stated");
}

TEST(Validate, DropsNoRowAndCountsLinesAsAPersonDoes) {
  const std::vector<ValidationRow> rows =
      validate_lines("{}\n\n{\"kind\": 3}\r\n{\"id\": \"x\", \"gpu\": []}", "f.jsonl", shipped());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].id, "f.jsonl:1");
  EXPECT_EQ(rows[1].id, "f.jsonl:3");
  EXPECT_EQ(rows[2].id, "x");
}

TEST(Validate, NamesTheLineThatIsBroken) {
  const auto trouble = [](const std::string& text) -> std::string {
    try {
      validate_lines(text, "f.jsonl", shipped());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(trouble("{}\n{\"a\": }\n"), HasSubstr("f.jsonl:2:7"));
  EXPECT_THAT(trouble("{}\n{}\n[1]\n"), HasSubstr("f.jsonl:3: a row must be a JSON object"));
  EXPECT_THAT(trouble("{}\n{\"a\": 1, \"a\": 2}\n"), HasSubstr("f.jsonl:2"));
}

TEST(Validate, WritesNullWhereThereIsNothingToSay) {
  const Json json = validation_json(validate_lines("{\"id\": \"u\"}", "f", shipped()));
  const Json& row = json.at("rows").at(0);
  for (const char* key : {"id", "source", "kind", "covered", "reason", "assumed"}) {
    EXPECT_FALSE(row.at(key).is_null()) << key;
  }
  for (const char* key : {"predicted_seconds", "measured_seconds", "relative_error",
                          "predicted_bytes", "measured_bytes", "memory_relative_error"}) {
    EXPECT_TRUE(row.at(key).is_null()) << key;
  }
  const Json& summary = json.at("summary").at(0);
  EXPECT_EQ(summary.at("count"), 0);
  for (const char* key :
       {"mean_absolute_error", "signed_bias", "within_10_percent", "kendall_tau"}) {
    EXPECT_TRUE(summary.at(key).is_null()) << key;
  }
}

TEST(Validate, PrintsGroupsWorstRowsAndReasons) {
  std::vector<ValidationRow> rows = {covered("a", 0.5, 1), covered("a", 1, 1)};
  rows[0].id = "the-worst";
  rows.push_back(validate_lines("{}", "f", shipped()).at(0));
  const std::string table = validation_table(rows);
  EXPECT_THAT(table, HasSubstr("3 rows, 2 of them covered"));
  EXPECT_THAT(table, HasSubstr("the-worst"));
  EXPECT_THAT(table, HasSubstr("-50.0"));
  EXPECT_THAT(table, HasSubstr("kind is not stated"));
}

// What profiles and frameworks say that they were fitted to. MLPerf's runs came later.
TEST(Shipped, KnowsWhichRunsItsNumbersWereFittedTo) {
  const std::set<std::string>& fitted = shipped().fitted;
  for (const char* group : {"dgxc", "vtrain-multi", "mlm2020", "mlm-ci"}) {
    EXPECT_TRUE(fitted.contains(group)) << group;
  }
  for (const char* group : {"mlperf-gpt3", "torchtitan", "mtnlg"}) {
    EXPECT_FALSE(fitted.contains(group)) << group;
  }
}

}  // namespace
}  // namespace stepcast
