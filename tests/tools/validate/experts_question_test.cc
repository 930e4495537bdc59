// What a published run says of its experts, and what is asked for it.
#include <gmock/gmock.h>

#include "tests/support/run_rows.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// The row with eight experts, two ranks of which share them; each cut as the other layers are.
Json row_of_experts(const std::string& framework = "NeMo 25.07") {
  Json row = with("parallel.ep", "2");
  row["model"].update({{"name", "mixtral-like"},
                       {"experts", 8},
                       {"experts_per_token", 2},
                       {"moe_ffn_hidden", 7168}});
  row["software"]["framework"] = framework;
  return row;
}

TEST(RunQuestion, AsksForExpertsByTheFrameworksWords) {
  RunQuestion question = ask(row_of_experts());
  WhatIf what_if = read(question);
  EXPECT_EQ(what_if.model.experts, 8);
  EXPECT_EQ(what_if.model.experts_per_token, 2);
  EXPECT_EQ(what_if.model.expert_ffn, 7168);
  EXPECT_EQ(what_if.model.shared_ffn, 0);
  EXPECT_EQ(what_if.plan.expert, 2);
  EXPECT_EQ(what_if.plan.expert_tensor, 4);  // Megatron-Core's default: that of the other layers
  EXPECT_EQ(what_if.plan.capacity_factor, 1);
  EXPECT_THAT(question.assumed, Contains("expert_tp (4)"));
  EXPECT_THAT(question.assumed, Contains(HasSubstr("capacity_factor (1")));

  EXPECT_EQ(what_if.cluster.device.route, microseconds(1500));
  EXPECT_EQ(what_if.plan.kernel_workspace, Bytes(5 * 32 << 20));  // of four streams, too

  Json row = row_of_experts("Megatron-Bridge NeMo 26.02 container");
  row["parallel"]["ep"] = 8;
  row["software"]["extra"]["recipe"] = {{"moe_flex_dispatcher_backend", "hybridep"}};
  question = ask(row);
  what_if = read(question);
  EXPECT_EQ(what_if.plan.expert, 8);
  EXPECT_EQ(what_if.plan.expert_tensor, 1);  // its recipes'
  EXPECT_THAT(question.assumed, Contains("dispatcher (all-to-alls, not hybridep)"));
}

TEST(RunQuestion, ReadsWhatARowSaysOfItsExperts) {
  Json row = row_of_experts();
  row["model"]["shared_experts"] = 2;
  row["model"]["extra"] = {{"dense_layers", 1}, {"moe_capacity_factor", 1.25}};
  row["parallel"]["extra"]["expert_tp"] = 1;
  row["parallel"]["ep"] = 8;
  WhatIf what_if = read(ask(row));
  EXPECT_EQ(what_if.model.shared_ffn, 2 * 7168);
  EXPECT_EQ(what_if.model.dense_layers, 1);
  EXPECT_EQ(what_if.model.ffn, 14336);
  EXPECT_EQ(what_if.plan.expert_tensor, 1);
  EXPECT_EQ(what_if.plan.capacity_factor, 1.25);

  row = row_of_experts();
  row["model"].erase("moe_ffn_hidden");
  row["model"].erase("experts_per_token");
  Json& flags = row["software"]["extra"]["flags"];
  flags = {{"moe-router-topk", 4},
           {"moe-layer-freq", "([0]*3+[1]*29)"},
           {"moe-shared-expert-intermediate-size", 1024},
           {"moe-token-dispatcher-type", "alltoall"}};
  what_if = read(ask(row));
  EXPECT_EQ(what_if.model.experts_per_token, 4);
  EXPECT_EQ(what_if.model.expert_ffn, 14336);
  EXPECT_EQ(what_if.model.shared_ffn, 1024);
  EXPECT_EQ(what_if.model.dense_layers, 3);
  flags["moe-layer-freq"] = "([1,0]*16)";
  EXPECT_THAT(row_refusal(row), HasSubstr("this pattern"));

  row = row_of_experts();
  row["software"]["extra"]["recipe"] = {{"moe_permute_fusion", true}, {"moe_router_fusion", false}};
  EXPECT_EQ(ask(row).what_if.at("fusion"), Json({{"permutes", true}, {"routers", false}}));
}

// Megatron-Core's command line gathers tokens unless it says alltoall or flex.
TEST(RunQuestion, GathersTokensWhereACommandLineNamesNoDispatcher) {
  Json row = row_of_experts();
  EXPECT_EQ(read(ask(row)).plan.expert_exchange, ExpertExchange::kAllToAll);  // no command line
  row["software"]["extra"]["flags"]["swiglu"] = true;
  EXPECT_EQ(read(ask(row)).plan.expert_exchange, ExpertExchange::kAllGather);
  for (const char* other : {"alltoall", "flex"}) {
    row["software"]["extra"]["flags"]["moe-token-dispatcher-type"] = other;
    EXPECT_EQ(read(ask(row)).plan.expert_exchange, ExpertExchange::kAllToAll);
  }
}

// Where CUDA graphs hold the router, the host has nothing to do for it.
TEST(RunQuestion, LeavesRoutersToTheirGraphs) {
  Json row = row_of_experts("Megatron-Bridge NeMo 26.02 container");
  row["parallel"]["ep"] = 8;
  EXPECT_EQ(read(ask(row)).cluster.device.route, microseconds(1500));
  Json& recipe = row["software"]["extra"]["recipe"];
  recipe = {{"cuda_graph_impl", "transformer_engine"}, {"cuda_graph_scope", {"attn"}}};
  EXPECT_EQ(read(ask(row)).cluster.device.route, microseconds(1500));
  recipe["cuda_graph_scope"].push_back("moe_router");
  EXPECT_EQ(read(ask(row)).cluster.device.route, Seconds(0));
  recipe = {{"cuda_graph_impl", "full_iteration"}};
  EXPECT_EQ(read(ask(row)).cluster.device.route, Seconds(0));
}

// Dropless dispatchers have the host wait for counts; a graph of the whole iteration, or experts
// with places that are filled up, do not.
TEST(RunQuestion, LetsTheHostWaitForCountsWhereTokensAreNotDropped) {
  const auto waits = [](const Json& row) { return read(ask(row)).plan.route_sync; };
  Json row = row_of_experts("Megatron-Bridge NeMo 25.09 container");
  row["parallel"]["ep"] = 8;
  EXPECT_TRUE(waits(row));
  Json dropping = row;
  dropping["source"]["table"] = "25.09 Pre-Training Qwen3 (tokendrop) DGX-B200";
  EXPECT_FALSE(waits(dropping));
  dropping = row;
  dropping["model"]["extra"]["moe_capacity_factor"] = 1;
  EXPECT_FALSE(waits(dropping));
  dropping["model"]["extra"]["moe_pad_to_capacity"] = false;
  EXPECT_TRUE(waits(dropping));
  row["software"]["extra"]["recipe"] = {{"cuda_graph_impl", "full_iteration"}};
  EXPECT_FALSE(waits(row));

  row = row_of_experts("Megatron-LM CI (dev container)");
  Json& flags = row["software"]["extra"]["flags"];
  flags = {{"moe-expert-capacity-factor", 1.5}, {"moe-token-dispatcher-type", "alltoall"}};
  EXPECT_TRUE(waits(row));
  flags["moe-pad-expert-input-to-capacity"] = true;
  EXPECT_FALSE(waits(row));
}

TEST(RunQuestion, CoversAdamAlone) {
  Json row = row_of_experts();
  Json& flags = row["software"]["extra"]["flags"];
  flags["optimizer"] = "adam";
  EXPECT_EQ(row_refusal(row), "");
  flags["optimizer"] = "muon";
  EXPECT_THAT(row_refusal(row), HasSubstr("the optimizer muon is not covered"));
}

// Megatron-Core: each instance shards the state over its share of the data ranks.
TEST(RunQuestion, ShardsOverInstancesOfTheOptimizer) {
  Json row = row_of_experts();
  row["parallel"]["ep"] = 1;
  row["parallel"]["zero_stage"] = 1;
  row["software"]["extra"]["flags"] = {{"num-distributed-optimizer-instances", 2}};
  const Plan plan = read(ask(row)).plan;
  EXPECT_EQ(plan.shard_group, plan.data / 2);
}

TEST(RunQuestion, OverlapsTheExchangesOfExpertsWhereTheRecipeDoes) {
  Json row = row_of_experts();
  EXPECT_FALSE(read(ask(row)).plan.expert_overlap);
  row["software"]["extra"]["recipe"]["moe_a2a_overlap"] = true;
  EXPECT_TRUE(ask(row).what_if.at("parallel").at("expert_overlap").get<bool>());
}

TEST(RunQuestion, SaysWhichExpertsItDoesNotCover) {
  Json row = row_of_experts();
  row["software"]["extra"]["recipe"]["cutedsl_fused_grouped_mlp"] = true;
  EXPECT_THAT(row_refusal(row), HasSubstr("8-bit copies in one kernel"));
  row = row_of_experts();
  row["parallel"]["extra"]["expert_tp"] = 2;
  EXPECT_THAT(row_refusal(row), HasSubstr("experts cut over 2 ranks, and other layers over 4"));
  row = row_of_experts();
  row["model"].erase("experts_per_token");
  EXPECT_THAT(row_refusal(row), HasSubstr("model.experts_per_token"));
}

}  // namespace
}  // namespace stepcast
