#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "models/model.h"
#include "sim/base/error.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Model read_hf(const std::string& text) {
  const Document document = parse_json(text, "config.json");
  return read_model(Object(document), "given");
}

std::string hf_error(const std::string& text) {
  try {
    read_hf(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// {"model_type": TYPE, the sizes of a small model, MORE}
std::string small(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "num_hidden_layers": 4, "hidden_size": 256,
             "num_attention_heads": 8, "intermediate_size": 640)" +
         (more.empty() ? "" : ", " + more) + "}";
}

// ------------------------------------------------------------- published checkpoints, exactly

TEST(HuggingFace, ReadsGpt2ByItsOldNames) {
  const Model m = read_hf(R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
                           "n_positions": 1024, "n_inner": null, "vocab_size": 50257,
                           "activation_function": "gelu_new", "attn_pdrop": 0.1,
                           "resid_pdrop": 0.1, "summary_type": "cls_index"})");
  EXPECT_EQ(parameters(m), 124'439'808);
  EXPECT_EQ(m.name, "given");
  EXPECT_EQ(m.ffn, 4 * 768);
  EXPECT_EQ(m.activation, Activation::kGelu);
  EXPECT_EQ(m.norm, NormKind::kLayer);
  EXPECT_TRUE(m.tied_embeddings && m.learned_positions && m.dropout);
  EXPECT_TRUE(m.qkv_bias && m.attention_output_bias && m.mlp_bias);
  EXPECT_FALSE(m.rotary);
}

// meta-llama/Llama-3.1-405B with only the keys that differ from the class.
TEST(HuggingFace, ReadsLlamaWithDefaultsLeftOut) {
  const Model m = read_hf(R"({"model_type": "llama", "num_hidden_layers": 126, "hidden_size": 16384,
                           "num_attention_heads": 128, "num_key_value_heads": 8,
                           "intermediate_size": 53248, "max_position_embeddings": 131072,
                           "vocab_size": 128256})");
  EXPECT_EQ(parameters(m), 405'853'388'800);
  EXPECT_FALSE(m.tied_embeddings || m.qkv_bias || m.mlp_bias || m.dropout || m.qk_norm);
  EXPECT_EQ(m.activation, Activation::kSwiglu);
  EXPECT_EQ(m.positions, 131072);
}

TEST(HuggingFace, ReadsMistral) {
  const Model m = read_hf(R"({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096,
                           "num_attention_heads": 32, "intermediate_size": 14336,
                           "sliding_window": 4096})");
  EXPECT_EQ(m.kv_heads, 8);  // the class's
  EXPECT_EQ(parameters(m), 7'241'732'096);
}

// Qwen2 has biases of q, k and v though no key need say so, and never one of the output.
TEST(HuggingFace, ReadsQwen2WithItsUnspokenBiases) {
  for (const char* said : {"", R"("attention_bias": true, )"}) {
    const Model m = read_hf(std::string("{") + said +
                            R"("model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
                         "num_attention_heads": 28, "num_key_value_heads": 4,
                         "intermediate_size": 18944, "vocab_size": 152064})");
    EXPECT_EQ(parameters(m), 7'615'616'512);
    EXPECT_TRUE(m.qkv_bias);
    EXPECT_FALSE(m.attention_output_bias);
  }
}

// 40 heads of 128 over a width of 5,120 would be the same; 64 heads of 128 are not.
TEST(HuggingFace, ReadsQwen3WithNormsOfQueriesAndKeysAndItsOwnHeadWidth) {
  const Model m = read_hf(R"({"model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120,
                           "num_attention_heads": 64, "num_key_value_heads": 8,
                           "intermediate_size": 25600})");
  EXPECT_TRUE(m.qk_norm);
  EXPECT_EQ(m.head_dim, 128);
  EXPECT_EQ(parameters(m), 32'762'123'264);
}

// mistralai/Mixtral-8x7B-v0.1; the width of an expert stands where others have the MLP's.
TEST(HuggingFace, ReadsMixtral) {
  const Model m = read_hf(R"({"model_type": "mixtral", "num_hidden_layers": 32,
                           "hidden_size": 4096, "num_attention_heads": 32,
                           "num_key_value_heads": 8, "intermediate_size": 14336,
                           "num_local_experts": 8, "num_experts_per_tok": 2,
                           "sliding_window": null, "vocab_size": 32000})");
  EXPECT_EQ(m.experts, 8);
  EXPECT_EQ(m.experts_per_token, 2);
  EXPECT_EQ(m.expert_ffn, 14336);
  EXPECT_EQ(m.dense_layers, 0);
  EXPECT_EQ(parameters(m), 46'702'792'704);
}

// Qwen/Qwen3-30B-A3B.
TEST(HuggingFace, ReadsQwen3WithExperts) {
  const Model m = read_hf(R"({"model_type": "qwen3_moe", "num_hidden_layers": 48,
                           "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
                           "num_key_value_heads": 4, "intermediate_size": 6144,
                           "moe_intermediate_size": 768, "num_experts": 128,
                           "num_experts_per_tok": 8, "decoder_sparse_step": 1,
                           "mlp_only_layers": [], "norm_topk_prob": true})");
  EXPECT_TRUE(m.qk_norm);
  EXPECT_EQ(m.experts_per_token, 8);
  EXPECT_EQ(m.expert_ffn, 768);
  EXPECT_EQ(parameters(m), 30'532'122'624);
}

TEST(HuggingFace, ReadsGemmaTiedAndWithGeglu) {
  const Model m = read_hf(R"({"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072,
                           "num_attention_heads": 16, "num_key_value_heads": 16,
                           "intermediate_size": 24576, "hidden_act": "gelu",
                           "hidden_activation": null})");
  EXPECT_EQ(parameters(m), 8'537'680'896);
  EXPECT_EQ(m.activation, Activation::kGeglu);
  EXPECT_EQ(m.norm, NormKind::kRms);
  EXPECT_TRUE(m.tied_embeddings);
  EXPECT_FALSE(m.post_norms || m.qk_norm);
}

TEST(HuggingFace, ReadsGemma2WithoutItsVocabulary) {
  const Model m = read_hf(R"({"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584,
                           "num_attention_heads": 16, "num_key_value_heads": 8,
                           "intermediate_size": 14336})");
  EXPECT_EQ(parameters(m), 9'241'705'984);
  EXPECT_TRUE(m.post_norms);
  EXPECT_FALSE(m.qk_norm);
}

// google/gemma-3-4b-pt: a nested config drops every size that its class has anyway.
TEST(HuggingFace, DescendsToTheTextModelAndFillsInItsClass) {
  const Model m = read_hf(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
                           "hidden_size": 2560, "intermediate_size": 10240,
                           "num_hidden_layers": 34}, "vision_config": {"hidden_size": 1152}})");
  EXPECT_EQ(m.heads, 8);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.head_dim, 256);
  EXPECT_TRUE(m.qk_norm && m.post_norms && m.tied_embeddings);
  EXPECT_EQ(parameters(m), 3'880'263'168);
}

TEST(HuggingFace, TakesTheOuterTypeAndTyingWhereTheTextModelHasNone) {
  const Model m = read_hf(R"({"model_type": "gemma3", "tie_word_embeddings": false,
                           "text_config": {"hidden_size": 2560}})");
  EXPECT_TRUE(m.qk_norm);
  EXPECT_FALSE(m.tied_embeddings);
}

// ------------------------------------------------------------------------------ aliases, defaults

TEST(HuggingFace, ReadsKeyValueHeadsAsHeadsWhereNoneAreGiven) {
  EXPECT_EQ(read_hf(small("llama")).kv_heads, 8);
  EXPECT_EQ(read_hf(small("llama", R"("num_key_value_heads": null)")).kv_heads, 8);
  EXPECT_EQ(read_hf(small("llama", R"("num_key_value_heads": 2)")).kv_heads, 2);
  EXPECT_EQ(read_hf(small("llama", R"("multi_query": true)")).kv_heads, 1);
}

TEST(HuggingFace, ReadsBiasesByTheKeysThatAskForThem) {
  const Model both = read_hf(small("llama", R"("attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(both.qkv_bias && both.attention_output_bias && both.mlp_bias);
  const Model some = read_hf(small("llama", R"("qkv_bias": true)"));
  EXPECT_TRUE(some.qkv_bias);
  EXPECT_FALSE(some.attention_output_bias || some.mlp_bias);
}

TEST(HuggingFace, SwitchesDropoutByItsProbability) {
  const std::string sizes = R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4)";
  EXPECT_TRUE(read_hf(sizes + "}").dropout);  // 0.1 in the class
  EXPECT_FALSE(read_hf(sizes + R"(, "attn_pdrop": 0.0, "resid_pdrop": 0.0})").dropout);
  EXPECT_TRUE(read_hf(sizes + R"(, "attn_pdrop": 0.0, "resid_pdrop": 0.1})").dropout);
  EXPECT_EQ(read_hf(sizes + R"(, "attn_pdrop": 0.2, "resid_pdrop": 0.3})").dropout_rate, 0.3);
  EXPECT_FALSE(read_hf(small("llama", R"("attention_dropout": 0.0)")).dropout);
  EXPECT_TRUE(read_hf(small("llama", R"("attention_dropout": 0.1)")).dropout);
}

TEST(HuggingFace, FollowsTheGatesActivation) {
  EXPECT_EQ(read_hf(small("llama", R"("hidden_act": "gelu")")).activation, Activation::kGeglu);
  EXPECT_EQ(read_hf(small("gemma", R"("hidden_activation": "gelu_pytorch_tanh")")).activation,
            Activation::kGeglu);
  EXPECT_THAT(hf_error(small("llama", R"("hidden_act": "relu2")")),
              AllOf(HasSubstr("hidden_act"), HasSubstr("relu2"), HasSubstr("silu")));
  EXPECT_THAT(hf_error(small("gpt2", R"("activation_function": "relu")")), HasSubstr("gelu"));
}

TEST(HuggingFace, ReadsATiedLlama) {
  const Model tied = read_hf(small("llama", R"("tie_word_embeddings": true)"));
  const Model untied = read_hf(small("llama"));
  EXPECT_EQ(parameters(untied) - parameters(tied), 32000 * 256);
}

TEST(HuggingFace, ReadsBackEqualInThePresetForm) {
  for (const char* type :
       {"gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2",
        "gemma3_text"}) {
    const Model model = read_hf(small(type));
    const Document document = parse_json(write_model(model).dump(), "written");
    EXPECT_EQ(read_model(Object(document), "other"), model) << type;
  }
}

// ------------------------------------------------------------------------------------ refusals

TEST(HuggingFace, RefusesAnUnknownTypeAndListsTheOthers) {
  EXPECT_THAT(hf_error(small("falcon")),
              AllOf(HasSubstr("config.json:1: model_type"), HasSubstr("\"falcon\""),
                    HasSubstr("gemma3_text"), HasSubstr("llama"), HasSubstr("qwen3")));
  EXPECT_THAT(hf_error(small("lama")), HasSubstr("did you mean \"llama\""));
}

TEST(HuggingFace, RefusesExpertsOfAClassWhoseLayersAreNotKnownToHaveThem) {
  for (const char* key :
       {"num_local_experts", "n_routed_experts", "num_experts", "num_routed_experts"}) {
    EXPECT_THAT(hf_error(small("llama", "\"" + std::string(key) + "\": 8")),
                AllOf(HasSubstr(key), HasSubstr("mixture-of-experts"), HasSubstr("not covered"),
                      HasSubstr("mixtral, qwen3_moe")));
  }
  EXPECT_EQ(read_hf(small("llama", R"("num_local_experts": null, "num_experts": 0)")).layers, 4);
  EXPECT_THAT(hf_error(R"({"model_type": "gemma3", "text_config": {"num_experts": 4}})"),
              HasSubstr("text_config.num_experts"));
}

TEST(HuggingFace, RefusesClassesWithExpertsByWhatElseTheyHave) {
  EXPECT_THAT(hf_error(small("qwen2_moe", R"("num_experts": 60)")), HasSubstr("gate of its own"));
}

TEST(HuggingFace, RefusesExpertsInSomeLayersOnlyUnlessTheyAreTheLast) {
  EXPECT_EQ(read_hf(small("qwen3_moe", R"("mlp_only_layers": [0, 1])")).dense_layers, 2);
  EXPECT_EQ(read_hf(small("qwen3_moe", R"("mlp_only_layers": [0, 1])")).ffn, 640);
  EXPECT_THAT(hf_error(small("qwen3_moe", R"("mlp_only_layers": [3])")),
              AllOf(HasSubstr("mlp_only_layers"), HasSubstr("not covered")));
  EXPECT_THAT(hf_error(small("qwen3_moe", R"("mlp_only_layers": [0, 1, 2, 3])")),
              HasSubstr("leave none of 4 for the experts"));
  EXPECT_THAT(hf_error(small("qwen3_moe", R"("decoder_sparse_step": 2)")), HasSubstr("must be 1"));
}

TEST(HuggingFace, RefusesMoreExpertsATokenThanThereAre) {
  EXPECT_THAT(hf_error(small("mixtral", R"("num_local_experts": 2, "num_experts_per_tok": 3)")),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("3 experts of 2")));
}

// What has no key: sinks, biases of experts and their router, the activation.
TEST(HuggingFace, ReadsGptOss) {
  const Model model = read_hf(small("gpt_oss", R"("num_local_experts": 8,
      "num_experts_per_tok": 2, "head_dim": 32, "hidden_act": "silu", "swiglu_limit": 7.0,
      "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "full_attention"])"));
  EXPECT_TRUE(model.attention_sinks && model.qkv_bias && model.attention_output_bias);
  EXPECT_TRUE(model.mlp_bias);
  EXPECT_EQ(model.activation, Activation::kSwigluOai);
  EXPECT_EQ(std::pair(model.window, model.full_every), std::pair(12L, 2L));
  EXPECT_EQ(model.experts, 8);
  EXPECT_EQ(model.expert_ffn, model.ffn);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_THAT(hf_error(small("mixtral", R"("mlp_bias": true)")),
              AllOf(HasSubstr("mlp_bias"), HasSubstr("mixtral has no biases in its experts")));
  EXPECT_THAT(hf_error(small("gpt_oss", R"("mlp_bias": false)")), HasSubstr("always has biases"));
  EXPECT_THAT(hf_error(small("gpt_oss", R"("swiglu_limit": 5.0)")),
              AllOf(HasSubstr("swiglu_limit"), HasSubstr("7.0"), HasSubstr("not covered")));
}

// 0.1 ln s + 1, unless it is said otherwise.
TEST(HuggingFace, ReadsTheFactorOfStretchedPositions) {
  const auto read = [](const char* type, const std::string& scaling) {
    const std::string more = R"("rope_scaling": {)" + scaling + "}";
    return read_hf(small(type, scaling.empty() ? "" : more)).rotary_attention_factor;
  };
  EXPECT_EQ(read("llama", ""), 1);
  EXPECT_EQ(read("llama", R"("rope_type": "llama3", "factor": 8.0)"), 1);
  EXPECT_DOUBLE_EQ(read("qwen2", R"("type": "yarn", "factor": 4.0)"), 0.1 * std::log(4) + 1);
  EXPECT_EQ(read("qwen2", R"("rope_type": "yarn", "factor": 4, "attention_factor": 1.5)"), 1.5);
  EXPECT_DOUBLE_EQ(
      read("qwen2", R"("rope_type": "yarn", "factor": 4, "mscale": 2, "mscale_all_dim": 1)"),
      (0.2 * std::log(4) + 1) / (0.1 * std::log(4) + 1));
  EXPECT_DOUBLE_EQ(read("gpt_oss", ""), 0.1 * std::log(32) + 1);  // its class's
  EXPECT_EQ(read("gpt_oss", R"("rope_type": "default")"), 1);
  EXPECT_EQ(read_hf(small("gpt_oss", R"("rope_scaling": null)")).rotary_attention_factor, 1);
  const Model newer =
      read_hf(small("qwen2", R"("rope_parameters": {"rope_type": "yarn", "factor": 4})"));
  EXPECT_DOUBLE_EQ(newer.rotary_attention_factor, 0.1 * std::log(4) + 1);
  const double stretched = static_cast<double>(newer.positions) / 8;
  EXPECT_DOUBLE_EQ(read("qwen2", R"("type": "yarn", "original_max_position_embeddings": 8)"),
                   0.1 * std::log(stretched) + 1);
  EXPECT_EQ(read("deepseek_v3", R"("type": "yarn", "factor": 40)"), 1);  // in the softmax's scale
  EXPECT_THAT(hf_error(small("qwen2", R"("rope_scaling": {"type": "yarn", "factor": -1})")),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(hf_error(small("qwen2", R"("rope_scaling": {"type": "yarn", "factor": 40,
                  "mscale": 100, "mscale_all_dim": 1})")),
              AllOf(HasSubstr("rope_scaling.mscale"), HasSubstr("from 0.1 to 10")));
}

TEST(HuggingFace, ReadsSlidingWindows) {
  const auto read = [](const char* type, const std::string& more) {
    const Model model = read_hf(small(type, more));
    return std::pair(model.window, model.full_every);
  };
  EXPECT_EQ(read("mistral", R"("sliding_window": 96)"), std::pair(96L, 0L));
  EXPECT_EQ(read("mistral", R"("sliding_window": null)"), std::pair(0L, 0L));
  EXPECT_EQ(read("gemma2", R"("sliding_window": 96)"), std::pair(96L, 2L));
  EXPECT_EQ(read("gemma3_text", R"("sliding_window": 96, "sliding_window_pattern": 3)"),
            std::pair(96L, 3L));
  const auto types = [](const std::string& list) {
    return R"("sliding_window": 96, "layer_types": [)" + list + "]";
  };
  const std::string w = R"("sliding_attention")", f = R"("full_attention")";
  EXPECT_EQ(read("gemma2", types(w + "," + w + "," + f + "," + w)), std::pair(96L, 3L));
  EXPECT_EQ(read("gemma2", types(f + "," + f + "," + f + "," + f)), std::pair(0L, 0L));
  EXPECT_EQ(read("gemma2", types(w + "," + w + "," + w + "," + w)), std::pair(96L, 0L));
  EXPECT_THAT(hf_error(small("gemma2", types(w + "," + f + "," + f + "," + w))),
              AllOf(HasSubstr("layer_types"), HasSubstr("layer 2")));
}

// Heads of qk_nope + qk_rope columns; two shared experts are one of twice the width. Queries of
// whole tokens are q_lora_rank null (DeepSeek-V2-Lite).
TEST(HuggingFace, ReadsLatentAttentionAndSharedExperts) {
  const Model model = read_hf(small("deepseek_v3", R"("kv_lora_rank": 32, "q_lora_rank": 48,
      "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 16,
      "num_experts_per_tok": 4, "moe_intermediate_size": 20, "n_shared_experts": 2,
      "first_k_dense_replace": 1)"));
  EXPECT_TRUE(model.latent());
  EXPECT_EQ(model.kv_rank, 32);
  EXPECT_EQ(model.q_rank, 48);
  EXPECT_EQ(model.head_dim, 32);
  EXPECT_EQ(model.rotary_dim, 8);
  EXPECT_EQ(model.value_dim, 16);
  EXPECT_EQ(model.experts, 16);
  EXPECT_EQ(model.shared_ffn, 40);
  EXPECT_EQ(model.dense_layers, 1);
  EXPECT_EQ(read_hf(small("deepseek_v2", R"("q_lora_rank": null)")).q_rank, 0);
  const Model dense = read_hf(small("deepseek_v3", R"("n_routed_experts": null)"));
  EXPECT_EQ(dense.experts, 0);
  const Model alone = read_hf(small("deepseek_v3", R"("n_routed_experts": 8,
      "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": null)"));
  EXPECT_EQ(alone.shared_ffn, 0);
  EXPECT_THAT(hf_error(small("deepseek_v3", R"("n_routed_experts": 16, "moe_layer_freq": 2)")),
              HasSubstr("must be 1"));
  EXPECT_THAT(hf_error(small("deepseek_v3", R"("num_key_value_heads": 1)")),
              AllOf(HasSubstr("num_key_value_heads"), HasSubstr("each of 8 heads")));
}

TEST(HuggingFace, RefusesAMissingSizeAtTheTopLevel) {
  EXPECT_THAT(hf_error(R"({"model_type": "llama", "hidden_size": 256,
                           "num_attention_heads": 8, "intermediate_size": 640})"),
              HasSubstr("\"num_hidden_layers\" is missing"));
  EXPECT_THAT(hf_error(R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
                           "num_attention_heads": 8})"),
              HasSubstr("\"intermediate_size\" is missing"));
}

TEST(HuggingFace, RefusesSizesThatDoNotFitEachOther) {
  EXPECT_THAT(hf_error(small("llama", R"("num_key_value_heads": 3)")),
              AllOf(HasSubstr("num_key_value_heads"), HasSubstr("8 heads"), HasSubstr("3")));
  EXPECT_THAT(hf_error(R"({"model_type": "llama", "hidden_size": 100, "num_hidden_layers": 4,
                           "num_attention_heads": 8, "intermediate_size": 640})"),
              AllOf(HasSubstr("hidden_size 100"), HasSubstr("num_attention_heads 8")));
}

}  // namespace
}  // namespace stepcast
