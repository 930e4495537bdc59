// Network: how long one message or collective takes on an idle cluster.
//
// The first network: rings and trees over links with a latency and a bandwidth (alpha-beta model,
// Thakur, Rabenseifner and Gropp 2005), no contention between collectives of different kinds.
#pragma once

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/mesh.h"
#include "sim/program/program.h"

namespace stepcast {

// Where the members of a mesh group sit: ranks are laid on devices in rank order.
struct Placement {
  int ranks = 1;           // in the group
  int nodes = 1;           // that it spans (the most over all groups)
  int ranks_per_node = 1;  // of the group in one node (the fewest over all its nodes)
  int groups_per_node = 1; // groups of this kind with members in one node; they share its NICs
};
// `ends_only` goes with axes == {pipeline}: the group is the first and the last stage. Throws Error
// if the cluster has fewer devices than the mesh has ranks. Cost: where every stride divides a
// node or is a multiple of it, a few hundred operations, else at most the size of a node times that
// of the group; `groups_per_node` is then counted in the first nodes only.
Placement place(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster);

// What a rank of such a group can send, each direction, while all groups of its kind do the same:
//   inside a node  node_bandwidth
//   across nodes   min(node_bandwidth, nics_per_node x nic_bandwidth / groups_per_node,
//                      ranks_per_node x the NICs of one device)
// The last: a device reaches the network through its own NICs, of which it has nics_per_node /
// devices_per_node, at least one (NVIDIA/nccl-tests#232).
Bandwidth bus_bandwidth(const Placement& placement, const Cluster& cluster);

// Time from the moment when the last member is ready to the end of the transfer, for S bytes (as
// Transfer counts them) over n ranks in N nodes, B = bus bandwidth, a = node, A = nic latency and
// path = (n - N) a + (N - 1) A, what a chunk meets on its way round a ring:
//   all-reduce               ring 2 (n-1)/n S/B + 2 path
//                            tree 2 S / (0.92 B) + 2 ((ceil(n/N) - 1) a + ceil(log2 N) A), if N > 1
//                            whichever is faster, as NCCL chooses
//   all-gather, -scatter     (n-1)/n S/B + path
//   broadcast                S/B + path
//   all-to-all               max(local (q-1)/n S / node bandwidth, remote (n-q)/n S / NIC share)
//                            + one latency, with q = ranks_per_node
//   send                     S/B + one latency, of the slowest hop of its axis, through one
//                            device's own NICs
// Zero for a group of one. Throws Error if the cluster has fewer devices than the mesh has ranks.
Seconds transfer_time(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster);

}  // namespace stepcast
