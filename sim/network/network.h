// Network: how long one message or collective takes on an idle cluster.
//
// On devices that NCCL serves, collectives run as its tuner chooses: algorithm and protocol by
// size and place (NVIDIA/nccl src/graph/tuning.cc; sim/network/nccl.cc). On others they are rings
// and trees over links with a latency and a bandwidth (alpha-beta model, Thakur, Rabenseifner and
// Gropp 2005). No contention between collectives of different kinds.
#pragma once

#include <limits>
#include <string_view>

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/mesh.h"
#include "sim/program/program.h"

namespace stepcast {

// What the links on the way allow a rank, each direction, while all groups of its kind do the same;
// sim/network/links.h counts it.
struct LinkLimits {
  Bandwidth inside{std::numeric_limits<double>::infinity()};  // bus bandwidth in a box
  Bandwidth across{std::numeric_limits<double>::infinity()};  // bus bandwidth between boxes
  double exchange = 0;  // all-to-all: seconds for each byte of a rank, through the worst cut
};

// Where the members of a mesh group sit: ranks are laid on devices in rank order.
struct Placement {
  int ranks = 1;           // in the group
  int nodes = 1;           // that it spans (the most over all groups)
  int ranks_per_node = 1;  // of the group in one node (the fewest over all its nodes)
  int groups_per_node = 1; // groups of this kind with members in one node; they share its NICs
  LinkLimits limits = {};  // none where the box has a switch and the fabric is not oversubscribed
};
// `ends_only` goes with axes == {pipeline}: the group is the first and the last stage. Throws Error
// if the cluster has fewer devices than the mesh has ranks. Cost: where every stride divides a
// node or is a multiple of it, a few hundred operations, else at most the size of a node times that
// of the group; `groups_per_node` is then counted in the first nodes only.
Placement place(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster);

// What a rank of such a group can send, each direction, while all groups of its kind do the same:
//   inside a node  min(node_bandwidth, limits.inside)
//   across nodes   min(that, nics_per_node x nic_bandwidth / groups_per_node,
//                      ranks_per_node x the NICs of one device, limits.across)
// The last: a device reaches the network through its own NICs, of which it has nics_per_node /
// devices_per_node, at least one (NVIDIA/nccl-tests#232), and not faster than its PCIe slot.
Bandwidth bus_bandwidth(const Placement& placement, const Cluster& cluster);
// Its part across nodes alone: without node_bandwidth.
Bandwidth bus_bandwidth_of_nics(const Placement& placement, const Cluster& cluster);

// How a transfer is done. `time` is from the moment when the last member is ready to its end.
struct TransferChoice {
  Seconds time;
  std::string_view algorithm = "none";  // ring, tree, nvls, nvls-tree, pat; direct: neither of
                                        // these (all-to-all, send); copies; none: a group of one
  std::string_view protocol = "none";   // ll, ll128, simple
  int channels = 0;                     // that NCCL has for it at most, or multiprocessors that
                                        // copies hold; 0: not known
  Bandwidth bus_bandwidth;              // of the term with the bytes, as nccl-tests counts it
  Basis basis = Basis::kDatasheet;
};

// For S bytes (as Transfer counts them) over n ranks in N nodes.
//
// All-reduce, all-gather, reduce-scatter, broadcast on a device with `nccl`: the least of
// latency + S / bandwidth over NCCL's candidates, that is the rings (LL, LL128, Simple), for
// all-reduce the trees (the same), NVLS in one node and NVLS-tree across nodes, for all-gather and
// reduce-scatter PAT with one rank a node. The bandwidths that they start from are
//   inside a node  node_bandwidth; for NVLS, which a switch reduces, NCCL's count of the links
//   across nodes   the group's share of the NICs, as in bus_bandwidth()
// and hops take NCCL's latencies times node_latency / 3.4 us and nic_latency / 14 us, NCCL's
// values for a ring's Simple protocol. Never less for more bytes.
//
// The same on other devices, B = bus bandwidth, a = node, A = nic latency, path = (n - N) a +
// (N - 1) A, what a chunk meets on its way round a ring:
//   all-reduce               ring 2 (n-1)/n S/B + 2 path
//                            tree 2 S / (0.92 B) + 2 ((ceil(n/N) - 1) a + ceil(log2 N) A), if N > 1
//                            whichever is faster
//   all-gather, -scatter     (n-1)/n S/B + path
//   broadcast                S/B + path
// And on all:
//   all-to-all               max(local (q-1)/n S / node bandwidth, remote (n-q)/n S / NIC share)
//                            + one latency, with q = ranks_per_node; or limits.exchange S, if more.
//                            With `nccl`: or S / what the channels copy, if more; + the start of a
//                            collective
//   send                     S/B + one latency, of the slowest hop of its axis, through one
//                            device's own NICs
// Zero for a group of one. Where the cluster has a profile with a curve of the same kind and group,
// that goes first (sim/network/measured.h); algorithm and protocol are then "unknown".
TransferChoice choose_transfer(TransferKind kind, Bytes bytes, const Placement& placement,
                               const Cluster& cluster);

// Places the transfer's group first. What was timed in a step of such ranks (the profile's work)
// goes before all else, but for a curve on a better basis: of a size that no step had, say. Throws
// Error if the cluster has fewer devices than the mesh
// has ranks.
TransferChoice choose_transfer(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster);
Seconds transfer_time(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster);

// An all-gather or a reduce-scatter that devices of one box do without NCCL, from one's memory to
// the other's (Transformer Engine's userbuffers, PyTorch's symmetric memory): (n-1)/n S/B + one
// latency, as each part goes straight to where it is needed. Across boxes as choose_transfer(). A
// profile's curves, which are NCCL's, do not count within a box.
TransferChoice choose_copies(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster);

// One hop of a message: all ranks at `coordinate` of the axis send `bytes` to their neighbour at
// the next (the last to the first) at once. Where neighbours sit in one box it is the box's time,
// where they are apart that of the NICs and uplinks that these senders share; so the stages of a
// pipeline have different hops where some of their borders are inside a box. The slowest sender's.
// Zero if the axis has one coordinate. Throws Error if the cluster has fewer devices than the mesh
// has ranks. Cost: linear in the senders.
Seconds send_time(const Mesh& mesh, Axis axis, int coordinate, Bytes bytes,
                  const Cluster& cluster);

}  // namespace stepcast
