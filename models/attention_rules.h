// The rules of legal plans that are about the kind of attention (plan.h). Internal to plan.cc.
#pragma once

#include <optional>

#include "models/plan.h"

namespace stepcast {

// Latents, sliding windows and sinks: what is not covered with each.
std::optional<PlanTrouble> attention_kind_trouble(const Plan& plan, const Model& model);

}  // namespace stepcast
