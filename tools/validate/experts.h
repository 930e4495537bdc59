// What a published run says about its experts, for the model and the layout of its what-if.
// Internal to `stepcast validate`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"

namespace stepcast {

struct RunExperts {
  std::int64_t experts = 0;  // 0: a dense model
  std::int64_t per_token = 0, ffn = 0, shared_ffn = 0, dense_layers = 0;
};

// Throws Error (place: the row's field) where the row says too little, or what no model here has.
RunExperts run_experts(const Json& row, std::int64_t ffn, std::vector<std::string>& assumed);

// Throws Error for experts that are reached in another way than a Job's: all-to-alls beside another
// micro-batch's work, experts that are cut otherwise.
void refuse_experts(const Json& row, std::int64_t tensor);

// The what-if's "parallel.expert", "expert_tensor", "expert_exchange", "capacity_factor" and, where
// the row says it, "fusion.permutes" and "fusion.routers", if the model has experts.
void ask_experts(const Json& row, std::int64_t tensor, Json& what_if,
                 std::vector<std::string>& assumed);

}  // namespace stepcast
