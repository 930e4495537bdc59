// Engine: a Job in time and in memory.
//
//   Prices prices = price(job, cluster);        // every distinct Op and Transfer, once
//   Timeline timeline = simulate(job, prices);  // event-driven replay of the step
//   Footprint memory = account(job, cluster);   // live, reserved and device bytes of every stage
//
//   Traffic traffic = count_traffic(job);       // bytes sent, by axis
//
// All are pure functions of their arguments; any number may run in parallel threads.
// REQUIRES (all): verify(job) is "".
//
// Time. A rank has a clock a stream, an instant an event, and its host's clock. In program order:
//   Compute, Collective, Send   host += issue; begin = later(clock, host); clock = begin + duration
//   Receive                     host += issue; clock = latest of clock, host, the message's arrival
//   Record, Wait                event = clock; clock = later(clock, event)
//   Alloc, Free, Mark           no time
// The members of a collective begin when the last one is ready and end together. A message arrives
// at the end of its Send. The step ends with the last clock of any rank.
//
// Breakdown, along a rank's compute stream:
//   a kernel                            compute, recompute or optimizer, by its phase
//   waiting for the host to issue it    other
//   waiting for an event                the part of the stream on which it was recorded: tensor,
//                                       context, expert, data (data and replica), pipeline (sends);
//                                       host copies: other; global (the norm, for which all
//                                       stages wait): bubble. Receives: pipeline for at most
//                                       the message's own duration, bubble for the rest
//   an end later than compute's clock   the same, by the stream that ends last
//   waiting for the slowest rank        other
#pragma once

#include <vector>

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

// What everything in a Job costs, indexed by OpId and TransferId.
struct Prices {
  std::vector<Duration> ops;
  std::vector<Basis> basis;            // of each op
  std::vector<Duration> transfers;
  Duration issue;                      // host time to issue one kernel, collective or message
  std::vector<double> slow;            // by rank: factor on its ops; empty if all are 1
};
// Throws Error (place "cluster") where a single one takes longer than can be counted.
Prices price(const Job& job, const Cluster& cluster);

enum class Ranks : std::uint8_t {
  kFolded,  // one rank a stage stands for all of its stage; requires empty Prices::slow
  kAll,     // every rank by itself; collectives meet
};

struct SimulateOptions {
  Ranks ranks = Ranks::kFolded;
  bool trace = false;           // keep spans (of every simulated rank)
  bool memoise = true;          // folded: remember what stretches of a body did (same results)
};
// Folded and all ranks agree to the picosecond where no rank is slow. `instructions` of the result
// counts those that take part in time (no Alloc, Free, Mark), remembered ones included. The bubble
// of a rank: its bubble up to its pipeline_end, and from there to the latest pipeline_end of any.
// Throws Error for a step that could exceed 100 days, and for a trace of more than 20 million
// spans. A received message's span begins where its wire time would, or when it was asked for if
// later.
Timeline simulate(const Job& job, const Prices& prices, const SimulateOptions& options = {});

// Live bytes alone; the rest of each StageMemory stays zero. The earliest maximum counts. Cost:
// linear in the text of the bodies plus the number of calls.
Footprint account(const Job& job);

struct MemoryOptions {
  bool expandable_segments = false;  // of the caching allocator
};
// All of it. Outside the allocator lie the context with the kernels that are loaded into it, and
// communicators, the collective library's own code with them (sim/network/communicators.h). The
// allocator gets what they leave of Device::memory, which the framework reports before any context
// exists; so device_total() is to be held against Device::memory itself. Where that does not
// suffice, it grows beyond, and says by how much. Cost: that of replaying two steps, repetitions
// skipped (sim/engine/replay.h).
Footprint account(const Job& job, const Cluster& cluster, const MemoryOptions& options = {});

// The axis on whose account the bytes and the time of a collective on `axes` go: pipeline if it is
// one of them (scalars of all ranks), else data, else replica, else the last of those left.
Axis charged_axis(AxisSet axes);
Traffic count_traffic(const Job& job);

}  // namespace stepcast
