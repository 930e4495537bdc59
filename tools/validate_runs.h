// Runs: a published training run, asked as a what-if and answered by the forecast that `simulate`
// makes. Internal to `stepcast validate`.
#pragma once

#include "models/model.h"
#include "models/plan.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "tools/validate.h"

namespace stepcast {

// Fills in what is forecast and what was measured, or the reason why not. REQUIRES: the row's id,
// source and gpu are read.
void validate_run(const Json& row, const Shipped& shipped, RunForecasts& known,
                  ValidationRow& result);

// How much work there is for each kernel that the host issues: the time that one micro-batch's
// forward through one layer takes the matrix units at their data-sheet rate, in launches of 4.5 us,
// about the least that a host needs. It asks the configuration alone, so that neither a measurement
// nor what was fitted to some decides how it is scored.
double layer_launches(const Model& model, const Plan& plan, const Device& device);

// Kernels of such a layer in an eager framework. A run with less work than these take to issue is
// launch-bound: its time says how fast a framework issues kernels, not how a plan does.
inline constexpr double kLayerKernels = 24;

// A run is unsteady where its step took, in the median, more than that many times what its fastest
// step did: its time says how the host was disturbed. (Other runs that state both lie below 1.15.)
inline constexpr double kUnsteady = 1.25;

// "tp+sp+pp+dp", "zero3", "one device": the axes of a plan and what it shards.
std::string plan_word(const Plan& plan);

}  // namespace stepcast
