#include "tools/validate/question.h"

#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tests/support/run_rows.h"
#include "tests/support/shipped.h"
#include "tools/validate/device.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(RunQuestion, WritesWhatIsStatedAndAssumesNothing) {
  const RunQuestion question = ask(whole_row());
  EXPECT_THAT(question.assumed, Not(Contains(HasSubstr("style"))));
  EXPECT_EQ(question.what_if.at("model"), "llama3-8b");  // the preset of that name and shape
  const WhatIf what_if = read(question);
  EXPECT_EQ(what_if.model.layers, 32);
  EXPECT_EQ(what_if.cluster.devices(), 16);
  EXPECT_EQ(what_if.cluster.device.name, "h100-sxm");
  const Plan& plan = what_if.plan;
  EXPECT_EQ(plan.tensor, 4);
  EXPECT_TRUE(plan.sequence_parallel);
  EXPECT_EQ(plan.pipeline, 2);
  EXPECT_EQ(plan.data, 2);
  EXPECT_EQ(plan.zero, 1);
  EXPECT_FALSE(plan.overlap);
  EXPECT_EQ(plan.micro_batches(), 16);
  EXPECT_EQ(plan.recompute, Recompute::kSelective);
  EXPECT_EQ(plan.compute, Dtype::kBf16);
  EXPECT_EQ(plan.gradients, Dtype::kFp32);
  EXPECT_TRUE(plan.fused_attention);
  EXPECT_THAT(question.assumed, ::testing::ElementsAre("framework (torchtitan)", "dropout (no)",
                                                       "pipeline_overlap (yes)"));
}

TEST(RunQuestion, WritesTheModelOutWhereThePresetHasAnotherShape) {
  const RunQuestion question = ask(with("model.layers", "16"));
  ASSERT_TRUE(question.what_if.at("model").is_object());
  const Model model = read(question).model;
  EXPECT_EQ(model.layers, 16);
  EXPECT_EQ(model.activation, Activation::kSwiglu);
  EXPECT_THAT(question.assumed, Contains("style (Llama)"));
}

TEST(RunQuestion, FillsInWhatAGptLeavesOut) {
  Json row = whole_row();
  row["model"] = {{"name", "gpt"}, {"layers", 24}, {"hidden", 2048}, {"seq_len", 1024}};
  row["software"] = {{"framework", "Megatron-LM"}};
  row.erase("recompute");
  const RunQuestion question = ask(row);
  const Model model = read(question).model;
  EXPECT_EQ(model.heads, 16);  // of 128
  EXPECT_EQ(model.kv_heads, 16);
  EXPECT_EQ(model.ffn, 8192);
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_TRUE(model.learned_positions);
  EXPECT_TRUE(model.dropout);
  const Plan plan = read(question).plan;
  // 50,257 up to a multiple of 128 x 4.
  EXPECT_EQ(padded_vocabulary(model, plan), 50688);
  EXPECT_EQ(plan.recompute, Recompute::kNone);
  EXPECT_FALSE(plan.overlap);
  EXPECT_FALSE(plan.pipeline_overlap);
  for (const char* what :
       {"heads (16, of 128)", "kv_heads (16)", "ffn_hidden (8192)", "gated_mlp (no)",
        "vocab (50257, GPT-2's)", "tied_embeddings (yes)", "framework (megatron-core)",
        "vocabulary (padded to 128 x tensor)", "style (GPT)", "dropout (yes)", "precision (bf16)",
        "gradients (fp32)", "recompute (none)", "attention (fused)", "pipeline_overlap (no)"}) {
    EXPECT_THAT(question.assumed, Contains(what));
  }
}

// 128,256 = 128 x 1,002 is a multiple of 256, not of 512; another framework does not pad at all.
TEST(RunQuestion, PadsTheVocabularyAsMegatronDoes) {
  const auto rows_of = [](const Json& row) {
    const WhatIf what_if = read(ask(row));
    return padded_vocabulary(what_if.model, what_if.plan);
  };
  EXPECT_EQ(rows_of(whole_row()), 128256);
  Json row = with("software.framework", "NeMo/Megatron-Core");
  EXPECT_EQ(rows_of(row), 128512);
  EXPECT_THAT(ask(row).assumed, Contains("vocabulary (padded to 128 x tensor)"));
  row["software"]["extra"]["flags"]["make-vocab-size-divisible-by"] = 64;
  EXPECT_EQ(rows_of(row), 128256);
  EXPECT_THAT(ask(row).assumed, Not(Contains(HasSubstr("padded"))));
}

// megatron/training.py, v2.4: PyTorch's DistributedDataParallel reduces beside backward, Megatron's
// own after the last micro-batch.
TEST(RunQuestion, OverlapsTheGradientsWherePyTorchReducedThem) {
  Json row = with("software.framework", "Megatron-LM 2021");
  row["software"]["extra"].erase("overlap");
  EXPECT_FALSE(read(ask(row)).plan.overlap);
  row["software"]["extra"]["flags"]["DDP-impl"] = "torch";
  EXPECT_TRUE(read(ask(row)).plan.overlap);
  row["software"]["extra"]["flags"]["DDP-impl"] = "local";
  EXPECT_FALSE(read(ask(row)).plan.overlap);
}

// NeMo's recipes move tensor exchanges in pieces, Megatron-LM where it is asked to.
TEST(RunQuestion, MovesTensorExchangesInPiecesWhereTheRunOrItsFrameworkDoes) {
  Json row = with("software.framework", "Megatron-LM");
  const auto pieces = [&] { return read(ask(row)).plan.tensor_pieces; };
  EXPECT_EQ(pieces(), 1);
  row["software"]["extra"]["flags"] = {{"tp-comm-overlap", true}};
  EXPECT_EQ(pieces(), 4);
  row["software"]["framework"] = "NeMo";
  row["software"]["extra"]["flags"] = {{"tp-comm-overlap", false}};
  EXPECT_EQ(pieces(), 1);
  row["software"]["extra"].erase("flags");
  EXPECT_EQ(pieces(), 4);
  row["software"]["extra"]["overlap"] = "no TP overlap";
  EXPECT_EQ(pieces(), 1);
  EXPECT_FALSE(read(ask(row)).plan.tensor_overlap);
}

// The paper of April 2021 is arXiv 2104.04473, that of May 2022 2205.05198.
TEST(RunQuestion, TakesTheFrameworkAsItWasInTheRowsMonth) {
  Json row = with("software.framework", "Megatron-LM");
  const auto framework = [&] { return ask(row).what_if.at("framework"); };
  EXPECT_EQ(framework(), "megatron-core");
  row["source"]["url"] = "https://arxiv.org/abs/2104.04473 (Table 1)";
  EXPECT_EQ(month_of(row), "2021-04");
  EXPECT_EQ(framework(), "megatron-lm-2021");
  EXPECT_FALSE(read(ask(row)).plan.tensor_overlap);
  row["source"]["url"] = "https://arxiv.org/abs/2205.05198";
  EXPECT_EQ(framework(), "megatron-lm-2022");
  EXPECT_TRUE(read(ask(row)).plan.tensor_overlap);
  row["software"]["framework"] = "Megatron-LM 2020";
  EXPECT_EQ(month_of(row), "2020-06");
  row["software"]["framework"] = "Megatron-Bridge NeMo 26.04.01 container";
  EXPECT_EQ(month_of(row), "2026-04");
  row["software"]["framework"] = "a framework that nobody knows";
  EXPECT_FALSE(ask(row).what_if.contains("framework"));
}

// What was not stated was tuned: 32 / 2 sequences a rank allow micro-batches of 2, 4, 8 and 16; 32
// layers on 2 stages allow 2, 4, 8 and 16 chunks, of which 2 is the first guess.
TEST(RunQuestion, ListsTheChoicesThatTheRowLeaves) {
  EXPECT_TRUE(ask(whole_row()).others.empty());
  Json row = whole_row();
  row["parallel"].erase("micro_batch");
  row["parallel"].erase("grad_accumulation");
  std::vector<std::int64_t> micros;
  for (const Json& other : ask(row).others) micros.push_back(other.at("batch").at("micro"));
  EXPECT_THAT(micros, ::testing::ElementsAre(2, 4, 8, 16));
  row = with("parallel.schedule", "interleaved");
  std::vector<std::int64_t> chunks;
  for (const Json& other : ask(row).others) {
    chunks.push_back(other.at("parallel").at("virtual_stages"));
  }
  EXPECT_THAT(chunks, ::testing::ElementsAre(4, 8, 16));
}

TEST(RunQuestion, DerivesTheDegreeThatIsLeftOut) {
  EXPECT_EQ(read(ask(without("parallel", "dp"))).plan.data, 2);
  const RunQuestion tensor = ask(without("parallel", "tp"));
  EXPECT_EQ(read(tensor).plan.tensor, 4);
  EXPECT_THAT(tensor.assumed, Contains("tp (4)"));
  const RunQuestion gpus = ask(without("hardware", "gpus_total"));
  EXPECT_EQ(read(gpus).cluster.devices(), 16);
  EXPECT_THAT(gpus.assumed, Contains("gpus_total (16)"));
  EXPECT_EQ(read(ask(without("parallel", "micro_batch"))).plan.micro_batch, 1);
  EXPECT_EQ(read(ask(without("parallel", "global_batch"))).plan.global_batch, 32);
}

// 32 MiB from Hopper on, 4 MiB before.
TEST(RunQuestion, KeepsWhatMegatronAndTransformerEngineKeep) {
  const auto plan = [](const Json& row) { return read(ask(row)).plan; };
  const auto flag = [&](const std::string& name, const std::string& value) {
    Json row = with("software.extra.flags." + name, value);
    row["software"]["framework"] = "Megatron-LM";
    return plan(row);
  };
  Json row = whole_row();
  row["software"]["framework"] = "Megatron-LM";
  const Plan engine = plan(row);
  EXPECT_TRUE(engine.weight_gradient_placeholders && engine.gather_buffer);
  EXPECT_EQ(engine.kernel_workspace, Bytes(32 << 20));
  EXPECT_EQ(engine.loss, CrossEntropy::kMegatron);
  EXPECT_EQ(engine.blas_workspace, std::nullopt);
  row["hardware"]["gpu"] = "A100-80GB-SXM";
  EXPECT_EQ(plan(row).kernel_workspace, Bytes(4 << 20));
  row["software"]["framework"] = "torchtitan";
  EXPECT_FALSE(plan(row).gather_buffer || plan(row).weight_gradient_placeholders);
  EXPECT_FALSE(flag("no-gradient-accumulation-fusion", "true").weight_gradient_placeholders);
  EXPECT_EQ(flag("transformer-impl", "local").kernel_workspace, Bytes(0));
  EXPECT_TRUE(flag("transformer-impl", "local").score_buffer && !engine.score_buffer);
  EXPECT_EQ(engine.deferred_head, 0);
  EXPECT_EQ(flag("defer-embedding-wgrad-compute", "true").deferred_head, INT32_MAX);
  const Plan again = flag("deterministic-mode", "true");
  EXPECT_EQ(again.blas_workspace, Bytes(32 << 20));
  EXPECT_TRUE(again.fills(kFilledProduct) && again.fills(kFilledSoftmax));
  EXPECT_FALSE(engine.deterministic);
  row = with("software.extra.flags.deterministic-mode", "true");
  row["software"]["framework"] = "Megatron-LM";
  row["software"]["attention_impl"] = "flash/transformer_engine";
  const auto kernel = [](const Json& of) { return read(ask(of)).resolved.at("attention_kernel"); };
  EXPECT_EQ(kernel(row), "cudnn");
  row["hardware"]["gpu"] = "GB200";
  row["model"]["gated_mlp"] = false;
  EXPECT_EQ(kernel(row), "flash2");  // cuDNN's has no deterministic backward with dropout there
  row["model"]["extra"]["dropout"] = false;
  EXPECT_EQ(kernel(row), "cudnn");
  row["software"]["extra"]["flags"]["transformer-impl"] = "local";
  EXPECT_FALSE(plan(row).fills(kFilledProduct));  // of torch.matmul
  EXPECT_TRUE(plan(row).fills(kFilledSoftmax) && plan(row).fills(kFilledMessage));
  EXPECT_EQ(flag("cross-entropy-loss-fusion", "true").loss, CrossEntropy::kMegatronFused);
  row = with("software.extra.flags.cross-entropy-loss-fusion", "true");
  row["software"]["framework"] = "Megatron-LM";
  row["software"]["extra"]["flags"]["cross-entropy-fusion-impl"] = "te";
  EXPECT_EQ(plan(row).loss, CrossEntropy::kTransformerEngine);
}

TEST(RunQuestion, PacksSequencesOfDocuments) {
  EXPECT_EQ(read(ask(with("model.extra.document_length", "256"))).plan.documents(), 8192 / 256);
  EXPECT_FALSE(ask(whole_row()).what_if.at("batch").contains("document_length"));
  EXPECT_TRUE(read(ask(with("model.extra.dropout", "true"))).plan.dropout);
}

TEST(RunQuestion, TakesLaunchesFromTheHostWhereLayersAreCudaGraphs) {
  Json row = with("software.extra.recipe.cuda_graph_impl", "\"local\"");
  EXPECT_EQ(read(ask(row)).cluster.device.launch, Seconds(0));
  row["software"]["extra"]["recipe"]["cuda_graph_impl"] = "none";
  EXPECT_GT(read(ask(row)).cluster.device.launch, Seconds(0));
}

// CUDA_LAUNCH_BLOCKING=1.
TEST(RunQuestion, LetsTheHostWaitForEveryKernelWhereTheRunDid) {
  EXPECT_FALSE(read(ask(whole_row())).plan.launch_blocking);
  const Json row = with("software.extra.launch_blocking", "true");
  EXPECT_TRUE(read(ask(row)).plan.launch_blocking);
}

// NeMo by the month of its release, and Megatron-Bridge, whose name is the longer one.
TEST(RunQuestion, TakesARecipesFrameworkByItsRelease) {
  Json row = whole_row();
  row["software"]["precision"] = "fp8";
  row["software"]["attention_impl"] = nullptr;
  row["software"]["framework"] = "NeMo/Megatron-Core";
  row["software"]["extra"]["release"] = "24.05";
  const WhatIf launcher = read(ask(row));
  EXPECT_EQ(launcher.resolved.at("framework"), "nemo-launcher");
  EXPECT_EQ(launcher.resolved.at("attention_kernel"), "flash2");
  EXPECT_FALSE(launcher.plan.eight_bit.weights);
  row["software"]["extra"]["release"] = "24.09";
  const WhatIf recipe = read(ask(row));
  EXPECT_EQ(recipe.resolved.at("framework"), "nemo");
  EXPECT_TRUE(recipe.plan.eight_bit.weights);
  EXPECT_EQ(recipe.plan.gradients, Dtype::kBf16);
  row["software"]["framework"] = "Megatron-Bridge NeMo 25.11 container";
  EXPECT_EQ(read(ask(row)).plan.loss, CrossEntropy::kTransformerEngine);
}

TEST(RunQuestion, ReadsTheWordsForRecomputation) {
  const auto recompute = [](const std::string& text) {
    return ask(with("recompute", "\"" + text + "\"")).what_if.at("recompute");
  };
  EXPECT_EQ(recompute("none (preset sets none)"), "none");
  EXPECT_EQ(recompute("full"), "full");
  EXPECT_EQ(recompute("full:uniform:1"), "full");
  EXPECT_EQ(recompute("full:uniform:4"), Json({{"every", 4}}));
  EXPECT_EQ(recompute("selective (core_attn)"), "selective");
  EXPECT_EQ(recompute("per-op:layernorm,mlp"), Json({{"modules", {"norm", "mlp"}}}));
  EXPECT_EQ(recompute("selective:[layernorm norm]"), Json({{"modules", {"norm"}}}));
  EXPECT_THAT(row_refusal(with("recompute", "\"per-op:shared_experts\"")),
              HasSubstr("module shared_experts"));
  EXPECT_EQ(recompute("full:block:2"), Json({{"layers", 2}}));
  EXPECT_EQ(recompute("per-op:up,projection"), Json({{"modules", {"up", "projection"}}}));
  EXPECT_EQ(recompute("per-op:qkv"), Json({{"modules", {"qkv"}}}));
  EXPECT_EQ(recompute("selective:op"), "per_op");
  Json recipe = with("software.extra.recipe.recompute_num_layers", "5");
  recipe["recompute"] = "full";
  EXPECT_EQ(ask(recipe).what_if.at("recompute"), Json({{"layers", 5}}));
  EXPECT_THAT(row_refusal(with("recompute", "\"full:block:x\"")), HasSubstr("full:block:x"));
  EXPECT_THAT(row_refusal(with("recompute", "\"sometimes\"")), HasSubstr("sometimes"));
  EXPECT_THAT(row_refusal(with("recompute", "7")), HasSubstr("must be text"));
}

// PyTorch's attention on Hopper was FlashAttention-2 until torchtitan put cuDNN first.
TEST(RunQuestion, TakesTheAttentionThatTorchtitanHadInTheRowsMonth) {
  Json row = with("hardware.gpu", "\"H100-80GB-SXM\"");
  row["software"]["framework"] = "torchtitan";
  row["software"]["extra"]["release"] = "2025-06";
  EXPECT_EQ(read(ask(row)).resolved.at("framework"), "torchtitan-2025");
  EXPECT_EQ(read(ask(row)).resolved.at("attention_kernel"), "flash2");
  row["software"]["extra"]["release"] = "2026-01";
  EXPECT_EQ(read(ask(row)).resolved.at("framework"), "torchtitan");
  EXPECT_EQ(read(ask(row)).resolved.at("attention_kernel"), nullptr);
}

TEST(RunQuestion, KnowsTheH100OfGrandTetonByItsMemory) {
  const Json row = with("hardware.gpu", "\"H100-96GB-SXM\"");
  EXPECT_EQ(read(ask(row)).cluster.device.name, "meta-h100-500w");
}

TEST(RunQuestion, ReadsSchedulesAndVirtualStages) {
  Json row = with("parallel.virtual_pp", "4");
  row["parallel"]["schedule"] = "interleaved-1f1b";
  EXPECT_EQ(read(ask(row)).plan.virtual_stages, 4);
  EXPECT_EQ(read(ask(row)).plan.schedule, PipelineSchedule::kInterleaved);
  row["parallel"].erase("virtual_pp");
  EXPECT_EQ(read(ask(row)).plan.virtual_stages, 2);
  EXPECT_THAT(ask(row).assumed, Contains("virtual_pp (2)"));
  EXPECT_THAT(row_refusal(with("parallel.schedule", "zbv")), HasSubstr("zbv is not built"));
  // 29 layers do not fill 2 x 4 chunks evenly; 33 on two stages are 17 and 16. 30 do with embedding
  // and loss, one layer each.
  row["parallel"]["virtual_pp"] = 4;
  row["model"]["layers"] = 29;
  EXPECT_THAT(ask(row).assumed, Contains("stages (balanced)"));
  row["model"]["layers"] = 30;
  EXPECT_THAT(ask(row).assumed, Contains("stages (embedding and loss count as layers)"));
  EXPECT_THAT(read(ask(row)).plan.stages, ::testing::ElementsAre(3, 4, 4, 4, 4, 4, 4, 3));
  EXPECT_THAT(ask(with("model.layers", "33")).assumed, Contains("stages (even)"));
}

// Embedding and loss count as a layer each (Megatron-LM's flags): (30 + 2) / 2 = 16 a stage; with
// two virtual stages (30 + 2) / 4 = 8 a chunk.
TEST(RunQuestion, GivesTheEndsOfThePipelineWhatTheyAreStatedToHave) {
  Json row = with("model.layers", "30");
  row["software"]["extra"]["flags"] = {{"account-for-embedding-in-pipeline-split", true},
                                       {"account-for-loss-in-pipeline-split", true}};
  EXPECT_THAT(read(ask(row)).plan.stages, ::testing::ElementsAre(15, 15));
  row["parallel"]["virtual_pp"] = 2;
  row["parallel"]["schedule"] = "interleaved-1f1b";
  EXPECT_THAT(read(ask(row)).plan.stages, ::testing::ElementsAre(7, 8, 8, 7));
  row["model"]["layers"] = 28;
  EXPECT_THAT(row_refusal(row), HasSubstr("uneven"));
  row = with("model.layers", "30");
  row["software"]["extra"]["flags"] = {{"decoder-first-pipeline-num-layers", 12}};
  EXPECT_THAT(row_refusal(row), HasSubstr("uneven"));
  row["software"]["extra"]["flags"]["decoder-last-pipeline-num-layers"] = 18;
  EXPECT_THAT(read(ask(row)).plan.stages, ::testing::ElementsAre(12, 18));
}

TEST(RunQuestion, ReadsHowDataParallelRanksShard) {
  Json row = with("parallel.zero_stage", "3");
  row["parallel"]["dp"] = 4;
  row["parallel"]["pp"] = 1;
  const auto sharding = [&](const std::string& mode) {
    row["parallel"]["fsdp_mode"] = mode;
    return read(ask(row)).plan;
  };
  EXPECT_EQ(sharding("FULL_SHARD").shard_group, 0);
  EXPECT_EQ(sharding("FSDP2 shard=2").shard_group, 2);
  EXPECT_EQ(sharding("FSDP=4 x DP=1").shard_group, 0);  // all of data
  row["parallel"]["zero_stage"] = 2;
  EXPECT_FALSE(sharding("SHARD_GRAD_OP").reshard_after_forward);
  EXPECT_EQ(sharding("SHARD_GRAD_OP").zero, 3);
  EXPECT_EQ(read(ask(with("parallel.zero_stage", "0"))).plan.zero, 0);
  EXPECT_THAT(row_refusal(with("parallel.zero_stage", "two")), HasSubstr("parallel.zero_stage"));
}

TEST(RunQuestion, TakesTheScalingOf8BitProductsFromTheirName) {
  const auto scaling = [](const std::string& precision, const std::string& framework) {
    Json row = with("software.precision", precision);
    row["software"]["framework"] = framework;
    return ask(row).what_if.at("precision").at("scaling").get<std::string>();
  };
  EXPECT_EQ(scaling("MXFP8", "Megatron-Bridge"), "mx");
  EXPECT_EQ(scaling("FP8-CS", "NeMo"), "tensor");
  EXPECT_EQ(scaling("fp8-hybrid/blockwise + bf16", "Megatron-LM"), "block");
  EXPECT_EQ(scaling("FP8", "NeMo"), "delayed");
  EXPECT_EQ(scaling("FP8", "Megatron-Bridge 26.02"), "tensor");
  const RunQuestion question = ask(with("software.precision", "FP8"));
  EXPECT_THAT(question.assumed, Contains("scaling (delayed)"));
  const WhatIf what_if = read(question);
  EXPECT_EQ(what_if.plan.product(), Dtype::kFp8);
  EXPECT_TRUE(what_if.plan.eight_bit.transposes);  // an H100
}

// Trays of 4 in racks of 72: what fits in a rack is one box, 256 devices are four of 64.
TEST(RunQuestion, TakesARackOfTraysForOneBox) {
  Json row = with("hardware.gpu", "GB200");
  row["hardware"]["gpus_per_node"] = 4;
  WhatIf what_if = read(ask(row));
  EXPECT_EQ(what_if.cluster.nodes, 1);
  EXPECT_EQ(what_if.cluster.devices_per_node, 16);
  row["hardware"]["gpus_total"] = 256;
  row["parallel"]["dp"] = 32;
  row["parallel"]["grad_accumulation"] = 1;
  const RunQuestion question = ask(row);
  EXPECT_THAT(question.assumed, Contains("NVLink domain (of 64 devices)"));
  what_if = read(question);
  EXPECT_EQ(what_if.cluster.nodes, 4);
  EXPECT_EQ(what_if.cluster.devices_per_node, 64);
}

TEST(RunQuestion, SaysWhatItDoesNotCover) {
  Json by_heads = with("parallel.cp", "2");
  by_heads["parallel"]["dp"] = 1;
  EXPECT_EQ(row_refusal(by_heads), "");
  const auto gathers = ContextExchange::kAllGather;  // as the row's framework does
  EXPECT_EQ(read(ask(by_heads)).plan.context_exchange, gathers);
  by_heads["parallel"]["extra"]["cp_comm_type"] = "a2a";
  EXPECT_EQ(read(ask(by_heads)).plan.context_exchange, ContextExchange::kAllToAll);
  by_heads["parallel"]["extra"]["cp_comm_type"] = "a2a+p2p";
  EXPECT_THAT(row_refusal(by_heads), HasSubstr("all-to-alls within a ring"));
  EXPECT_THAT(row_refusal(with("parallel.ep", "8")), HasSubstr("the model has no experts"));
  EXPECT_THAT(row_refusal(with("model.name", "x-moe-8x7b")), HasSubstr("model.experts"));
  EXPECT_THAT(row_refusal(with("model.name", "gpt-oss-20b")), HasSubstr("model.experts"));
  EXPECT_THAT(row_refusal(with("model.extra.attention", "a window somewhere")),
              HasSubstr("of this form"));
  EXPECT_THAT(row_refusal(with("model.name", "bert-large")), HasSubstr("encoder"));
  EXPECT_THAT(row_refusal(with("model.extra.attention", "MLA")), HasSubstr("kv_lora_rank"));
  EXPECT_THAT(row_refusal(with("software.precision", "NVFP4")), HasSubstr("4-bit"));
  EXPECT_THAT(row_refusal(with("software.precision", "posit16")), HasSubstr("posit16"));
  EXPECT_THAT(row_refusal(with("offload.layers", "20")), HasSubstr("offload"));
  EXPECT_EQ(row_refusal(with("offload.activations_cpu", "false")), "");
  EXPECT_THAT(row_refusal(with("id", "x-lora-1")), HasSubstr("adapters"));
  EXPECT_THAT(row_refusal(with("hardware.gpu", "TPU v5p")),
              HasSubstr("no device is shipped for TPU"));
  EXPECT_THAT(row_refusal(with("hardware.gpu", "H800 PCIe")), HasSubstr("links of H800 PCIe"));
  EXPECT_THAT(row_refusal(with("hardware.intra_node_link", "PCIe 4")), HasSubstr("PCIe"));
  EXPECT_THAT(row_refusal(with("hardware.gpus_total", "24")), HasSubstr("are not the 24 GPUs"));
  EXPECT_THAT(row_refusal(with("hardware.gpus_per_node", "12")),
              HasSubstr("do not fill nodes of 12"));
  EXPECT_THAT(row_refusal(with("parallel.extra.layout", "Et|t*9L")), HasSubstr("pattern"));
}

// Qwen3's 94 layers on four stages: embedding and head count as a layer each.
TEST(RunQuestion, CountsTheEndsAsLayersWhereMegatronBridgeMust) {
  Json row = with("model.layers", "94");
  row["software"]["framework"] = "Megatron-Bridge NeMo 26.02 container";
  row["parallel"]["pp"] = 4;
  row["parallel"]["dp"] = 1;
  const RunQuestion question = ask(row);
  EXPECT_EQ(question.what_if.at("parallel").at("stages"), Json({23, 24, 24, 23}));
  EXPECT_THAT(question.assumed, Contains("stages (embedding and loss count as layers)"));
}

TEST(RunQuestion, NamesTheFieldThatIsMissing) {
  EXPECT_THAT(row_refusal(without("hardware", "gpu")), HasSubstr("hardware.gpu"));
  EXPECT_THAT(row_refusal(without("model", "layers")), HasSubstr("model.layers"));
  EXPECT_THAT(row_refusal(without("model", "vocab")), HasSubstr("model.vocab"));
  Json row = without("hardware", "gpus_total");
  row["parallel"].erase("dp");
  EXPECT_THAT(row_refusal(row), HasSubstr("the GPU count is not known"));
  row = without("parallel", "global_batch");
  row["parallel"].erase("grad_accumulation");
  EXPECT_THAT(row_refusal(row), HasSubstr("parallel.global_batch"));
  row = without("parallel", "tp");
  row["parallel"].erase("pp");
  EXPECT_THAT(row_refusal(row), HasSubstr("tp and pp are not stated"));
}

TEST(RunQuestion, RefusesWhatIsNoCountInsteadOfAssumingOne) {
  EXPECT_THAT(row_refusal(with("parallel.tp", "-4")), HasSubstr("parallel.tp"));
  EXPECT_THAT(row_refusal(with("parallel.tp", "four")), HasSubstr("parallel.tp"));
  EXPECT_THAT(row_refusal(with("model.hidden", "[4096]")), HasSubstr("model.hidden"));
  EXPECT_THAT(row_refusal(with("parallel.global_batch", "31.5")),
              HasSubstr("parallel.global_batch"));
  EXPECT_EQ(row_refusal(with("parallel.tp", "\"4\"")), "");  // a string of digits counts
  EXPECT_NE(row_refusal(with("parallel.dp", "1e15")), "");
  EXPECT_NE(row_refusal(with("parallel.global_batch", "1e15")), "");
}

TEST(ReadLink, ReadsCardsAndRatesInTheirSpellings) {
  const auto link = [](std::string_view text) {
    const auto found = read_link(text, 8, 4);
    return found ? std::pair(found->cards, found->rate.value * 8 / 1e9) : std::pair(0, 0.0);
  };
  EXPECT_EQ(link("32x100 Gb/s EFA per node"), std::pair(32, 100.0));
  EXPECT_EQ(link("8x NDR400"), std::pair(8, 400.0));
  EXPECT_EQ(link("8x HDR 200 Gb/s InfiniBand per node (Selene)"), std::pair(8, 200.0));
  EXPECT_EQ(link("DGX SuperPOD HDR InfiniBand 8x200Gb/s"), std::pair(8, 200.0));
  EXPECT_EQ(link("800 Gb/s per node (paper: 4x HDR InfiniBand)"), std::pair(4, 200.0));
  EXPECT_EQ(link("8x NDR"), std::pair(8, 400.0));
  EXPECT_EQ(link("RoCE 1600 Gb/s per node (stated)"), std::pair(8, 200.0));
  EXPECT_EQ(link("InfiniBand NDR 400 Gb/s per GPU"), std::pair(4, 400.0));
  EXPECT_EQ(link("InfiniBand NDR"), std::pair(0, 0.0));
  EXPECT_EQ(link("0x100 Gb/s, 99999999999x1 Gb/s"), std::pair(0, 0.0));
  EXPECT_EQ(link(std::string(1 << 20, '9')), std::pair(0, 0.0));
}

TEST(RunQuestion, WritesTheFabricThatIsStated) {
  const Cluster cluster = read(ask(with("hardware.inter_node_link", "1600 Gb/s per node"))).cluster;
  EXPECT_EQ(cluster.nics_per_node, 8);
  EXPECT_DOUBLE_EQ(cluster.nic_bandwidth.value, 25e9 * cluster.device.nic_efficiency);
  const RunQuestion silent = ask(without("hardware", "inter_node_link"));
  EXPECT_EQ(silent.what_if.at("cluster"), "h100-sxm-2x8");
  EXPECT_THAT(silent.assumed, Contains(HasSubstr("inter_node_link")));
}

// A large all-reduce's bus bandwidth is what the cards of a node send together, whatever the number
// of ranks: 8 cards of 50 GB/s that do 100 GB/s are a quarter as fast as their wires.
TEST(RunQuestion, TakesTheFabricAsFastAsItsSourceTimedIt) {
  for (const char* link : {"8x NDR400", "InfiniBand"}) {
    Json row = with("hardware.all_reduce_gb_per_s", "100");
    row["hardware"]["inter_node_link"] = link;
    const Cluster cluster = read(ask(row)).cluster;
    EXPECT_DOUBLE_EQ(cluster.nic_bandwidth.value * cluster.nics_per_node, 100e9) << link;
  }
  const Cluster beyond = read(ask(with("hardware.all_reduce_gb_per_s", "480"))).cluster;
  EXPECT_DOUBLE_EQ(beyond.nic_bandwidth.value, 50e9);  // NVLink, not the wires
}

}  // namespace
}  // namespace stepcast
