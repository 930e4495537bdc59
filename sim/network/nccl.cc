// NCCL's tuner model.
//
// Origin: NVIDIA/nccl, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime) at v2.30, with
// the channel search of src/graph/search.cc put into closed form. NCCL gives every pair of
// algorithm and protocol a latency L and a bandwidth B and runs the one with the least L + S / B;
// so does this file, and returns that least time. Cost: at most eight candidates.
//
// Where it departs from the source, and why:
//   * Bandwidths are what is achieved, not what NCCL counts on. NCCL takes a B200's ring for
//     720 GB/s, measured are 682 (stas00/ml-engineering network/README.md); it does not need the
//     number to be right, only the order. Rings and trees therefore start from the cluster's
//     node_bandwidth and this group's share of the NICs. Per-channel caps are kept as they are.
//   * The search rounds a channel's speed down to one of a dozen values; here it is continuous.
//   * NVLS in one node. The search asks each of h heads to carry its own channel twice and every
//     other once, (h+1) speeds on each device's link, so bus bandwidth = 2 (h-1)/(h+1) x link x
//     efficiency, with NCCL's efficiencies (Hopper 0.85, Blackwell 0.74). Measured on 5, 6, 7, 8
//     H200: 0.84, 0.82, 0.83, 0.82; on 6, 7, 8 B200: 0.755, 0.749, 0.746 (same README). NCCL's own
//     rounded value is 476 for 8 H100, which its maintainers quote (nccl-tests#290), but 300 for 5
//     H200 (measured: 414) and 720 for 8 B200 (measured: 838).
//   * Whether NVLS is a candidate at all in one node is judged as v2.27 did: it took the algorithm
//     bandwidth as 5/6 of channels x rounded speed, from 2.28.3 on as n / (2 (n-1)) of it. The
//     former gives the switch from ring to NVLS that was published for 2.27.7, at 5 H200 and 6
//     B200; the latter would keep the ring up to 5 H200 and 7 B200. It is judged once a group, for
//     long messages, not once a size, so that more bytes never take less time.
//   * The correction of trees is interpolated between its powers of two; in NCCL it is a staircase,
//     on which a larger message can be faster.
//   * A ring ends with a step that sends nothing: the last chunk is copied out of NCCL's buffer
//     (src/device/all_reduce.h: 2 (n-1) steps that send, then a receive), by the same blocks, so
//     that they start the next round later. The tuner does not count it. Two A100 have 86 % of the
//     bus bandwidth of eight for that (VIA-Research/vTrain trace/a100: 197 and 229 GB/s at 1 GiB);
//     with ring_copy steps for it, groups of 2 to 8 agree on one bandwidth, NCCL's own. Between
//     nodes the proxies' buffers hide it.
//   * NVLS is for all-reduce only. The tuner has a value for all-gather and reduce-scatter, but it
//     loses to the ring at all sizes on 8 H100 and 8 B200 (measured: ring, same README), and
//     between nodes it needs a switch that reduces. CollNet (such a switch) is off by default.
//   * Latency of the network plugin (graph->latencyInter) is 0, as NCCL has it for InfiniBand.
#include "sim/network/nccl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "sim/base/error.h"

namespace stepcast {
namespace {

enum Algorithm { kTree, kRing, kNvls, kNvlsTree, kPat };
enum Protocol { kLl, kLl128, kSimple };
constexpr std::array<std::string_view, 5> kAlgorithms = {"tree", "ring", "nvls", "nvls-tree",
                                                         "pat"};
constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};

// All latencies in us, bandwidths in GB/s; ncclTunerConstantsDefaults of tuning.cc unless said.
using Latencies = std::array<std::array<double, 3>, 5>;  // [algorithm][protocol]
constexpr Latencies kBase = {{{6.8, 14.0, 8.4}, {6.6, 14.0, 8.4}, {}, {}, {8.0, 8.0, 8.0}}};
constexpr Latencies kNodeHop = {
    {{0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}, {0, 0, 25}, {0, 0, 25}, {0, 0, 4.0}}};
constexpr Latencies kNetHop = {
    {{5.0, 8.5, 14.0}, {2.7, 4.0, 14.0}, {0, 0, 18}, {0, 0, 20.9}, {0, 0, 14.0}}};

// Within a triple: one node, two nodes, more.
using BySpan = std::array<double, 3>;
struct Generation {
  double ll_in_node;       // both, ring and tree, all channels together
  BySpan ring_ll128, tree_ll128, tree, nvls_tree;  // caps per channel
  double nvls_efficiency;
  double plateau;  // "plateau effect of ring": its latency between nodes, times this
  int nvls_channels_in_node, nvls_channels;  // blocks that work on it (src/transport/nvls.cc)
  std::array<double, 12> speeds;             // of a channel in a node (search.cc)
};
constexpr Generation kVolta = {
    39, {20, 20, 20}, {20, 20, 20}, {26.5, 18.5, 10}, {26.5, 18.5, 10}, 0, 1.9, 0, 0,
    {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4}};
constexpr Generation kAmpere = {
    87.7, {20, 20, 20}, {20, 20, 20}, {24, 23.6, 17.8}, {24, 23.6, 17.8}, 0, 1.4, 0, 0,
    {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4}};
constexpr Generation kHopper = {
    141, {36.7, 36.7, 36.7}, {36.7, 36.7, 29}, {38.7, 41.4, 36}, {0, 57.7, 45.5}, 0.85, 1.4, 16,
    16, {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3, 0}};
constexpr Generation kBlackwell = {
    282, {40, 40, 40}, {55.6, 31.67, 20}, {70, 42.8, 24}, {0, 96, 80}, 0.74, 1.4, 24, 32,
    {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18}};

// Between nodes, LL is bound by the host: [two nodes, more].
constexpr std::array<double, 2> kLlIntel = {39.0, 20.4}, kLlAmd = {22.5, 19.0};
constexpr double kPostIntel = 1.0, kPostAmd = 2.0;  // getNetOverhead: to post a message

// treeCorrectionFactor: at 64 B, 128 B, ... 256 MiB, then 1.
constexpr std::array<std::array<double, 24>, 3> kTreeCorrection = {
    {{1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
     {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
     {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9,
      1}}};

constexpr int kNvlsHeadsMax = 32;     // NCCL_MAX_NVLS_ARITY
constexpr int kRingChannelsMax = 32;  // that the search looks for: MAXCHANNELS / 2

const Generation& constants_of(NcclGeneration generation) {
  switch (generation) {
    case NcclGeneration::kVolta: return kVolta;
    case NcclGeneration::kAmpere: return kAmpere;
    case NcclGeneration::kHopper: return kHopper;
    case NcclGeneration::kBlackwell: return kBlackwell;
  }
  STEPCAST_CHECK(false, "a generation out of range");
}

// ncclTopoDupChannels: as many, or each split in two where that leaves them fast enough.
int split_channels(NcclGeneration generation, int channels, double speed) {
  const bool many = generation >= NcclGeneration::kHopper && speed < 50 && channels > 4;
  return speed >= 25 && !many ? 2 * channels : channels;
}

// Of a ring in a node: those that use most of a device's links, `link` GB/s as NCCL counts them.
// 120 = 3 x 40 (V100), 160 = 4 x 40 (A800, H800), 240 = 6 x 40 (A100), 360 = 6 x 60 (H100), 720 =
// 8 x 90 (B200), all of them split. The search goes down its speeds to half the best one's.
int channels_in_node(NcclGeneration generation, double link) {
  int best = 1;
  double speed = 0;
  for (const double next : constants_of(generation).speeds) {
    if (next <= 0 || next < 0.49 * speed) break;
    const int channels = static_cast<int>(std::min<double>(link / next, kRingChannelsMax));
    if (channels * next <= best * speed) continue;
    best = channels;
    speed = next;
  }
  return split_channels(generation, best, speed);
}

// What the channel search would find for a group: bus bandwidths in GB/s.
struct Graph {
  const Generation* g;
  std::size_t span;       // index of a BySpan
  int ranks, nodes, local;  // local: ranks a node, rounded up
  double node;            // rings and trees inside a node
  double net;             // this group's share of the NICs of a node; of no meaning in one node
  double nvls_link;       // as NCCL counts a device's links
  double nvls;            // achieved over what NCCL expects
  double ring_copy;       // of a ring's last step, in steps on these links; 0 between nodes
  int channels, nics;     // graph channels; NICs of this group in a node
  double ll, post;        // cap of LL; host time to post to the network
  double node_scale, net_scale;  // this cluster's hops in units of NCCL's
};

Graph graph_of(const Placement& p, const Cluster& cluster) {
  const NcclDevice& nccl = *cluster.device.nccl;
  const bool amd = nccl.host == HostCpu::kAmd;
  Graph graph{};
  graph.g = &constants_of(nccl.generation);
  graph.span = static_cast<std::size_t>(std::min(p.nodes, 3) - 1);
  graph.ranks = p.ranks;
  graph.nodes = p.nodes;
  graph.local = (p.ranks + p.nodes - 1) / p.nodes;
  graph.node = cluster.node_bandwidth.value * 1e-9;
  const Bandwidth standard =
      cluster.device.node_bandwidth * cluster.device.node_bandwidth_efficiency;
  graph.nvls_link = graph.node * (nccl.link_bandwidth / standard);
  const double copy = cluster.device.kernels.collectives.ring_copy;
  if (p.nodes == 1 && copy > 0) {  // it is as fast beside slow links
    graph.ring_copy = copy * (cluster.node_bandwidth / standard);
  }
  graph.nvls = cluster.device.kernels.collectives.nvls;
  graph.node_scale = cluster.node_latency / microseconds(kNodeHop[kRing][kSimple]);
  graph.net_scale = cluster.nic_latency / microseconds(kNetHop[kRing][kSimple]);
  graph.channels = channels_in_node(nccl.generation, nccl.link_bandwidth.value * 1e-9);
  graph.ll = graph.g->ll_in_node;
  if (p.nodes == 1) return graph;

  graph.net = bus_bandwidth_of_nics(p, cluster).value * 1e-9;
  graph.ll = (amd ? kLlAmd : kLlIntel)[graph.span - 1];
  graph.post = amd ? kPostAmd : kPostIntel;
  // A channel for each NIC, or two.
  const int own = std::max(1, cluster.nics_per_node / cluster.devices_per_node);
  graph.nics = std::clamp(cluster.nics_per_node / p.groups_per_node, 1, p.ranks_per_node * own);
  const double speed = std::min(graph.net, graph.node) / graph.nics;
  graph.channels = split_channels(nccl.generation, graph.nics, speed);
  return graph;
}

double ring_bus(const Graph& graph, Protocol protocol) {
  const double bus = graph.nodes == 1 ? graph.node : std::min(graph.node, graph.net);
  switch (protocol) {
    case kLl: return std::min(graph.ll, 0.5 * bus);
    case kLl128: return std::min(0.92 * bus, graph.channels * graph.g->ring_ll128[graph.span]);
    case kSimple: return bus;
  }
  STEPCAST_CHECK(false, "a protocol out of range");
}

double tree_bus(const Graph& graph, Protocol protocol) {
  // On two nodes each NIC carries a tree's data once a direction, where a ring's pass twice: NCCL
  // takes bwIntra there, which the search raises to at most twice bwInter. The channels stay those
  // of the ring: where the search splits the tree's once more, the tuner expects trees that four
  // published runs with tensor groups over two nodes (4 x 200 Gb/s each) do not have; they take
  // what the ring takes.
  double bus = graph.node;
  if (graph.nodes > 1) bus = std::min(bus, graph.net * (graph.nodes == 2 ? 2 : 1));
  bus = std::min(0.92 * bus, graph.channels * graph.g->tree[graph.span]);
  if (protocol == kLl) bus = std::min(bus / 3.8, graph.ll);
  if (protocol == kLl128) {
    bus = std::min(bus * (graph.nodes == 1 ? 7.0 / 9 : 120.0 / 128),
                   graph.channels * graph.g->tree_ll128[graph.span]);
  }
  return graph.local == 1 ? 0.85 * bus : bus;  // one device a node: NCCL_TOPO_PATTERN_TREE
}

double nvls_in_node(const Graph& graph, int heads) {
  return graph.g->nvls_efficiency * 2 * (heads - 1) / (heads + 1) * graph.nvls_link;
}

// Whether NCCL 2.27 expects NVLS in one node to outrun the ring for long messages.
bool nvls_expected(const Graph& graph, int heads) {
  double speed = 0;
  for (const double s : graph.g->speeds) {
    if (s * (heads + 1) <= graph.nvls_link) speed = std::max(speed, s);
  }
  const double n = graph.ranks;
  return heads * speed * 5 / 6 > graph.nvls_link * n / (2 * (n - 1));
}

int ring_steps(TransferKind kind, int ranks) {
  if (kind == TransferKind::kAllReduce) return 2 * (ranks - 1);
  return kind == TransferKind::kBroadcast ? ranks : ranks - 1;
}

double net_hop(const Graph& graph, Algorithm algorithm, Protocol protocol) {
  // With one device a node "latencies are fully exposed": the tree's.
  return kNetHop[graph.local == 1 ? kTree : algorithm][protocol] * graph.net_scale;
}

double ring_latency(TransferKind kind, const Graph& graph, Protocol protocol) {
  const double node_hop = kNodeHop[kRing][protocol] * graph.node_scale;
  const double base = kBase[kRing][protocol];
  const int steps = ring_steps(kind, graph.ranks);
  if (kind == TransferKind::kBroadcast) {
    // All channels alike: the chunks follow each other closely.
    if (graph.nodes == 1) return base + node_hop;
    if (graph.nics == 1) return base + kNetHop[kRing][protocol] * graph.net_scale;
    return base + steps * kNetHop[protocol == kSimple ? kTree : kRing][protocol] * graph.net_scale;
  }
  if (graph.nodes == 1) return base + steps * node_hop;
  const int across = (kind == TransferKind::kAllReduce ? 2 : 1) * (graph.nodes - 1);
  const double post = graph.post * (protocol == kSimple ? 3 : 1);
  return base + (steps - across) * std::max(node_hop, post) +
         across * net_hop(graph, kRing, protocol);
}

int log2_floor(int n) {
  int levels = 0;
  while (n >>= 1) ++levels;
  return levels;
}

double tree_latency(const Graph& graph, Protocol protocol) {
  return kBase[kTree][protocol] +
         2 * ((graph.local - 1) * kNodeHop[kTree][protocol] * graph.node_scale +
              log2_floor(graph.nodes) * net_hop(graph, kTree, protocol));
}

double tree_correction(Protocol protocol, double bytes) {
  const std::array<double, 24>& table = kTreeCorrection[protocol];
  const double at = std::log2(std::max(1.0, bytes / 64));
  if (at >= 23) return table.back();
  const auto i = static_cast<std::size_t>(at);
  return table[i] + (table[i + 1] - table[i]) * (at - static_cast<double>(i));
}

// Gathers the least.
struct Best {
  double bytes;
  double us = std::numeric_limits<double>::infinity();
  double bandwidth = 0;  // algorithm bandwidth
  Algorithm algorithm = kRing;
  Protocol protocol = kSimple;

  void offer(Algorithm a, Protocol p, double latency, double algorithm_bandwidth) {
    if (!(algorithm_bandwidth > 0)) return;
    const double time = latency + bytes / (1000 * algorithm_bandwidth);
    if (time >= us) return;
    us = time;
    bandwidth = algorithm_bandwidth;
    algorithm = a;
    protocol = p;
  }
};

void offer_rings(TransferKind kind, const Graph& graph, Best& best) {
  const double copy = kind == TransferKind::kBroadcast ? 0 : graph.ring_copy;
  const double ratio = static_cast<double>(graph.ranks) / (ring_steps(kind, graph.ranks) + copy);
  for (const Protocol protocol : {kLl, kLl128, kSimple}) {
    double latency = ring_latency(kind, graph, protocol);
    if (protocol == kSimple && kind == TransferKind::kAllReduce && graph.nodes > 1 &&
        best.bytes / (2.0 * graph.channels * graph.ranks) >= 64) {
      latency *= graph.g->plateau;
    }
    best.offer(kRing, protocol, latency, ring_bus(graph, protocol) * ratio);
  }
}

void offer_trees(const Graph& graph, Best& best) {
  for (const Protocol protocol : {kLl, kLl128, kSimple}) {
    best.offer(kTree, protocol, tree_latency(graph, protocol),
               tree_bus(graph, protocol) / 2 * tree_correction(protocol, best.bytes));
  }
}

int nvls_heads(const Graph& graph) {
  return std::min(graph.nodes == 1 ? graph.ranks : std::min(graph.local, graph.nics),
                  kNvlsHeadsMax);
}

void offer_nvls(const Graph& graph, bool blackwell, Best& best) {
  const double n = graph.ranks;
  const double ratio = n / (2 * (n - 1));
  const double hop = kNodeHop[kNvls][kSimple] * graph.node_scale;
  const int heads = nvls_heads(graph);
  if (heads < 2) return;
  if (graph.nodes == 1) {
    if (nvls_expected(graph, heads)) {
      best.offer(kNvls, kSimple, hop, nvls_in_node(graph, heads) * graph.nvls * ratio);
    }
    return;
  }
  const double bus = std::min({nvls_in_node(graph, heads) * graph.nvls,
                               graph.net * (graph.nodes == 2 ? 2 : 1),
                               heads * graph.g->nvls_tree[graph.span]});
  const double correction = blackwell ? tree_correction(kSimple, best.bytes) : 1;
  best.offer(kNvlsTree, kSimple,
             hop + 2 * log2_floor(graph.nodes) * net_hop(graph, kNvlsTree, kSimple),
             bus * ratio * correction);
}

void offer_pat(const Graph& graph, Best& best) {
  if (graph.local > 1) return;
  // The linear part is the source's: "hopefully we'll manage to remove it at some point".
  const double latency = kBase[kPat][kSimple] +
                         log2_floor(graph.nodes) * net_hop(graph, kPat, kSimple) / 3.5 +
                         graph.ranks * 2.8;
  best.offer(kPat, kSimple, latency, 0.75 * ring_bus(graph, kSimple));
}

int channels_of(Algorithm algorithm, const Graph& graph) {
  if (algorithm == kNvls) return graph.g->nvls_channels_in_node;
  if (algorithm == kNvlsTree) return graph.g->nvls_channels;
  return 2 * graph.channels;  // ncclTopoPostset doubles them once more
}

}  // namespace

bool nccl_tunes(TransferKind kind, const Cluster& cluster) {
  return cluster.device.nccl && kind != TransferKind::kAllToAll &&
         kind != TransferKind::kSendReceive;
}

NcclShape nccl_shape(const Placement& placement, const Cluster& cluster) {
  const Graph graph = graph_of(placement, cluster);
  const int nvls = channels_of(graph.nodes == 1 ? kNvls : kNvlsTree, graph);
  const int channels = std::min(channels_of(kRing, graph), kNcclChannelsMax);
  const auto sends = static_cast<int>(std::bit_ceil(static_cast<unsigned>(channels)));
  return {channels, std::min(sends, kNcclChannelsMax), nvls, nvls_heads(graph)};
}

TransferChoice nccl_choice(TransferKind kind, Bytes bytes, const Placement& placement,
                           const Cluster& cluster) {
  STEPCAST_CHECK(nccl_tunes(kind, cluster), "a transfer that NCCL's tuner does not judge");
  const Graph graph = graph_of(placement, cluster);
  Best best{static_cast<double>(bytes.count)};
  offer_rings(kind, graph, best);
  if (kind == TransferKind::kAllReduce) {
    offer_trees(graph, best);
    if (cluster.device.nccl->nvls) {
      offer_nvls(graph, cluster.device.nccl->generation == NcclGeneration::kBlackwell, best);
    }
  } else if (kind != TransferKind::kBroadcast) {
    offer_pat(graph, best);
  }
  const double n = graph.ranks;
  const double bus = kind == TransferKind::kBroadcast ? 1.0
                     : kind == TransferKind::kAllReduce ? 2 * (n - 1) / n
                                                        : (n - 1) / n;
  const Seconds time = cluster.device.kernels.collectives.start + microseconds(best.us);
  return {time, kAlgorithms[best.algorithm], kProtocols[best.protocol],
          channels_of(best.algorithm, graph), gigabytes_per_second(best.bandwidth * bus),
          cluster.device.kernels.collectives.basis};
}

}  // namespace stepcast
