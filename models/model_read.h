// What the two readers of a model share (preset in model.cc, Hugging Face in hf.cc). All others
// call read_model().
#pragma once

#include <string>
#include <string_view>

#include "models/model.h"

namespace stepcast {

// Limits of each size, far beyond any model, near enough that no product of them overflows.
struct ModelLimits {
  Limits layers{1, 10'000};
  Limits hidden{1, std::int64_t{1} << 20};
  Limits heads{1, 1 << 16};
  Limits head_dim{1, 1 << 16};
  Limits ffn{1, std::int64_t{1} << 24};  // of heads x head_dim too
  Limits experts{0, 1 << 14};            // 0: a dense model
  Limits vocabulary{1, std::int64_t{1} << 28};
  Limits positions{1, std::int64_t{1} << 31};
};
inline constexpr ModelLimits kModelLimits;

// What a form calls the sizes that a complaint is about.
struct ModelKeys {
  std::string_view heads, kv_heads, head_dim, layers, experts, experts_per_token, dense_layers;
  std::string_view kv_rank = "kv_rank", rotary_dim = "rotary_dim";
};

// hidden / heads; throws where it does not divide.
std::int64_t derived_head_dim(const Object& object, std::string_view hidden_key,
                              std::int64_t hidden, std::string_view heads_key, std::int64_t heads);

// Throws where the sizes do not fit each other, or a limit of their products is passed.
void check_model(const Model& model, const Object& object, const ModelKeys& keys);

// REQUIRES: has "model_type".
Model read_hf_model(const Object& object, std::string_view name);

// "supported are gemma, gpt2, ...".
std::string supported_model_types();

}  // namespace stepcast
