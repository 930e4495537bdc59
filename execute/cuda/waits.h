// Waits: where the time of a rank goes, from the spans of a step and the Job's own Waits.
//
// As the simulator attributes it (sim/engine/simulate.h), along the compute stream: kernels by
// their phase; each Wait to the stream of its event, until what that stream held was done; what is
// left of a gap to the host, which had not issued the kernel yet: other. What outlasts the last
// kernel counts to its own stream. A Receive is a wait for its sender: the shortest one of its
// transfer in the step is taken for the message's own time (pipeline), the rest is bubble.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast::cuda {

// `spans`: of each Compute, Collective, Send and Receive of one rank, in the order of issue, from
// the step's begin; `step`: its length. The parts sum to it. REQUIRES: the spans are of `program`.
Breakdown attribute(const Job& job, const Program& program, std::span<const Span> spans,
                    Duration step);

}  // namespace stepcast::cuda
