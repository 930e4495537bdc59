// O(1) each.
#include "models/attention_rules.h"

#include <string>
#include <utility>

namespace stepcast {

namespace {

PlanTrouble of_context(std::string what) { return {"parallel", "context", std::move(what)}; }
PlanTrouble of_kernels(std::string what) { return {"", "attention", std::move(what)}; }

// Keys and values of their own for every head, each as wide as it is.
std::optional<PlanTrouble> latent_trouble(const Plan& plan, const Model& model) {
  if (!model.latent()) return std::nullopt;
  if (plan.context > 1 && !plan.shares_heads()) {
    return of_context(
        "latent attention of a sequence that ranks share is not covered yet but by "
        "context_exchange \"all_to_all\"; set that, or context to 1");
  }
  if (plan.fused_attention) return std::nullopt;
  return of_kernels(
      "latent attention's queries, keys and values are three tensors, which unfused attention does "
      "not read; set it to \"fused\"");
}

// A window that all of a token's stretch fits in is none.
std::optional<PlanTrouble> window_trouble(const Plan& plan, const Model& model) {
  if (model.window == 0 || model.window >= plan.attended()) return std::nullopt;
  if (plan.context > 1 && !plan.shares_heads()) {
    return of_context(
        "a sliding window over a sequence that ranks share is not covered yet but by "
        "context_exchange \"all_to_all\"; set that, or context to 1");
  }
  if (!plan.fused_attention) {
    return of_kernels(
        "unfused attention takes all scores of a sequence, without a sliding window; set it to "
        "\"fused\"");
  }
  const bool mixed = model.full_every > 0 && model.full_every <= model.layers;
  if (!plan.scan_layers || !mixed) return std::nullopt;
  return PlanTrouble{"", "scan_layers", "one loop takes equal layers, but some have no window"};
}

std::optional<PlanTrouble> sinks_trouble(const Plan& plan, const Model& model) {
  if (!model.attention_sinks) return std::nullopt;
  if (plan.context > 1) {
    return of_context(
        "attention with sinks of a sequence that ranks share is not covered yet; set it to 1");
  }
  if (plan.fused_attention) return std::nullopt;
  return of_kernels("unfused attention has no sinks here; set it to \"fused\"");
}

}  // namespace

std::optional<PlanTrouble> attention_kind_trouble(const Plan& plan, const Model& model) {
  for (const auto rule : {latent_trouble, window_trouble, sinks_trouble}) {
    if (std::optional<PlanTrouble> found = rule(plan, model)) return found;
  }
  return std::nullopt;
}

}  // namespace stepcast
