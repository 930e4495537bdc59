// Model: the shape of a decoder-only transformer, dense or a mixture of experts.
//
// h hidden, a heads, g key-value heads, d head_dim, f FFN width, L layers, V vocabulary; E experts,
// of which a token takes k.
// Read from a Hugging Face config.json (any file with a supported "model_type") or from a preset
// (configs/models/NAME.json, this project's own names of the same facts).
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/json.h"
#include "sim/program/op.h"

namespace stepcast {

enum class Activation : std::uint8_t { kGelu, kSwiglu, kGeglu, kSwigluOai };

inline constexpr double kDropoutRate = 0.1;  // GPT-2's, and Megatron-LM's default

struct Model {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;        // = heads without grouped-query attention
  std::int64_t head_dim = 0;        // apart from hidden / heads in Qwen3, Gemma
  std::int64_t window = 0;          // a token attends to so many, itself included; 0: to all before
  std::int64_t full_every = 0;      // with a window: every so many layers one attends to all
  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are made from
  // kv_rank latents of a token, queries from q_rank ones (0: from the token itself). A head's key
  // is head_dim columns, of which the last rotary_dim are rotated and the same for all heads.
  std::int64_t kv_rank = 0;         // 0: there are no latents
  std::int64_t q_rank = 0;
  std::int64_t rotary_dim = 0;
  std::int64_t value_dim = 0;       // columns of a head's values; 0: head_dim
  std::int64_t ffn = 0;             // width of one branch; a gated MLP has two
  // A mixture of experts: in all layers but the first `dense_layers`, whose MLP has width ffn, the
  // MLP is `experts` of them, each of width expert_ffn, and the router (E, h). Where such an MLP
  // has biases, so has its router, and there is no shared one. A shared one has no gate of its own.
  std::int64_t experts = 0;            // 0: a dense model
  std::int64_t experts_per_token = 0;  // k
  std::int64_t expert_ffn = 0;
  std::int64_t shared_ffn = 0;         // of an MLP that takes every token besides; 0: none
  std::int64_t dense_layers = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;       // the longest sequence; rows of learned positions
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSwiglu;
  bool learned_positions = false;   // GPT-2, GPT-3: a table; else rotary
  bool rotary = true;
  // Of what is rotated: YaRN's, 0.1 ln s + 1 for positions stretched s times (arXiv 2309.00071,
  // section 3.4).
  double rotary_attention_factor = 1;
  bool qkv_bias = false;            // Qwen2: only there
  bool attention_output_bias = false;
  bool mlp_bias = false;            // of experts, too, and of their router
  bool attention_sinks = false;     // gpt-oss: each head has a score that no value stands behind
  bool qk_norm = false;             // Qwen3, Gemma3: norm of q and k over head_dim
  bool post_norms = false;          // Gemma2, Gemma3: also a norm after attention and after the MLP
  bool tied_embeddings = false;     // the head's matrix is the embedding table
  bool dropout = false;             // embeddings, attention and both branches are trained with it
  double dropout_rate = kDropoutRate;  // with this probability, all alike

  bool operator==(const Model&) const = default;
  bool gated() const { return activation != Activation::kGelu; }
  std::int64_t expert_layers() const {  // those with experts
    return experts > 0 && layers > dense_layers ? layers - dense_layers : 0;
  }
  bool latent() const { return kv_rank > 0; }
  // What a token of the layer (from 0) attends to at most; 0: all before it.
  std::int64_t window_of(std::int64_t layer) const {
    return full_every > 0 && (layer + 1) % full_every == 0 ? 0 : window;
  }
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t result_width() const { return heads * (latent() ? value_dim : head_dim); }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// Trainable parameters, exactly; a tied table counts once.
std::int64_t parameters(const Model& model);

// Model FLOPs a token for forward and backward (recompute not counted), two a multiply-add:
//   3 [L (2 h q + 4 h kv + 2 q h + mlp + attention) + 2 h V],  attention = 4 s q, half if causal,
//   mlp = 6 h f (4 h f without a gate); of experts the same of k expert_ffn + shared_ffn, and the
//   router's 2 h E; latent attention's matrices and its 2 s a (head_dim + value_dim) likewise. In
//   layers with a window of w < s, s is w (2 - w / s) if half, else w.
// Megatron's published figures use full attention, torchtitan's and later ones the causal half.
Flops model_flops_per_token(const Model& model, std::int64_t sequence_length, bool causal_half);

// Reads either form; told apart by "model_type" (Hugging Face) or its absence (preset).
//
// A preset names its sizes as the members above, and says "style": "llama" (the default: RMSNorm,
// SwiGLU, rotary, no biases, untied, no dropout) or "gpt" (LayerNorm, GELU, learned positions,
// biases everywhere, tied, dropout); every other member may be given to differ. Left out, kv_heads
// is heads, head_dim is hidden / heads, and ffn is 4 hidden where the MLP has no gate. With
// experts, ffn is expert_ffn where no layer is dense, and mlp_bias is false where it is not given.
// "source" and "description" are for people. A "name" wins over the one given here.
//
// Throws Error: unknown model_type (with the supported ones), experts of a class that is not known
// to have them, a missing size, h not divisible where it must be, a limit exceeded, biases beside a
// shared expert.
Model read_model(const Object& object, std::string_view name);

// Writes the preset form, with every field; read_model reads it back.
Json write_model(const Model& model);

}  // namespace stepcast
