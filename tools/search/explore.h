// Explore: the plans of a search, sorted out and ranked.
//
//   1. Every candidate is read; what models/ refuses is counted by the key that it names.
//   2. Of the others the Job is lowered and its live bytes counted, with what lies outside of the
//      allocator: a device holds at least that. Where this is beyond the limit, the plan is cut off
//      unsimulated.
//   3. What is left is simulated and put in order by step time.
//   4. From the fastest on, plans are forecast as `simulate` does, the allocator replayed: as many
//      as are asked for, and whatever may lie on the Pareto front. A plan need not be looked at if
//      one that fits is as fast, as cheap, and holds no more than the least that this one may hold.
//
// So what is shown is exact, and no bound decides by an estimate. The result is the same on any
// number of threads. Cost: about a millisecond a candidate, ten a plan of step 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "tools/forecast/fidelity.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

// The candidates on a cluster of so many devices.
struct ClusterPlans {
  std::int64_t devices = 0;
  WhatIfFile question;
  std::vector<std::string> sets;                     // that lead from the file to this cluster
  std::vector<std::vector<std::string>> candidates;  // that lead from there to a plan
};

struct ExploreOptions {
  std::size_t top = 10;            // plans to rank on each cluster
  std::size_t threads = 0;         // 0: one a core
  std::vector<ErrorClass> errors;  // of published runs, for the ranges of steps
  // Is told how many candidates of all are sorted out; from any thread, one at a time.
  std::function<void(std::size_t, std::size_t)> progress;
};

// A plan as `simulate` forecasts it.
struct RankedPlan {
  std::int64_t devices = 0;
  std::vector<std::string> sets;  // with --set, they lead from the file to this plan
  Json config;                    // resolved
  Duration step;
  Seconds low, high;  // its range
  std::string range_from;
  double tokens_per_second_per_device = 0, mfu = 0, bubble_fraction = 0;
  Bytes peak;             // what a device of the fullest stage holds
  std::int32_t rank = 0;  // by step time among the plans that fit; 0 where not ranked
  bool tie = false;       // its range and that of the fastest on as many devices overlap
  bool pareto = false;    // none is better in step time, peak or device time, and none
                          // of the others worse
  // What a step costs, in seconds of one device.
  double device_seconds() const { return to_seconds(step).value * static_cast<double>(devices); }
};

// Candidates that models/ does not allow.
struct Refusal {
  std::string key;  // "parallel.tensor"
  std::int64_t count = 0;
  std::string example;  // the first one's message
};

struct Findings {
  Bytes capacity, limit;        // of a device; the same, or what the file expects of the peak
  std::int64_t candidates = 0;  // = refused + too_large + simulated
  std::int64_t refused = 0;
  std::int64_t too_large = 0;  // cut off unsimulated: what is live exceeds the limit
  std::int64_t simulated = 0;  // = fit + too_fragmented + not_needed
  std::int64_t fit = 0;
  std::int64_t too_fragmented = 0;  // the allocator's cache and the like exceed the limit
  std::int64_t not_needed = 0;      // neither ranked nor on the front, so not looked at closer
  std::vector<Refusal> refusals;    // most first
  std::vector<RankedPlan> plans;    // the first of each cluster and the whole front, fastest first
  std::vector<RankedPlan> nearest;  // do not fit; least excess first, at most 3
};

// REQUIRES: at least one cluster; all of the same what-if, but for the number of nodes.
Findings explore(const std::vector<ClusterPlans>& clusters, const ExploreOptions& options);

// The forecast of one plan.
RankedPlan ranked_plan(const ClusterPlans& cluster, const std::vector<std::string>& sets,
                       const std::vector<ErrorClass>& errors);

}  // namespace stepcast
