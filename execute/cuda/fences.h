// Fences: what an arena with fixed places owes to streams that run side by side.
//
// A Free gives a tensor's place to the next Alloc while a stream may still read it: a message on
// its way, a gather that runs ahead. PyTorch's allocator waits for such streams before it reuses a
// block (record_stream). Here the places are known before the step, so where a tensor's first use
// is not ordered behind the last uses of what lay there before, by the streams' own order and the
// Job's Records and Waits, a fence orders it. A Job that orders all of it by itself has none.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/arena.h"
#include "sim/program/program.h"

namespace stepcast::cuda {

// The stream of instruction `before` waits for what the stream of instruction `after` held when
// that was issued. Numbers count all instructions of a step in the order of issue.
struct Fence {
  std::int64_t after = 0, before = 0;
  bool operator==(const Fence&) const = default;
};

// Ascending in `before`. REQUIRES: verify(job) is "", places = plan_memory(job, program, ...).
// Cost: instructions times streams, plus Allocs times the places freed beside them.
std::vector<Fence> plan_fences(const Job& job, const Program& program, const MemoryPlan& places);

// The stream that an instruction works on; kStreams for those that do no work.
int stream_index(const Instruction& instruction);

}  // namespace stepcast::cuda
