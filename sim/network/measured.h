// Measured: a transfer's time from the curves of the cluster's profile, before any model is asked.
//
// A curve is one collective over one group by size (sim/hardware/profile.h). For S bytes:
//   at a point            its time; basis measured
//   between two points    log t is linear in log S, as nccl-tests' sizes are powers of two; basis
//                         interpolated
//   below the first       the first point's time: latency, to which bytes add nothing; extrapolated
//   above the last        S / S_last times the last point's time: its bandwidth; extrapolated
// Work that was timed in the course of a step (sim/hardware/work.h) makes such curves, too, one for
// each kind and size of group; timed with another number of ranks at work, it is interpolated.
// Extrapolated times have the basis fitted, and so has all of a profile that is itself a fit.
#pragma once

#include <optional>
#include <string>

#include "sim/base/units.h"
#include "sim/hardware/profile.h"
#include "sim/network/network.h"

namespace stepcast {

// transfer_name() with dashes, as a profile has it: "all-reduce".
std::string collective_name(TransferKind kind);

struct MeasuredTime {
  Seconds time;
  Basis basis = Basis::kMeasured;
};
// REQUIRES: the curve has points, ascending; bytes >= 0. Logarithmic in the number of points.
MeasuredTime time_on(const WireCurve& curve, Bytes bytes, Basis basis = Basis::kMeasured);

// The factor between bus and algorithm bandwidth, S / t (NVIDIA/nccl-tests, doc/PERFORMANCE.md):
//   all-reduce 2 (n-1)/n; all-gather, reduce-scatter, all-to-all (n-1)/n; broadcast, send 1
// REQUIRES: ranks >= 2.
double bus_factor(TransferKind kind, int ranks);

// What a profile says of this transfer, or nothing: a curve counts for its own kind, ranks and
// nodes only, and for as many groups a node at once as it was measured with. Neither other numbers
// of ranks nor other collectives are guessed from it.
std::optional<TransferChoice> measured_choice(TransferKind kind, Bytes bytes,
                                              const Placement& placement, const Profile& profile);


// The same from the profile's timed work of mesh.ranks() ranks. `receives`: what a Receive takes,
// of a kSendReceive.
std::optional<TransferChoice> timed_choice(const Transfer& transfer, bool receives,
                                           const Mesh& mesh, const Profile& profile);

}  // namespace stepcast
