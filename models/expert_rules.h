// The rules of legal plans that are about experts (plan.h). Internal to plan.cc.
#pragma once

#include <optional>

#include "models/plan.h"

namespace stepcast {

// By itself: who may share experts, and what is not covered with that.
std::optional<PlanTrouble> expert_trouble(const Plan& plan);

// Against a model: whether its experts can be laid so.
std::optional<PlanTrouble> experts_trouble(const Plan& plan, const Model& model);

}  // namespace stepcast
