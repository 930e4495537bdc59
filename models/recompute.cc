// A slice is a maximal run of neighbouring nodes of one module. Larger modules are laid first, so
// that "mlp" and "activation" together mean "mlp". Operation by operation a slice is one node, with
// those that work in place on what it makes.
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
    {"latent_up", kModuleLatentUp, true, false},
    {"qkv", kModuleQkv, true, false},
    {"projection", kModuleProjection, true, false}, {"up", kModuleUp, true},
    {"activation", kModuleActivation, true},  {"norm", kModuleNorm, true},
    {"quantize", kModuleQuantize, true, false},  // the largest value, its reduction, the copies
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

bool in_place(const Node& node) {
  return !node.in.empty() && !node.out.empty() && node.in[0] == node.out[0];
}

// PyTorch's selective activation checkpointing with the policy that torchtitan gives it
// (torchtitan/distributed/activation_checkpoint.py, _custom_policy): kept is what attention, a
// reduce-scatter and a maximum (of which 8-bit scales are made) give, and what every product of
// weights but the second, fourth, ... of the layer gives. Of what is kept backward keeps what it
// needs, as a compiler does; eager PyTorch keeps it all, the last product's result, too.
class PerOp {
 public:
  bool keeps(const Node& node) {
    if (const auto* exchange = std::get_if<Exchange>(&node.work)) {
      return exchange->kind == ExchangeKind::kReduceScatter;
    }
    const Op& op = std::get<Op>(node.work);
    if (const auto* pointwise = std::get_if<Pointwise>(&op)) {
      return pointwise->kind == PointwiseKind::kAmax && (node.modules & kModuleLate) == 0;
    }
    const bool product = std::holds_alternative<Gemm>(op) && node.use == NodeUse::kPlain;
    if (product) ++products_;
    return std::holds_alternative<Attention>(op) || (product && products_ % 2 != 0);
  }

 private:
  int products_ = 0;
};

void add_per_op(const Block& block, std::vector<bool>& taken, std::vector<Slice>& slices) {
  PerOp policy;
  bool kept = true;  // what the node before makes
  for (std::size_t n = 0; n < block.nodes.size(); ++n) {
    const Node& node = block.nodes[n];
    const bool goes_on = in_place(node);
    if (goes_on && !kept) slices.back().last = static_cast<std::int32_t>(n) + 1;
    if (!goes_on) kept = policy.keeps(node) || node.out.empty();
    taken[n] = true;
    if (goes_on || kept) continue;
    slices.push_back({static_cast<std::int32_t>(n), static_cast<std::int32_t>(n) + 1, true});
  }
}

}  // namespace

std::vector<Slice> recompute_slices(const Block& block, const Plan& plan) {
  std::vector<Slice> slices;
  std::vector<bool> taken(block.nodes.size(), false);
  if (plan.recompute == Recompute::kPerOp && block.numbered) add_per_op(block, taken, slices);
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
