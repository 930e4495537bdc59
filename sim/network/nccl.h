// NCCL's tuner: which algorithm and protocol a collective runs with, and for how long. Internal to
// sim/network; users call choose_transfer() of network.h.
#pragma once

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/network/network.h"
#include "sim/program/program.h"

namespace stepcast {

// True if NCCL runs such a transfer on this cluster as a collective that its tuner judges:
// all-reduce, all-gather, reduce-scatter or broadcast on a device that has `nccl`.
bool nccl_tunes(TransferKind kind, const Cluster& cluster);

inline constexpr int kNcclChannelsMax = 64;  // MAXCHANNELS

// What NCCL has for a group at most: channels of rings and trees, of sends and receives (those
// rounded up to a power of two: src/graph/paths.cc, ncclTopoComputeP2pChannels), channels and heads
// of NVLS. REQUIRES: cluster.device.nccl, at least two ranks.
struct NcclShape {
  int channels = 0;
  int send_channels = 0;
  int nvls_channels = 0;
  int nvls_heads = 0;  // devices of a node that reduce a share each
};
NcclShape nccl_shape(const Placement& placement, const Cluster& cluster);

// The candidate with the smallest time. REQUIRES: nccl_tunes(kind, cluster), at least two ranks.
// Pure; no allocation; at most eight candidates of a few dozen operations.
TransferChoice nccl_choice(TransferKind kind, Bytes bytes, const Placement& placement,
                           const Cluster& cluster);

}  // namespace stepcast
