// A slice is a maximal run of neighbouring nodes of one module. Larger modules are laid first, so
// that "mlp" and "activation" together mean "mlp".
#include "models/recompute.h"

#include <algorithm>
#include <string_view>

namespace stepcast {

namespace {

struct Policy {
  const char* name;
  std::uint16_t module;
  // Norms, activations and gathers are cheap to run again from what is kept anyway, so their output
  // goes too; of a larger module the output is what the next one keeps as its input.
  bool discard_output;
  bool single = discard_output;  // each node is a slice of its own: needed at another time
};

constexpr Policy kPolicies[] = {
    {"attention", kModuleAttention, false},   {"mlp", kModuleMlp, false},
    {"attention_core", kModuleAttentionCore, false},
    {"qkv", kModuleQkv, true, false},
    {"projection", kModuleProjection, true, false}, {"up", kModuleUp, true},
    {"activation", kModuleActivation, true},  {"norm", kModuleNorm, true},
    {"quantize", kModuleQuantize, true},
    {"gather", kModuleGather, true},      {"late", kModuleLate, true},
};

bool names(const Plan& plan, std::string_view module) {
  return plan.recompute == Recompute::kModules &&
         std::find(plan.recompute_modules.begin(), plan.recompute_modules.end(), module) !=
             plan.recompute_modules.end();
}

bool asked_for(const Policy& policy, const Plan& plan) {
  if (policy.module == kModuleGather || policy.module == kModuleLate) return true;
  if (plan.recompute == Recompute::kSelective) return policy.module == kModuleAttentionCore;
  return names(plan, policy.name);
}

// The attention core's output is what the projection keeps, unless it is to go with the core.
bool discards_output(const Policy& policy, const Plan& plan) {
  const bool core = policy.module == kModuleAttentionCore;
  return policy.discard_output || (core && names(plan, "context"));
}

}  // namespace

std::vector<Slice> recompute_slices(const Block& block, const Plan& plan) {
  std::vector<Slice> slices;
  std::vector<bool> taken(block.nodes.size(), false);
  for (const Policy& policy : kPolicies) {
    if (!asked_for(policy, plan)) continue;
    for (std::size_t n = 0; n < block.nodes.size(); ++n) {
      const auto in_module = [&](std::size_t i) {
        return i < block.nodes.size() && !taken[i] && (block.nodes[i].modules & policy.module) != 0;
      };
      if (!in_module(n)) continue;
      Slice slice{static_cast<std::int32_t>(n), static_cast<std::int32_t>(n),
                  discards_output(policy, plan)};
      do {
        taken[static_cast<std::size_t>(slice.last)] = true;
        ++slice.last;
      } while (!policy.single && in_module(static_cast<std::size_t>(slice.last)));
      slices.push_back(slice);
    }
  }
  return slices;
}

}  // namespace stepcast
