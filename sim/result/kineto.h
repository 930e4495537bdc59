// Kineto-shaped Chrome JSON: what PyTorch's profiler writes, so that the tools which read measured
// traces (HolisticTraceAnalysis, TraceLens, chrome://tracing) read a forecast beside them.
//
//   * every span is a complete event (ph "X", cat "kernel") with pid = device = rank and tid =
//     stream; ts and dur are microseconds with three digits, both ends rounded down to nanoseconds
//   * a compute is called after its label and carries its op; a transfer is called as NCCL calls
//     its kernel ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)") and carries "Collective name",
//     "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Description"
//   * "ProfilerStep#0" spans the step, once on the host and once on the device
#pragma once

#include <string>
#include <string_view>

#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

inline constexpr int kAllTracedRanks = -1;

// The spans of one rank (a file a rank is what the tools expect), or of all. `device` goes into
// deviceProperties. REQUIRES: the trace is of this job. Same arguments give the same bytes.
std::string write_kineto(const Job& job, const Trace& trace, int rank,
                         std::string_view device = "simulated");

}  // namespace stepcast
