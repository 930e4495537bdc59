// The meaning of a Job in time once more, as an explicit graph of events: every instruction of
// every rank is a node, and a time is a longest path. Slow, and shares no code with the engine.
#pragma once

#include <vector>

#include "sim/engine/simulate.h"
#include "sim/program/program.h"

namespace stepcast {

struct PathTimes {
  std::vector<std::vector<Instant>> ends;  // by rank: of its work, in the order of issue
  std::vector<Instant> rank_end;
  Instant end;
};
PathTimes longest_path(const Job& job, const Prices& prices);

}  // namespace stepcast
