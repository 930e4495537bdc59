// Collectives as messages: what the algorithms send, in which order, over which links.
//
// network.h prices a collective in closed form on an idle cluster. Here it is played: a
// FlowExchange lists its connections and what each message waits for, expand() lays them on a
// network's links, and play() of flows.h lets them compete, with each other and with other
// exchanges.
//
// An exchange is regular: each connection sends `steps` messages of one size, in order; its message
// k begins when message k - lag of every connection that it waits for has arrived.
//
//   ring          S/n to the successor at each step, after the predecessor's step before;
//                 all-reduce 2(n-1) steps, all-gather and reduce-scatter n-1 (Patarasuk and
//                 Yuan 2009)
//   binary tree   parent of rank v: (v-1)/2. Each chunk goes up when both children's have come, and
//                 down when it has come from above (Thakur, Rabenseifner and Gropp 2005)
//   all-to-all    S/n from each rank to each other, all at once, as NCCL's grouped sends
//
// Equal messages. Where the network is symmetric, most messages do as others do. Two connections
// are equal if they have the same latency, wait for equal connections and cross equal links; two
// links, if they have the same capacity and carry as many connections of each kind. The coarsest
// such partition, the equitable one, comes from refining colours until no class splits (Paige and
// Tarjan 1987; on graphs, Weisfeiler and Leman 1968). All members of a class begin and end at the
// same instants, by induction over events: so one of each class, with its loads on one link of each
// class, gives the same times to the picosecond. Colours are 64-bit hashes: two classes of a
// million fall together by accident with a probability below 1e-7.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "sim/base/units.h"
#include "sim/network/flows.h"

namespace stepcast {

// A network of devices: directed links in flat arrays, and a way from each device to each other.
struct FlowNetwork {
  std::int32_t devices = 0;
  std::vector<double> capacities;   // of links, bytes/s
  std::vector<Duration> latencies;  // of links; a message's latency is their sum over its route
  // The links from one device to another. The span holds until the next call.
  std::function<std::span<const std::int32_t>(std::int32_t from, std::int32_t to)> route;
};

// Nodes whose devices meet in a non-blocking switch (NVLink) and reach other nodes through NICs.
//   in a node       the device's link out, the peer's link in
//   to other nodes  NIC out, [its leaf's uplink to a spine, that spine's downlink,] NIC in
// A device's traffic goes through the NIC of its number x NICs / devices; where a node has more
// NICs than devices, a device's NICs are one link with their sum.
struct TwoLevel {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  Bandwidth node_bandwidth;  // of a device, each direction
  Duration node_latency;
  std::int32_t nics_per_node = 1;
  Bandwidth nic_bandwidth;  // of a NIC, each direction
  Duration nic_latency;
  // Leaves of so many nodes, with one link of `uplink` to each of the spines. The destination's NIC
  // chooses the spine (its number modulo spines), as destination-based routing does. 0: one switch
  // that never blocks.
  std::int32_t nodes_per_leaf = 0;
  std::int32_t spines = 1;
  Bandwidth uplink;
};
// Throws Error for counts below 1.
FlowNetwork two_level_network(const TwoLevel& shape);

// A group: its devices in rank order.
using RankList = std::vector<std::int32_t>;

struct Connection {
  std::int32_t from = 0, to = 0;  // devices
};

struct FlowExchange {
  std::vector<Connection> connections;
  std::int32_t steps = 1;  // messages of each connection
  double bytes = 0;        // of each message
  std::int32_t lag = 0;
  // Connection c waits for waits_for[first_wait[c]] ... waits_for[first_wait[c + 1] - 1].
  std::vector<std::int32_t> first_wait = {0};
  std::vector<std::int32_t> waits_for;

  std::int64_t messages() const {
    return static_cast<std::int64_t>(connections.size()) * steps;
  }
};

// The same collective on all groups at once; `bytes` as in Transfer (sim/program/program.h). Groups
// of one send nothing. Throws Error if groups that do a ring or all-to-all differ in size.
FlowExchange ring_all_reduce(std::span<const RankList> groups, Bytes bytes);
FlowExchange ring_all_gather(std::span<const RankList> groups, Bytes bytes);
FlowExchange ring_reduce_scatter(std::span<const RankList> groups, Bytes bytes);
FlowExchange tree_all_reduce(std::span<const RankList> groups, Bytes bytes,
                             std::int32_t chunks = 1);
FlowExchange all_to_all(std::span<const RankList> groups, Bytes bytes);
FlowExchange send_receive(std::span<const Connection> pairs, Bytes bytes);

enum class Folding {
  kEveryMessage,   // each message is a flow of its own
  kEqualMessages,  // one flow for each class of equal connections and step
};

struct Expansion {
  FlowTraffic traffic;
  // Of each exchange: its first message in traffic.messages; and their number at the end.
  std::vector<std::int32_t> first_message;
};

// Throws Error for a device that is not there or that sends to itself, or for more than 2^31
// messages.
Expansion expand(std::span<const FlowExchange> exchanges, const FlowNetwork& network,
                 Folding folding);

struct ExchangeTimes {
  std::vector<Duration> times;  // of each exchange, from the common begin to its last message's end
  std::int64_t flows = 0;       // that were played
};
// expand() and play() of flows.h. Throws as both do.
ExchangeTimes play(std::span<const FlowExchange> exchanges, const FlowNetwork& network,
                   Folding folding);

}  // namespace stepcast
