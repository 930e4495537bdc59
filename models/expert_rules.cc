// Experts on ranks, and how many rows each takes. O(1).
#include "models/expert_rules.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/choices.h"
#include "sim/program/program.h"

namespace stepcast {

namespace {

PlanTrouble in_parallel(const char* key, std::string what) {
  return {"parallel", key, std::move(what)};
}

}  // namespace

AxisSet Plan::expert_axes() const {
  if (expert == 1) return {};
  AxisSet axes = Axis::kExpert;
  if (context > 1) axes = axes | Axis::kContext;
  if (tensor > 1 && expert_tensor == 1) axes = axes | Axis::kTensor;
  return axes;
}

std::int64_t expert_capacity(const Model& model, const Plan& plan) {
  const std::int64_t rows = plan.tokens() / (plan.sequence_parallel ? plan.tensor : 1);
  const double share = static_cast<double>(rows) * static_cast<double>(model.experts_per_token) /
                       static_cast<double>(model.experts);
  const double wanted = std::ceil(plan.capacity_factor * share);
  return wanted < static_cast<double>(rows) ? static_cast<std::int64_t>(wanted) : rows;
}

// The ranks that share experts are neighbours, as Megatron-Core lays them: tensor ranks (where each
// expert is whole on one of them), then context ranks, then data ranks.
std::optional<PlanTrouble> expert_trouble(const Plan& plan) {
  if (plan.expert_tensor != 1 && plan.expert_tensor != plan.tensor) {
    return in_parallel("expert_tensor",
                       fmt::format("must be 1, so that each expert is whole, or tensor, {}; is {}",
                                   plan.tensor, plan.expert_tensor));
  }
  if (plan.expert == 1) {
    if (!plan.expert_overlap) return std::nullopt;
    return in_parallel("expert_overlap",
                       "no exchange of experts is there to run beside other work; set it to false, "
                       "or expert to more than 1");
  }
  if (plan.expert_overlap && plan.pipeline > 1 &&
      plan.schedule != PipelineSchedule::kInterleaved) {
    return in_parallel("expert_overlap",
                       "stages of this schedule would wait for each other in turn; set "
                       "virtual_stages to 2 or more, or expert_overlap to false");
  }
  if (plan.expert_overlap && plan.schedule == PipelineSchedule::kGpipe) {
    return in_parallel("expert_overlap",
                       "\"gpipe\" has no backward beside a forward; set schedule to \"1f1b\"");
  }
  const std::int64_t tensor = plan.expert_tensor == 1 ? plan.tensor : 1;
  const std::int64_t inner = plan.context * tensor;
  if (plan.expert % inner != 0 || plan.data % plan.expert_data() != 0) {
    const std::string all =
        inner == 1 ? ""
                   : fmt::format("tensor {} x context {} = {} times ", tensor, plan.context, inner);
    return in_parallel("expert",
                       fmt::format("{} ranks cannot share the experts: it must be {}a "
                                   "divisor of data {}; use {}",
                                   plan.expert, all, plan.data, divisors_text(plan.data, inner)));
  }
  if (plan.zero > 1) {
    return PlanTrouble{"sharding", "zero",
                       fmt::format("{} with expert {} is not covered yet; use 0 or 1, or expert 1",
                                   plan.zero, plan.expert)};
  }
  if (plan.replicas() > 1) {
    return PlanTrouble{"sharding", "shard_group",
                       "hybrid sharding with expert parallelism is not covered yet; leave it out"};
  }
  return std::nullopt;
}

std::optional<PlanTrouble> no_experts_trouble(const Plan& plan, const Model& model) {
  const bool spread = plan.expert > 1;
  if (model.experts > 0 || (!spread && plan.expert_tensor == 1)) return std::nullopt;
  return in_parallel(spread ? "expert" : "expert_tensor", "the model has no experts; leave it out");
}

std::optional<PlanTrouble> experts_trouble(const Plan& plan, const Model& model) {
  if (model.experts == 0) return no_experts_trouble(plan, model);
  if (model.experts % plan.expert != 0) {
    return in_parallel(
        "expert", fmt::format("{} experts cannot be divided by expert {}; use {}", model.experts,
                              plan.expert, divisors_text(model.experts)));
  }
  if (model.expert_ffn % plan.expert_tensor != 0) {
    return in_parallel("expert_tensor",
                       fmt::format("{} columns of an expert cannot be divided by {}; use 1",
                                   model.expert_ffn, plan.expert_tensor));
  }
  if (model.mlp_bias && plan.expert_tensor > 1) {
    return in_parallel("expert_tensor",
                       "experts with biases that tensor ranks cut are not covered yet; set it to "
                       "1");
  }
  if (plan.tensor > 1 && !plan.sequence_parallel) {
    return in_parallel("sequence_parallel",
                       "tensor ranks give different tokens to experts: set it to true");
  }
  if (plan.tensor > 1 && plan.expert == 1 && plan.expert_tensor == 1) {
    return in_parallel(
        "expert_tensor",
        fmt::format("tensor {} ranks must share the experts: set it to {}, or expert to "
                    "a multiple of that",
                    plan.tensor, plan.tensor));
  }
  // Of an overlapped micro-batch each layer is cut in at most as many parts, forward and backward.
  constexpr std::int64_t kPartsOfLayer = 8;
  const std::int64_t chunks = plan.pipeline * plan.virtual_stages;
  const std::int64_t parts = kPartsOfLayer * model.layers + 2 * chunks;
  if (plan.expert_overlap && plan.micro_batches() > (kCallsMax - 8 * chunks) / parts) {
    return in_parallel("expert_overlap",
                       fmt::format("{} micro-batches of {} layers in parts are too many to write "
                                   "down; set it to false",
                                   plan.micro_batches(), model.layers));
  }
  if (plan.scan_layers && model.dense_layers > 0) {
    return PlanTrouble{"", "scan_layers", "one loop takes equal layers, but some have no experts"};
  }
  return std::nullopt;
}

}  // namespace stepcast
