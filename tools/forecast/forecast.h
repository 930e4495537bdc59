// Forecast: one what-if, lowered, verified, simulated and accounted.
//
// Utilisation. Peak = devices x the matrix units' data-sheet rate for the compute type.
//   MFU = model FLOPs / (step x peak). Model FLOPs are those that the mathematics needs, forward
//         and backward, two a multiply-add; of causal attention that is half of the score matrix.
//         (Older Megatron figures count all of it, and are a little higher for the same step.)
//   HFU = FLOPs of the kernels that run / (step x peak): recomputed and elementwise work included.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/engine/simulate.h"
#include "sim/program/program.h"
#include "sim/result/report.h"
#include "tools/forecast/fidelity.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

struct ForecastOptions {
  Ranks ranks = Ranks::kFolded;   // a cluster with slow devices is always simulated whole
  bool trace = false;
  // Of published runs, for the step's range; without, the range is the step.
  std::vector<ErrorClass> errors;
};

struct Forecast {
  Job job;
  Report report;
};

// Throws Error for an illegal plan; a Job that does not verify aborts (a bug of this program).
Forecast forecast(const WhatIf& what_if, const ForecastOptions& options = {});

// What a plan says of the allocator.
MemoryOptions memory_options(const Plan& plan);

// What a device of the fullest stage holds.
Bytes device_peak(const Footprint& footprint);

// What sorts out many plans at a tenth of the cost of forecasting them.
struct Outline {
  Bytes least;                   // a device of the fullest stage holds this or more
  std::optional<Duration> step;  // of the forecast; nothing where `least` is beyond the limit
};
// Throws Error for an illegal plan.
Outline outline(const WhatIf& what_if, Bytes limit);

// FLOPs of the matrix products and attention that all ranks of the Job perform in a step.
Flops performed_flops(const Job& job);

}  // namespace stepcast
