// Flows: messages played against each other over links that they share.
//
// A flow-level (fluid) simulation: a message is not cut into packets; at any moment its bytes move
// at its max-min fair rate (max_min.h), and rates change only when a message begins or ends.
// SimGrid (Velho et al. 2013, ACM TOMACS 23(4)) holds such models against packet-level ones.
//
// The life of a message: it waits until the messages that it depends on have ended; then its
// latency passes; then, if it is next in line on its connection, its bytes move. The latency of
// messages in line overlaps with the bytes of those before them, as on a real wire.
//
// Time is whole picoseconds: the end of a message is rounded to the nearest. Everything that
// happens at one instant is taken together, and rates are shared once after it. Cost of a message:
// O(its dependencies and hops), plus for each time that its rate changes; symmetric traffic, where
// many messages begin and end at the same instants, pays for one repair of the rates an instant.
// The result does not depend on the order of messages, routes or links.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/units.h"
#include "sim/network/max_min.h"

namespace stepcast {

struct Message {
  double bytes = 0;  // a share of a tensor need not be whole
  Duration latency;
  std::int32_t route = 0;  // of FlowTraffic::routes; without links, only the latency counts
  // The message next in line on its connection, -1 if there is none: its bytes move after these.
  std::int32_t follower = -1;
};

struct FlowTraffic {
  std::vector<double> capacities;  // of links, bytes/s
  FlowRoutes routes;
  std::vector<Message> messages;
  // On message m depend dependents[first_dependent[m]] ... dependents[first_dependent[m + 1] - 1]:
  // the latency of a message begins when all that it depends on have ended.
  // first_dependent has one entry more than there are messages.
  std::vector<std::int32_t> first_dependent = {0};
  std::vector<std::int32_t> dependents;
};

// The same as pairs, for traffic written by hand: `message` depends on `on`.
struct Dependency {
  std::int32_t message = 0;
  std::int32_t on = 0;
};
// Sets the lists of dependents, in linear time. Throws Error for a message that is not there.
void set_dependencies(FlowTraffic& traffic, std::span<const Dependency> dependencies);

struct FlowTimes {
  std::vector<Instant> ends;      // of each message; messages that depend on none begin at 0
  Instant end;                    // of the last
  std::int64_t instants = 0;      // at which anything happened
  std::int64_t rate_changes = 0;  // of routes, beginnings included
};

// Throws Error as MaxMin does; for a message with negative bytes or latency or of a route or
// message that is not there; for two messages that one follows; for messages that wait for each
// other; for one that can never end because a link on its route is dead.
FlowTimes play(const FlowTraffic& traffic);

}  // namespace stepcast
