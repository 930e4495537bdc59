// Exchanges, their classes, their messages.
//
// Expansion goes over connections, not messages: routes and classes are found once for the `steps`
// messages of each. Cost: O(hops of all connections) for each round of refinement; a round either
// splits a class or is the last. On a ring over nodes of d devices that is about d rounds. Then
// O(1) a message.
#include "sim/network/collective_flows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

std::size_t slot(std::int32_t i) { return static_cast<std::size_t>(i); }

// ---------------------------------------------------------------------------------- exchanges

std::int32_t common_size(std::span<const RankList> groups) {
  const std::size_t size = groups.empty() ? 1 : groups[0].size();
  for (const RankList& group : groups) {
    if (group.size() != size) {
      throw Error("groups of a collective",
                  fmt::format("one has {} ranks, another {}; they must be equal", size,
                              group.size()));
    }
  }
  return static_cast<std::int32_t>(size);
}

// `passes` times n-1 steps around the ring.
FlowExchange ring(std::span<const RankList> groups, Bytes bytes, std::int32_t passes) {
  FlowExchange exchange;
  const std::int32_t n = common_size(groups);
  if (n < 2) return exchange;
  exchange.steps = passes * (n - 1);
  exchange.bytes = static_cast<double>(bytes.count) / n;
  exchange.lag = 1;
  for (const RankList& group : groups) {
    const auto base = static_cast<std::int32_t>(exchange.connections.size());
    for (std::int32_t r = 0; r < n; ++r) {
      exchange.connections.push_back({group[slot(r)], group[slot((r + 1) % n)]});
      exchange.waits_for.push_back(base + (r + n - 1) % n);
      exchange.first_wait.push_back(base + r + 1);
    }
  }
  return exchange;
}

// ------------------------------------------------------------------------------------ classes

// The connections of all exchanges, with what they wait for, laid on the network.
struct Laid {
  std::vector<double> capacities;
  FlowRoutes routes;  // of each connection
  std::vector<Duration> latencies;
  std::vector<std::int32_t> first_wait = {0};
  std::vector<std::int32_t> waits_for;
  std::vector<std::int32_t> first_of;  // of each exchange: its first connection; the number at last
};

void lay_exchange(const FlowExchange& exchange, const FlowNetwork& network, Laid& laid) {
  const auto base = laid.routes.size();
  for (const Connection& c : exchange.connections) {
    if (std::min(c.from, c.to) < 0 || std::max(c.from, c.to) >= network.devices || c.from == c.to) {
      throw Error(fmt::format("connection from device {} to {}", c.from, c.to),
                  fmt::format("must be between two of the {} devices", network.devices));
    }
    const auto links = network.route(c.from, c.to);
    Duration latency;
    for (const std::int32_t l : links) {
      if (l < 0 || slot(l) >= network.latencies.size()) {
        throw Error(fmt::format("route from device {} to {}", c.from, c.to),
                    fmt::format("names link {} of {}", l, network.latencies.size()));
      }
      latency += network.latencies[slot(l)];
    }
    laid.routes.add(links);
    laid.latencies.push_back(latency);
  }
  for (const std::int32_t other : exchange.waits_for) laid.waits_for.push_back(base + other);
  const auto waits = static_cast<std::int32_t>(laid.waits_for.size() - exchange.waits_for.size());
  for (std::size_t c = 1; c < exchange.first_wait.size(); ++c) {
    laid.first_wait.push_back(waits + exchange.first_wait[c]);
  }
}

Laid lay(std::span<const FlowExchange> exchanges, const FlowNetwork& network) {
  Laid laid;
  laid.capacities = network.capacities;
  for (const FlowExchange& exchange : exchanges) {
    laid.first_of.push_back(laid.routes.size());
    lay_exchange(exchange, network, laid);
  }
  laid.first_of.push_back(laid.routes.size());
  return laid;
}

// Steele, Lea and Flood's SplitMix64 finaliser (2014): a bijection that mixes all bits. Sums of
// mixed values stand for multisets.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Of an ordered pair. Not a sum of mixed values: that would take (a, b) for (b, a).
std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a) + 0xD1B54A32D192ED03u * b);
}

// Replaces equal hashes by equal numbers, counted from 0 in order of appearance.
std::int32_t number(const std::vector<std::uint64_t>& hashes, std::vector<std::int32_t>& classes) {
  std::unordered_map<std::uint64_t, std::int32_t> known;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto next = static_cast<std::int32_t>(known.size());
    classes[i] = known.try_emplace(hashes[i], next).first->second;
  }
  return static_cast<std::int32_t>(known.size());
}

struct Classes {
  std::vector<std::int32_t> of_connection, of_link;
  std::int32_t connections = 0, links = 0;  // how many classes
};

Classes first_classes(const Laid& laid) {
  Classes classes;
  std::vector<std::uint64_t> hashes;
  for (std::size_t e = 0; e + 1 < laid.first_of.size(); ++e) {
    for (std::int32_t c = laid.first_of[e]; c < laid.first_of[e + 1]; ++c) {
      hashes.push_back(combine(static_cast<std::uint64_t>(laid.latencies[slot(c)].picoseconds), e));
    }
  }
  classes.of_connection.resize(hashes.size());
  classes.connections = number(hashes, classes.of_connection);
  hashes.clear();
  for (const double capacity : laid.capacities) {
    hashes.push_back(mix(std::bit_cast<std::uint64_t>(capacity)));
  }
  classes.of_link.resize(hashes.size());
  classes.links = number(hashes, classes.of_link);
  return classes;
}

// The coarsest partition in which equals have equal surroundings.
Classes refine(const Laid& laid) {
  Classes classes = first_classes(laid);
  const auto connections = laid.routes.size();
  std::vector<std::uint64_t> hashes(slot(connections)), carried(laid.capacities.size());
  while (true) {
    std::fill(carried.begin(), carried.end(), 0);
    for (std::int32_t c = 0; c < connections; ++c) {
      const std::uint64_t kind = mix(static_cast<std::uint64_t>(classes.of_connection[slot(c)]));
      for (const std::int32_t l : laid.routes.links_of(c)) carried[slot(l)] += kind;
    }
    for (std::size_t l = 0; l < carried.size(); ++l) {
      carried[l] = combine(carried[l], static_cast<std::uint64_t>(classes.of_link[l]));
    }
    for (std::int32_t c = 0; c < connections; ++c) {
      std::uint64_t crossed = 0, awaited = 0;
      for (const std::int32_t l : laid.routes.links_of(c)) crossed += mix(carried[slot(l)]);
      for (auto w = slot(laid.first_wait[slot(c)]); w < slot(laid.first_wait[slot(c) + 1]); ++w) {
        awaited += mix(static_cast<std::uint64_t>(classes.of_connection[slot(laid.waits_for[w])]));
      }
      const auto own = static_cast<std::uint64_t>(classes.of_connection[slot(c)]);
      hashes[slot(c)] = combine(combine(crossed, awaited), own);
    }
    const std::int32_t before = classes.connections + classes.links;
    classes.links = number(carried, classes.of_link);
    classes.connections = number(hashes, classes.of_connection);
    const std::int32_t after = classes.connections + classes.links;
    STEPCAST_CHECK(after >= before, "classes have merged");
    if (after == before) return classes;
  }
}

// One connection and one link of each class. A link's load is how many of the class it carries.
Laid fold(const Laid& laid) {
  const Classes classes = refine(laid);
  Laid folded;
  std::vector<std::int32_t> link_of(slot(classes.links), -1);  // one of the class
  folded.capacities.resize(slot(classes.links));
  for (std::size_t l = laid.capacities.size(); l-- > 0;) {
    link_of[slot(classes.of_link[l])] = static_cast<std::int32_t>(l);
    folded.capacities[slot(classes.of_link[l])] = laid.capacities[l];
  }
  const auto sorted_unique = [](std::vector<std::int32_t>& v) {
    std::sort(v.begin(), v.end());
    v.erase(std::unique(v.begin(), v.end()), v.end());
  };
  std::vector<std::int32_t> found;
  std::size_t next_exchange = 0;
  for (std::int32_t c = 0; c < laid.routes.size(); ++c) {
    while (laid.first_of[next_exchange] == c) {
      folded.first_of.push_back(folded.routes.size());
      ++next_exchange;
    }
    if (classes.of_connection[slot(c)] != folded.routes.size()) continue;  // not the first of it
    found.clear();
    for (const std::int32_t l : laid.routes.links_of(c)) found.push_back(classes.of_link[slot(l)]);
    sorted_unique(found);
    folded.routes.add(found);
    folded.latencies.push_back(laid.latencies[slot(c)]);
    found.clear();
    for (auto w = slot(laid.first_wait[slot(c)]); w < slot(laid.first_wait[slot(c) + 1]); ++w) {
      found.push_back(classes.of_connection[slot(laid.waits_for[w])]);
    }
    sorted_unique(found);
    folded.waits_for.insert(folded.waits_for.end(), found.begin(), found.end());
    folded.first_wait.push_back(static_cast<std::int32_t>(folded.waits_for.size()));
  }
  folded.first_of.resize(laid.first_of.size(), folded.routes.size());
  folded.routes.loads.assign(folded.routes.links.size(), 0);
  for (std::int32_t c = 0; c < laid.routes.size(); ++c) {
    const std::int32_t k = classes.of_connection[slot(c)];
    const auto links = folded.routes.links_of(k);
    for (const std::int32_t l : laid.routes.links_of(c)) {
      const std::int32_t kind = classes.of_link[slot(l)];
      if (link_of[slot(kind)] != l) continue;
      const auto hop = std::lower_bound(links.begin(), links.end(), kind) - links.begin();
      ++folded.routes.loads[slot(folded.routes.first[slot(k)]) + static_cast<std::size_t>(hop)];
    }
  }
  return folded;
}

// ----------------------------------------------------------------------------------- messages

// Who waits for whom, the other way round: of the `width` connections of one exchange from `begin`.
struct Waiting {
  std::vector<std::int32_t> first, connections;
};
Waiting waiting_of(const Laid& laid, std::int32_t begin, std::int32_t width) {
  Waiting waiting;
  waiting.first.assign(slot(width) + 1, 0);
  const auto from = slot(laid.first_wait[slot(begin)]);
  const auto to = slot(laid.first_wait[slot(begin + width)]);
  for (auto w = from; w < to; ++w) ++waiting.first[slot(laid.waits_for[w] - begin) + 1];
  for (std::size_t c = 0; c < slot(width); ++c) waiting.first[c + 1] += waiting.first[c];
  waiting.connections.resize(to - from);
  std::vector<std::int32_t> next = waiting.first;
  for (std::int32_t c = 0; c < width; ++c) {
    const auto last = slot(laid.first_wait[slot(begin + c) + 1]);
    for (auto w = slot(laid.first_wait[slot(begin + c)]); w < last; ++w) {
      waiting.connections[slot(next[slot(laid.waits_for[w] - begin)]++)] = c;
    }
  }
  return waiting;
}

// Message k of connection c of an exchange is first + k x connections + c: those of one step lie
// together, as they are played. On it depend the messages k + lag of the connections that wait for
// c.
void write_messages(const FlowExchange& exchange, const Laid& laid, std::size_t e,
                    FlowTraffic& traffic) {
  const std::int32_t begin = laid.first_of[e];
  const std::int32_t width = laid.first_of[e + 1] - begin;
  const auto first = static_cast<std::int32_t>(traffic.messages.size());
  const Waiting waiting = waiting_of(laid, begin, width);
  for (std::int32_t k = 0; k < exchange.steps; ++k) {
    const std::int32_t later = first + (k + exchange.lag) * width;
    for (std::int32_t c = 0; c < width; ++c) {
      const std::int32_t follower = k + 1 < exchange.steps ? first + (k + 1) * width + c : -1;
      traffic.messages.push_back(
          {exchange.bytes, laid.latencies[slot(begin + c)], begin + c, follower});
      if (k + exchange.lag < exchange.steps) {
        for (auto w = slot(waiting.first[slot(c)]); w < slot(waiting.first[slot(c) + 1]); ++w) {
          traffic.dependents.push_back(later + waiting.connections[w]);
        }
      }
      traffic.first_dependent.push_back(static_cast<std::int32_t>(traffic.dependents.size()));
    }
  }
}

}  // namespace

FlowExchange ring_all_reduce(std::span<const RankList> groups, Bytes bytes) {
  return ring(groups, bytes, 2);
}
FlowExchange ring_all_gather(std::span<const RankList> groups, Bytes bytes) {
  return ring(groups, bytes, 1);
}
FlowExchange ring_reduce_scatter(std::span<const RankList> groups, Bytes bytes) {
  return ring(groups, bytes, 1);
}

// Connection v - 1 of a group goes from rank v up, n - 1 + v - 1 down to it.
FlowExchange tree_all_reduce(std::span<const RankList> groups, Bytes bytes, std::int32_t chunks) {
  if (chunks < 1) throw Error("chunks of a tree", fmt::format("{}; must be at least 1", chunks));
  FlowExchange exchange;
  exchange.steps = chunks;
  exchange.bytes = static_cast<double>(bytes.count) / chunks;
  for (const RankList& group : groups) {
    const auto n = static_cast<std::int32_t>(group.size());
    const auto base = static_cast<std::int32_t>(exchange.connections.size());
    const auto close_waits = [&] {
      exchange.first_wait.push_back(static_cast<std::int32_t>(exchange.waits_for.size()));
    };
    const auto wait_for_children = [&](std::int32_t v) {
      for (std::int32_t child = 2 * v + 1; child <= 2 * v + 2 && child < n; ++child) {
        exchange.waits_for.push_back(base + child - 1);
      }
    };
    for (std::int32_t v = 1; v < n; ++v) {
      exchange.connections.push_back({group[slot(v)], group[slot((v - 1) / 2)]});
      wait_for_children(v);
      close_waits();
    }
    for (std::int32_t v = 1; v < n; ++v) {
      const std::int32_t parent = (v - 1) / 2;
      exchange.connections.push_back({group[slot(parent)], group[slot(v)]});
      if (parent == 0) {
        wait_for_children(0);
      } else {
        exchange.waits_for.push_back(base + n - 1 + parent - 1);
      }
      close_waits();
    }
  }
  return exchange;
}

FlowExchange all_to_all(std::span<const RankList> groups, Bytes bytes) {
  FlowExchange exchange;
  const std::int32_t n = common_size(groups);
  if (n < 2) return exchange;
  exchange.bytes = static_cast<double>(bytes.count) / n;
  for (const RankList& group : groups) {
    for (const std::int32_t from : group) {
      for (const std::int32_t to : group) {
        if (from != to) exchange.connections.push_back({from, to});
      }
    }
  }
  exchange.first_wait.resize(exchange.connections.size() + 1, 0);
  return exchange;
}

FlowExchange send_receive(std::span<const Connection> pairs, Bytes bytes) {
  FlowExchange exchange;
  exchange.bytes = static_cast<double>(bytes.count);
  exchange.connections.assign(pairs.begin(), pairs.end());
  exchange.first_wait.resize(pairs.size() + 1, 0);
  return exchange;
}

Expansion expand(std::span<const FlowExchange> exchanges, const FlowNetwork& network,
                 Folding folding) {
  Laid laid = lay(exchanges, network);
  if (folding == Folding::kEqualMessages) laid = fold(laid);
  std::int64_t messages = 0, dependencies = 0;
  for (std::size_t e = 0; e < exchanges.size(); ++e) {
    const auto begin = slot(laid.first_of[e]), end = slot(laid.first_of[e + 1]);
    messages += static_cast<std::int64_t>(end - begin) * exchanges[e].steps;
    dependencies += std::int64_t{laid.first_wait[end] - laid.first_wait[begin]} *
                    exchanges[e].steps;
  }
  if (std::max(messages, dependencies) > std::numeric_limits<std::int32_t>::max()) {
    throw Error("exchanges",
                fmt::format("{} messages with {} dependencies; 2^31 at most, fold them", messages,
                            dependencies));
  }
  Expansion expansion;
  FlowTraffic& traffic = expansion.traffic;
  traffic.messages.reserve(static_cast<std::size_t>(messages));
  traffic.dependents.reserve(static_cast<std::size_t>(dependencies));
  traffic.first_dependent.reserve(static_cast<std::size_t>(messages) + 1);
  for (std::size_t e = 0; e < exchanges.size(); ++e) {
    expansion.first_message.push_back(static_cast<std::int32_t>(traffic.messages.size()));
    write_messages(exchanges[e], laid, e, traffic);
  }
  expansion.first_message.push_back(static_cast<std::int32_t>(traffic.messages.size()));
  traffic.capacities = std::move(laid.capacities);
  traffic.routes = std::move(laid.routes);
  return expansion;
}

ExchangeTimes play(std::span<const FlowExchange> exchanges, const FlowNetwork& network,
                   Folding folding) {
  const Expansion expansion = expand(exchanges, network, folding);
  const FlowTimes played = play(expansion.traffic);
  ExchangeTimes result;
  result.flows = static_cast<std::int64_t>(expansion.traffic.messages.size());
  for (std::size_t e = 0; e < exchanges.size(); ++e) {
    Instant end;
    for (auto m = slot(expansion.first_message[e]); m < slot(expansion.first_message[e + 1]); ++m) {
      end = later(end, played.ends[m]);
    }
    result.times.push_back(end - Instant{});
  }
  return result;
}

// ------------------------------------------------------------------------------------ network

FlowNetwork two_level_network(const TwoLevel& shape) {
  const std::int32_t least = std::min({shape.nodes, shape.devices_per_node, shape.nics_per_node,
                                       shape.spines, shape.nodes_per_leaf + 1});
  if (least < 1) throw Error("two-level network", "every count must be at least 1");
  const std::int32_t per_node = shape.devices_per_node;
  const std::int32_t devices = shape.nodes * per_node;
  const std::int32_t ports = std::min(shape.nics_per_node, per_node);
  const std::int32_t nics = shape.nodes * ports;
  const double port = shape.nic_bandwidth.value *
                      std::max(1.0, static_cast<double>(shape.nics_per_node) / per_node);
  const std::int32_t leaf = shape.nodes_per_leaf;
  const std::int32_t leaves = leaf == 0 ? 0 : (shape.nodes + leaf - 1) / leaf;

  FlowNetwork network;
  network.devices = devices;
  const auto add_links = [&](std::int32_t count, double capacity, Duration latency) {
    const auto first = static_cast<std::int32_t>(network.capacities.size());
    network.capacities.resize(network.capacities.size() + slot(count), capacity);
    network.latencies.resize(network.capacities.size(), latency);
    return first;
  };
  const std::int32_t out = add_links(devices, shape.node_bandwidth.value, shape.node_latency);
  const std::int32_t in = add_links(devices, shape.node_bandwidth.value, {});
  const std::int32_t nic_out = add_links(nics, port, shape.nic_latency);
  const std::int32_t nic_in = add_links(nics, port, {});
  const std::int32_t up = add_links(leaves * shape.spines, shape.uplink.value, {});
  const std::int32_t down = add_links(leaves * shape.spines, shape.uplink.value, {});

  const std::int32_t spines = shape.spines;
  network.route = [=, links = std::array<std::int32_t, 4>{}](
                      std::int32_t from, std::int32_t to) mutable -> std::span<const std::int32_t> {
    const std::int32_t from_node = from / per_node, to_node = to / per_node;
    if (from_node == to_node) {
      links = {out + from, in + to};
      return std::span(links).first(2);
    }
    const auto nic_of = [&](std::int32_t device) {
      return device / per_node * ports + device % per_node * ports / per_node;
    };
    const std::int32_t source = nic_of(from), target = nic_of(to);
    if (leaf == 0 || from_node / leaf == to_node / leaf) {
      links = {nic_out + source, nic_in + target};
      return std::span(links).first(2);
    }
    const std::int32_t spine = target % spines;
    links = {nic_out + source, up + from_node / leaf * spines + spine,
             down + to_node / leaf * spines + spine, nic_in + target};
    return std::span(links).first(4);
  };
  return network;
}

}  // namespace stepcast
