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
//   Compute, Collective, Send   host += issue; begin = later(clock, host); clock = begin +
//                               duration, which is longer beside others (below)
//   Receive                     host += issue; clock = latest of clock, host, the message's arrival
//   Record, Wait                event = clock; clock = later(clock, event)
//   Synchronize                 host = latest of host and all the rank's clocks
//   HostWait                    host = later(host, event)
//   Alloc, Free, Mark           no time
// Before a call of a pass (a body of forward or backward with kernels, and no later part of one):
// host += pass. A fill in a pass (a Pointwise kFill: of a new tensor) takes the host `fill`, not
// issue; the products of experts (Gemm::grouped) issue + groups, a router (Route) issue + route.
// The host's clock begins at Prices::graph.
// The members of a collective begin when the last one is ready and end together. A message arrives
// at the end of its Send. The step ends with the last clock of any rank.
//
// In pieces (Collective::pieces): parts of the product and pieces of what is moved run in turn,
// each of its own price, and wait for each other as Record and Wait would have them. To the host
// they are one kernel and one collective: a library's loop issues the rest. On a device of one
// stream nothing runs beside anything, and all stays whole.
//
// One stream. On a device that does everything in order of issue on one queue (a processor whose
// cores both compute and copy; Prices::one_stream), all streams share the compute stream's clock:
// nothing runs beside anything, and Record and Wait find their events past. Who receives copies,
// too, and may begin to when the message's Send begins:
//   Receive                     clock = latest of clock, host, begin of its Send, + its duration
//
// Beside each other. A stream other than compute is busy from the begin of a transfer to its end.
// A kernel runs slower while it is (the transfer's blocks hold multiprocessors, its bytes pass
// through memory), a transfer while others use the same port. What is issued meets what was issued
// before it; what was issued before keeps its time, since its end may have been waited for already.
// So a kernel with a prefetch beside it is slowed, and of two messages on one port the later one
// waits for its share.
//
// Breakdown, along a rank's compute stream:
//   a kernel                            compute, recompute or optimizer, by its phase
//   what a transfer beside it costs     the part of that transfer's stream, as for waiting
//   waiting for the host to issue it    other
//   waiting for an event                the part of the stream on which it was recorded: tensor,
//                                       context, expert, data (data and replica), pipeline (sends);
//                                       host copies: other; global (the norm, for which all
//                                       stages wait): bubble. Receives: pipeline for at most
//                                       the message's own duration, bubble for the rest
//   an end later than compute's clock   the same, by the stream that ends last
//   waiting for the slowest rank        other
#pragma once

#include <optional>
#include <vector>

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/program.h"
#include "sim/result/recording.h"
#include "sim/result/result.h"

namespace stepcast {

// What the transfers of one stream cost those that run beside them: factors on their times, >= 1.
struct Beside {
  Stream stream = Stream::kData;
  std::vector<double> ops;             // by OpId
  std::vector<double> transfers;       // by TransferId; of other streams
};

// Of a kernel in one place of the step.
struct PlacedPrice {
  Duration time;
  Basis basis = Basis::kDatasheet;
};
// Index into Prices::placed.
inline std::size_t placed_row(OpId op, Phase phase, bool first) {
  return (static_cast<std::size_t>(op) * kPhases + static_cast<std::size_t>(phase)) * 2 +
         (first ? 0 : 1);
}

// A collective in pieces and the product beside it: one piece, one part.
struct PiecePrice {
  TransferId transfer = 0;
  OpId product = 0;
  std::int16_t pieces = 1;
  Duration piece, part;
  bool is_of(TransferId t, OpId op, std::int16_t n) const {
    return transfer == t && product == op && pieces == n;
  }
};

// What everything in a Job costs, indexed by OpId and TransferId.
struct Prices {
  std::vector<Duration> ops;
  std::vector<Basis> basis;            // of each op
  std::vector<Duration> transfers;
  Duration issue;              // host time to issue one kernel, collective or message
  // That of the fill of a new tensor within a pass: part of another kernel's call. None: issue.
  std::optional<Duration> fill;
  // And beyond `issue` that of the products of a rank's experts, which are as many in all of them.
  Duration groups;
  Duration route;              // beyond `issue`, that of a router, forward and backward
  Duration pass;               // and before each call of a body that is a pass, or its first part
  Duration graph;              // and before all of a step that is launched whole
  std::vector<double> slow;    // by rank: factor on its ops; empty if all are 1
  std::vector<Beside> beside;  // one for each stream with transfers, at most
  std::vector<PiecePrice> pieces;  // distinct: a handful a Job
  bool one_stream = false;
  std::vector<Duration> receives;  // of one stream: of each transfer's Receive, by TransferId
  // Where a kernel's time depends on its phase and on whether its micro-batch is the first: these
  // count, by placed_row(), and `ops` holds the longest of each. Else empty.
  std::vector<PlacedPrice> placed;
};
// Throws Error (place "cluster") where a single one takes longer than can be counted.
//
// Where the ranks of a node are more than its cores (Box::cores), they take turns: everything takes
// ranks / cores times as long. That is the most it can be, as a rank that waits leaves its turn.
//
// Where the cluster's profile has work that was timed (sim/cost/timed.h, sim/network/measured.h),
// it goes before the models, as it is: ranks that took turns did so when they were timed.
//
// Beside a stream's transfers (the one with the most bytes stands for them) that move R bytes a
// second with C channels, an op runs on C multiprocessors less and on 2.5 R of memory bandwidth
// less. 2.5: a byte that arrives is written, read again to be reduced or forwarded, and its result
// written (2 to 3 times, NVIDIA/nccl#1428). Where the cluster's profile has measured a kernel
// beside such a collective (sim/hardware/probes.h), its factors count instead: the kernel's beside
// that stream, the collective's for as much of it as compute runs beside (overlap.h). Two streams
// whose transfers use the same port, the links inside a node or the NICs, get half of it each
// (max-min fairness).
//
// What is moved in pieces anywhere is moved by copies (choose_copies() in sim/network/network.h);
// the parts of the product beside it are issued over several streams and share the waves.
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

// The step composed again of what its own instances took (all ranks, one stream): what its time
// differs from recording.step by is what this engine gets wrong about order and waiting.
// REQUIRES: `recording` is of this Job.
Timeline simulate(const Job& job, const Recording& recording, bool trace = false);

// Live bytes alone; the rest of each StageMemory stays zero. The earliest maximum counts. Cost:
// linear in the text of the bodies plus the number of calls.
Footprint account(const Job& job);

struct MemoryOptions {
  bool expandable_segments = false;    // of the caching allocator
  std::optional<Bytes> blas_workspace; // of a host thread; none: the device's
  // Without, `reserved` is what is live: the least that it can be, at a hundredth of the cost.
  bool replay = true;
};
// All of it. Outside the allocator lie the context with the kernels that are loaded into it, and
// communicators, the collective library's own code with them (sim/network/communicators.h). The
// allocator gets what they leave of Device::memory, which the framework reports before any context
// exists; so device_total() is to be held against Device::memory itself. Where that does not
// suffice, it grows beyond, and says by how much. Cost: that of replaying two steps, repetitions
// skipped (sim/engine/replay.h).
Footprint account(const Job& job, const Cluster& cluster, const MemoryOptions& options = {});

// Of each stage, by charged_axis() (sim/program/charged.h).
Traffic count_traffic(const Job& job);

}  // namespace stepcast
