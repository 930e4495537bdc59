#include "models/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "models/choices.h"
#include "sim/base/error.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 32 layers, 32 heads, 8 key-value heads, rotary.
Model llama() {
  Model m;
  m.name = "llama";
  m.layers = 32;
  m.hidden = 4096;
  m.heads = 32;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn = 14336;
  m.vocabulary = 128256;
  m.positions = 131072;
  return m;
}

Model gpt(std::int64_t layers) {
  Model m = llama();
  m.layers = layers;
  m.kv_heads = m.heads;
  m.learned_positions = true;
  m.positions = 2048;
  m.dropout = true;
  return m;
}

Plan read(const std::string& text, const Model& model = llama(), std::int64_t devices = 0) {
  const Document document = parse_json(text, "plan.json");
  return read_plan(Object(document), model, devices);
}

// {"batch": {"sequence_length": 2048, "micro": 1, "global": 64}, "parallel": {PARALLEL}}
std::string with(const std::string& parallel) {
  return R"({"batch": {"sequence_length": 2048, "micro": 1, "global": 64}, "parallel": {)" +
         parallel + "}}";
}

std::string sections(const std::string& more) {
  return R"({"batch": {"sequence_length": 2048, "global": 64}, )" + more + "}";
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const std::string& text, const Model& model = llama(),
                     std::int64_t devices = 0) {
  return error_of([&] { read(text, model, devices); });
}

// ------------------------------------------------------------------------------------- defaults

TEST(Plan, NeedsOnlyASequenceLength) {
  const Plan plan = read(R"({"batch": {"sequence_length": 4096}})");
  Plan expected;
  expected.sequence_length = 4096;
  expected.global_batch = 1;
  EXPECT_EQ(plan, expected);
  EXPECT_EQ(plan.micro_batches(), 1);
  EXPECT_THAT(error_of("{}"), HasSubstr("\"sequence_length\" is missing"));
}

// Without a mask in memory attention works on each document alone; with one, on all pairs.
TEST(Plan, PacksSequencesOfDocumentsThatFillThem) {
  const auto batch = [](const std::string& document, const std::string& more) {
    return R"({"batch": {"sequence_length": 4096, "micro": 2, "document_length": )" + document +
           "}" + more + "}";
  };
  const Plan plan = read(batch("256", ""));
  EXPECT_EQ(plan.attended(), 256);
  EXPECT_EQ(plan.documents(), 2 * 16);
  const Document written = parse_json(write_plan(plan).dump(), "written");
  EXPECT_EQ(read_plan(Object(written), llama(), 0), plan);
  EXPECT_EQ(read(batch("0", "")).documents(), 2);
  EXPECT_EQ(read(batch("4096", "")).documents(), 2);
  EXPECT_THAT(error_of(batch("300", "")),
              AllOf(HasSubstr("batch.document_length"), HasSubstr("256 or 512")));
  EXPECT_THAT(error_of(batch("8192", "")), HasSubstr("batch.document_length"));
  EXPECT_THAT(error_of(batch("256", R"(, "attention": "unfused")")), HasSubstr("\"fused\""));
}

TEST(Plan, TakesDropoutFromTheModel) {
  const std::string text = R"({"batch": {"sequence_length": 64})";
  EXPECT_TRUE(read(text + "}", gpt(32)).dropout);
  EXPECT_FALSE(read(text + R"(, "dropout": false})", gpt(32)).dropout);
  EXPECT_FALSE(read(text + "}").dropout);
  Model often = gpt(32);
  often.dropout_rate = 0.25;
  EXPECT_EQ(read(text + "}", often).dropout_rate, 0.25);
  EXPECT_EQ(read(text + R"(, "dropout_rate": 0.5})", often).dropout_rate, 0.5);
  EXPECT_THAT(error_of(text + R"(, "dropout_rate": 1})"), HasSubstr("dropout_rate"));
}

TEST(Plan, GivesOneMicroBatchToEachRankWhereNoGlobalBatchIsGiven) {
  const Plan plan = read(R"({"batch": {"sequence_length": 64, "micro": 3},
                             "parallel": {"data": 5}})");
  EXPECT_EQ(plan.global_batch, 15);
  EXPECT_EQ(plan.micro_batches(), 1);
}

TEST(Plan, MovesInEqualPiecesWhatSequenceParallelismExchanges) {
  const std::string head = R"({"batch": {"sequence_length": 64}, "parallel": {"tensor": 2, )";
  EXPECT_EQ(read(head + R"("sequence_parallel": true, "tensor_pieces": 4}})").tensor_pieces, 4);
  EXPECT_THAT(error_of(head + R"("tensor_pieces": 4}})"), HasSubstr("sequence_parallel"));
  EXPECT_THAT(error_of(head + R"("sequence_parallel": true, "tensor_pieces": 3}})"),
              HasSubstr("64 tokens"));
  EXPECT_THAT(error_of(head + R"("sequence_parallel": true, "tensor_pieces": 65}})"),
              HasSubstr("64"));
}

TEST(Plan, ReadsEverySection) {
  const Plan plan = read(R"({
      "batch": {"sequence_length": 8192, "micro": 2, "global": 2048},
      "parallel": {"tensor": 8, "sequence_parallel": true, "tensor_overlap": false, "context": 1,
                   "expert": 1, "pipeline": 4, "virtual_stages": 2, "data": 32,
                   "schedule": "interleaved", "stages": "balanced", "pipeline_overlap": false,
                   "scatter_gather": false,
                   "order": ["tensor", "pipeline", "data"]},
      "sharding": {"zero": 3, "bucket": "150 MB", "overlap": false, "prefetch": 2,
                   "all_reduce": true, "shard_group": 8, "reshard_after_forward": false},
      "recompute": "selective",
      "precision": {"compute": "fp16", "gradients": "fp16", "master": "fp32", "moments": "bf16",
                    "gradient_copy": "fp32"},
      "attention": "unfused", "softmax": "megatron",
      "dropout": true, "dropout_rate": 0.2, "clip_gradients": false,
      "deterministic": true, "filled": ["message", "product"],
      "loss": "transformer_engine", "allocator": {"blas_workspace": "32 MiB"},
      "host": {"launch": "4 us", "route_sync": true, "optimizer_sync": true},
      "buffers": {"weight_gradient_placeholders": true, "gather_buffer": true,
                  "kernel_workspace": "4 MiB"}})");
  EXPECT_TRUE(plan.optimizer_sync && plan.route_sync);
  EXPECT_FALSE(plan.p2p_sync || plan.pass_sync);
  EXPECT_EQ(plan.ranks(), 1024);
  EXPECT_EQ(plan.micro_batches(), 32);
  EXPECT_TRUE(plan.sequence_parallel);
  EXPECT_FALSE(plan.tensor_overlap || plan.pipeline_overlap || plan.scatter_gather);
  EXPECT_EQ(plan.layout, StageLayout::kBalanced);
  EXPECT_EQ(plan.zero, 3);
  EXPECT_EQ(plan.bucket, Bytes(150'000'000));
  EXPECT_EQ(plan.prefetch, 2);
  EXPECT_FALSE(plan.overlap || plan.reshard_after_forward);
  EXPECT_TRUE(plan.all_reduce);
  EXPECT_EQ(plan.recompute, Recompute::kSelective);
  EXPECT_EQ(plan.compute, Dtype::kFp16);
  EXPECT_EQ(plan.moments, Dtype::kBf16);
  EXPECT_TRUE(plan.master && plan.gradient_copy && plan.dropout);
  EXPECT_EQ(plan.dropout_rate, 0.2);
  EXPECT_FALSE(plan.fused_attention || plan.clip_gradients);
  EXPECT_EQ(plan.softmax, SoftmaxKernels::kMegatron);
  EXPECT_EQ(plan.blas_workspace, Bytes(32 << 20));
  EXPECT_TRUE(plan.weight_gradient_placeholders && plan.gather_buffer);
  EXPECT_TRUE(plan.fills(kFilledProduct) && plan.fills(kFilledMessage));
  EXPECT_FALSE(plan.fills(kFilledNorm));
  EXPECT_EQ(plan.loss, CrossEntropy::kTransformerEngine);
  EXPECT_EQ(plan.kernel_workspace, Bytes(4 << 20));
  EXPECT_THAT(plan.order, ElementsAre(Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kPipeline,
                                      Axis::kData, Axis::kReplica));
}

// One of the conditions of Megatron-LM's is_kernel_available broken at a time.
TEST(Plan, HasMegatronsFusedSoftmaxWhereItsKernelServes) {
  const auto is_fused = [](std::int64_t columns, std::int64_t sequences, Dtype dtype,
                           SoftmaxKernels softmax) {
    Plan plan;
    plan.sequence_length = columns;
    plan.tensor = 8;
    plan.micro_batch = sequences;
    plan.compute = dtype;
    plan.softmax = softmax;
    Model model;
    model.heads = 8;  // one a rank
    return softmax_is_fused(plan, model);
  };
  using enum SoftmaxKernels;
  EXPECT_TRUE(is_fused(1024, 4, Dtype::kFp16, kMegatron));
  EXPECT_FALSE(is_fused(1024, 4, Dtype::kFp32, kMegatron));
  EXPECT_FALSE(is_fused(1024, 2, Dtype::kFp16, kMegatron));
  EXPECT_FALSE(is_fused(1022, 4, Dtype::kFp16, kMegatron));
  EXPECT_TRUE(is_fused(2048, 12, Dtype::kBf16, kMegatron));
  EXPECT_FALSE(is_fused(2052, 4, Dtype::kBf16, kMegatron));
  EXPECT_TRUE(is_fused(4096, 4, Dtype::kBf16, kMegatronCore));
  EXPECT_FALSE(is_fused(4100, 4, Dtype::kBf16, kMegatronCore));
  EXPECT_FALSE(is_fused(128, 4, Dtype::kBf16, kMegatron));
  EXPECT_TRUE(is_fused(132, 4, Dtype::kBf16, kMegatron));
  EXPECT_TRUE(is_fused(20, 8, Dtype::kBf16, kMegatron));
  EXPECT_FALSE(is_fused(16, 8, Dtype::kBf16, kMegatron));
  EXPECT_TRUE(is_fused(16, 1, Dtype::kFp32, kFused));
}

TEST(Plan, ReadsBackEqualAfterWriting) {
  for (const char* more :
       {R"("dropout": false)", R"("recompute": {"every": 4})", R"("recompute": "full")",
        R"("recompute": "per_op", "fused_qkv": false, "fused_gate_up": false)",
        R"("recompute": {"layers": 3})",
        R"("recompute": {"modules": ["mlp", "norm"]}, "attention": "unfused")",
        R"("attention": "unfused", "softmax": "megatron_core")",
        R"("precision": {"compute": "fp32"}, "clip_gradients": false)",
        R"("allocator": {"blas_workspace": "32 MiB"}, "buffers": {"gather_buffer": true})",
        R"("precision": {"compute": "fp8", "scaling": "delayed", "fp8_weights": true})",
        R"("parallel": {"context": 4, "context_exchange": "all_gather"})",
        R"("parallel": {"context": 4, "context_exchange": "all_to_all"})",
        R"("parallel": {"expert_exchange": "all_gather"})",
        R"("deterministic": true)", R"("scan_layers": true)", R"("filled": [])",
        R"("filled": ["softmax", "norm"])",
        R"("precision": {"gradient_copy": "fp32", "master": "none", "moments": "fp16"})",
        R"("sharding": {"zero": 3, "bucket": "25 MiB", "shard_group": 4, "prefetch": 0},
           "parallel": {"data": 8, "order": ["data", "tensor", "pipeline"]})",
        R"("parallel": {"pipeline": 4, "virtual_stages": 2, "stages": [3,4,4,5,4,4,4,4]})",
        R"("parallel": {"pipeline": 4, "schedule": "gpipe", "stages": "balanced"},
           "host": {"pass_sync": true, "optimizer_sync": true})"}) {
    const Plan plan = read(sections(more));
    const Document document = parse_json(write_plan(plan).dump(), "written");
    EXPECT_EQ(read_plan(Object(document), gpt(32), 0), plan) << more;
  }
}

TEST(Plan, RefusesAnUnknownKeyInEverySection) {
  EXPECT_THAT(error_of(with(R"("tensr": 2)")),
              AllOf(HasSubstr("plan.json:1: parallel.tensr"), HasSubstr("\"tensor\"")));
  EXPECT_THAT(error_of(sections(R"("sharding": {"stage": 2})")), HasSubstr("sharding.stage"));
  EXPECT_THAT(error_of(sections(R"("precision": {"weights": "bf16"})")),
              HasSubstr("precision.weights"));
  EXPECT_THAT(error_of(sections(R"("recompute": {"evry": 2})")), HasSubstr("recompute.evry"));
  EXPECT_THAT(error_of(sections(R"("host": {"p2p": true})")), HasSubstr("host.p2p"));
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 8, "mirco": 1}})"),
              AllOf(HasSubstr("batch.mirco"), HasSubstr("\"micro\"")));
}

TEST(Plan, LeavesTheOtherKeysOfAWhatIfAlone) {
  EXPECT_EQ(read(sections(R"("expect": {"step_time": "<= 1 s"}, "name": "x")")).data, 1);
}

// ------------------------------------------------------------------------------------- devices

TEST(Plan, DerivesTheDataDegreeFromTheDevices) {
  EXPECT_EQ(read(R"({"batch": {"sequence_length": 64}, "parallel": {"tensor": 8, "pipeline": 4}})",
                 llama(), 1024)
                .data,
            32);
}

TEST(Plan, SaysWhichDataDegreeWouldMatchTheDevices) {
  EXPECT_THAT(
      error_of(with(R"("tensor": 8, "pipeline": 4, "data": 30)"), llama(), 1024),
      HasSubstr("parallel.data: tensor 8 x pipeline 4 x data 30 = 960 ranks, but the cluster "
                "has 1024 devices; data 32 would match"));
  EXPECT_THAT(error_of(with(R"("tensor": 8, "pipeline": 3, "data": 30)"), llama(), 1024),
              HasSubstr("no data degree would match"));
}

TEST(Plan, SaysWhichDegreeWouldDivideTheDevices) {
  EXPECT_THAT(error_of(with(R"("tensor": 8, "pipeline": 3)"), llama(), 1024),
              HasSubstr("tensor 8 x pipeline 3 = 24 ranks do not divide the 1024 devices of the "
                        "cluster; pipeline 2 or 4 would"));
  EXPECT_THAT(error_of(with(R"("tensor": 6)"), llama(), 1024), HasSubstr("tensor 4 or 8 would"));
}

TEST(Plan, RefusesExpertRanksOfADenseModel) {
  EXPECT_THAT(error_of(with(R"("expert": 8)")),
              HasSubstr("parallel.expert: the model has no experts; leave it out"));
}

// Two stretches a context rank, of which tensor ranks may have equal parts.
TEST(Plan, CutsTheSequenceInTwoStretchesAContextRank) {
  const auto sequence = [](int length, const std::string& parallel, const std::string& more = "") {
    return error_of(R"({"batch": {"sequence_length": )" + std::to_string(length) +
                    R"(}, "parallel": {)" + parallel + "}" + more + "}");
  };
  EXPECT_EQ(sequence(96, R"("context": 4)"), "no error");
  EXPECT_THAT(sequence(100, R"("context": 4)"),
              HasSubstr("batch.sequence_length: context 4 cuts the sequence into 8 stretches, but "
                        "100 is not a multiple of that; use 96 or 104"));
  EXPECT_THAT(sequence(24, R"("context": 4, "tensor": 4, "sequence_parallel": true)"),
              HasSubstr("24 is not a multiple of context 4 x tensor 4; use 16 or 32"));
  EXPECT_THAT(sequence(96, R"("context": 2)", R"(, "attention": "unfused")"),
              HasSubstr("parallel.context: unfused attention takes the scores of a whole"));
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 96, "document_length": 48},
                           "parallel": {"context": 2}})"),
              HasSubstr("batch.document_length: documents packed into a sequence"));
  EXPECT_THAT(error_of(with(R"("context_exchange": "broadcast")")),
              HasSubstr("parallel.context_exchange"));
}

TEST(Plan, CountsContextRanksAmongTheDevices) {
  const Plan plan = read(with(R"("tensor": 8, "context": 4, "pipeline": 4)"), llama(), 1024);
  EXPECT_EQ(plan.data, 8);
  EXPECT_EQ(plan.shards(), 32);
  EXPECT_EQ(plan.mesh().degree(Axis::kContext), 4);
  EXPECT_EQ(plan.mesh().degree(Axis::kData), 8);
  EXPECT_THAT(error_of(with(R"("tensor": 8, "context": 3)"), llama(), 1024),
              HasSubstr("parallel.context: tensor 8 x context 3 x pipeline 1 = 24 ranks do not "
                        "divide the 1024 devices of the cluster; context 2 or 4 would"));
}

TEST(Plan, RefusesMoreRanksThanAMeshMayHave) {
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 8},
                           "parallel": {"tensor": 1024, "data": 2048}})"),
              HasSubstr("data 2048 are more than 1048576 ranks"));
  // A product of more than 64 bits.
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 2097152},
                           "parallel": {"tensor": 65536, "context": 65536, "pipeline": 65536,
                                        "data": 65536}})"),
              HasSubstr("more than 1048576 ranks"));
}

TEST(Plan, RefusesAPartlyRecomputedLoopOverLayers) {
  const std::string text = R"({"batch": {"sequence_length": 8}, "recompute": {"layers": 1})";
  EXPECT_EQ(read(text + "}").recompute_layers, 1);
  EXPECT_THAT(error_of(text + R"(, "scan_layers": true})"), HasSubstr("layers in one loop"));
}

TEST(Plan, RefusesToDropWhatAttentionGivesAlone) {
  const std::string text = R"({"batch": {"sequence_length": 8}, "recompute": {"modules": )";
  EXPECT_THAT(error_of(text + R"(["context"]}})"), HasSubstr("only with \"attention_core\""));
  EXPECT_EQ(read(text + R"(["context", "attention_core"]}})").recompute_modules.size(), 2u);
}

// --------------------------------------------------------------------------------------- batch

TEST(Plan, NamesTheNearestGlobalBatches) {
  EXPECT_THAT(
      error_of(R"({"batch": {"sequence_length": 8, "micro": 3, "global": 100},
                           "parallel": {"data": 8}})"),
      HasSubstr("batch.global: global batch 100 is not a multiple of micro 3 x data 8 = 24; "
                "use 96 or 120"));
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 8, "micro": 3, "global": 8},
                           "parallel": {"data": 8}})"),
              HasSubstr("use 24"));
}

TEST(Plan, SplitsTheSequenceOnlyIntoEqualParts) {
  const std::string batch = R"({"batch": {"sequence_length": 1001}, "parallel": {"tensor": 8)";
  EXPECT_THAT(error_of(batch + R"(, "sequence_parallel": true}})"),
              AllOf(HasSubstr("1001"), HasSubstr("tensor 8"), HasSubstr("1000 or 1008")));
  EXPECT_EQ(read(batch + "}}").sequence_length, 1001);
}

TEST(Plan, AcceptsSequenceParallelismOfOneRank) {
  EXPECT_TRUE(read(with(R"("sequence_parallel": true)")).sequence_parallel);
}

TEST(Plan, RefusesASequenceBeyondLearnedPositionsButNotBeyondRotaryOnes) {
  const std::string text = R"({"batch": {"sequence_length": 2049}})";
  EXPECT_THAT(error_of(text, gpt(32)), AllOf(HasSubstr("2049"), HasSubstr("2048")));
  Model rotary = gpt(32);
  rotary.learned_positions = false;
  EXPECT_EQ(read(text, rotary).sequence_length, 2049);
}

TEST(Plan, RefusesWhatWouldOverflow) {
  Model experts = llama();
  experts.experts = 1 << 14;
  experts.experts_per_token = 1;
  experts.expert_ffn = 64;
  Plan plan;
  plan.sequence_length = 1 << 20;
  plan.micro_batch = 64;
  plan.expert = plan.data = 1 << 14;
  plan.global_batch = plan.micro_batch * plan.data;
  EXPECT_FALSE(trouble_with(plan, experts));
  plan.expert_exchange = ExpertExchange::kAllGather;
  EXPECT_THAT(trouble_with(plan, experts).value().what, HasSubstr("too many elements to count"));
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 16777216, "micro": 1048576}})"),
              HasSubstr("too many elements to count"));
  EXPECT_THAT(error_of(R"({"batch": {"sequence_length": 1, "global": 2147483647}})"),
              HasSubstr("too many to write down"));
}

// ------------------------------------------------------------------------------------ pipeline

TEST(Plan, InterleavesWhereThereAreVirtualStages) {
  EXPECT_EQ(read(with(R"("pipeline": 4)")).schedule, PipelineSchedule::k1f1b);
  EXPECT_EQ(read(with(R"("pipeline": 4, "virtual_stages": 2)")).schedule,
            PipelineSchedule::kInterleaved);
}

TEST(Plan, RefusesVirtualStagesWithoutAPipelineOrItsSchedule) {
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "virtual_stages": 2, "schedule": "1f1b")")),
              AllOf(HasSubstr("parallel.schedule"), HasSubstr("\"interleaved\"")));
  EXPECT_THAT(error_of(with(R"("virtual_stages": 2)")), HasSubstr("pipeline 2 or more"));
  EXPECT_THAT(error_of(with(R"("schedule": "interleaved")")), HasSubstr("pipeline 2 or more"));
  EXPECT_THAT(error_of(with(R"("schedule": "1f2b")")), HasSubstr("did you mean \"1f1b\""));
}

// NVIDIA/Megatron-LM#1304: 30 layers on 4 stages became 4 x 7 = 28 and two were lost. Here it is
// legal, and stages.h lays 8, 8, 7, 7.
TEST(Plan, RefusesAHostThatWaitsWhereMessagesAreOverlappedOrInterleaved) {
  const auto ask = [](const char* parallel, const char* host) {
    return error_of(sections(std::string(R"("parallel": {"pipeline": 4)") + parallel +
                             R"(}, "host": {)" + host + "}"));
  };
  const char* plain = R"(, "pipeline_overlap": false)";
  const char* chunks = R"(, "pipeline_overlap": false, "virtual_stages": 2)";
  EXPECT_EQ(ask(plain, R"("p2p_sync": true, "pass_sync": true)"), "no error");
  EXPECT_EQ(ask("", R"("pass_sync": true)"), "no error");
  EXPECT_THAT(ask("", R"("p2p_sync": true)"),
              AllOf(HasSubstr("host.p2p_sync"), HasSubstr("pipeline_overlap to false")));
  EXPECT_THAT(ask(chunks, R"("p2p_sync": true)"), HasSubstr("host.p2p_sync"));
  EXPECT_THAT(ask(chunks, R"("pass_sync": true)"), HasSubstr("host.pass_sync"));
  EXPECT_EQ(ask(plain, R"("launch_blocking": true)"), "no error");
  EXPECT_THAT(ask("", R"("launch_blocking": true)"),
              HasSubstr("pipeline_overlap to false, or launch_blocking to false"));
  EXPECT_THAT(ask(chunks, R"("launch_blocking": true)"), HasSubstr("host.launch_blocking"));
}

TEST(Plan, RefusesAHostThatWaitsForEveryKernelWhereKernelsAreMany) {
  const auto ask = [](const char* parallel, const Model& model) {
    return error_of([&] {
      read(R"({"batch": {"sequence_length": 2048, "global": 64}, "parallel": {)" +
               std::string(parallel) + R"(}, "host": {"launch_blocking": true}})",
           model);
    });
  };
  const char* pieces = R"("tensor": 2, "sequence_parallel": true, "tensor_pieces": 2)";
  EXPECT_EQ(ask("", llama()), "no error");
  EXPECT_THAT(ask(pieces, llama()), HasSubstr("tensor_pieces 2 to 1"));
  Model mixture = llama();
  mixture.experts = 8;
  mixture.expert_ffn = 14336;
  mixture.experts_per_token = 2;
  EXPECT_THAT(ask("", mixture), HasSubstr("kernels of experts"));
}

TEST(Plan, LaysLayersUnevenlyOnPlainStages) {
  EXPECT_EQ(read(with(R"("pipeline": 4)"), gpt(30)).pipeline, 4);
  EXPECT_EQ(read(with(R"("pipeline": 4, "schedule": "gpipe")"), gpt(30)).pipeline, 4);
}

TEST(Plan, RefusesAnUnevenInterleavedLayoutUnlessItIsAskedFor) {
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "virtual_stages": 3)")),
              AllOf(HasSubstr("32 layers"), HasSubstr("12 chunks"),
                    HasSubstr("virtual_stages 2 or 4"), HasSubstr("balanced")));
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "virtual_stages": 2)"), gpt(30)),
              HasSubstr("pipeline 3 or 5 divides them"));
  EXPECT_EQ(read(with(R"("pipeline": 4, "virtual_stages": 3, "stages": "balanced")")).layout,
            StageLayout::kBalanced);
}

TEST(Plan, RefusesMoreChunksThanLayers) {
  EXPECT_THAT(error_of(with(R"("pipeline": 5)"), gpt(4)),
              AllOf(HasSubstr("4 layers"), HasSubstr("5 chunks"), HasSubstr("at most 4")));
  // Balanced, the last stage may hold the head alone.
  EXPECT_EQ(read(with(R"("pipeline": 5, "stages": "balanced")"), gpt(4)).pipeline, 5);
  EXPECT_THAT(error_of(with(R"("pipeline": 6, "stages": "balanced")"), gpt(4)),
              HasSubstr("at most 5"));
}

TEST(Plan, TakesAListOfLayersAChunk) {
  EXPECT_THAT(read(with(R"("pipeline": 4, "stages": [7, 8, 8, 7])"), gpt(30)).stages,
              ElementsAre(7, 8, 8, 7));
  EXPECT_THAT(read(with(R"("pipeline": 4, "stages": [0, 15, 15, 0])"), gpt(30)).stages,
              ElementsAre(0, 15, 15, 0));
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "stages": [7, 7, 7, 7])"), gpt(30)),
              HasSubstr("lays 28 layers (7 + 7 + 7 + 7), but the model has 30"));
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "stages": [10, 10, 10])"), gpt(30)),
              HasSubstr("lists 3 chunks, but pipeline 4 x virtual_stages 1 = 4"));
  EXPECT_THAT(error_of(with(R"("pipeline": 4, "stages": [15, 0, 8, 7])"), gpt(30)),
              HasSubstr("chunk 1 of 4 has 0 layers"));
  EXPECT_THAT(error_of(with(R"("pipeline": 2, "stages": [31, -1])"), gpt(30)), HasSubstr("from 0"));
}

// -------------------------------------------------------------------------------------- tensor

TEST(Plan, GivesTensorRanksWholeHeads) {
  EXPECT_THAT(
      error_of(with(R"("tensor": 5)")),
      HasSubstr("parallel.tensor: 32 heads cannot be divided by tensor 5; use 1, 2, 4 or 8"));
  EXPECT_THAT(error_of(with(R"("tensor": 16)")),
              HasSubstr("8 key-value heads cannot be divided by tensor 16; use 1, 2, 4 or 8"));
  Model odd = llama();
  odd.ffn = 14338;
  EXPECT_THAT(error_of(with(R"("tensor": 4)"), odd),
              HasSubstr("14338 columns of the FFN cannot be divided by tensor 4; use 1 or 2"));
}

TEST(Plan, PadsTheVocabularyToAMultipleOfTensor) {
  Model m = llama();
  m.vocabulary = 50257;
  EXPECT_EQ(padded_vocabulary(m, read(with(R"("tensor": 8)"))), 50264);
  EXPECT_EQ(padded_vocabulary(m, read(with(R"("tensor": 1)"))), 50257);
}

// ------------------------------------------------------------------------------------ sharding

TEST(Plan, LaysShardsAndReplicasOnAxesOfTheirOwn) {
  const Plan plan = read(R"({"batch": {"sequence_length": 64}, "parallel": {"tensor": 2, "data": 8},
                             "sharding": {"zero": 3, "shard_group": 4}})");
  const Mesh mesh = plan.mesh();
  EXPECT_EQ(mesh.degree(Axis::kData), 4);
  EXPECT_EQ(mesh.degree(Axis::kReplica), 2);
  EXPECT_EQ(mesh.ranks(), 16);
  EXPECT_EQ(mesh.order, Mesh{}.order);
}

TEST(Plan, KeepsAllOfDataInOneShardGroupByDefault) {
  const Mesh mesh = read(with(R"("data": 8)")).mesh();
  EXPECT_EQ(mesh.degree(Axis::kData), 8);
  EXPECT_EQ(mesh.degree(Axis::kReplica), 1);
}

TEST(Plan, RefusesShardGroupsThatDoNotDivideData) {
  EXPECT_THAT(error_of(sections(R"("parallel": {"data": 16},
                                   "sharding": {"zero": 3, "shard_group": 6})")),
              AllOf(HasSubstr("data 16"), HasSubstr("shard_group 6"), HasSubstr("use 4 or 8")));
  EXPECT_THAT(error_of(sections(R"("parallel": {"data": 16}, "sharding": {"shard_group": 8})")),
              HasSubstr("shards nothing under zero 0"));
  EXPECT_THAT(error_of(sections(R"("sharding": {"zero": 4})")), HasSubstr("from 0 to 3"));
  EXPECT_THAT(error_of(sections(R"("sharding": {"bucket": "0 B"})")), HasSubstr("at least one"));
}

TEST(Plan, AllowsZero3WithAPipeline) {
  EXPECT_EQ(
      read(sections(R"("parallel": {"pipeline": 4, "data": 4}, "sharding": {"zero": 3})")).zero, 3);
}

// --------------------------------------------------------------------------------------- order

TEST(Plan, PutsReplicasOutsideOfTheirShards) {
  const Plan plan = read(with(R"("order": ["pipeline", "data", "tensor"])"));
  EXPECT_THAT(plan.order, ElementsAre(Axis::kPipeline, Axis::kData, Axis::kReplica, Axis::kTensor,
                                      Axis::kContext, Axis::kExpert));
  EXPECT_EQ(plan.mesh().order[0], Axis::kPipeline);
}

TEST(Plan, RefusesAnOrderThatIsNotOneOfTheAxes) {
  EXPECT_THAT(error_of(with(R"("order": ["tensor", "data"])")),
              HasSubstr("leaves out \"pipeline\""));
  EXPECT_THAT(error_of(with(R"("order": ["tensor", "data", "data", "pipeline"])")),
              HasSubstr("\"data\" twice"));
  EXPECT_THAT(error_of(with(R"("order": ["tensor", "dota", "pipeline"])")),
              HasSubstr("did you mean \"data\""));
}

// ------------------------------------------------------------------------ recompute, precision

TEST(Plan, ReadsRecomputeAsAWordOrAnObject) {
  EXPECT_EQ(read(sections(R"("recompute": "full")")).recompute_every, 1);
  const Plan every = read(sections(R"("recompute": {"every": 4})"));
  EXPECT_EQ(every.recompute, Recompute::kFull);
  EXPECT_EQ(every.recompute_every, 4);
  const Plan first = read(sections(R"("recompute": {"layers": 5})"));
  EXPECT_EQ(first.recompute, Recompute::kFull);
  EXPECT_EQ(first.recompute_every, 1);
  EXPECT_EQ(first.recompute_layers, 5);
  const Plan modules = read(sections(R"("recompute": {"modules": ["norm", "mlp"]})"));
  EXPECT_EQ(modules.recompute, Recompute::kModules);
  EXPECT_THAT(modules.recompute_modules, ElementsAre("norm", "mlp"));
}

TEST(Plan, RefusesRecomputeThatSaysNothingOrTooMuch) {
  EXPECT_THAT(error_of(sections(R"("recompute": "selectiv")")), HasSubstr("\"selective\""));
  EXPECT_THAT(error_of(sections(R"("recompute": {})")), HasSubstr("either \"every\""));
  EXPECT_THAT(error_of(sections(R"("recompute": {"every": 2, "modules": ["mlp"]})")),
              HasSubstr("either \"every\""));
  EXPECT_THAT(error_of(sections(R"("recompute": {"every": 2, "layers": 2})")),
              HasSubstr("either \"every\""));
  EXPECT_THAT(error_of(sections(R"("recompute": {"layers": 0})")),
              HasSubstr("recompute.layers"));
  EXPECT_THAT(error_of(sections(R"("recompute": {"modules": []})")), HasSubstr("names none"));
  EXPECT_THAT(error_of(sections(R"("recompute": {"modules": ["atention"]})")),
              HasSubstr("did you mean \"attention\""));
}

TEST(Plan, FollowsTheComputeTypeInItsOtherTypes) {
  const Plan plain = read(sections(R"("precision": {})"));
  EXPECT_EQ(plain.gradients, Dtype::kBf16);
  EXPECT_EQ(plain.moments, Dtype::kFp32);
  EXPECT_TRUE(plain.master);
  EXPECT_FALSE(plain.gradient_copy);
  const Plan whole = read(sections(R"("precision": {"compute": "fp32"})"));
  EXPECT_EQ(whole.gradients, Dtype::kFp32);
  EXPECT_FALSE(whole.master);
  // fp32 weights are their own master, whatever a file made for bf16 asks for.
  EXPECT_FALSE(read(sections(R"("precision": {"compute": "fp32", "master": "fp32"})")).master);
  EXPECT_THAT(error_of(sections(R"("precision": {"compute": "fp4"})")), HasSubstr("\"fp8\""));
}

TEST(Plan, ReadsEightBitProductsAmongBf16Values) {
  const Plan plain = read(sections(R"("precision": {"compute": "fp8"})"));
  EXPECT_EQ(plain.compute, Dtype::kBf16);
  EXPECT_EQ(plain.gradients, Dtype::kBf16);
  EXPECT_EQ(plain.product(), Dtype::kFp8);
  EXPECT_EQ(plain.eight_bit, (EightBit{Scaling::kTensor, true, false}));
  const Plan all = read(sections(R"("precision": {"compute": "fp8", "scaling": "delayed",
      "fp8_transposes": false, "fp8_weights": true, "gradients": "fp32"})"));
  EXPECT_EQ(all.eight_bit, (EightBit{Scaling::kDelayed, false, true}));
  EXPECT_EQ(all.gradients, Dtype::kFp32);
  EXPECT_THAT(error_of(sections(R"("precision": {"scaling": "mx"})")),
              AllOf(HasSubstr("precision.scaling"), HasSubstr("\"fp8\"")));
  EXPECT_THAT(error_of(sections(R"("precision": {"compute": "fp8", "scaling": "none"})")),
              HasSubstr("delayed, tensor, block, mx"));
  EXPECT_THAT(error_of(sections(R"("precision": {"fp8_weights": true})")),
              HasSubstr("precision.fp8_weights"));
}

// -------------------------------------------------------------------------------------- checks

TEST(CheckPlan, NamesTheKeyOfAPlanThatNoFileHolds) {
  Plan plan;
  plan.sequence_length = 2048;
  plan.global_batch = 8;
  EXPECT_NO_THROW(check_plan(plan, llama()));
  EXPECT_FALSE(trouble_with(plan, llama()).has_value());
  plan.tensor = 3;
  EXPECT_FALSE(trouble_alone(plan).has_value());
  EXPECT_EQ(trouble_with(plan, llama())->key, "tensor");
  EXPECT_THAT(error_of([&] { check_plan(plan, llama()); }), HasSubstr("plan: parallel.tensor"));
  plan.data = 3;
  EXPECT_EQ(trouble_alone(plan)->key, "global");
  plan.data = 0;
  EXPECT_EQ(trouble_alone(plan)->key, "data");
}

TEST(Choices, NameTheNearestLegalNumbers) {
  EXPECT_EQ(nearest_multiples(100, 24), "96 or 120");
  EXPECT_EQ(nearest_multiples(5, 24), "24");
  EXPECT_EQ(nearest_divisors(3, 1024), "2 or 4");
  EXPECT_EQ(nearest_divisors(2000, 1024), "1024");
  EXPECT_EQ(divisors_text(1), "1");
  EXPECT_EQ(divisors_text(8), "1, 2, 4 or 8");
  EXPECT_THAT(divisors_text(5040), AllOf(HasSubstr("1, 2, 3, 4"), HasSubstr("or 5040")));
}

}  // namespace
}  // namespace stepcast
