// Probe: what is measured of a device apart from any plan (sim/hardware/probes.h), and its wires by
// size: what no step of a plan tells, or not by itself.
//
//   memory     copy and add over sizes, the largest beyond every cache: bytes / time
//   launch     host time to issue a small kernel, device time from one to the next; in a graph too
//   wires      a collective of the plan's kind and group, sizes doubling, back to back: as
//              nccl-tests measures (NVIDIA/nccl-tests, doc/PERFORMANCE.md), the ranks' mean
//   beside     a product, then a copy, and a collective at once, each again and again: of those
//              instances that lie within the other's, mean time over the time alone
//
// All ranks run the same probes in step; how often, and whether at all, they agree on over the
// control transport, on which rank 0 says what is known already.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "execute/bench.h"
#include "execute/transport.h"
#include "sim/hardware/probes.h"
#include "sim/hardware/profile.h"
#include "sim/program/program.h"

namespace stepcast {

// A kind of transfer over groups of one shape, all at once, as a Job has it.
struct ProbedTransfer {
  TransferLoad load;  // the largest of the Job
  int ranks = 2;      // of its group
  int nodes = 1;      // that it spans
  int groups_per_node = 1;
};
// In the order of their first appearance; of groups of more than one rank. All on one node.
std::vector<ProbedTransfer> probed_transfers(const Job& job);

// How much longer each of two lanes' batches take than alone, of those that lie within the time in
// which the other lane was at work. `count` 0: there was none.
struct Slowdown {
  double factor = 1;
  std::int64_t count = 0;
};
Slowdown slowdown(std::span<const BenchSpan> lane, double alone, std::span<const BenchSpan> other);

// The value that rank 0 has, on every rank. Every rank calls it.
std::int64_t agreed(Transport& control, std::int64_t value);

struct Probed {
  Probes probes;
  std::vector<WireCurve> wires;
};

class Prober {
 public:
  // Adds to `probed` on every rank what is not there on rank 0; calls `kept` after each piece.
  Prober(Bench& bench, Transport& control, Probed& probed, std::function<void()> kept);

  void measure_memory();
  void measure_launches();
  void measure_wires(const ProbedTransfer& transfer);
  void measure_beside(const ProbedTransfer& transfer);
  // A fixed product, as sentinel (calibrate/sentinel.h): whether the device held still.
  Seconds sentinel();

 private:
  TransferLoad largest(const ProbedTransfer& transfer) const;
  std::vector<double> times(const BenchLoad& load);
  double mean_time(const BenchLoad& load);
  std::vector<double> over_ranks(std::vector<double> values, bool takes_part);
  bool known(bool here);

  Bench& bench_;
  Transport& control_;
  const BenchSizes sizes_;
  Probed& probed_;
  std::function<void()> kept_;
};

}  // namespace stepcast
