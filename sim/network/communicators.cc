// NCCL's allocations, counted. Which algorithms a communicator connects follows from what its
// tuner chooses for each transfer that the stage really issues; nothing is assumed about plans.
//
// The ranks of a group do not all hold the same: in each channel one rank of a node faces the
// network, and the ends of a node's chain have one tree neighbour. Channels are spread over ranks
// evenly, so a rank faces the network in ceil(C / q) of them; of chains a rank in the middle is
// counted, which holds the most.
#include "sim/network/communicators.h"

#include <algorithm>
#include <bit>

#include "sim/base/error.h"
#include "sim/network/nccl.h"

namespace stepcast {
namespace {

// src/include/device.h, src/init.cc
constexpr Bytes kLlBuffer(512 * 8 * 8 * 16);     // threads x lines x steps x line
constexpr Bytes kLl128Buffer(120 * 640 * 8 * 8); // elements x threads x steps x element
constexpr Bytes kSimpleBuffer(4'194'304);        // NCCL_BUFFSIZE
constexpr Bytes kControl(4096);                  // ncclSendMem, ncclRecvMem
constexpr Bytes kPage = mebibytes(2);            // CUDA_IPC_MIN; granularity of cuMem
constexpr Bytes kNvlsBuffer = mebibytes(1);      // chunk of 128 KiB x 8 steps
constexpr int kSharedSteps = 16;                 // NCCL_SHARED_STEPS, of a pool for sends
constexpr Bytes kChunkInNode(524'288), kChunkAcross(131'072);  // NCCL_P2P_NVL/NET_CHUNKSIZE
constexpr int kPeersPerBatch = 8;                // NCCL_MAX_DEV_WORK_P2P_PER_BATCH
// ncclDevChannelPeer: two ncclConnInfo of 152 B for each direction.
constexpr std::int64_t kPeerEntry = 4 * 152;

Bytes pages(Bytes bytes) {
  return kPage * ((bytes.count + kPage.count - 1) / kPage.count);
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int power_of_two(int n) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(n, 1))));
}

// NVLinks of a device: what NCCL counts them for together, over one (src/graph/topo.h).
int links_of(const NcclDevice& nccl) {
  double one = 20;
  if (nccl.generation == NcclGeneration::kHopper) one = 20.6;
  if (nccl.generation == NcclGeneration::kBlackwell) one = 40.1;
  return std::max(1, static_cast<int>(nccl.link_bandwidth.value * 1e-9 / one + 0.5));
}

struct Counts {
  int ranks, nodes, local;         // local: ranks of the group in a node, rounded up
  int channels;                    // of rings and trees
  int send_channels;               // that sends are spread over
  int send_channels_a_peer;
};

// ncclTopoComputeP2pChannels and ncclTopoGetNchannels of src/graph/paths.cc.
Counts count(const Placement& p, const Cluster& cluster) {
  const NcclShape shape = nccl_shape(p, cluster);
  Counts c{p.ranks, p.nodes, ceil_div(p.ranks, p.nodes), shape.channels, shape.send_channels, 0};
  if (p.nodes == 1) {
    c.send_channels_a_peer =
        std::min(c.send_channels, power_of_two(2 * links_of(*cluster.device.nccl)));
    return c;
  }
  // To the slowest peer, which is across the network: 2, or as many as a device has NICs.
  const int nics = std::max(2, cluster.nics_per_node / cluster.devices_per_node);
  c.send_channels_a_peer = power_of_two(nics);
  while (c.send_channels_a_peer > 1 &&
         c.send_channels_a_peer * ceil_div(c.ranks, kPeersPerBatch) > c.send_channels) {
    c.send_channels_a_peer /= 2;
  }
  return c;
}

// For every channel the peers, pointers to them, and the ring's ranks (src/channel.cc); then the
// communicator itself and its map of ranks (devCommSetup).
Bytes table_bytes(const Counts& c, int nvls_channels, const NcclVersion& version) {
  const int channels = std::max({c.channels, c.send_channels, nvls_channels});
  const std::int64_t n = c.ranks;
  const Bytes tables[] = {Bytes(n * kPeerEntry), Bytes((n + 1 + c.local) * 8), Bytes(n * 4)};
  Bytes sum;
  for (const Bytes table : tables) sum += version.has_own_pages ? pages(table) : table;
  sum = sum * channels;
  if (version.has_own_pages) sum += kPage + pages(Bytes(n * 4));
  return sum;
}

// Each node of a double binary tree is inside one of the two trees (a parent, two children) and a
// leaf of the other (a parent): two edges a channel on average, one where there are two nodes.
int edges_between_nodes(const Counts& c) { return c.nodes < 2 ? 0 : c.nodes == 2 ? 1 : 2; }

class Sum {
 public:
  Sum(const Counts& counts, const NcclDevice& nccl)
      : c_(counts), in_node_(connection_bytes_in_node(nccl.generation)) {}

  Bytes bytes() const { return bytes_; }

  void add(Bytes bytes) { bytes_ += bytes; }
  // Every channel has one rank of a node send to the next node, and one receive.
  void add_ring() {
    const int facing = c_.nodes > 1 ? ceil_div(c_.channels, c_.local) : 0;
    add_ends(in_node_, c_.channels - facing);
    add_ends(across_, facing);
  }
  void add_tree(bool at_chain_end) {
    // The ring sends to the next rank of the chain and receives from the previous one. New are
    // receiving from the next (all but the last) and sending to the previous (all but the first);
    // with two ranks alone both are the ring's.
    const bool new_peers = c_.local > 2 || (c_.local == 2 && c_.nodes > 1);
    if (new_peers) add(in_node_.receive * c_.channels);
    if (new_peers && c_.local > 2 && !at_chain_end) add(in_node_.send * c_.channels);
    add_edges(c_.channels, c_.local);
  }
  // Of `channels` trees of nodes, spread over `over` ranks.
  void add_edges(int channels, int over) {
    add_ends(across_, ceil_div(channels * edges_between_nodes(c_), over));
  }
  void add_pat() {
    const auto powers = static_cast<int>(std::bit_width(static_cast<unsigned>(c_.ranks - 1)));
    add_ends(across_, 2 * powers * c_.channels);
  }
  void add_sends(const CommunicatorUse& use) {
    add(in_node_.send * (c_.send_channels_a_peer * use.send_peers));
    add(in_node_.receive * (c_.send_channels_a_peer * use.receive_peers));
    if (use.sends_across) add(pool() * 2);
  }
  Bytes pool() const {
    return (c_.nodes > 1 ? kChunkAcross : kChunkInNode) * (c_.send_channels * kSharedSteps);
  }

 private:
  void add_ends(const ConnectionBytes& ends, int times) {
    add((ends.send + ends.receive) * times);
  }

  Counts c_;
  ConnectionBytes in_node_;
  ConnectionBytes across_ = connection_bytes_across_nodes();
  Bytes bytes_;
};

}  // namespace

ConnectionBytes connection_bytes_in_node(NcclGeneration generation) {
  // Where peers read, the Simple buffer lies with the sender (p2pGetInfo: sm 80 only).
  const bool read = generation == NcclGeneration::kAmpere;
  const Bytes simple_at_sender = read ? kSimpleBuffer : Bytes(0);
  return {pages(kControl + simple_at_sender),
          pages(kControl + kLlBuffer + kLl128Buffer + kSimpleBuffer - simple_at_sender)};
}

ConnectionBytes connection_bytes_across_nodes() {
  // With GPUDirect RDMA; the sender's LL buffer is the host's.
  return {pages(kLl128Buffer + kSimpleBuffer), pages(kLlBuffer + kLl128Buffer + kSimpleBuffer)};
}

Bytes communicator_bytes(const Placement& placement, const CommunicatorUse& use,
                         const Cluster& cluster, const NcclVersion& version) {
  STEPCAST_CHECK(cluster.device.nccl.has_value(), "a device whose collectives are not NCCL's");
  if (placement.ranks == 1) return Bytes(0);
  const Counts c = count(placement, cluster);
  const NcclShape shape = nccl_shape(placement, cluster);
  const bool at_once = !version.connects_at_first_use;
  const bool nvls = use.nvls || use.nvls_tree;
  Sum sum(c, *cluster.device.nccl);
  sum.add(table_bytes(c, nvls ? shape.nvls_channels : 0, version));
  if (use.ring || at_once) sum.add_ring();
  if (use.tree || at_once) sum.add_tree(use.at_chain_end);
  if (use.pat || (at_once && c.local == 1)) sum.add_pat();
  if (nvls) {
    sum.add(kNvlsBuffer * (2 * shape.nvls_channels * shape.nvls_heads) + kPage);  // and credits
  }
  if (use.nvls_tree) sum.add_edges(shape.nvls_channels, 1);
  sum.add_sends(use);
  if (at_once && !use.sends_across) sum.add(sum.pool());
  return sum.bytes();
}

namespace {

// What a body issues.
struct Issued {
  std::vector<TransferId> transfers;  // distinct
  std::vector<int> send_steps, receive_steps;
};

template <class Value>
void add_distinct(std::vector<Value>& values, Value value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

void note(const Body& body, Issued& issued) {
  for (const Instruction& instruction : body.code) {
    if (const auto* collective = std::get_if<Collective>(&instruction)) {
      add_distinct(issued.transfers, collective->transfer);
    } else if (const auto* send = std::get_if<Send>(&instruction)) {
      add_distinct(issued.transfers, send->transfer);
      add_distinct(issued.send_steps, static_cast<int>(send->step));
    } else if (const auto* receive = std::get_if<Receive>(&instruction)) {
      add_distinct(issued.transfers, receive->transfer);
      add_distinct(issued.receive_steps, static_cast<int>(receive->step));
    }
  }
}

// Of distinct neighbours: with two stages both steps lead to the same.
int neighbours(const std::vector<int>& steps, int stages) {
  std::vector<int> distinct;
  for (const int step : steps) add_distinct(distinct, ((step % stages) + stages) % stages);
  return static_cast<int>(distinct.size());
}

void use_transfer(const Transfer& transfer, const Cluster& cluster, const Issued& issued,
                  int stages, Communicator& c) {
  const Placement& p = c.placement;
  CommunicatorUse& use = c.use;
  const bool has_local_peers = p.ranks_per_node > 1 || p.nodes == 1;
  if (transfer.kind == TransferKind::kSendReceive) {
    if (has_local_peers && !transfer.axes.has(Axis::kPipeline)) {  // a shift: one peer each way
      use.send_peers = std::max(use.send_peers, 1);
      use.receive_peers = std::max(use.receive_peers, 1);
    } else if (has_local_peers) {
      use.send_peers = std::max(use.send_peers, neighbours(issued.send_steps, stages));
      use.receive_peers = std::max(use.receive_peers, neighbours(issued.receive_steps, stages));
    }
    use.sends_across = use.sends_across || p.nodes > 1;
    return;
  }
  if (transfer.kind == TransferKind::kAllToAll) {
    use.send_peers = use.receive_peers = ceil_div(p.ranks, p.nodes) - 1;
    use.sends_across = use.sends_across || p.nodes > 1;
    return;
  }
  const std::string_view algorithm =
      choose_transfer(transfer.kind, transfer.bytes, p, cluster).algorithm;
  use.ring = use.ring || algorithm == "ring";
  use.tree = use.tree || algorithm == "tree";
  use.nvls = use.nvls || algorithm == "nvls";
  use.nvls_tree = use.nvls_tree || algorithm == "nvls-tree";
  use.pat = use.pat || algorithm == "pat";
}

}  // namespace

std::vector<std::vector<Communicator>> communicators(const Job& job, const Cluster& cluster) {
  std::vector<std::vector<Communicator>> stages(job.programs.size());
  if (!cluster.device.nccl) return stages;
  std::vector<Issued> bodies(job.bodies.size());
  for (std::size_t i = 0; i < bodies.size(); ++i) note(job.bodies[i], bodies[i]);
  std::vector<Communicator> known;  // placed once
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::vector<char> called(job.bodies.size(), 0);
    for (const Call& call : job.programs[stage].schedule) {
      called[static_cast<std::size_t>(call.body)] = 1;
    }
    Issued issued;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      if (called[i] == 0) continue;
      for (const TransferId id : bodies[i].transfers) add_distinct(issued.transfers, id);
      for (const int step : bodies[i].send_steps) add_distinct(issued.send_steps, step);
      for (const int step : bodies[i].receive_steps) add_distinct(issued.receive_steps, step);
    }
    std::vector<Communicator>& found = stages[stage];
    for (const TransferId id : issued.transfers) {
      const Transfer& transfer = job.transfers[static_cast<std::size_t>(id)];
      const auto same = [&](const Communicator& c) {
        return c.axes == transfer.axes && c.ends_only == transfer.ends_only;
      };
      auto mine = std::find_if(found.begin(), found.end(), same);
      if (mine == found.end()) {
        auto placed = std::find_if(known.begin(), known.end(), same);
        if (placed == known.end()) {
          known.push_back({transfer.axes, transfer.ends_only,
                           place(job.mesh, transfer.axes, transfer.ends_only, cluster), {}, {}});
          placed = known.end() - 1;
        }
        if (placed->placement.ranks == 1) continue;
        found.push_back(*placed);
        mine = found.end() - 1;
      }
      use_transfer(transfer, cluster, issued, job.mesh.stages(), *mine);
    }
    for (Communicator& c : found) c.bytes = communicator_bytes(c.placement, c.use, cluster);
    std::stable_sort(found.begin(), found.end(), [](const Communicator& a, const Communicator& b) {
      return a.bytes > b.bytes;
    });
  }
  return stages;
}

}  // namespace stepcast
