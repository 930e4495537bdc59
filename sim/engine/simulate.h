// Engine: a Job in time and in memory.
//
//   Prices prices = price(job, cluster);        // every distinct Op and Transfer, once
//   Timeline timeline = simulate(job, prices);  // event-driven replay of the step
//   Footprint memory = account(job);            // live bytes at every instruction
//
// All are pure functions of their arguments; any number may run in parallel threads.
// REQUIRES (all): verify(job) is "".
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
Prices price(const Job& job, const Cluster& cluster);

enum class Ranks : std::uint8_t {
  kFolded,  // one rank a stage stands for all of its stage; requires empty Prices::slow
  kAll,     // every rank by itself; collectives meet
};

struct SimulateOptions {
  Ranks ranks = Ranks::kFolded;
  bool trace = false;           // keep spans (of every simulated rank)
};
// Folded and all ranks agree to the picosecond where no rank is slow.
Timeline simulate(const Job& job, const Prices& prices, const SimulateOptions& options = {});

Footprint account(const Job& job);
Traffic count_traffic(const Job& job);

}  // namespace stepcast
