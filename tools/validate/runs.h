// Runs: a published training run, asked as a what-if and answered by the forecast that `simulate`
// makes. Internal to `stepcast validate`.
#pragma once

#include "models/model.h"
#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "tools/validate/validate.h"

namespace stepcast {

// Fills in what is forecast and what was measured, or the reason why not. REQUIRES: the row's id,
// source and gpu are read.
void validate_run(const Json& row, const Shipped& shipped, RunForecasts& known,
                  ValidationRow& result);

// A run is unsteady where its step took, in the median, more than that many times what its fastest
// step did: its time says how the host was disturbed. (Other runs that state both lie below 1.15.)
inline constexpr double kUnsteady = 1.25;
// Or where its source's own large all-reduces over as many nodes took, in the 95th percentile, more
// than that many times what they took in the 5th (hardware.all_reduce_spread): a shared network,
// which one number does not describe.
inline constexpr double kUnsteadyFabric = 2;

// "tp+sp+pp+dp", "zero3", "one device": the axes of a plan and what it shards.
std::string plan_word(const Plan& plan);

}  // namespace stepcast
