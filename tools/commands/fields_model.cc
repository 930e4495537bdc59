// The what-if file's "model", key by key.
#include "tools/commands/field_makers.h"

namespace stepcast {

std::vector<Field> model_fields() {
  return {
      field(Form::kNameOrObject, "model", "",
            "The network: a name (`stepcast list models`), a path to a model file or to a Hugging "
            "Face config.json, or an object of the keys below.",
            "Everything follows from its shape: FLOPs, weights, activations."),
      field(Form::kText, "model.name", "the file's name", "What the report calls the model."),
      input_only(word("model.style", "\"llama\"", "llama gpt",
                      "Sets the other keys' defaults: llama is RMSNorm, SwiGLU, rotary, no biases, "
                      "untied; gpt is LayerNorm, GELU, learned positions, biases everywhere, tied, "
                      "dropout.")),
      count("model.layers", "", {1, 10'000}, "Transformer layers.",
            "They are what the pipeline shares out."),
      count("model.hidden", "", {1, 1 << 20}, "Width of the residual stream, h."),
      count("model.heads", "", {1, 1 << 16}, "Query heads.", "Must be a multiple of tensor."),
      count("model.kv_heads", "heads", {1, 1 << 16},
            "Key-value heads; fewer than heads is grouped-query attention.",
            "Must be a multiple of tensor and divide heads."),
      count("model.head_dim", "hidden / heads", {1, 1 << 16}, "Columns of one head."),
      count("model.window", "0", {0, std::int64_t{1} << 31},
            "A token attends to so many tokens, itself included; 0: to all before it.",
            "Attention's FLOPs."),
      count("model.full_every", "0", {0, 10'000},
            "With a window: every so many layers one has none (Gemma 2: 2); 0: all have it."),
      count("model.kv_rank", "0", {0, 1 << 20},
            "Latents of a token of which its keys and values are made (multi-head latent "
            "attention, DeepSeek-V2); 0: they are made of the token itself."),
      count("model.q_rank", "0", {0, 1 << 20},
            "The same of queries; 0: they are made of the token itself."),
      count("model.rotary_dim", "0; needed with kv_rank", {0, 1 << 16},
            "With kv_rank: columns of a head's key that are rotated, and the same for all heads."),
      count("model.value_dim", "head_dim", {0, 1 << 16},
            "With kv_rank: columns of a head's values."),
      count("model.ffn", "4 hidden; needed where a dense layer's MLP has a gate", {1, 1 << 24},
            "Width of one branch of the MLP.", "Most of a layer's FLOPs and weights."),
      count("model.experts", "0", {0, 1 << 14},
            "MLPs of a layer, of which a router chooses for each token; 0 is a dense model.",
            "Weights grow with them, FLOPs do not."),
      count("model.experts_per_token", "0; needed with experts", {0, 1 << 14},
            "Experts that a token goes to.",
            "FLOPs, and what is sent between the ranks that share the experts."),
      count("model.expert_ffn", "0; needed with experts", {0, 1 << 24},
            "Width of one branch of an expert."),
      count("model.shared_ffn", "0", {0, 1 << 24},
            "Width of one branch of an MLP that takes every token besides the experts."),
      count("model.dense_layers", "0", {0, 10'000},
            "The first layers, which have an MLP of width ffn and no experts."),
      count("model.vocabulary", "", {1, 1 << 28},
            "Tokens in the table; rounded up to a multiple of tensor.",
            "The head's matrix product and logits, all on the last stage."),
      count("model.positions", "", {1, std::int64_t{1} << 31},
            "The longest sequence that learned positions know."),
      word("model.norm", "\"rms\"", "rms layer", "RMSNorm or LayerNorm (style gpt: layer)."),
      word("model.activation", "\"swiglu\"", "gelu swiglu geglu swiglu_oai",
           "The MLP's activation; all but gelu have a gate, hence two branches (style gpt: gelu); "
           "swiglu_oai is gpt-oss's."),
      field(Form::kSwitch, "model.learned_positions", "false",
            "A table of positions is added to the embedding (style gpt: true)."),
      field(Form::kSwitch, "model.rotary", "true",
            "Queries and keys are rotated by their position (style gpt: false)."),
      field(Form::kNumber, "model.rotary_attention_factor", "1",
            "What is rotated is multiplied by this: YaRN's attention factor, 0.1 ln s + 1 for "
            "positions stretched s times, not s itself (gpt-oss: 1.3466 for 32)."),
      field(Form::kSwitch, "model.qkv_bias", "false",
            "Biases of the query, key and value projections (style gpt: true)."),
      field(Form::kSwitch, "model.attention_output_bias", "false",
            "A bias of the attention's output projection (style gpt: true)."),
      field(Form::kSwitch, "model.mlp_bias", "false",
            "Biases of the MLP's matrices (style gpt: true); of experts, and of their router, only "
            "where it is given."),
      field(Form::kSwitch, "model.attention_sinks", "false",
            "Each head's softmax has a learned score more, with no value behind it (gpt-oss)."),
      field(Form::kSwitch, "model.qk_norm", "false",
            "Queries and keys are normalised head by head, as in Qwen3."),
      field(Form::kSwitch, "model.post_norms", "false",
            "Also a norm after attention and after the MLP, as in Gemma 2."),
      field(Form::kSwitch, "model.tied_embeddings", "false",
            "The head's matrix is the embedding table (style gpt: true).",
            "With a pipeline, first and last stage each hold it and reduce its gradient."),
      field(Form::kSwitch, "model.dropout", "false",
            "The model is trained with dropout (style gpt: true)."),
      field(Form::kNumber, "model.dropout_rate", "0.1",
            "Of that dropout: the probability that an element is dropped."),
      input_only(field(Form::kText, "model.source", "none", "Where the numbers come from.")),
      input_only(field(Form::kText, "model.description", "none", "Words for people."))};
}

}  // namespace stepcast
