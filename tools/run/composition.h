// Composition: the steps of a run put together again by the simulator, each from what its own
// instructions took (sim/result/recording.h). Both sides are one and the same step, so whatever
// moods the machine was in cancel out: what is left is what the engine gets wrong about order and
// waiting, the least error that any forecast by it can have.
#pragma once

#include <optional>
#include <vector>

#include "execute/execute.h"
#include "sim/base/json.h"
#include "sim/program/program.h"

namespace stepcast {

struct Composition {
  std::vector<double> errors;  // composed / measured - 1, step by step
  double error = 0;            // their median
  double largest = 0;          // the one furthest from 0
  Seconds measured;            // mean, from the first rank's begin to the last one's end
};

// Of one step, of all ranks that share a clock.
double composition_error(const Job& job, const Recording& recording);

// Of all steps that the runs recorded; none if they recorded none.
std::optional<Composition> compose(const Job& job, const std::vector<RankRun>& runs);

// {"steps", "relative_error", "largest_relative_error", "measured_seconds"}
Json composition_json(const Composition& composition);

}  // namespace stepcast
