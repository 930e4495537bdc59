// Communicators: the device memory that NCCL takes for buffers between ranks.
//
// A job has one communicator for each set of axes that its transfers name (frameworks make a
// process group of each), and NCCL connects what they use:
//   channels    parallel copies of an algorithm, more with more links or NICs
//   connection  one channel, one peer, one direction. The receiver's end holds a buffer of each
//               protocol, LL 512 x 8 x 8 x 16 = 524,288 B, LL128 120 x 640 x 8 x 8 = 4,915,200 B,
//               Simple 4,194,304 B; the sender's end a control block of 4,096 B
//   rounding    every allocation to 2 MiB: 10,485,760 B and 2,097,152 B (NVIDIA/nccl#1685)
// (NVIDIA/nccl src/include/device.h, src/init.cc, src/transport/p2p.cc, net.cc, nvls.cc.) On A100
// the sender's end holds the Simple buffer (its peers read): 6 MiB at each end, the same sum.
// Across nodes both ends hold buffers for the NIC, 10 MiB each.
//
// A rank's connections, by algorithm, of C channels:
//   ring        1 to the next and 1 from the previous rank, a channel; C/q of each cross nodes
//   tree        to and from its parent and children: a chain of the q ranks of a node, whose one
//               direction the ring has connected already, and a double binary tree of nodes
//   nvls        the switch's buffers: channels x 2 x 1 MiB x devices of the node
//   nvls-tree   these, and the tree of nodes for each of its channels
//   pat         2 peers for each power of two below the ranks
//   send, all-to-all  a number of channels to each peer, inside a node; one shared pool of
//               channels x 16 chunks a direction for all peers across nodes
// and for every channel a table of all ranks (608 B a rank), which counts at ten thousand ranks.
#pragma once

#include <vector>

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/network/network.h"
#include "sim/program/program.h"

namespace stepcast {

// What of a communicator is in use on one rank.
struct CommunicatorUse {
  bool ring = false, tree = false, nvls = false, nvls_tree = false, pat = false;
  int send_peers = 0, receive_peers = 0;  // of sends and all-to-alls, inside its node
  bool sends_across = false;              // ... and to other nodes
  bool at_chain_end = false;              // the rank ends its node's chain; others hold the most
};

// How NCCL's versions differ in what they allocate.
struct NcclVersion {
  // From 2.22 on an algorithm is connected when it is first used; before, rings, trees and the
  // pool for sends were when the communicator was made.
  bool connects_at_first_use = true;
  // From 2.19 on even small tables are allocations of their own, 2 MiB each (cuMem).
  bool has_own_pages = true;
};

// What one rank holds of a communicator so placed. REQUIRES: cluster.device.nccl.
Bytes communicator_bytes(const Placement& placement, const CommunicatorUse& use,
                         const Cluster& cluster, const NcclVersion& version = {});

// One end of a connection, as it is allocated.
struct ConnectionBytes {
  Bytes send, receive;
};
ConnectionBytes connection_bytes_in_node(NcclGeneration generation);
ConnectionBytes connection_bytes_across_nodes();

struct Communicator {
  AxisSet axes;
  bool ends_only = false;  // as Transfer::ends_only
  Placement placement;
  CommunicatorUse use;
  Bytes bytes;             // on a rank of the stage
};

// The communicators of a rank of each stage, by stage; those with the most bytes first. Empty where
// the device has no `nccl`: what other libraries allocate is not modelled. Cost: linear in the
// bodies, plus a few choose_transfer() a distinct transfer.
std::vector<std::vector<Communicator>> communicators(const Job& job, const Cluster& cluster);

}  // namespace stepcast
