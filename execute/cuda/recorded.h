// Recorded: what each instance of an instruction took in a step, from the spans of all ranks' GPUs
// (sim/result/recording.h says what a recording is).
//
//   Compute            its span
//   Collective         the shortest span of its members: whoever comes last waits for nobody
//   Send, Receive      the shorter span of the two, for both: NCCL begins when both are there
//
// Spans are of each GPU's own clock; only lengths are compared.
#pragma once

#include <span>
#include <vector>

#include "sim/program/program.h"
#include "sim/result/recording.h"
#include "sim/result/result.h"

namespace stepcast::cuda {

// `spans`: by rank, one for each instruction that takes time, in the order of issue.
// REQUIRES: verify(job) is ""; the spans are complete.
Recording record_spans(const Job& job, std::span<const std::vector<Span>> spans, Duration step);

}  // namespace stepcast::cuda
