// Recording: what every instance of an instruction took in one step, as clocks saw it.
//
// Of ranks that issue everything in order on one thread, so that the moments at which a rank was
// done with each instruction tell all of its step: it turned to an instruction, its *entry*, when
// it was done with the one before, or at the step's begin. What lies between kernels (looking up
// operands, loading tokens) counts to the one that follows.
//
//   Compute, Send    end - entry
//   Receive          end - later(entry, entry of its Send)
//   Collective       the last member's end - the last member's entry, for every member
//
// A simulation that is given these in place of prices (sim/engine) must come to the step's own
// time; what it is off by is its own error, as the machine's moods are in both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"

namespace stepcast {

// One rank's step, on a clock that all ranks share.
struct Marks {
  std::int32_t rank = 0;
  Instant begin;
  std::vector<Instant> ends;  // of each Compute, Collective, Send and Receive, in order of issue
};

struct Recording {
  Duration step;  // from the first rank's begin to the last one's end
  std::vector<std::vector<Duration>> durations;  // by rank, in the order of Marks::ends
  std::vector<std::vector<Duration>> whole;      // the same from the own entry, waits included
};

// Whether an instruction takes time, and so stands in Marks.
bool takes_time(const Instruction& instruction);

// REQUIRES: verify(job) is ""; the marks of all ranks, in their order, each complete. Cost: linear
// in the marks, times the logarithm of the groups and channels.
Recording record(const Job& job, std::span<const Marks> marks);

// Calls function(call, instruction's index in its body, instruction, index in Marks::ends) for each
// instance of what takes time, in order of issue.
template <class Function>
void for_each_timed(const Job& job, const Program& program, Function function) {
  std::size_t at = 0;
  for (const Call& call : program.schedule) {
    const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      if (takes_time(body.code[i])) function(call, i, body.code[i], at++);
    }
  }
}

}  // namespace stepcast
