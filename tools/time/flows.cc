// The topology's links as those of a FlowNetwork. Equal messages are folded, so a symmetric cluster
// of a thousand devices takes milliseconds.
#include "tools/time/flows.h"

#include <algorithm>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/topology.h"
#include "sim/network/collective_flows.h"

namespace stepcast {
namespace {

constexpr double kUnknown = 1e15;  // bytes/s of a link that the cluster does not describe

FlowNetwork network_of(const Topology& topology, const Cluster& cluster,
                       std::vector<std::int32_t>& route) {
  FlowNetwork network;
  network.devices = cluster.devices();
  network.capacities = topology.capacities();
  for (double& capacity : network.capacities) capacity = std::min(capacity, kUnknown);
  for (std::int32_t link = 0; link < topology.links(); ++link) {
    network.latencies.push_back(to_duration(topology.link(link).latency));
  }
  network.route = [&topology, &route](std::int32_t from, std::int32_t to) {
    route.clear();
    topology.append_route(from, to, route);
    return std::span<const std::int32_t>(route);
  };
  return network;
}

// Ring r visits each node's ranks beginning with the r-th, so that it leaves by the one before.
std::vector<RankList> rings(int ranks, int local) {
  std::vector<RankList> groups;
  for (int r = 0; r < local; ++r) {
    RankList& ring = groups.emplace_back();
    for (int first = 0; first < ranks; first += local) {
      const int here = std::min(local, ranks - first);
      for (int i = 0; i < here; ++i) ring.push_back(first + (i + r) % here);
    }
  }
  return groups;
}

FlowExchange exchange_of(TransferKind kind, Bytes size, int ranks, const Cluster& cluster) {
  const bool several = ranks > cluster.devices_per_node;
  const std::vector<RankList> groups = rings(ranks, several ? cluster.devices_per_node : 1);
  std::vector<RankList> one = {RankList()};
  for (int rank = 0; rank < ranks; ++rank) one.front().push_back(rank);
  const std::vector<RankList>& all = several ? groups : one;
  const Bytes share(std::max<std::int64_t>(1, size.count / static_cast<std::int64_t>(all.size())));
  switch (kind) {
    case TransferKind::kAllReduce: return ring_all_reduce(all, share);
    case TransferKind::kAllGather: return ring_all_gather(all, share);
    case TransferKind::kReduceScatter: return ring_reduce_scatter(all, share);
    case TransferKind::kAllToAll: return all_to_all(one, size);
    case TransferKind::kSendReceive: {
      const Connection ends{0, ranks - 1};
      return send_receive(std::span(&ends, 1), size);
    }
    case TransferKind::kBroadcast: break;
  }
  throw Error("--flows", "a broadcast is not played; leave out --flows");
}

}  // namespace

Seconds play_collective(TransferKind kind, Bytes size, int ranks, const Cluster& cluster) {
  const FlowExchange exchange = exchange_of(kind, size, ranks, cluster);
  const Topology topology(cluster);
  std::vector<std::int32_t> route;
  const FlowNetwork network = network_of(topology, cluster, route);
  const ExchangeTimes played =
      play(std::span(&exchange, 1), network, Folding::kEqualMessages);
  return to_seconds(played.times.front());
}

}  // namespace stepcast
