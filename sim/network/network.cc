// Rings, trees and where they lie.
//
// Placement. A group is a base rank plus offsets: sums of coordinate x stride over its axes. Which
// node boundaries fall between the offsets depends on the base only modulo the node size, so only
// the bases' residues matter. An axis whose stride is a multiple of the node size moves all of the
// group to other nodes at once: it multiplies the number of nodes and need not be walked. What is
// left is at most one node wide when the mesh fits the nodes; else it is walked for each residue.
// Offsets of nested axes come in ascending order, so members of one node stand together and
// counting nodes is counting runs.
//
// Times. Collectives that NCCL runs are in nccl.cc. For the others, the ring's bandwidth terms are
// Thakur, Rabenseifner and Gropp's (2005). Its latency is that of NCCL's model (NVIDIA/nccl
// src/graph/tuning.cc, ncclTopoTuneModel): of the n-1 hops that a chunk makes, N-1 cross nodes;
// ranks do not proceed in lockstep. Tree and its 0.92 are from the same file. All-to-all: each
// rank's remote bytes through its share of the NICs, next to its local bytes over the node's links
// (checked by NVIDIA/nccl#1138 and #780); its messages are all posted at once, so latency counts
// once (18 to 22 us for 1 MiB with 1 to 7 peers on B300, see kChannelCopy). NCCL's is one kernel of
// sends and receives, to the rank itself, too.
// Cost of a time: that of place() plus a few dozen operations.
#include "sim/network/network.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/network/links.h"
#include "sim/network/measured.h"
#include "sim/network/nccl.h"

namespace stepcast {
namespace {

constexpr double kTreeEfficiency = 0.92;  // of the bus bandwidth (tuning.cc)
constexpr std::int64_t kWindows = 16;     // nodes looked at where nodes differ

// What one channel's block of threads copies. 32 of them take 682 GB/s of all that a rank holds,
// its own part with the rest, whether it has 1, 3 or 7 peers: all-to-alls of 128 and 256 MiB on
// B300, whose links give each as much (uccl-project/uccl experimental/ukernel/docs/
// b300_native_nccl_measurements.md: 706, 685 and 688 GB/s). The same is assumed of other devices,
// whose links are slower than their channels.
constexpr Bandwidth kChannelCopy = gigabytes_per_second(21.3);

// Multiprocessors that choose_copies() takes, one number for both: a gather goes through the copy
// engines, a reduce-scatter is a kernel of 16 (TransformerEngine, initialize_ub in
// transformer_engine/pytorch/module/base.py: use_ce, num_sm; NVIDIA/NeMo's userbuffers.py in
// tp_overlap_configs: 8 to 24).
constexpr int kCopyBlocks = 8;

struct Step {
  std::int64_t degree, stride;
};

// The axes of `mesh` that are in `axes` (or, with `inside` false, that are not), inner to outer.
std::vector<Step> steps_of(const Mesh& mesh, AxisSet axes, bool inside) {
  std::vector<Step> steps;
  std::int64_t stride = 1;
  for (const Axis axis : mesh.order) {
    const std::int64_t degree = mesh.degree(axis);
    if (degree > 1 && axes.has(axis) == inside) steps.push_back({degree, stride});
    stride *= degree;
  }
  return steps;
}

// Splits what moves whole nodes off the end of `steps`; returns the number of node sets it makes.
// An axis whose stride becomes a multiple of the node after `period` steps is cut there if it
// divides evenly.
std::int64_t split_whole_nodes(std::vector<Step>& steps, std::int64_t node) {
  std::int64_t copies = 1;
  std::vector<Step> inner;
  for (const Step step : steps) {
    const std::int64_t common = std::gcd(step.stride, node);
    const std::int64_t period = node / common;
    if (period == 1) {
      copies *= step.degree;
    } else if (step.degree % period == 0) {
      inner.push_back({period, step.stride});
      copies *= step.degree / period;
    } else {
      inner.push_back(step);
    }
  }
  steps = std::move(inner);
  return copies;
}

// Residues modulo `node` of all sums of the steps.
std::vector<std::int64_t> residues(const std::vector<Step>& steps, std::int64_t node) {
  std::vector<char> seen(static_cast<std::size_t>(node), 0);
  std::vector<std::int64_t> found = {0};
  seen[0] = 1;
  for (const Step step : steps) {
    const std::int64_t period = node / std::gcd(step.stride, node);
    const std::size_t before = found.size();
    for (std::int64_t c = 1; c < std::min(step.degree, period); ++c) {
      for (std::size_t i = 0; i < before; ++i) {
        const std::int64_t r = (found[i] + c * step.stride) % node;
        char& mark = seen[static_cast<std::size_t>(r)];
        if (!mark) found.push_back(r);
        mark = 1;
      }
    }
  }
  return found;
}

// All sums of the steps, ascending (the steps are nested).
std::vector<std::int64_t> offsets(const std::vector<Step>& steps) {
  std::vector<std::int64_t> sums = {0};
  for (const Step step : steps) {
    const std::size_t before = sums.size();
    for (std::int64_t c = 1; c < step.degree; ++c) {
      for (std::size_t i = 0; i < before; ++i) sums.push_back(sums[i] + c * step.stride);
    }
  }
  return sums;
}

// Counts the groups with a member in the fullest of the first nodes.
int groups_in_node(const Mesh& mesh, const std::vector<Step>& group, std::int64_t node) {
  const std::int64_t ranks = mesh.ranks();
  bool even = true;  // all nodes alike?
  for (const Step step : group) {
    for (const std::int64_t edge : {step.stride, step.stride * step.degree}) {
      if (edge % node != 0 && node % edge != 0) even = false;
    }
  }
  const std::int64_t nodes = (ranks + node - 1) / node;
  const std::int64_t windows = even ? 1 : std::min(nodes, kWindows);
  std::size_t most = 1;
  std::vector<std::int64_t> bases;
  for (std::int64_t w = 0; w < windows; ++w) {
    bases.clear();
    for (std::int64_t rank = w * node; rank < std::min(ranks, (w + 1) * node); ++rank) {
      std::int64_t base = rank;
      for (const Step step : group) base -= rank / step.stride % step.degree * step.stride;
      bases.push_back(base);
    }
    std::sort(bases.begin(), bases.end());
    bases.erase(std::unique(bases.begin(), bases.end()), bases.end());
    most = std::max(most, bases.size());
  }
  return static_cast<int>(most);
}

// NICs that one device has to itself; a device without one of its own borrows a neighbour's.
Bandwidth device_nics(const Cluster& cluster) {
  const double own = static_cast<double>(cluster.nics_per_node) / cluster.devices_per_node;
  const Bandwidth nics = cluster.nic_bandwidth * std::max(1.0, own);
  const Bandwidth slot = cluster.box.pcie_bandwidth;
  return slot.value > 0 ? std::min(nics, slot) : nics;
}

Bandwidth share_of_nics(const Cluster& cluster, int sharers) {
  return cluster.nic_bandwidth * (static_cast<double>(cluster.nics_per_node) / sharers);
}

Seconds slowest_hop(const Placement& p, const Cluster& cluster) {
  return p.nodes > 1 ? cluster.nic_latency : cluster.node_latency;
}

Seconds ring_path(const Placement& p, const Cluster& cluster) {
  return cluster.node_latency * (p.ranks - p.nodes) + cluster.nic_latency * (p.nodes - 1);
}

TransferChoice simple_choice(Seconds time, std::string_view algorithm, Bandwidth bus) {
  return {time, algorithm, "simple", 0, bus, Basis::kDatasheet};
}

TransferChoice all_reduce_choice(Bytes bytes, const Placement& p, const Cluster& cluster) {
  const Bandwidth bus = bus_bandwidth(p, cluster);
  const double n = p.ranks;
  const Seconds ring = bytes / bus * (2 * (n - 1) / n) + ring_path(p, cluster) * 2;
  if (p.nodes == 1) return simple_choice(ring, "ring", bus);
  const int local = (p.ranks + p.nodes - 1) / p.nodes;
  const int levels =  // ceil(log2 nodes)
      static_cast<int>(std::bit_width(static_cast<unsigned>(p.nodes - 1)));
  const Seconds path = cluster.node_latency * (local - 1) + cluster.nic_latency * levels;
  const Seconds tree = bytes / (bus * kTreeEfficiency) * 2 + path * 2;
  if (ring <= tree) return simple_choice(ring, "ring", bus);
  return simple_choice(tree, "tree", bus * (kTreeEfficiency * (n - 1) / n));
}

TransferChoice all_to_all_choice(Bytes bytes, const Placement& p, const Cluster& cluster) {
  const double n = p.ranks;
  const double q = p.ranks_per_node;
  Seconds time = bytes / cluster.node_bandwidth * ((q - 1) / n);
  double per_byte = (q - 1) / n / cluster.node_bandwidth.value;
  if (p.limits.exchange > 0) {
    time = std::max(time, Seconds(static_cast<double>(bytes.count) * p.limits.exchange));
    per_byte = std::max(per_byte, p.limits.exchange);
  }
  if (p.nodes > 1) {
    const int senders = std::min(p.ranks_per_node * p.groups_per_node, cluster.devices_per_node);
    const Bandwidth nic = std::min({share_of_nics(cluster, senders), device_nics(cluster),
                                    cluster.node_bandwidth});
    time = std::max(time, bytes / nic * ((n - q) / n));
    per_byte = std::max(per_byte, (n - q) / n / nic.value);
  }
  TransferChoice choice = simple_choice(time, "direct", Bandwidth());
  if (cluster.device.nccl) {
    choice.channels = nccl_shape(p, cluster).send_channels;
    const Bandwidth copy = kChannelCopy * choice.channels;
    per_byte = std::max(per_byte, 1 / copy.value);
    choice.time = std::max(time, bytes / copy) + cluster.device.kernels.collectives.start;
    choice.basis = cluster.device.kernels.collectives.basis;
  }
  choice.time += slowest_hop(p, cluster);
  choice.bus_bandwidth = Bandwidth((n - 1) / n / per_byte);
  return choice;
}

// Every group of the kind sends at once; of a group's ranks in a node only the one at its edge
// crosses to another node.
TransferChoice send_choice(Bytes bytes, const Placement& p, const Cluster& cluster) {
  Placement one = p;
  one.ranks_per_node = 1;
  const Bandwidth bus = bus_bandwidth(one, cluster);
  return simple_choice(bytes / bus + slowest_hop(p, cluster), "direct", bus);
}

// NCCL's tuner takes the box as it finds it: as fast as its slowest link, without NVLink SHARP
// where there is no switch to do it.
TransferChoice nccl_on_links(TransferKind kind, Bytes bytes, const Placement& p,
                             const Cluster& cluster) {
  const bool switched = cluster.box.links == BoxLinks::kSwitch;
  if (switched && p.limits.inside >= cluster.node_bandwidth) {
    return nccl_choice(kind, bytes, p, cluster);
  }
  Cluster found = cluster;
  found.node_bandwidth = std::min(cluster.node_bandwidth, p.limits.inside);
  found.device.nccl->nvls = found.device.nccl->nvls && switched;
  return nccl_choice(kind, bytes, p, found);
}

// The slowest of an axis's hops, stage by stage.
TransferChoice slowest_send(const Transfer& transfer, Axis axis, const Mesh& mesh,
                            const Cluster& cluster) {
  Seconds time;
  for (int i = 0; i + 1 < mesh.degree(axis); ++i) {
    time = std::max(time, send_time(mesh, axis, i, transfer.bytes, cluster));
  }
  const Bandwidth rate(static_cast<double>(transfer.bytes.count) / time.value);
  return simple_choice(time, "direct", time.value > 0 ? rate : Bandwidth());
}

}  // namespace

Placement place(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster) {
  const int ranks = mesh.ranks();
  if (ranks > cluster.devices()) {
    throw Error("cluster", fmt::format("the layout needs {} devices, the cluster {} has {}", ranks,
                                       cluster.name, cluster.devices()));
  }
  STEPCAST_CHECK(!ends_only || axes == AxisSet(Axis::kPipeline),
                 "only the pipeline axis has ends");
  std::vector<Step> group = steps_of(mesh, axes, true);
  if (ends_only && !group.empty()) {
    Step& ends = group.front();
    ends = {2, (ends.degree - 1) * ends.stride};
  }
  Placement placement;
  for (const Step step : group) placement.ranks *= static_cast<int>(step.degree);
  if (placement.ranks == 1) return placement;
  placement.limits = link_limits(mesh, axes, ends_only, cluster);

  const std::int64_t node = cluster.devices_per_node;
  if (node >= ranks) {
    placement.ranks_per_node = placement.ranks;
    placement.groups_per_node = ranks / mesh.group_size(axes);
    return placement;
  }
  std::vector<Step> inner = group;
  const std::int64_t copies = split_whole_nodes(inner, node);
  const std::vector<std::int64_t> members = offsets(inner);
  std::int64_t most_nodes = 1, fewest = placement.ranks;
  for (const std::int64_t base : residues(steps_of(mesh, axes, false), node)) {
    std::int64_t nodes = 0, run = 0, boundary = -1;  // first rank beyond the node at hand
    for (const std::int64_t member : members) {
      const std::int64_t at = base + member;
      if (at >= boundary) {
        if (nodes > 0) fewest = std::min(fewest, run);
        ++nodes;
        run = 0;
        boundary = (at / node + 1) * node;
      }
      ++run;
    }
    fewest = std::min(fewest, run);
    most_nodes = std::max(most_nodes, nodes);
  }
  placement.nodes = static_cast<int>(most_nodes * copies);
  placement.ranks_per_node = static_cast<int>(fewest);
  if (ends_only) {  // the stages between the ends have no part in it
    group = steps_of(mesh, axes, true);
    placement.groups_per_node =
        static_cast<int>(std::min<std::int64_t>(node / fewest, group.front().stride));
  } else {
    placement.groups_per_node = groups_in_node(mesh, group, node);
  }
  return placement;
}

Bandwidth bus_bandwidth_of_nics(const Placement& placement, const Cluster& cluster) {
  return std::min({share_of_nics(cluster, placement.groups_per_node),
                   device_nics(cluster) * placement.ranks_per_node, placement.limits.across});
}

Bandwidth bus_bandwidth(const Placement& placement, const Cluster& cluster) {
  const Bandwidth node = std::min(cluster.node_bandwidth, placement.limits.inside);
  if (placement.nodes == 1) return node;
  return std::min(node, bus_bandwidth_of_nics(placement, cluster));
}

TransferChoice choose_transfer(TransferKind kind, Bytes bytes, const Placement& p,
                               const Cluster& cluster) {
  if (p.ranks == 1) return {};
  if (cluster.profile != nullptr) {
    if (const auto choice = measured_choice(kind, bytes, p, *cluster.profile)) return *choice;
  }
  if (nccl_tunes(kind, cluster)) return nccl_on_links(kind, bytes, p, cluster);
  const double n = p.ranks;
  const Bandwidth bus = bus_bandwidth(p, cluster);
  const Seconds path = ring_path(p, cluster);
  switch (kind) {
    case TransferKind::kAllReduce: return all_reduce_choice(bytes, p, cluster);
    case TransferKind::kAllGather:
    case TransferKind::kReduceScatter:
      return simple_choice(bytes / bus * ((n - 1) / n) + path, "ring", bus);
    case TransferKind::kBroadcast: return simple_choice(bytes / bus + path, "ring", bus);
    case TransferKind::kAllToAll: return all_to_all_choice(bytes, p, cluster);
    case TransferKind::kSendReceive: return send_choice(bytes, p, cluster);
  }
  STEPCAST_CHECK(false, "a transfer of no known kind");
}

TransferChoice choose_transfer(const Transfer& transfer, const Mesh& mesh,
                               const Cluster& cluster) {
  const Placement p = place(mesh, transfer.axes, transfer.ends_only, cluster);
  if (cluster.profile != nullptr) {
    if (const auto timed = timed_choice(transfer, false, mesh, *cluster.profile)) {
      const auto curve = measured_choice(transfer.kind, transfer.bytes, p, *cluster.profile);
      return curve && curve->basis < timed->basis ? *curve : *timed;
    }
  }
  if (transfer.kind == TransferKind::kSendReceive && p.ranks > 1 && has_link_limits(cluster)) {
    for (int axis = 0; axis < kAxes; ++axis) {
      const auto one = static_cast<Axis>(axis);
      if (transfer.axes == AxisSet(one)) return slowest_send(transfer, one, mesh, cluster);
    }
  }
  return choose_transfer(transfer.kind, transfer.bytes, p, cluster);
}

Seconds transfer_time(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster) {
  return choose_transfer(transfer, mesh, cluster).time;
}

TransferChoice choose_copies(const Transfer& transfer, const Mesh& mesh, const Cluster& cluster) {
  const Placement p = place(mesh, transfer.axes, transfer.ends_only, cluster);
  if (p.ranks == 1 || p.nodes > 1) return choose_transfer(transfer, mesh, cluster);
  const Bandwidth bus = bus_bandwidth(p, cluster);
  const double sent = static_cast<double>(p.ranks - 1) / p.ranks;
  TransferChoice choice =
      simple_choice(transfer.bytes / bus * sent + cluster.node_latency, "copies", bus);
  choice.channels = kCopyBlocks;
  return choice;
}

}  // namespace stepcast
