// Beside: when work ends that others slow down.
//
// Between two moments at which a stream becomes busy or idle, speed is constant: 1 / (1 + the sum
// of what the busy streams cost it), the costs being rows of Code::beside. What is left of the work
// is carried from one such stretch to the next (a fluid model). Cost: O(streams) a stretch, and at
// most two stretches a stream.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/engine/compile.h"
#include "sim/result/result.h"

namespace stepcast {

// The slow path of kernel_end(): some stream is busy after `begin`.
Instant slowed_kernel_end(const Code& code, const Instant* clocks, std::int32_t row, Instant begin,
                          Duration duration, Breakdown& parts);
Instant slowed_transfer_end(const Code& code, const Instant* clocks, const Micro& micro,
                            Instant begin);

// Of a kernel that takes `duration` alone. What it loses is added to the busy streams' parts, in
// the proportion of their costs. `clocks` are the rank's registers.
inline Instant kernel_end(const Code& code, const Instant* clocks, std::int32_t row, Instant begin,
                          Duration duration, Breakdown& parts) {
  for (const Busy& busy : code.busy) {
    if (clocks[busy.reg] > begin) [[unlikely]] {
      return slowed_kernel_end(code, clocks, row, begin, duration, parts);
    }
  }
  return begin + duration;
}

// Of a transfer: the busy streams count from `begin` to their ends (those that it shares no port
// with cost nothing).
inline Instant transfer_end(const Code& code, const Instant* clocks, const Micro& micro,
                            Instant begin) {
  for (const Busy& busy : code.busy) {
    if (clocks[busy.reg] > begin) [[unlikely]] {
      return slowed_transfer_end(code, clocks, micro, begin);
    }
  }
  return begin + micro.duration;
}

}  // namespace stepcast
