#include "tools/whatif/framework.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "sim/base/error.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

constexpr const char* kText = R"({
  "name": "f", "description": "d", "published_as": ["f-lm"], "until": "2021-10",
  "defaults": {"attention": "unfused", "parallel": {"tensor_overlap": false}},
  "rules": [{"is": {"precision.compute": "fp16"}, "set": {"precision": {"gradient_copy": "fp32"}}},
            {"is": {"parallel.schedule": "interleaved"},
             "set": {"parallel": {"tensor_overlap": true}}}],
  "sources": {"attention": "a", "parallel.tensor_overlap": "b", "precision.gradient_copy": "c"}})";

Framework framework() { return read_framework(parse_json(kText, "f.json")); }

Json filled(const char* text) {
  Json what_if = parse_json(text, "w").root;
  fill_in(framework(), what_if);
  return what_if;
}

std::string framework_refusal(const std::string& path, const std::string& value) {
  Document document = parse_json(kText, "f.json");
  set_value(document, path, value);
  try {
    read_framework(document);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Framework, FillsInOnlyWhatIsNotSaid) {
  const Json what_if = filled(R"({"attention": "fused", "parallel": {"tensor": 8}})");
  EXPECT_EQ(what_if.at("attention"), "fused");
  EXPECT_EQ(what_if.at("parallel"), Json({{"tensor", 8}, {"tensor_overlap", false}}));
  EXPECT_FALSE(what_if.contains("precision"));
  EXPECT_EQ(filled(R"({"attention": null})").at("attention"), "unfused");
}

TEST(Framework, LetsRulesGoBeforeDefaultsAndTheWhatIfBeforeBoth) {
  EXPECT_EQ(filled(R"({"precision": {"compute": "fp16"}})").at("precision").at("gradient_copy"),
            "fp32");
  EXPECT_EQ(filled(R"({"parallel": {"virtual_stages": 2}})").at("parallel").at("tensor_overlap"),
            true);
  EXPECT_EQ(filled(R"({"parallel": {"virtual_stages": 2, "tensor_overlap": false}})")
                .at("parallel")
                .at("tensor_overlap"),
            false);
}

TEST(Framework, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(framework_refusal("default", "{}"), HasSubstr("did you mean \"defaults\""));
  EXPECT_THAT(framework_refusal("until", "October"), HasSubstr("must be a month"));
  EXPECT_THAT(framework_refusal("defaults.dropout", "false"),
              HasSubstr("where dropout comes from"));
  EXPECT_THAT(framework_refusal("sources.dropout", "x"), HasSubstr("dropout is not set here"));
  EXPECT_THAT(framework_refusal("rules.0.is", "{}"), HasSubstr("needs a condition"));
  EXPECT_THAT(framework_refusal("rules.1.set", "{}"), HasSubstr("something to set"));
  EXPECT_THAT(framework_refusal("published_as", "[7]"), HasSubstr("must list words"));
}

// The longest name wins, then the first that is not over.
TEST(Framework, IsFoundByItsPublishedNameAndMonth) {
  std::vector<Framework> all(3, framework());
  all[1].name = "now";
  all[1].until = "";
  all[2] = all[1];
  all[2].name = "longer";
  all[2].published_as = {"f-lm-bridge"};
  const auto name = [&](const char* published, const char* date) {
    const Framework* found = published_framework(all, published, date);
    return found == nullptr ? "" : found->name;
  };
  EXPECT_EQ(name("F-LM 1.0", "2021-09"), "f");
  EXPECT_EQ(name("F-LM 1.0", "2021-10"), "now");
  EXPECT_EQ(name("F-LM 1.0", ""), "now");
  EXPECT_EQ(name("NeMo F-LM-Bridge", "2021-09"), "longer");
  EXPECT_EQ(name("other", ""), "");
}

// Every shipped one can be named by a what-if, whose resolved form reads back as the same.
TEST(Framework, IsANameInAWhatIf) {
  const std::vector<Framework> all = read_frameworks();
  EXPECT_GE(all.size(), 9U);
  for (const Framework& one : all) {
    for (const auto& [compute, chunks] : {std::pair{"bf16", 1}, {"fp16", 1}, {"bf16", 2}}) {
      const Json parallel = {{"tensor", 2}, {"pipeline", 2}, {"virtual_stages", chunks}};
      const Json question = {{"framework", one.name},
                             {"model", "gpt2"},
                             {"cluster", "a100-80gb-1x8"},
                             {"batch", {{"sequence_length", 1024}, {"global", 32}}},
                             {"parallel", parallel},
                             {"precision", {{"compute", compute}}}};
      const WhatIf what_if = read_what_if(Document{"w", question, {}}, ".");
      EXPECT_EQ(what_if.resolved.at("framework"), one.name);
      const WhatIf again = read_what_if(Document{"w", what_if.resolved, {}}, ".");
      EXPECT_EQ(again.resolved, what_if.resolved) << one.name;
      EXPECT_EQ(again.plan, what_if.plan) << one.name;
    }
  }
}

// No implementation is described for the MI300X, so its own one is taken; a user who asks for one
// that is not there is told.
TEST(Framework, NamesAnAttentionKernelOnlyWhereTheDeviceHasIt) {
  const auto kernel = [](const char* device, const Json& asked) {
    const Json question = {{"framework", "fsdp2"},
                           {"model", "gpt2"},
                           {"cluster", fmt::format("{}-1x8", device)},
                           {"batch", {{"sequence_length", 1024}, {"global", 32}}},
                           {"attention_kernel", asked}};
    const WhatIf what_if = read_what_if(Document{"w", question, {}}, ".");
    const WhatIf again = read_what_if(Document{"w", what_if.resolved, {}}, ".");
    EXPECT_EQ(again.resolved, what_if.resolved);
    return what_if.resolved.at("attention_kernel");
  };
  EXPECT_EQ(kernel("h100-sxm", nullptr), "flash2");
  EXPECT_EQ(kernel("h100-sxm", "cudnn"), "cudnn");
  EXPECT_EQ(kernel("mi300x", nullptr), nullptr);
  EXPECT_THROW(kernel("mi300x", "flash2"), Error);
}

// Megatron-Core's host waits for messages unless they are overlapped, which interleaving does.
TEST(Framework, LetsTheHostWaitWhereTheFrameworkDoes) {
  const auto plan = [](const char* framework, int chunks) {
    const Json parallel = {{"tensor", 2}, {"pipeline", 2}, {"virtual_stages", chunks}};
    const Json question = {{"framework", framework},
                           {"model", "gpt2"},
                           {"cluster", "a100-80gb-1x8"},
                           {"batch", {{"sequence_length", 1024}, {"global", 32}}},
                           {"parallel", parallel}};
    return read_what_if(Document{"w", question, {}}, ".").plan;
  };
  const Plan now = plan("megatron-core", 1), then = plan("megatron-lm-2021", 1);
  EXPECT_TRUE(now.p2p_sync && now.optimizer_sync && !now.pass_sync);
  EXPECT_TRUE(then.p2p_sync && then.optimizer_sync && then.pass_sync);
  for (const char* framework : {"megatron-core", "megatron-lm-2021"}) {
    const Plan interleaved = plan(framework, 2);
    EXPECT_FALSE(interleaved.p2p_sync || interleaved.pass_sync) << framework;
    EXPECT_TRUE(interleaved.optimizer_sync) << framework;
  }
  const Plan other = plan("torchtitan", 1);
  EXPECT_FALSE(other.p2p_sync || other.pass_sync || other.optimizer_sync);
}

// DeepSpeed's BF16_Optimizer adds copies of the gradients in fp32, and all-reduces all of them.
TEST(Framework, AccumulatesInFp32WhereDeepSpeedTrainsInBf16) {
  for (const char* compute : {"bf16", "fp16"}) {
    const Json question = {
        {"framework", "megatron-deepspeed"}, {"model", "gpt2"},
        {"cluster", "a100-80gb-1x8"},        {"batch", {{"sequence_length", 1024}, {"global", 32}}},
        {"sharding", {{"zero", 1}}},         {"precision", {{"compute", compute}}}};
    const WhatIf what_if = read_what_if(Document{"w", question, {}}, ".");
    const bool bf16 = what_if.plan.compute == Dtype::kBf16;
    EXPECT_EQ(what_if.plan.gradients, bf16 ? Dtype::kFp32 : Dtype::kFp16);
    EXPECT_EQ(what_if.plan.all_reduce, bf16);
    EXPECT_FALSE(what_if.cluster.device.kernels.fusion.accumulation);
    EXPECT_EQ(what_if.cluster.device.kernels.fusion.accumulation_cast, !bf16);
  }
}

TEST(Framework, IsAnErrorWhereItIsUnknown) {
  const Json question = {{"framework", "megatron-lm-2012"},
                         {"model", "gpt2"},
                         {"cluster", "a100-80gb-1x8"},
                         {"batch", {{"sequence_length", 1024}}}};
  try {
    read_what_if(Document{"w", question, {}}, ".");
    FAIL() << "an unknown framework was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("framework"));
    EXPECT_THAT(error.what(), HasSubstr("megatron-lm-202"));
  }
}

}  // namespace
}  // namespace stepcast
