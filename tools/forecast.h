// Forecast: one what-if, lowered, verified, simulated and accounted.
#pragma once

#include <string>

#include "sim/engine/simulate.h"
#include "sim/program/program.h"
#include "sim/result/report.h"
#include "tools/whatif.h"

namespace stepcast {

struct ForecastOptions {
  Ranks ranks = Ranks::kFolded;   // a cluster with slow devices is always simulated whole
  bool trace = false;
};

struct Forecast {
  Job job;
  Report report;
};

// Throws Error for an illegal plan; a Job that does not verify aborts (a bug of this program).
Forecast forecast(const WhatIf& what_if, const ForecastOptions& options = {});

}  // namespace stepcast
