// A model counted: parameters matrix by matrix, FLOPs by the rule of two a multiply-add. The preset
// form lives here too; a Hugging Face config.json is read in hf.cc. Everything is O(1).
#include "models/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "models/model_read.h"
#include "models/words.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr double kParametersMax = 0x1p49;  // so that no count of bytes overflows

const std::vector<std::pair<std::string, NormKind>> kNorms = {{"layer", NormKind::kLayer},
                                                              {"rms", NormKind::kRms}};
const std::vector<std::pair<std::string, Activation>> kActivations = {
    {"gelu", Activation::kGelu},
    {"swiglu", Activation::kSwiglu},
    {"geglu", Activation::kGeglu},
    {"swiglu_oai", Activation::kSwigluOai}};

std::int64_t norm_parameters(NormKind kind, std::int64_t columns) {
  return kind == NormKind::kLayer ? 2 * columns : columns;  // weight, and LayerNorm's bias
}

std::int64_t mlp_parameters(const Model& m, std::int64_t width) {
  const std::int64_t biases = m.mlp_bias ? (m.gated() ? 2 : 1) * width + m.hidden : 0;
  return (m.gated() ? 3 : 2) * m.hidden * width + biases;
}

// The matrices of attention; latent attention's down to the latents and up from them.
std::int64_t attention_matrices(const Model& m) {
  const std::int64_t q = m.query_width(), out = m.result_width() * m.hidden;
  if (!m.latent()) return m.hidden * (q + 2 * m.kv_width()) + out;
  const std::int64_t up = m.heads * (m.head_dim - m.rotary_dim + m.value_dim);
  const std::int64_t queries = m.q_rank > 0 ? m.q_rank * (m.hidden + q) : m.hidden * q;
  return queries + m.hidden * (m.kv_rank + m.rotary_dim) + m.kv_rank * up + out;
}

std::int64_t layer_parameters(const Model& m, bool of_experts) {
  const std::int64_t q = m.query_width(), kv = m.kv_width();
  std::int64_t sum = attention_matrices(m);
  if (m.latent()) sum += m.kv_rank + m.q_rank;  // norms of the latents
  if (m.qkv_bias) sum += q + 2 * kv;
  if (m.attention_output_bias) sum += m.hidden;
  if (m.attention_sinks) sum += m.heads;
  if (of_experts) {
    const std::int64_t router_row = m.hidden + (m.mlp_bias ? 1 : 0);
    sum += m.experts * (mlp_parameters(m, m.expert_ffn) + router_row);
    if (m.shared_ffn > 0) sum += mlp_parameters(m, m.shared_ffn);
  } else {
    sum += mlp_parameters(m, m.ffn);
  }
  sum += (m.post_norms ? 4 : 2) * norm_parameters(m.norm, m.hidden);
  if (m.qk_norm) sum += 2 * m.head_dim;
  return sum;
}

void check_model_experts(const Model& m, const Object& object, const ModelKeys& keys) {
  if (m.experts == 0) return;
  if (m.experts_per_token < 1 || m.experts_per_token > m.experts) {
    object.fail(keys.experts_per_token, fmt::format("a token takes {} experts of {}; at least 1 "
                                                    "and at most all",
                                                    m.experts_per_token, m.experts));
  }
  if (m.dense_layers >= m.layers) {
    object.fail(keys.dense_layers,
                fmt::format("{} dense layers leave none of {} for the experts; leave \"{}\" out "
                            "for a dense model",
                            m.dense_layers, m.layers, keys.experts));
  }
  if (m.mlp_bias && m.shared_ffn > 0) {
    object.fail("mlp_bias", "biases are not covered beside a shared expert; must be false");
  }
}

// What a style stands for; every key may say otherwise.
Model style_defaults(bool gpt) {
  Model model;  // Llama's: RMSNorm, SwiGLU, rotary, no biases
  if (!gpt) return model;
  model.norm = NormKind::kLayer;
  model.activation = Activation::kGelu;
  model.learned_positions = true;
  model.rotary = false;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  model.dropout = true;
  return model;
}

// A Hugging Face config without its model_type would read as a preset full of unknown keys.
void refuse_other_form(const Object& object) {
  for (const char* key :
       {"architectures", "num_hidden_layers", "hidden_size", "n_embd", "text_config"}) {
    if (!object.has(key)) continue;
    object.fail(key, fmt::format("this is a Hugging Face key, but \"model_type\" is missing; {}",
                                 supported_model_types()));
  }
}

// Without experts the other keys say nothing, but each keeps its limits.
void read_preset_experts(const Object& o, Model& m) {
  m.experts = o.integer("experts", 0, kModelLimits.experts);
  m.shared_ffn = o.integer("shared_ffn", 0, {0, kModelLimits.ffn.most});
  m.dense_layers = o.integer("dense_layers", 0, {0, kModelLimits.layers.most});
  if (m.experts > 0) {
    m.experts_per_token = o.integer("experts_per_token", {1, kModelLimits.experts.most});
    m.expert_ffn = o.integer("expert_ffn", kModelLimits.ffn);
    m.mlp_bias = false;  // what a style says is of dense layers
    return;
  }
  m.experts_per_token = o.integer("experts_per_token", 0, kModelLimits.experts);
  m.expert_ffn = o.integer("expert_ffn", 0, {0, kModelLimits.ffn.most});
  const std::pair<const char*, std::int64_t> others[] = {{"experts_per_token", m.experts_per_token},
                                                         {"expert_ffn", m.expert_ffn},
                                                         {"shared_ffn", m.shared_ffn},
                                                         {"dense_layers", m.dense_layers}};
  for (const auto& [key, value] : others) {
    if (value != 0) o.fail(key, "the model has no experts; say how many by \"experts\"");
  }
}

void read_preset_latents(const Object& o, Model& m) {
  m.kv_rank = o.integer("kv_rank", 0, {0, kModelLimits.hidden.most});
  m.q_rank = o.integer("q_rank", 0, {0, kModelLimits.hidden.most});
  m.rotary_dim = o.integer("rotary_dim", 0, {0, kModelLimits.head_dim.most});
  m.value_dim = o.integer("value_dim", m.latent() ? m.head_dim : 0,
                          {m.latent() ? 1 : 0, kModelLimits.head_dim.most});
  if (m.latent()) return;
  const std::pair<const char*, std::int64_t> others[] = {
      {"q_rank", m.q_rank}, {"rotary_dim", m.rotary_dim}, {"value_dim", m.value_dim}};
  for (const auto& [key, value] : others) {
    if (value != 0) o.fail(key, "is of latent attention; say of how many latents by \"kv_rank\"");
  }
}

// GPT's four times is a convention; a gated MLP has none that all models keep. Where every layer
// has experts, there is no other MLP.
std::int64_t read_preset_ffn(const Object& o, const Model& m) {
  if (m.experts > 0 && m.dense_layers == 0) {
    return o.integer("ffn", m.expert_ffn, kModelLimits.ffn);
  }
  return m.gated() ? o.integer("ffn", kModelLimits.ffn)
                   : o.integer("ffn", 4 * m.hidden, kModelLimits.ffn);
}

Model read_preset(const Object& o, std::string_view name) {
  refuse_other_form(o);
  for (const char* key : {"source", "description"}) o.touch(key);
  Model m = style_defaults(o.word("style", false, {{"llama", false}, {"gpt", true}}));
  m.name = o.string("name", name);
  m.layers = o.integer("layers", kModelLimits.layers);
  m.hidden = o.integer("hidden", kModelLimits.hidden);
  m.heads = o.integer("heads", kModelLimits.heads);
  m.kv_heads = o.integer("kv_heads", m.heads, kModelLimits.heads);
  m.head_dim = o.has("head_dim") ? o.integer("head_dim", kModelLimits.head_dim)
                                 : derived_head_dim(o, "hidden", m.hidden, "heads", m.heads);
  o.touch("head_dim");
  m.norm = o.word("norm", m.norm, kNorms);
  m.activation = o.word("activation", m.activation, kActivations);
  m.window = o.integer("window", 0, {0, kModelLimits.positions.most});
  m.full_every = o.integer("full_every", 0, {0, kModelLimits.layers.most});
  if (m.full_every > 0 && m.window == 0) {
    o.fail("full_every", "says which layers have no window, but none has; give \"window\"");
  }
  if (m.full_every == 1) m.window = m.full_every = 0;
  read_preset_latents(o, m);
  read_preset_experts(o, m);
  m.ffn = read_preset_ffn(o, m);
  m.vocabulary = o.integer("vocabulary", kModelLimits.vocabulary);
  m.positions = o.integer("positions", kModelLimits.positions);
  m.learned_positions = o.boolean("learned_positions", m.learned_positions);
  m.rotary = o.boolean("rotary", m.rotary);
  constexpr std::string_view kFactor = "rotary_attention_factor";
  m.rotary_attention_factor = o.number(kFactor, 1, kRotaryScaleLeast, kRotaryScaleMost);
  if (m.rotary_attention_factor != 1 && (!m.rotary || m.latent())) {
    o.fail(kFactor, m.latent() ? "is covered without latent attention; leave it out"
                               : "nothing is rotated; set rotary to true, or leave it out");
  }
  m.qkv_bias = o.boolean("qkv_bias", m.qkv_bias);
  m.attention_output_bias = o.boolean("attention_output_bias", m.attention_output_bias);
  m.attention_sinks = o.boolean("attention_sinks", false);
  m.mlp_bias = o.boolean("mlp_bias", m.mlp_bias);
  m.qk_norm = o.boolean("qk_norm", m.qk_norm);
  m.post_norms = o.boolean("post_norms", m.post_norms);
  m.tied_embeddings = o.boolean("tied_embeddings", m.tied_embeddings);
  m.dropout = o.boolean("dropout", m.dropout);
  m.dropout_rate = o.number("dropout_rate", m.dropout_rate, kDropoutLeast, kDropoutMost);
  o.done();
  check_model(
      m, o,
      {"heads", "kv_heads", "head_dim", "layers", "experts", "experts_per_token", "dense_layers",
       "kv_rank", "rotary_dim"});
  return m;
}

}  // namespace

std::int64_t derived_head_dim(const Object& object, std::string_view hidden_key,
                              std::int64_t hidden, std::string_view heads_key, std::int64_t heads) {
  if (hidden % heads == 0) return hidden / heads;
  object.fail(heads_key, fmt::format("{} {} is not a multiple of {} {}; give \"head_dim\" where "
                                     "the two are independent",
                                     hidden_key, hidden, heads_key, heads));
}

namespace {

// Of latent attention: all heads have keys of their own, a part of which is rotated.
void check_latents(const Model& m, const Object& object, const ModelKeys& keys) {
  if (!m.latent()) return;
  if (m.kv_heads != m.heads) {
    object.fail(keys.kv_heads, fmt::format("latent attention makes keys for each of {} heads, not "
                                           "for {}; leave it out",
                                           m.heads, m.kv_heads));
  }
  if (m.rotary_dim < 1 || m.rotary_dim >= m.head_dim || m.rotary_dim % 2 != 0) {
    object.fail(keys.rotary_dim,
                fmt::format("of a head's {} columns an even number is rotated, and not all; is {}",
                            m.head_dim, m.rotary_dim));
  }
  if (!m.rotary || m.learned_positions || m.qkv_bias || m.qk_norm || m.attention_sinks) {
    object.fail(keys.kv_rank,
                "latent attention is covered with rotary positions, without biases, sinks and "
                "norms of queries and keys");
  }
}

}  // namespace

void check_model(const Model& m, const Object& object, const ModelKeys& keys) {
  check_latents(m, object, keys);
  if (m.heads % m.kv_heads != 0) {
    object.fail(
        object.has(keys.kv_heads) ? keys.kv_heads : keys.heads,
        fmt::format("{} heads are not a multiple of {} key-value heads", m.heads, m.kv_heads));
  }
  if (m.query_width() > kModelLimits.ffn.most) {
    object.fail(keys.heads,
                fmt::format("{} heads x head_dim {} = {} columns of queries, at most {}", m.heads,
                            m.head_dim, m.query_width(), kModelLimits.ffn.most));
  }
  check_model_experts(m, object, keys);
  const std::int64_t layer = layer_parameters(m, m.experts > 0);
  const double count =
      static_cast<double>(m.layers) *
      static_cast<double>(std::max(layer, m.dense_layers > 0 ? layer_parameters(m, false) : 0));
  const double tables = (2.0 * static_cast<double>(m.vocabulary) +
                         static_cast<double>(m.learned_positions ? m.positions : 0)) *
                        static_cast<double>(m.hidden);
  if (count + tables > kParametersMax) {
    object.fail(keys.layers, fmt::format("{} layers of {} parameters and tables of {:.1e} are too "
                                         "many to count; at most {:.1e}",
                                         m.layers, layer, tables, kParametersMax));
  }
}

std::int64_t parameters(const Model& model) {
  const std::int64_t table = model.vocabulary * model.hidden;
  std::int64_t sum = table + (model.tied_embeddings ? 0 : table);
  if (model.learned_positions) sum += model.positions * model.hidden;
  const std::int64_t of_experts = model.expert_layers();
  if (of_experts > 0) sum += of_experts * layer_parameters(model, true);
  sum += (model.layers - of_experts) * layer_parameters(model, false);
  return sum + norm_parameters(model.norm, model.hidden);
}

Flops model_flops_per_token(const Model& model, std::int64_t sequence_length, bool causal_half) {
  const auto h = static_cast<double>(model.hidden);
  const auto columns = static_cast<double>(model.query_width() + model.result_width());
  const double of_width = (model.gated() ? 6.0 : 4.0) * h;
  const auto s = static_cast<double>(sequence_length);
  const auto w = static_cast<double>(std::min(model.window, sequence_length));
  const std::int64_t whole = model.full_every > 0 ? model.layers / model.full_every : 0;
  const auto sliding = static_cast<double>(model.window > 0 ? model.layers - whole : 0);
  const double seen = causal_half ? w * (2 - w / s) : w;  // of such a layer, times 2 or 1
  const double attended =
      (sliding * seen + (static_cast<double>(model.layers) - sliding) * s) /
      static_cast<double>(std::max<std::int64_t>(model.layers, 1));
  const double attention = 2.0 * attended * columns * (causal_half ? 0.5 : 1.0);
  const auto width =
      static_cast<double>(model.experts_per_token * model.expert_ffn + model.shared_ffn);
  const auto of_experts = static_cast<double>(model.expert_layers());
  const double mlps =
      of_experts * (of_width * width + 2.0 * h * static_cast<double>(model.experts)) +
      (static_cast<double>(model.layers) - of_experts) * of_width * static_cast<double>(model.ffn);
  const double layer = 2.0 * static_cast<double>(attention_matrices(model)) + attention;
  const double head = 2.0 * h * static_cast<double>(model.vocabulary);
  return Flops(3.0 * (static_cast<double>(model.layers) * layer + mlps + head));
}

Model read_model(const Object& object, std::string_view name) {
  return object.has("model_type") ? read_hf_model(object, name) : read_preset(object, name);
}

Json write_model(const Model& model) {
  Json json;
  json["name"] = model.name;
  json["layers"] = model.layers;
  json["hidden"] = model.hidden;
  json["heads"] = model.heads;
  json["kv_heads"] = model.kv_heads;
  json["head_dim"] = model.head_dim;
  json["window"] = model.window;
  json["full_every"] = model.full_every;
  json["kv_rank"] = model.kv_rank;
  json["q_rank"] = model.q_rank;
  json["rotary_dim"] = model.rotary_dim;
  json["value_dim"] = model.value_dim;
  json["ffn"] = model.ffn;
  json["experts"] = model.experts;
  json["experts_per_token"] = model.experts_per_token;
  json["expert_ffn"] = model.expert_ffn;
  json["shared_ffn"] = model.shared_ffn;
  json["dense_layers"] = model.dense_layers;
  json["vocabulary"] = model.vocabulary;
  json["positions"] = model.positions;
  json["norm"] = word_of(model.norm, kNorms);
  json["activation"] = word_of(model.activation, kActivations);
  json["learned_positions"] = model.learned_positions;
  json["rotary"] = model.rotary;
  json["rotary_attention_factor"] = model.rotary_attention_factor;
  json["qkv_bias"] = model.qkv_bias;
  json["attention_output_bias"] = model.attention_output_bias;
  json["mlp_bias"] = model.mlp_bias;
  json["attention_sinks"] = model.attention_sinks;
  json["qk_norm"] = model.qk_norm;
  json["post_norms"] = model.post_norms;
  json["tied_embeddings"] = model.tied_embeddings;
  json["dropout"] = model.dropout;
  json["dropout_rate"] = model.dropout_rate;
  return json;
}

}  // namespace stepcast
