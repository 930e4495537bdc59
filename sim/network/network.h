// Network: how long one message or collective takes on an idle cluster.
//
// The first network: rings over links with a latency and a bandwidth (alpha-beta model, Thakur,
// Rabenseifner and Gropp 2005), no contention between collectives.
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
Placement place(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster);

// Time from the moment when the last member is ready to the end of the transfer, with
//   bus bandwidth  B = node_bandwidth inside a node; across nodes
//                  min(node_bandwidth, nics_per_node x nic_bandwidth / groups_per_node)
//   all-reduce     2(n-1)/n S/B + 2 steps of latency;  gather, scatter  (n-1)/n S/B + steps
//   all-to-all     the slower of its local and its remote bytes (PHYSICS section 2)
//   send           S/B + latency of the link that the step crosses
// Zero for a group of one. Throws Error if the cluster has fewer devices than the mesh has ranks.
Seconds transfer_time(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster);

}  // namespace stepcast
