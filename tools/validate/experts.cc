// A run's experts by the words of Megatron-Core, whose flags and recipes most rows have: sizes, the
// cut of each expert, capacity, and how tokens get there. What it leaves out is as
// megatron/core/transformer/transformer_config.py has it. Linear in the row.
#include "tools/validate/experts.h"

#include <regex>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/validate/fields.h"
#include "tools/validate/question.h"

namespace stepcast {
namespace {

const Json& recipe_of(const Json& row) {
  return section_of(section_of(section_of(row, "software"), "extra"), "recipe");
}

bool has_experts(const Json& row) { return stated_count(row, "model", "experts").value_or(1) > 1; }

// --moe-layer-freq: "([0]*3+[1]*58)" are three dense layers; a number is every so many layers.
std::int64_t dense_layers_of(const Json& row) {
  const Json& extra = section_of(section_of(row, "model"), "extra");
  if (const auto stated = count_of(extra, "dense_layers")) return *stated;
  const Json* frequency = member(flags_of(row), "moe-layer-freq");
  if (frequency == nullptr || *frequency == 1 || *frequency == "1") return 0;
  const std::string text = text_of(flags_of(row), "moe-layer-freq").substr(0, kTextMost);
  static const std::regex first_dense(R"(\(?\[0\]\*(\d{1,5})\+\[1\]\*\d{1,5}\)?)");
  std::smatch found;
  if (std::regex_match(text, found, first_dense)) return std::stoll(found[1].str());
  throw Error("software.extra.flags", "layers with experts in this pattern are not mapped");
}

// Ranks that cut each expert. Megatron-Core: as many as cut the other layers
// (model_parallel_config.py, expert_tensor_parallel_size); the recipes of Megatron-Bridge say 1
// (scripts/performance, WorkloadBaseConfig of each model with experts).
std::int64_t expert_tensor_of(const Json& row, std::int64_t tensor, bool& stated) {
  auto degree = count_of(section_of(section_of(row, "parallel"), "extra"), "expert_tp");
  if (!degree) degree = count_of(flags_of(row), "expert-tensor-parallel-size");
  stated = degree.has_value();
  const std::string framework = lower(text_of(section_of(row, "software"), "framework"));
  return degree.value_or(has(framework, "megatron-bridge") ? 1 : tensor);
}

// Whether experts have places that are padded where no token is, so that the host knows how many
// rows each gets. By the sources that configs/published/README.md names; a row that states a
// capacity and no flags pads, unless it says otherwise.
bool fills_places(const Json& row) {
  if (switch_of(flags_of(row), "moe-pad-expert-input-to-capacity") == true) return true;
  if (has(text_of(section_of(row, "source"), "table"), "(tokendrop)")) return true;
  const Json& extra = section_of(section_of(row, "model"), "extra");
  return member(extra, "moe_capacity_factor") != nullptr &&
         switch_of(extra, "moe_pad_to_capacity") != false;
}

}  // namespace

RunExperts run_experts(const Json& row, std::int64_t ffn, std::vector<std::string>& assumed) {
  RunExperts run;
  if (!has_experts(row)) return run;
  const Json& flags = flags_of(row);
  run.experts = *stated_count(row, "model", "experts");
  auto per_token = stated_count(row, "model", "experts_per_token");
  if (!per_token) per_token = count_of(flags, "moe-router-topk");
  if (!per_token) throw Error("model.experts_per_token", "is not stated");
  run.per_token = *per_token;
  const auto width = stated_count(row, "model", "moe_ffn_hidden");
  if (!width) assumed.push_back(fmt::format("moe_ffn_hidden ({})", ffn));
  run.ffn = width.value_or(ffn);
  // Rows count shared experts; the flag has the width of all.
  if (const auto shared = count_of(flags, "moe-shared-expert-intermediate-size")) {
    run.shared_ffn = *shared;
  } else {
    run.shared_ffn = stated_count(row, "model", "shared_experts").value_or(0) * run.ffn;
  }
  if (switch_of(flags, "moe-shared-expert-gate") == true) {
    throw Error("software.extra.flags", "a shared expert with a gate is not covered yet");
  }
  run.dense_layers = dense_layers_of(row);
  return run;
}

void refuse_experts(const Json& row, std::int64_t tensor) {
  const std::int64_t expert = stated_count(row, "parallel", "ep").value_or(1);
  if (!has_experts(row)) {
    if (expert > 1) throw Error("parallel.ep", "is above 1, and the model has no experts");
    return;
  }
  if (switch_of(recipe_of(row), "cutedsl_fused_grouped_mlp") == true) {
    throw Error("software.extra.recipe",
                "experts' products with activation and 8-bit copies in one kernel are not covered "
                "yet");
  }
  bool stated = false;
  const std::int64_t cut = expert_tensor_of(row, tensor, stated);
  if (cut != 1 && cut != tensor) {
    throw Error("parallel.extra.expert_tp",
                fmt::format("experts cut over {} ranks, and other layers over {}, are not covered "
                            "yet",
                            cut, tensor));
  }
}

void ask_experts(const Json& row, std::int64_t tensor, Json& what_if,
                 std::vector<std::string>& assumed) {
  if (!has_experts(row)) return;
  Json& parallel = what_if["parallel"];
  const auto expert = stated_count(row, "parallel", "ep");
  if (!expert) assumed.emplace_back("ep (1)");
  parallel["expert"] = expert.value_or(1);
  bool stated = false;
  const std::int64_t cut = expert_tensor_of(row, tensor, stated);
  if (tensor > 1) {
    if (!stated) assumed.push_back(fmt::format("expert_tp ({})", cut));
    parallel["expert_tensor"] = cut;
  }
  // transformer_config.py: moe_token_dispatcher_type is "allgather" unless told.
  const std::string dispatcher = lower(text_of(flags_of(row), "moe-token-dispatcher-type"));
  if (dispatcher == "allgather" || (dispatcher.empty() && !flags_of(row).empty())) {
    parallel["expert_exchange"] = "all_gather";
  }
  if (expert.value_or(1) > 1 &&
      (switch_of(flags_of(row), "overlap-moe-expert-parallel-comm") == true ||
       switch_of(recipe_of(row), "moe_a2a_overlap") == true)) {
    parallel["expert_overlap"] = true;
  }
  auto capacity = number_of(section_of(section_of(row, "model"), "extra"), "moe_capacity_factor");
  if (!capacity) capacity = number_of(flags_of(row), "moe-expert-capacity-factor");
  if (!capacity) assumed.emplace_back("capacity_factor (1: each expert gets as many tokens)");
  what_if["capacity_factor"] = capacity.value_or(1);
  if (fills_places(row)) what_if["host"]["route_sync"] = false;
  // Kernels of their own for permutes and routers, where the row says it.
  constexpr std::pair<const char*, const char*> kFusions[] = {{"permute", "permutes"},
                                                              {"router", "routers"}};
  for (const auto& [name, key] : kFusions) {
    auto fused = switch_of(flags_of(row), fmt::format("moe-{}-fusion", name));
    if (!fused) fused = switch_of(recipe_of(row), fmt::format("moe_{}_fusion", name));
    if (fused) what_if["fusion"][key] = *fused;
  }
  std::string backend = text_of(recipe_of(row), "moe_flex_dispatcher_backend");
  if (backend.empty() && dispatcher == "flex") backend = "DeepEP";
  if (!backend.empty()) assumed.push_back(fmt::format("dispatcher (all-to-alls, not {})", backend));
}

}  // namespace stepcast
