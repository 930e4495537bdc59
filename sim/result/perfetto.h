// Perfetto: a trace in the form that ui.perfetto.dev and trace_processor read (.pftrace).
//
// A process a rank ("stage 0 rank 3"), a thread a stream of it ("compute", "tensor"), a slice a
// span. A slice is called after its instruction's label ("layer3.qkv"); its categories are the
// phase and, for a transfer, its kind ("backward", "all_gather"); it carries the annotations
// micro_batch and, where the trace knows more than one chunk, chunk.
//
// Perfetto counts nanoseconds: begin and end are both rounded down, so that spans which do not
// overlap stay so and none becomes negative. About 40 bytes a slice.
#pragma once

#include <string>

#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

// REQUIRES: the trace is of this job; spans of one stream of one rank are disjoint and in order.
// Same arguments give the same bytes.
std::string write_perfetto(const Job& job, const Trace& trace);

}  // namespace stepcast
