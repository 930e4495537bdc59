// ContextShare: which positions of a sequence the tokens of one context rank stand at (Batch in
// sim/program/program.h).
#pragma once

#include <cstdint>

#include "execute/host_device.h"

namespace stepcast {

struct ContextShare {
  std::int64_t positions = 0;  // of the whole sequence; of no matter where there is but one rank
  std::int64_t rank = 0, ranks = 1;

  // Of the i-th of the rank's own. The two stretches stand one behind the other, ascending.
  STEPCAST_HD std::int64_t position(std::int64_t i) const {
    if (ranks == 1) return i;
    const std::int64_t stretch = positions / (2 * ranks);
    return i < stretch ? rank * stretch + i : (2 * ranks - 2 - rank) * stretch + i;
  }
  // The share of the rank `step` before, wrapping around.
  STEPCAST_HD ContextShare before(std::int64_t step) const {
    return {positions, (rank - step % ranks + ranks) % ranks, ranks};
  }
};

}  // namespace stepcast
