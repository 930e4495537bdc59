// The model of a published run. Rows name shapes, seldom the kind of norm or of positions: those
// follow from the family, which a gate in the MLP tells apart well. What no what-if has yet
// (encoders, state spaces) is refused by what the row states or by the family's
// name. One pass over the fields.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <regex>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/validate/experts.h"
#include "tools/validate/fields.h"
#include "tools/validate/question.h"

namespace stepcast {
namespace {

constexpr std::int64_t kGptVocabulary = 50257;  // of GPT-2's byte pairs, Megatron-LM's usual one

// Families that are not covered, by a word of the model's name.
constexpr std::pair<std::string_view, std::string_view> kOtherFamilies[] = {
    {"bert", "an encoder"},
    {"t5", "an encoder and a decoder"},
    {"mamba", "state-space layers"},
    {"hybrid", "state-space layers"},
    {"nemotronh", "state-space layers"},
    {"nemotron-h", "state-space layers"},
    {"mimo", "several modalities"},
    {"multimodal", "several modalities"},
    {"llava", "several modalities"},
    {"retro", "retrieval"},
};

// These have experts, whose number and width a row must state.
constexpr std::string_view kExpertFamilies[] = {"moe",  "mixtral",  "grok", "a3b",       "gpt-oss",
                                                "a22b", "deepseek", "kimi", "moonlight"};

bool letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// `word` stands in `text`, not within a longer one.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !letter(text[at - 1])) && (end == text.size() || !letter(text[end]))) {
      return true;
    }
  }
  return false;
}

void refuse_other_families(const Json& row) {
  const Json& model = section_of(row, "model");
  const Json& flags = flags_of(row);
  const Json& extra = section_of(model, "extra");
  const std::string name = lower(text_of(model, "name"));
  for (const auto& [word, what] : kOtherFamilies) {
    if (has_word(name, word)) {
      throw Error("model.name", fmt::format("{} is not covered yet", what));
    }
  }
  if (switch_of(flags, "is-hybrid-model") == true ||
      member(flags, "hybrid-override-pattern") != nullptr ||
      member(flags, "hybrid-layer-pattern") != nullptr) {
    throw Error("software.extra.flags", "state-space layers are not covered yet");
  }
  if (count_of(flags, "mtp-num-layers") || switch_of(extra, "mtp") == true) {
    throw Error("model.extra", "multi-token prediction is not covered yet");
  }
  if (stated_count(row, "model", "experts")) return;
  for (const std::string_view word : kExpertFamilies) {
    if (has_word(name, word)) throw Error("model.experts", "are not stated");
  }
}

std::int64_t required(const Json& row, std::string_view key) {
  const auto count = stated_count(row, "model", key);
  if (!count) throw Error(fmt::format("model.{}", key), "is not stated");
  return *count;
}

// Letters and digits of a name, in lower case.
std::string bare(std::string_view name) {
  std::string text;
  for (const char c : lower(name)) {
    if (letter(c)) text += c;
  }
  return text;
}

struct Latents {
  std::int64_t keys = 0, queries = 0, rotated = 0, values = 0;  // keys 0: there are none
};

struct Window {
  std::int64_t width = 0, full_every = 0;
};

struct RunShape {
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  std::int64_t vocabulary = 0, positions = 0;
  RunExperts experts;
  Latents latents;
  Window window;
  bool gated = false, tied = false;
};

bool agrees(const Model& preset, const RunExperts& run) {
  return preset.experts == run.experts && preset.experts_per_token == run.per_token &&
         preset.expert_ffn == run.ffn && preset.shared_ffn == run.shared_ffn &&
         preset.dense_layers == run.dense_layers;
}

bool agrees(const Model& preset, const RunShape& shape) {
  return preset.layers == shape.layers && preset.hidden == shape.hidden &&
         preset.heads == shape.heads && preset.kv_heads == shape.kv_heads &&
         preset.head_dim == shape.head_dim && preset.ffn == shape.ffn &&
         preset.vocabulary == shape.vocabulary && preset.gated() == shape.gated &&
         preset.tied_embeddings == shape.tied && agrees(preset, shape.experts) &&
         preset.window == shape.window.width && preset.full_every == shape.window.full_every &&
         preset.kv_rank == shape.latents.keys && preset.q_rank == shape.latents.queries &&
         (!preset.learned_positions || preset.positions == shape.positions);
}

void read_heads(const Json& row, RunShape& shape, std::vector<std::string>& assumed) {
  constexpr std::int64_t kHeadDim = 128;
  if (const auto heads = stated_count(row, "model", "heads")) {
    shape.heads = *heads;
  } else {
    if (shape.hidden % kHeadDim != 0) throw Error("model.heads", "are not stated");
    shape.heads = shape.hidden / kHeadDim;
    assumed.push_back(fmt::format("heads ({}, of 128)", shape.heads));
  }
  const auto kv_heads = stated_count(row, "model", "kv_heads");
  if (!kv_heads) assumed.push_back(fmt::format("kv_heads ({})", shape.heads));
  shape.kv_heads = kv_heads.value_or(shape.heads);

  auto head_dim = count_of(section_of(section_of(row, "model"), "extra"), "head_dim");
  if (!head_dim) head_dim = count_of(flags_of(row), "kv-channels");
  if (!head_dim && shape.hidden % shape.heads != 0) {
    throw Error("model.heads", "hidden is not a multiple of them, and head_dim is not stated");
  }
  shape.head_dim = head_dim.value_or(shape.hidden / shape.heads);
}

// "GQA, sliding window 128 on alternate layers".
Window window_of(const Json& row) {
  static const std::regex form(R"(window (?:of )?(\d{1,9})( on alternate layers)?)");
  const std::string text =
      lower(text_of(section_of(section_of(row, "model"), "extra"), "attention")).substr(0, 200);
  std::smatch found;
  if (std::regex_search(text, found, form)) {
    return {std::stoll(found[1].str()), found[2].matched ? 2 : 0};
  }
  if (!has(text, "window")) return {};
  throw Error("model.extra.attention", "a sliding window of this form is not mapped");
}

bool has_latents(const Json& row) {
  const Json& extra = section_of(section_of(row, "model"), "extra");
  return has(lower(text_of(extra, "attention")), "mla") || count_of(extra, "kv_lora_rank") ||
         switch_of(flags_of(row), "multi-latent-attention") == true;
}

// Latent attention's sizes, by Megatron-Core's names (MLATransformerConfig); where the row leaves
// them out, those of the preset that has the row's other sizes.
void read_latents(const Json& row, const std::vector<Model>& presets, RunShape& shape,
                  std::vector<std::string>& assumed) {
  if (!has_latents(row)) return;
  const Json& extra = section_of(section_of(row, "model"), "extra");
  const auto stated = [&](std::string name) {
    const auto count = count_of(extra, name);
    std::replace(name.begin(), name.end(), '_', '-');
    return count ? count : count_of(flags_of(row), name);
  };
  Latents& latents = shape.latents;
  if (const auto keys = stated("kv_lora_rank")) {
    constexpr std::int64_t kOwn = 128, kRotated = 64, kValues = 128;  // the class's defaults
    latents = {*keys, stated("q_lora_rank").value_or(0),
               stated("qk_pos_emb_head_dim").value_or(kRotated),
               stated("v_head_dim").value_or(kValues)};
    shape.head_dim = stated("qk_head_dim").value_or(kOwn) + latents.rotated;
    return;
  }
  const auto like = std::find_if(presets.begin(), presets.end(), [&](const Model& preset) {
    return preset.latent() && preset.hidden == shape.hidden && preset.heads == shape.heads &&
           preset.experts == shape.experts.experts && preset.expert_ffn == shape.experts.ffn;
  });
  if (like == presets.end()) throw Error("model.extra.kv_lora_rank", "is not stated");
  latents = {like->kv_rank, like->q_rank, like->rotary_dim, like->value_dim};
  shape.head_dim = like->head_dim;
  assumed.push_back(fmt::format("latents ({}'s)", like->name));
}

void read_mlp(const Json& row, RunShape& shape, std::vector<std::string>& assumed) {
  auto gated = switch_of(section_of(row, "model"), "gated_mlp");
  if (switch_of(flags_of(row), "swiglu") == true) gated = true;
  const auto ffn = stated_count(row, "model", "ffn_hidden");
  if (!gated) {
    gated = ffn.has_value() && *ffn != 4 * shape.hidden;
    assumed.emplace_back(*gated ? "gated_mlp (yes)" : "gated_mlp (no)");
  }
  shape.gated = *gated;
  if (ffn) {
    shape.ffn = *ffn;
    return;
  }
  // Llama's rule (meta-llama/llama, model.py): 2/3 of 4 hidden, up to a multiple of 256.
  shape.ffn = *gated ? (shape.hidden * 8 / 3 + 255) / 256 * 256 : 4 * shape.hidden;
  assumed.push_back(fmt::format("ffn_hidden ({})", shape.ffn));
}

void read_vocabulary(const Json& row, RunShape& shape, std::vector<std::string>& assumed) {
  auto vocabulary = stated_count(row, "model", "vocab");
  if (!vocabulary) vocabulary = count_of(flags_of(row), "vocab-size");
  if (!vocabulary && shape.gated) throw Error("model.vocab", "is not stated");
  if (!vocabulary) assumed.push_back(fmt::format("vocab ({}, GPT-2's)", kGptVocabulary));
  shape.vocabulary = vocabulary.value_or(kGptVocabulary);
}

// All that the shape does not say.
void write_style(const Json& row, const RunShape& shape, Json& model,
                 std::vector<std::string>& assumed) {
  const Json& extra = section_of(section_of(row, "model"), "extra");
  const Json& flags = flags_of(row);
  const std::string activation = lower(text_of(extra, "activation"));
  const bool squared = has(activation, "squared");
  const bool gpt = !shape.gated && !squared;
  model["style"] = shape.gated ? "llama" : "gpt";
  if (shape.gated && has(activation, "geglu")) model["activation"] = "geglu";
  const auto learned = switch_of(extra, "learned_position_embeddings");
  if (squared) {  // Nemotron-4 (arXiv 2402.16819, section 2): no biases, no dropout, rotary
    assumed.emplace_back("activation (a squared ReLU priced as GELU)");
    for (const char* bias : {"qkv_bias", "attention_output_bias", "mlp_bias"}) model[bias] = false;
  } else if (!learned && member(flags, "position-embedding-type") == nullptr) {
    assumed.emplace_back(gpt ? "style (GPT)" : "style (Llama)");
  }
  const std::string positions = text_of(flags, "position-embedding-type");
  const bool rotary = squared || positions == "rope" || learned == false ||
                      switch_of(flags, "use-rotary-position-embeddings") == true;
  if (rotary && !shape.gated) {
    model["learned_positions"] = false;
    model["rotary"] = true;
  }
  if (shape.experts.experts > 0 && gpt) {
    // Megatron-Core's grouped products have none, and its tests switch off all of them.
    assumed.emplace_back("biases (no, as experts have none)");
    for (const char* bias : {"qkv_bias", "attention_output_bias", "mlp_bias"}) model[bias] = false;
  }
  const std::string norm = lower(text_of(flags, "normalization"));
  if (!norm.empty()) model["norm"] = has(norm, "rms") ? "rms" : "layer";
  // Of latent attention the flag means norms of the latents, which are always there.
  const bool qk_norm = shape.latents.keys == 0 && switch_of(flags, "qk-layernorm") == true;
  if (qk_norm) model["qk_norm"] = true;
  if (squared) model["dropout"] = false;
  if (has_word(lower(text_of(section_of(row, "model"), "name")), "gpt-oss")) {
    model["activation"] = "swiglu_oai";
    constexpr double kStretched = 32;  // of 4,096 positions, by YaRN
    model["rotary_attention_factor"] = 0.1 * std::log(kStretched) + 1;
    for (const char* part : {"attention_sinks", "qkv_bias", "attention_output_bias", "mlp_bias"}) {
      model[part] = true;
    }
  }
}

}  // namespace

Json model_question(const Json& row, const std::vector<Model>& presets,
                    std::vector<std::string>& assumed) {
  refuse_other_families(row);
  const Json& section = section_of(row, "model");
  RunShape shape;
  shape.layers = required(row, "layers");
  shape.hidden = required(row, "hidden");
  shape.positions = count_of(flags_of(row), "max-position-embeddings")
                        .value_or(required(row, "seq_len"));
  std::vector<std::string> guesses;
  read_heads(row, shape, guesses);
  read_mlp(row, shape, guesses);
  shape.experts = run_experts(row, shape.ffn, guesses);
  if (shape.experts.experts > 0 && shape.experts.dense_layers == 0) shape.ffn = shape.experts.ffn;
  read_latents(row, presets, shape, guesses);
  shape.window = window_of(row);
  read_vocabulary(row, shape, guesses);
  if (switch_of(flags_of(row), "untie-embeddings-and-output-weights") == true) {
    shape.tied = false;
  } else if (const auto tied = switch_of(section, "tied_embeddings")) {
    shape.tied = *tied;
  } else {
    shape.tied = !shape.gated;
    guesses.emplace_back(shape.tied ? "tied_embeddings (yes)" : "tied_embeddings (no)");
  }

  const std::string name = text_of(section, "name");
  const auto preset = std::find_if(presets.begin(), presets.end(), [&](const Model& model) {
    return bare(model.name) == bare(name) && agrees(model, shape);
  });
  assumed.insert(assumed.end(), guesses.begin(), guesses.end());
  if (preset != presets.end()) return preset->name;
  Json model = {{"layers", shape.layers},         {"hidden", shape.hidden},
                {"heads", shape.heads},           {"kv_heads", shape.kv_heads},
                {"head_dim", shape.head_dim},     {"ffn", shape.ffn},
                {"vocabulary", shape.vocabulary}, {"positions", shape.positions},
                {"tied_embeddings", shape.tied}};
  if (shape.experts.experts > 0) {
    model["experts"] = shape.experts.experts;
    model["experts_per_token"] = shape.experts.per_token;
    model["expert_ffn"] = shape.experts.ffn;
    model["shared_ffn"] = shape.experts.shared_ffn;
    model["dense_layers"] = shape.experts.dense_layers;
  }
  if (shape.window.width > 0) {
    model["window"] = shape.window.width;
    model["full_every"] = shape.window.full_every;
  }
  if (shape.latents.keys > 0) {
    model["kv_rank"] = shape.latents.keys;
    model["q_rank"] = shape.latents.queries;
    model["rotary_dim"] = shape.latents.rotated;
    model["value_dim"] = shape.latents.values;
  }
  write_style(row, shape, model, assumed);
  return model;
}

}  // namespace stepcast
