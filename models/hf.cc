// The Hugging Face form: a config.json as transformers writes it, or wrote it in any year.
//
// Three things have to be known that no key says. Names differ by age (n_embd is hidden_size). What
// a class always has, such as Qwen2's biases of q, k and v, has no key. And a key equal to the
// default of its class may be missing: at the top level only some are ever left out, but in a
// nested config (text_config) any size may be, as in google/gemma-3-4b-it, which has no
// num_attention_heads. So there is a table of classes, after transformers'
// src/transformers/models/*/configuration_*.py, and one reader. Keys without a cost are ignored.
//
// A layer that predicts a second token in training (num_nextn_predict_layers) is not read. Of a
// model that also sees or hears, only the text model is read.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/model_read.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

using Keys = std::initializer_list<std::string_view>;

// A class of transformers: its defaults, and what it is without asking.
struct HfClass {
  std::string_view model_type;
  std::int64_t layers, hidden, heads;
  std::int64_t kv_heads;  // 0: as many as heads
  std::int64_t head_dim;  // 0: hidden / heads
  std::int64_t ffn;       // 0: 4 hidden
  std::int64_t vocabulary, positions;
  bool tied;
  bool gpt = false;  // LayerNorm, learned positions, biases everywhere, an MLP without a gate
  bool qkv_bias = false;
  bool qk_norm = false;
  bool post_norms = false;
  bool gelu = false;  // the gate's activation; else SiLU
  bool gpt_oss = false;  // sinks, its own form of SwiGLU, biases everywhere
  std::int64_t experts = 0;  // 0: a dense model
  std::int64_t experts_per_token = 0;
  std::int64_t expert_ffn = 0;  // 0: ffn is the experts'
  std::int64_t shared_experts = 0, dense_layers = 0;
  std::int64_t kv_rank = 0, q_rank = 0;  // latent attention's; 0: there is none
  bool slides = false;          // sliding_window, where it is there, is one; and unless layer_types
  std::int64_t full_every = 0;  // says otherwise, one layer of so many has none (0: all have it)
};

constexpr HfClass kClasses[] = {
    {.model_type = "deepseek_v2", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 0,
     .head_dim = 0, .ffn = 11008, .vocabulary = 32000, .positions = 2048, .tied = false,
     .experts = 64, .experts_per_token = 6, .expert_ffn = 1407, .shared_experts = 2,
     .dense_layers = 0, .kv_rank = 512, .q_rank = 1536},
    {.model_type = "deepseek_v3", .layers = 61, .hidden = 7168, .heads = 128, .kv_heads = 0,
     .head_dim = 0, .ffn = 18432, .vocabulary = 129280, .positions = 4096, .tied = false,
     .experts = 256, .experts_per_token = 8, .expert_ffn = 2048, .shared_experts = 1,
     .dense_layers = 3, .kv_rank = 512, .q_rank = 1536},
    {.model_type = "gemma", .layers = 28, .hidden = 3072, .heads = 16, .kv_heads = 0,
     .head_dim = 256, .ffn = 24576, .vocabulary = 256000, .positions = 8192, .tied = true,
     .gelu = true},
    {.model_type = "gemma2", .layers = 26, .hidden = 2304, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .ffn = 9216, .vocabulary = 256000, .positions = 8192, .tied = true,
     .post_norms = true, .gelu = true, .slides = true, .full_every = 2},
    {.model_type = "gemma3_text", .layers = 26, .hidden = 2304, .heads = 8, .kv_heads = 4,
     .head_dim = 256, .ffn = 9216, .vocabulary = 262208, .positions = 131072, .tied = true,
     .qk_norm = true, .post_norms = true, .gelu = true, .slides = true, .full_every = 6},
    {.model_type = "gpt2", .layers = 12, .hidden = 768, .heads = 12, .kv_heads = 0, .head_dim = 0,
     .ffn = 0, .vocabulary = 50257, .positions = 1024, .tied = true, .gpt = true},
    {.model_type = "gpt_oss", .layers = 36, .hidden = 2880, .heads = 64, .kv_heads = 8,
     .head_dim = 64, .ffn = 2880, .vocabulary = 201088, .positions = 131072, .tied = false,
     .gpt_oss = true, .experts = 128, .experts_per_token = 4, .slides = true,
     .full_every = 2},
    {.model_type = "kimi_k2", .layers = 61, .hidden = 7168, .heads = 64, .kv_heads = 0,
     .head_dim = 0, .ffn = 18432, .vocabulary = 163840, .positions = 131072, .tied = false,
     .experts = 384, .experts_per_token = 8, .expert_ffn = 2048, .shared_experts = 1,
     .dense_layers = 1, .kv_rank = 512, .q_rank = 1536},
    {.model_type = "llama", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 0,
     .head_dim = 0, .ffn = 11008, .vocabulary = 32000, .positions = 2048, .tied = false},
    {.model_type = "mistral", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
     .head_dim = 0, .ffn = 14336, .vocabulary = 32000, .positions = 131072, .tied = false,
     .slides = true},
    {.model_type = "mixtral", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
     .head_dim = 0, .ffn = 14336, .vocabulary = 32000, .positions = 131072, .tied = false,
     .experts = 8, .experts_per_token = 2, .slides = true},
    {.model_type = "qwen2", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 0,
     .head_dim = 0, .ffn = 22016, .vocabulary = 151936, .positions = 32768, .tied = false,
     .qkv_bias = true},
    {.model_type = "qwen3", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 0,
     .head_dim = 128, .ffn = 22016, .vocabulary = 151936, .positions = 32768, .tied = false,
     .qk_norm = true},
    {.model_type = "qwen3_moe", .layers = 24, .hidden = 2048, .heads = 32, .kv_heads = 4,
     .head_dim = 0, .ffn = 6144, .vocabulary = 151936, .positions = 32768, .tied = false,
     .qk_norm = true, .experts = 128, .experts_per_token = 8, .expert_ffn = 768},
};

// Classes that are known, and cannot be said here.
constexpr std::pair<std::string_view, std::string_view> kNotCovered[] = {
    {"llama4", "chunked attention in some layers, and experts in every other one"},
    {"llama4_text", "chunked attention in some layers, and experts in every other one"},
    {"qwen2_moe", "a shared expert with a gate of its own"},
};

constexpr std::string_view kExpertKeys[] = {"num_local_experts", "num_experts",
                                            "n_routed_experts", "num_routed_experts",
                                            "moe_num_experts", "enable_moe_block"};

// What is here under one of its names; the first name where none is.
std::string_view present(const Object& object, Keys keys) {
  for (std::string_view key : keys) {
    if (object.has(key)) return key;
  }
  return *keys.begin();
}

bool switched_on(const Object& object, std::string_view key) {
  if (!object.has(key)) return false;
  const Json& value = object.at(key);
  return value.is_number() ? value.get<double>() > 0 : value != Json(false);
}

void refuse_what_is_not_covered(const Object& object) {
  const std::string model_type = object.string("model_type", "");
  for (const auto& [type, what] : kNotCovered) {
    if (model_type == type) object.fail("model_type", fmt::format("{} is not covered yet", what));
  }
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"}) {
    if (switched_on(object, key)) {
      object.fail(key, "cross-attention is not covered; only decoder-only models are");
    }
  }
}

const HfClass& find_class(const Object& object, const std::string& model_type) {
  // A class with a text model and a picture model is known by its text model.
  const std::string wanted = model_type == "gemma3" ? "gemma3_text" : model_type;
  std::vector<std::string> names;
  for (const HfClass& known : kClasses) {
    if (known.model_type == wanted) return known;
    names.emplace_back(known.model_type);
  }
  object.fail("model_type",
              fmt::format("model_type \"{}\" is not supported{}; {}", model_type.substr(0, 60),
                          did_you_mean(model_type, names), supported_model_types()));
}

// Experts of a class whose layers are known; elsewhere nothing says what they look like.
void refuse_unknown_experts(const Object& object, const HfClass& known) {
  if (known.experts > 0) return;
  std::vector<std::string_view> names;
  for (const HfClass& one : kClasses) {
    if (one.experts > 0) names.push_back(one.model_type);
  }
  for (const std::string_view key : kExpertKeys) {
    if (!switched_on(object, key)) continue;
    object.fail(key, fmt::format("a mixture-of-experts model of type {} is not covered; of those "
                                 "with experts, {} are",
                                 known.model_type, fmt::join(names, ", ")));
  }
}

// One config with its class. `nested`: sizes that are missing have the class's default.
class Reader {
 public:
  Reader(const Object& object, const HfClass& known, bool nested)
      : object_(object), class_(known), nested_(nested) {}

  Model read() const {
    Model m;
    m.layers = size({"num_hidden_layers", "n_layer"}, class_.layers, kModelLimits.layers);
    m.hidden = size({"hidden_size", "n_embd"}, class_.hidden, kModelLimits.hidden);
    m.heads = size({"num_attention_heads", "n_head"}, class_.heads, kModelLimits.heads);
    m.kv_heads = object_.integer("num_key_value_heads", default_kv_heads(m),
                                 kModelLimits.heads);
    m.head_dim = class_.kv_rank > 0 ? read_latents(m) : read_head_dim(m);
    const Keys ffn_keys = {"intermediate_size", "n_inner", "ffn_dim"};
    m.ffn = class_.ffn == 0 ? object_.integer(present(object_, ffn_keys), 4 * m.hidden,
                                              kModelLimits.ffn)
                            : size(ffn_keys, class_.ffn, kModelLimits.ffn);
    read_experts(m);
    m.vocabulary = object_.integer("vocab_size", class_.vocabulary, kModelLimits.vocabulary);
    m.positions =
        object_.integer(present(object_, {"max_position_embeddings", "n_positions", "n_ctx"}),
                        class_.positions, kModelLimits.positions);
    m.norm = class_.gpt ? NormKind::kLayer : NormKind::kRms;
    m.activation = class_.gpt_oss ? read_oai_activation() : read_activation();
    m.attention_sinks = class_.gpt_oss;
    m.learned_positions = class_.gpt;
    m.rotary = !class_.gpt;
    m.rotary_attention_factor = read_attention_factor(m.positions);
    read_biases(m);
    read_window(m);
    m.qk_norm = class_.qk_norm;
    m.post_norms = class_.post_norms;
    m.tied_embeddings = object_.boolean("tie_word_embeddings", class_.tied);
    read_dropout(m);
    check_model(m, object_,
                {present(object_, {"num_attention_heads", "n_head"}), "num_key_value_heads",
                 "head_dim", present(object_, {"num_hidden_layers", "n_layer"}),
                 present(object_, {"num_local_experts", "num_experts", "n_routed_experts"}),
                 "num_experts_per_tok",
                 class_.shared_experts > 0 ? "first_k_dense_replace" : "mlp_only_layers",
                 "kv_lora_rank", "qk_rope_head_dim"});
    return m;
  }

 private:
  std::int64_t size(Keys keys, std::int64_t otherwise, Limits limits) const {
    const std::string_view key = present(object_, keys);
    return nested_ ? object_.integer(key, otherwise, limits) : object_.integer(key, limits);
  }

  // Of a class with latents, whose own keys are never left out at the top level: null is none.
  std::int64_t or_none(std::string_view key, std::int64_t otherwise, Limits limits) const {
    const bool none = !nested_ && class_.kv_rank > 0;
    return object_.integer(key, none ? 0 : otherwise, {0, limits.most});
  }

  std::int64_t default_kv_heads(const Model& m) const {
    if (object_.boolean("multi_query", false)) return 1;
    return class_.kv_heads > 0 ? class_.kv_heads : m.heads;
  }

  std::int64_t read_head_dim(const Model& m) const {
    if (object_.has("head_dim")) return object_.integer("head_dim", kModelLimits.head_dim);
    if (class_.head_dim > 0) return class_.head_dim;
    return derived_head_dim(object_, present(object_, {"hidden_size", "n_embd"}), m.hidden,
                            present(object_, {"num_attention_heads", "n_head"}), m.heads);
  }

  void read_window(Model& m) const {
    if (!class_.slides || !object_.has("sliding_window")) return;
    m.window = object_.integer("sliding_window", kModelLimits.positions);
    m.full_every = object_.integer("sliding_window_pattern", class_.full_every,
                                   {0, kModelLimits.layers.most});
    constexpr std::string_view kKey = "layer_types";
    if (!object_.has(kKey)) return;
    const auto count = static_cast<std::int64_t>(object_.array_size(kKey));
    const auto whole = [&](std::int64_t layer) {
      return object_.at(kKey)[static_cast<std::size_t>(layer)] == "full_attention";
    };
    std::int64_t first = 0;
    while (first < count && !whole(first)) ++first;
    m.full_every = first < count ? first + 1 : 0;
    if (m.full_every == 1) m.window = m.full_every = 0;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      const bool due = m.window == 0 || (m.full_every > 0 && (layer + 1) % m.full_every == 0);
      if (whole(layer) == due) continue;
      object_.fail(kKey, fmt::format("full attention is covered in every n-th layer; layer {} does "
                                     "not fit those before it",
                                     layer));
    }
  }

  // Latent attention; the width of a head's key.
  std::int64_t read_latents(Model& m) const {
    m.kv_rank = object_.integer("kv_lora_rank", class_.kv_rank, kModelLimits.hidden);
    m.q_rank = or_none("q_lora_rank", class_.q_rank, kModelLimits.hidden);
    m.rotary_dim = object_.integer("qk_rope_head_dim", 64, kModelLimits.head_dim);
    m.value_dim = object_.integer("v_head_dim", 128, kModelLimits.head_dim);
    return m.rotary_dim + object_.integer("qk_nope_head_dim", 128, kModelLimits.head_dim);
  }

  // YaRN's factor of queries and keys, as transformers has it (modeling_rope_utils.py,
  // _compute_yarn_parameters; GptOssConfig stretches 32 times unless told). Latent attention's goes
  // into the softmax's scale.
  double read_attention_factor(std::int64_t positions) const {
    const std::string_view key = present(object_, {"rope_scaling", "rope_parameters"});
    if (class_.gpt || class_.kv_rank > 0) return 1;
    const auto factor_of = [](double stretched, double by) {
      return stretched <= 1 ? 1.0 : 0.1 * by * std::log(stretched) + 1;
    };
    if (!object_.has(key)) {
      return class_.gpt_oss && !object_.is_null(key) ? factor_of(32, 1) : 1;
    }
    const Object scaling = object_.object(key);
    if (scaling.string("rope_type", scaling.string("type", "default")) != "yarn") return 1;
    const std::int64_t before =
        scaling.integer("original_max_position_embeddings", positions, kModelLimits.positions);
    const double stretched =
        scaling.number("factor", static_cast<double>(positions) / static_cast<double>(before),
                       1.0, 1e6);
    const double all = scaling.number("mscale_all_dim", 0.0, 0.0, 1e3);
    const double some = scaling.number("mscale", 0.0, 0.0, 1e3);
    const double usual = some > 0 && all > 0
                             ? factor_of(stretched, some) / factor_of(stretched, all)
                             : factor_of(stretched, 1);
    if (usual < kRotaryScaleLeast || usual > kRotaryScaleMost) {
      scaling.fail("mscale", fmt::format("makes a factor of {:.3g}; from {} to {} are covered",
                                         usual, kRotaryScaleLeast, kRotaryScaleMost));
    }
    return scaling.number("attention_factor", usual, kRotaryScaleLeast, kRotaryScaleMost);
  }

  void read_experts(Model& m) const {
    refuse_unknown_experts(object_, class_);
    if (class_.experts == 0) return;
    m.experts = or_none(present(object_, {"num_local_experts", "num_experts", "n_routed_experts"}),
                        class_.experts, kModelLimits.experts);
    if (m.experts == 0) return;
    m.experts_per_token = object_.integer("num_experts_per_tok", class_.experts_per_token,
                                          kModelLimits.experts);
    m.expert_ffn = class_.expert_ffn == 0 ? m.ffn
                                          : object_.integer("moe_intermediate_size",
                                                            class_.expert_ffn, kModelLimits.ffn);
    for (const char* key : {"decoder_sparse_step", "moe_layer_freq"}) {
      if (object_.integer(key, 1, kModelLimits.layers) == 1) continue;
      object_.fail(key, "experts in every second or a later layer only are not covered; must be 1");
    }
    if (class_.shared_experts > 0) {
      m.shared_ffn =
          m.expert_ffn * or_none("n_shared_experts", class_.shared_experts, kModelLimits.experts);
      m.dense_layers = object_.integer("first_k_dense_replace", class_.dense_layers,
                                       {0, kModelLimits.layers.most});
    } else {
      m.dense_layers = read_dense_layers();
    }
    if (m.dense_layers == 0) m.ffn = m.expert_ffn;
  }

  // Layers without experts, by their numbers: only the first ones can be said.
  std::int64_t read_dense_layers() const {
    constexpr std::string_view kKey = "mlp_only_layers";
    if (!object_.has(kKey)) return 0;
    const auto count = static_cast<std::int64_t>(object_.array_size(kKey));
    for (std::int64_t i = 0; i < count; ++i) {
      if (object_.at(kKey)[static_cast<std::size_t>(i)] == i) continue;
      object_.fail(kKey, "dense layers behind those with experts are not covered; must be 0, 1, "
                         "... of the first");
    }
    return count;
  }

  Activation read_activation() const {
    const std::string_view key =
        present(object_, {"hidden_activation", "hidden_act", "activation_function"});
    const std::string word =
        object_.string(key, class_.gpt || class_.gelu ? "gelu" : "silu");
    const bool gelu = word.starts_with("gelu") || word == "quick_gelu";
    if (class_.gpt && gelu) return Activation::kGelu;
    if (!class_.gpt && gelu) return Activation::kGeglu;
    if (!class_.gpt && (word == "silu" || word == "swish")) return Activation::kSwiglu;
    object_.fail(key, fmt::format("activation \"{}\" is not covered for {}; {}", word.substr(0, 60),
                                  class_.model_type,
                                  class_.gpt ? "gelu and its approximations are"
                                             : "silu and gelu are, as the gate of the MLP"));
  }

  // What its experts do with the gate is no key's; how far it lets the numbers go is.
  Activation read_oai_activation() const {
    constexpr std::string_view kKey = "swiglu_limit";
    if (object_.number(kKey, kOaiLimit, 0.0, 1e6) != kOaiLimit) {
      object_.fail(kKey, fmt::format("other limits than {:.1f} are not covered", kOaiLimit));
    }
    return Activation::kSwigluOai;
  }

  void read_biases(Model& m) const {
    const bool usual = class_.gpt || class_.gpt_oss;
    m.mlp_bias = object_.boolean("mlp_bias", usual);
    if (class_.experts > 0 && m.mlp_bias != usual) {
      object_.fail("mlp_bias", fmt::format("{} {} biases in its experts; leave it out",
                                           class_.model_type, usual ? "always has" : "has no"));
    }
    // In Qwen2 the key only repeats what the class does anyway, and never means the output.
    const bool has_fixed_biases = class_.gpt || class_.qkv_bias;
    const bool asked =
        object_.boolean("attention_bias", class_.gpt_oss) && !has_fixed_biases;
    m.qkv_bias = has_fixed_biases || asked || object_.boolean("qkv_bias", false);
    m.attention_output_bias = class_.gpt || asked;
  }

  // One rate stands for all of a model's dropouts, the largest of them: those of GPT-2 go on and
  // off together.
  void read_dropout(Model& m) const {
    const auto rate = [&](std::string_view key, double otherwise) {
      return object_.number(key, otherwise, 0.0, kDropoutMost);
    };
    const double most =
        class_.gpt ? std::max(rate("attn_pdrop", kDropoutRate), rate("resid_pdrop", kDropoutRate))
                   : rate("attention_dropout", 0.0);
    m.dropout = most >= kDropoutLeast;
    if (m.dropout) m.dropout_rate = most;
  }

  const Object& object_;
  const HfClass& class_;
  const bool nested_;
};

}  // namespace

std::string supported_model_types() {
  std::vector<std::string_view> names;
  for (const HfClass& known : kClasses) names.push_back(known.model_type);
  return fmt::format("supported are {}", fmt::join(names, ", "));
}

Model read_hf_model(const Object& object, std::string_view name) {
  const std::string outer_type = object.string("model_type");
  const std::string_view part = present(object, {"text_config", "language_config", "llm_config"});
  const bool has_sizes = object.has("hidden_size") || object.has("n_embd");
  const bool nested = !has_sizes && object.has(part);

  refuse_what_is_not_covered(object);
  Model model;
  if (nested) {
    const Object inner = object.object(part);
    refuse_what_is_not_covered(inner);
    const bool has_type = inner.has("model_type");
    const HfClass& known = has_type ? find_class(inner, inner.string("model_type"))
                                    : find_class(object, outer_type);
    model = Reader(inner, known, true).read();
    // Tying may be said at either level; the inner one is the text model's own.
    if (!inner.has("tie_word_embeddings")) {
      model.tied_embeddings = object.boolean("tie_word_embeddings", model.tied_embeddings);
    }
  } else {
    model = Reader(object, find_class(object, outer_type), false).read();
  }
  model.name = name;
  return model;
}

}  // namespace stepcast
