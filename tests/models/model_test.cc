#include "models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "sim/base/error.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

Model read_plain(const std::string& text) {
  const Document document = parse_json(text, "model.json");
  return read_model(Object(document), "given");
}

std::string model_error(const std::string& text) {
  try {
    read_plain(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

fs::path presets() { return fs::path(STEPCAST_SOURCE_DIR) / "configs" / "models"; }

Model preset(const std::string& name) {
  const fs::path path = presets() / (name + ".json");
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const Document document = parse_json(text.str(), path.string());
  return read_model(Object(document), name);
}

std::set<std::string> preset_names() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(presets())) {
    names.insert(entry.path().stem().string());
  }
  return names;
}

// ----------------------------------------------------------------------------------- parameters

// Counts of the published checkpoints (huggingface.co, "num_parameters" of each model).
TEST(Parameters, OfGpt2AreExact) {
  EXPECT_EQ(parameters(preset("gpt2")), 124'439'808);
  EXPECT_EQ(parameters(preset("gpt2-medium")), 354'823'168);
  EXPECT_EQ(parameters(preset("gpt2-large")), 774'030'080);
  EXPECT_EQ(parameters(preset("gpt2-xl")), 1'557'611'200);
}

TEST(Parameters, OfLlamaAreExact) {
  EXPECT_EQ(parameters(preset("llama2-7b")), 6'738'415'616);
  EXPECT_EQ(parameters(preset("llama2-13b")), 13'015'864'320);
  EXPECT_EQ(parameters(preset("llama2-70b")), 68'976'648'192);
  EXPECT_EQ(parameters(preset("llama3.1-8b")), 8'030'261'248);
  EXPECT_EQ(parameters(preset("llama3.1-70b")), 70'553'706'496);
  EXPECT_EQ(parameters(preset("llama3.1-405b")), 405'853'388'800);
  EXPECT_EQ(parameters(preset("llama3.2-1b")), 1'235'814'400);
  EXPECT_EQ(parameters(preset("llama3.2-3b")), 3'212'749'824);
}

TEST(Parameters, OfMistralAreExact) { EXPECT_EQ(parameters(preset("mistral-7b")), 7'241'732'096); }

// Qwen2.5 has biases of q, k and v only, Qwen3 none but norms of q and k; small ones are tied.
TEST(Parameters, OfQwenAreExact) {
  EXPECT_EQ(parameters(preset("qwen2.5-0.5b")), 494'032'768);
  EXPECT_EQ(parameters(preset("qwen2.5-7b")), 7'615'616'512);
  EXPECT_EQ(parameters(preset("qwen2.5-72b")), 72'706'203'648);
  EXPECT_EQ(parameters(preset("qwen3-0.6b")), 596'049'920);
  EXPECT_EQ(parameters(preset("qwen3-8b")), 8'190'735'360);
  EXPECT_EQ(parameters(preset("qwen3-32b")), 32'762'123'264);
}

// Model cards: 46.7 billion, 12.9 of them active; 141, 39 active; Qwen3 (arXiv 2505.09388, Table 2)
// 30.5 and 3.3; 235 and 22. The exact counts are those of the checkpoints' safetensors.
TEST(Parameters, OfMixturesOfExpertsAreExact) {
  EXPECT_EQ(parameters(preset("mixtral-8x7b")), 46'702'792'704);
  EXPECT_EQ(parameters(preset("mixtral-8x22b")), 140'620'634'112);
  EXPECT_EQ(parameters(preset("qwen3-30b-a3b")), 30'532'122'624);
  EXPECT_EQ(parameters(preset("qwen3-235b-a22b")), 235'093'634'560);
  // xAI say 314 billion; the sizes in their run.py and model.py make 315.7.
  EXPECT_NEAR(static_cast<double>(parameters(preset("grok-1"))) / 314e9, 1, 0.01);
}

// DeepSeek-V3's checkpoint has 671,026,419,200 without the layer that predicts a second token, of
// which 58 x 256 are the router's corrections, that no gradient trains (arXiv 2412.19437, section
// 2.1.2). The others by their model cards: 236, 16 and 1,000 billion (arXiv 2405.04434, 2502.16982,
// 2507.20534).
TEST(Parameters, OfLatentAttentionAreExact) {
  EXPECT_EQ(parameters(preset("deepseek-v3")), 671'026'419'200 - 58 * 256);
  EXPECT_NEAR(static_cast<double>(parameters(preset("deepseek-v2"))), 236e9, 0.5e9);
  EXPECT_NEAR(static_cast<double>(parameters(preset("moonlight-16b-a3b"))), 16e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameters(preset("kimi-k2"))) / 1e12, 1.03, 0.005);
}

// arXiv 2508.10925, table 1: 116.83 and 20.91 billion; 5.13 and 3.61 of them active, of which the
// embedding's 0.58 are not counted (5.12 and 3.61).
TEST(Parameters, OfGptOssAreThoseOfItsCard) {
  const auto billions = [](const Model& m) { return static_cast<double>(parameters(m)) / 1e9; };
  Model large = preset("gpt-oss-120b"), small = preset("gpt-oss-20b");
  EXPECT_NEAR(billions(large), 116.83, 0.005);
  EXPECT_NEAR(billions(small), 20.91, 0.005);
  const double embedding = 201088.0 * 2880 / 1e9;
  large.experts = small.experts = 4;
  EXPECT_NEAR(billions(large) - embedding, 5.13, 0.015);
  EXPECT_NEAR(billions(small) - embedding, 3.61, 0.01);
}

// One expert too few for each token not used: what a token meets is what FLOPs count.
TEST(Parameters, ThatATokenMeetsAreThoseOfItsExperts) {
  Model m = preset("mixtral-8x7b");
  m.experts = m.experts_per_token;
  EXPECT_NEAR(static_cast<double>(parameters(m)), 12.9e9, 0.05e9);
  m = preset("qwen3-235b-a22b");
  m.experts = m.experts_per_token;
  EXPECT_NEAR(static_cast<double>(parameters(m)), 22.2e9, 0.1e9);
}

// Text models only.
TEST(Parameters, OfGemmaAreExact) {
  EXPECT_EQ(parameters(preset("gemma-2b")), 2'506'172'416);
  EXPECT_EQ(parameters(preset("gemma-7b")), 8'537'680'896);
  EXPECT_EQ(parameters(preset("gemma2-9b")), 9'241'705'984);
  EXPECT_EQ(parameters(preset("gemma3-1b")), 999'885'952);
  EXPECT_EQ(parameters(preset("gemma3-27b")), 27'009'346'304);
}

// Narayanan et al. 2021, equation 2: P = 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)); it leaves
// out the final norm (2 h), and nothing else.
TEST(Parameters, OfTheMegatronFamilyFollowTheirFormula) {
  for (const char* name : {"megatron-1.7b", "megatron-22b", "gpt3-175b", "megatron-1t"}) {
    const Model m = preset(name);
    const std::int64_t formula = 12 * m.layers * m.hidden * m.hidden + 13 * m.layers * m.hidden +
                                 (m.vocabulary + m.positions) * m.hidden;
    EXPECT_EQ(parameters(m), formula + 2 * m.hidden) << name;
  }
}

TEST(Presets, AgreeWithTheSizeInTheirName) {
  // Where the name is not the number of parameters:
  const std::map<std::string, std::string> exceptions = {
      {"qwen2.5-7b", "7.6 billion by the model card, 6.5 without embeddings"},
      {"gemma-2b", "2.5 billion; the name leaves the embeddings out"},
      {"gemma-7b", "8.5 billion; the name leaves the embeddings out"},
      {"gemma2-2b", "2.6 billion; the name leaves the embeddings out"},
      {"llama3.2-1b", "1.24 billion by the model card"},
      {"grok-1", "no size"},
      {"deepseek-v2", "no size"},
      {"deepseek-v3", "no size"},
      {"kimi-k2", "no size"},
      {"moonlight-16b-a3b", "16 billion, of which a token meets 3"},
      {"mixtral-8x7b", "46.7 billion: eight of 7 but for what they share"},
      {"mixtral-8x22b", "141 billion: eight of 22 but for what they share"},
      {"qwen3-30b-a3b", "30.5 billion, of which a token meets 3.3"},
      {"qwen3-235b-a22b", "235 billion, of which a token meets 22"},
      {"gpt2", "no size"},
      {"gpt2-medium", "no size"},
      {"gpt2-large", "no size"},
      {"gpt2-xl", "no size"}};
  ASSERT_GT(preset_names().size(), 40u);
  for (const std::string& name : preset_names()) {
    const std::string tail = name.substr(name.rfind('-') + 1);
    const std::map<char, double> scales = {{'m', 1e6}, {'b', 1e9}, {'t', 1e12}};
    const auto scale = scales.find(tail.back());
    const double stated =
        scale == scales.end() ? 0 : std::strtod(tail.c_str(), nullptr) * scale->second;
    const auto counted = static_cast<double>(parameters(preset(name)));
    const bool agrees = stated > 0 && std::abs(counted / stated - 1) <= 0.08;
    EXPECT_NE(agrees, exceptions.contains(name)) << name << " has " << counted << " parameters";
  }
}

TEST(Presets, AreCalledAsTheirFileAndNameASource) {
  for (const std::string& name : preset_names()) {
    EXPECT_EQ(preset(name).name, name);
    std::ifstream in(presets() / (name + ".json"));
    std::stringstream text;
    text << in.rdbuf();
    const Document document = parse_json(text.str(), name);
    EXPECT_GT(Object(document).string("source").size(), 20u) << name;
  }
}

TEST(Presets, ReadBackEqualAfterWriting) {
  for (const std::string& name : preset_names()) {
    const Model model = preset(name);
    const Document document = parse_json(write_model(model).dump(), "written");
    EXPECT_EQ(read_model(Object(document), "other"), model) << name;
  }
}

// ---------------------------------------------------------------------------------------- FLOPs

// One layer, h = 2, one head of 2, f = 8, V = 3, s = 5, no gate. A token forward: q and o
// 2 * 2 h q = 16, k and v 4 h kv = 16, MLP 4 h f = 64, attention 4 s q = 40, head 2 h V = 12.
TEST(ModelFlops, CountTwoAMultiplyAddAndBackwardTwice) {
  const Model m =
      read_plain(R"({"style": "gpt", "layers": 1, "hidden": 2, "heads": 1, "vocabulary": 3,
                           "positions": 5})");
  EXPECT_EQ(model_flops_per_token(m, 5, false).value, 3 * (16 + 16 + 64 + 40 + 12));
  EXPECT_EQ(model_flops_per_token(m, 5, true).value, 3 * (16 + 16 + 64 + 20 + 12));
}

// The model above with a gate and three layers: the first with an MLP of f = 8, 6 h f = 96;
// the others with 4 experts of 3, of which a token takes 2, 6 h 2 3 = 72, a shared one of 5, 60,
// and the router, 2 h 4 = 16.
TEST(ModelFlops, CountTheExpertsThatATokenGoesTo) {
  const Model m = read_plain(R"({"layers": 3, "hidden": 2, "heads": 1, "vocabulary": 3,
                           "positions": 5, "ffn": 8, "experts": 4, "experts_per_token": 2,
                           "expert_ffn": 3, "shared_ffn": 5, "dense_layers": 1})");
  EXPECT_EQ(model_flops_per_token(m, 5, false).value,
            3 * (3 * (16 + 16 + 40) + 96 + 2 * (72 + 60 + 16) + 12));
  // A layer's attention 4 h h and norms 2 h; 3 h f; 4 experts, their rows of the router; the ends.
  EXPECT_EQ(parameters(m), 3 * (16 + 4) + 48 + 2 * (4 * 18 + 8 + 30) + 2 + 2 * 6);
}

// Narayanan et al. 2021, equation 3, for an iteration with recomputation: F = 96 B s L h^2
// (1 + s / (6 h) + V / (16 L h)). Three quarters of its layers' part are the model's: 72 a token.
TEST(ModelFlops, OfGpt3FollowTheMegatronFormula) {
  const Model m = preset("gpt3-175b");
  const double h = 12288, layers = 96, s = 2048, v = 51200;
  const double formula = 72 * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h));
  EXPECT_NEAR(model_flops_per_token(m, 2048, false).value / formula, 1.0, 1e-12);
}

// ---------------------------------------------------------------------------------- preset form

TEST(Preset, OfStyleGptHasBiasesTiedEmbeddingsAndFourTimesTheWidth) {
  const Model m = read_plain(R"({"style": "gpt", "layers": 2, "hidden": 64, "heads": 4,
                           "vocabulary": 100, "positions": 32})");
  EXPECT_EQ(m.name, "given");
  EXPECT_EQ(m.ffn, 256);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.norm, NormKind::kLayer);
  EXPECT_EQ(m.activation, Activation::kGelu);
  EXPECT_TRUE(m.learned_positions && m.qkv_bias && m.attention_output_bias && m.mlp_bias);
  EXPECT_TRUE(m.tied_embeddings && m.dropout);
  EXPECT_EQ(m.dropout_rate, 0.1);
  EXPECT_FALSE(m.rotary);
}

TEST(Preset, OverridesItsStyle) {
  const Model m = read_plain(R"({"style": "gpt", "layers": 2, "hidden": 64, "heads": 4,
                           "vocabulary": 100, "positions": 32, "norm": "rms", "dropout": false,
                           "learned_positions": false, "rotary": true, "head_dim": 32,
                           "ffn": 96, "kv_heads": 2})");
  EXPECT_EQ(m.norm, NormKind::kRms);
  EXPECT_FALSE(m.dropout || m.learned_positions);
  EXPECT_TRUE(m.rotary && m.tied_embeddings);
  EXPECT_EQ(m.query_width(), 128);
  EXPECT_EQ(m.kv_width(), 64);
  EXPECT_EQ(m.ffn, 96);
}

TEST(Preset, OfExpertsHasNoOtherWidthWhereNoLayerIsDense) {
  const std::string rest = R"("layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100,
                           "positions": 32, "experts": 8, "experts_per_token": 2)";
  EXPECT_EQ(read_plain(R"({"expert_ffn": 96, )" + rest + "}").ffn, 96);
  EXPECT_EQ(read_plain(R"({"expert_ffn": 96, )" + rest + "}").shared_ffn, 0);
  EXPECT_FALSE(read_plain(R"({"style": "gpt", "expert_ffn": 96, )" + rest + "}").mlp_bias);
  EXPECT_THAT(model_error("{" + rest + "}"), HasSubstr("\"expert_ffn\" is missing"));
  EXPECT_THAT(model_error(R"({"expert_ffn": 96, "dense_layers": 1, )" + rest + "}"),
              HasSubstr("\"ffn\" is missing"));
  EXPECT_THAT(model_error(R"({"expert_ffn": 96, "ffn": 4, "dense_layers": 2, )" + rest + "}"),
              AllOf(HasSubstr("dense_layers"), HasSubstr("leave none of 2")));
  EXPECT_TRUE(read_plain(R"({"expert_ffn": 96, "mlp_bias": true, )" + rest + "}").mlp_bias);
  EXPECT_THAT(
      model_error(R"({"expert_ffn": 96, "shared_ffn": 8, "mlp_bias": true, )" + rest + "}"),
      AllOf(HasSubstr("mlp_bias"), HasSubstr("shared expert"), HasSubstr("must be false")));
}

TEST(Preset, RefusesKeysOfExpertsThatDoNotFit) {
  const std::string rest = R"("layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100,
                           "positions": 32, "ffn": 96})";
  EXPECT_THAT(model_error(R"({"experts": 4, "expert_ffn": 8, "experts_per_token": 5, )" + rest),
              AllOf(HasSubstr("experts_per_token"), HasSubstr("5 experts of 4")));
  EXPECT_THAT(model_error(R"({"experts": 16385, "expert_ffn": 8, "experts_per_token": 5, )" + rest),
              HasSubstr("from 0 to 16384"));
  EXPECT_THAT(model_error(R"({"shared_ffn": 8, )" + rest),
              AllOf(HasSubstr("shared_ffn"), HasSubstr("no experts")));
}

TEST(Preset, HasAFactorOnlyOfWhatIsRotated) {
  const std::string rest = R"("layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100,
                           "positions": 32, "ffn": 96})";
  EXPECT_EQ(read_plain("{" + rest).rotary_attention_factor, 1);
  const auto with = [&](const std::string& factor, const std::string& more = "") {
    return R"({"rotary_attention_factor": )" + factor + ", " + more + rest;
  };
  EXPECT_EQ(read_plain(with("1.25")).rotary_attention_factor, 1.25);
  EXPECT_THAT(model_error(with("0")), HasSubstr("rotary_attention_factor"));
  EXPECT_THAT(model_error(with("1.25", R"("rotary": false, )")), HasSubstr("nothing is rotated"));
  EXPECT_THAT(model_error(with("1.25", R"("kv_rank": 8, "rotary_dim": 4, )")),
              HasSubstr("without latent attention"));
}

TEST(Preset, NeedsAnFfnWhereTheMlpIsGated) {
  EXPECT_THAT(model_error(R"({"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100,
                           "positions": 32})"),
              HasSubstr("\"ffn\" is missing"));
}

TEST(Preset, RefusesAnUnknownKeyWithTheNearest) {
  EXPECT_THAT(model_error(R"({"style": "gpt", "layers": 2, "hiden": 3, "hidden": 64, "heads": 4,
                           "vocabulary": 100, "positions": 32})"),
              AllOf(HasSubstr("hiden"), HasSubstr("did you mean \"hidden\"")));
}

TEST(Preset, RefusesSizesThatDoNotFitEachOther) {
  const std::string rest = R"("style": "gpt", "layers": 2, "vocabulary": 100, "positions": 32})";
  EXPECT_THAT(model_error(R"({"hidden": 65, "heads": 4, )" + rest),
              AllOf(HasSubstr("model.json:1: heads"), HasSubstr("65"), HasSubstr("head_dim")));
  EXPECT_THAT(model_error(R"({"hidden": 64, "heads": 4, "kv_heads": 3, )" + rest),
              HasSubstr("4 heads are not a multiple of 3 key-value heads"));
  EXPECT_THAT(model_error(R"({"hidden": 64, "heads": 0, )" + rest), HasSubstr("from 1"));
}

TEST(Preset, RefusesWhatWouldOverflow) {
  EXPECT_THAT(model_error(R"({"style": "gpt", "layers": 10001, "hidden": 64, "heads": 4,
                           "vocabulary": 100, "positions": 32})"),
              HasSubstr("from 1 to 10000"));
  // 10,000 layers of 4 * 2^40 + 2 * 2^44: each size is within its limit, the whole is not.
  EXPECT_THAT(model_error(R"({"style": "gpt", "layers": 10000, "hidden": 1048576, "heads": 4,
                           "ffn": 16777216, "vocabulary": 100, "positions": 32})"),
              HasSubstr("too many"));
  EXPECT_THAT(model_error(R"({"style": "gpt", "layers": 1, "hidden": 64, "heads": 65536,
                           "head_dim": 65536, "vocabulary": 100, "positions": 32})"),
              HasSubstr("columns of queries"));
}

TEST(Preset, TellsAHuggingFaceFileWithoutItsTypeFromAPreset) {
  EXPECT_THAT(model_error(R"({"hidden_size": 64, "num_hidden_layers": 2})"),
              AllOf(HasSubstr("\"model_type\" is missing"), HasSubstr("llama")));
}

}  // namespace
}  // namespace stepcast
