// Messages that share links, against times worked out by hand and a slow simulation.
#include "sim/network/flows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr double kLink = 1e9;  // bytes/s: 1,000 ps a byte

Duration nanoseconds(std::int64_t n) { return Duration(n * 1000); }

// Links of 1 GB/s, and a route over each alone.
FlowTraffic links(std::int32_t count) {
  FlowTraffic traffic;
  for (std::int32_t l = 0; l < count; ++l) {
    traffic.capacities.push_back(kLink);
    traffic.routes.add(std::vector<std::int32_t>{l});
  }
  return traffic;
}

std::vector<std::int64_t> ends(FlowTraffic traffic) {
  if (traffic.first_dependent.size() == 1) set_dependencies(traffic, {});
  std::vector<std::int64_t> ps;
  for (const Instant end : play(traffic).ends) ps.push_back(end.picoseconds);
  return ps;
}

TEST(Flows, TakesAMessageAloneItsLatencyAndItsBytes) {
  FlowTraffic traffic = links(1);
  traffic.messages = {{500, nanoseconds(30), 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(530'000));
}

TEST(Flows, TakesNoTimeWithoutMessages) {
  EXPECT_EQ(play(links(1)).end, Instant{});
}

// 300 and 100 bytes on one link: both at 0.5 GB/s until the short one ends at 200 ns, having let
// 100 bytes of the other through; its 200 left take 200 ns alone.
TEST(Flows, SpeedsUpWhatIsLeftWhenAFlowEnds) {
  FlowTraffic traffic = links(1);
  traffic.messages = {{300, {}, 0, -1}, {100, {}, 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(400'000, 200'000));
}

// 300 bytes alone for 100 ns, then beside 100 bytes that came later: both have 200 and 100 left at
// 0.5 GB/s; the second ends at 300 ns, the first at 100 ns + 200 + 100 ns = 400 ns.
TEST(Flows, SlowsDownWhatIsThereWhenAFlowComes) {
  FlowTraffic traffic = links(1);
  traffic.messages = {{300, {}, 0, -1}, {100, nanoseconds(100), 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(400'000, 300'000));
}

TEST(Flows, BeginsWhenAllThatAMessageDependsOnHaveEnded) {
  FlowTraffic traffic = links(3);
  traffic.messages = {{100, {}, 0, -1}, {250, {}, 1, -1}, {10, nanoseconds(5), 2, -1}};
  set_dependencies(traffic, std::vector<Dependency>{{2, 0}, {2, 1}});
  EXPECT_THAT(ends(traffic), testing::ElementsAre(100'000, 250'000, 265'000));
}

// Three messages of 100 ns in line, each with 30 ns of latency: it counts once, for the later ones
// while those before them are moving. Side by side, all three would end at 330 ns.
TEST(Flows, SendsTheMessagesOfAConnectionInOrder) {
  FlowTraffic traffic = links(1);
  traffic.messages = {
      {100, nanoseconds(30), 0, 1}, {100, nanoseconds(30), 0, 2}, {100, nanoseconds(30), 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(130'000, 230'000, 330'000));
}

TEST(Flows, WaitsForLatencyEvenWhereTheLineIsFree) {
  FlowTraffic traffic = links(1);
  traffic.messages = {{10, {}, 0, 1}, {10, nanoseconds(50), 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(10'000, 60'000));
}

TEST(Flows, LetsEmptyMessagesAndEmptyRoutesTakeTheirLatency) {
  FlowTraffic traffic = links(1);
  traffic.routes.add(std::vector<std::int32_t>{});
  traffic.messages = {{0, nanoseconds(7), 0, -1}, {100, nanoseconds(9), 1, -1}, {0, {}, 0, -1}};
  set_dependencies(traffic, std::vector<Dependency>{{2, 0}});
  EXPECT_THAT(ends(traffic), testing::ElementsAre(7'000, 9'000, 7'000));
}

// An empty message takes no share: the other moves at full rate.
TEST(Flows, GivesAnEmptyMessageNoShare) {
  FlowTraffic traffic = links(1);
  traffic.messages = {{100, {}, 0, -1}, {0, {}, 0, -1}};
  EXPECT_THAT(ends(traffic), testing::ElementsAre(100'000, 0));
}

// A hundred equal messages on links of their own, then a hundred that wait for these: two instants,
// and a rate for each of the first.
TEST(Flows, TakesWhatHappensAtOneInstantTogether) {
  FlowTraffic traffic = links(100);
  std::vector<Dependency> dependencies;
  for (std::int32_t m = 0; m < 200; ++m) {
    traffic.messages.push_back({100, {}, m % 100, -1});
    if (m >= 100) dependencies.push_back({m, m - 100});
  }
  set_dependencies(traffic, dependencies);
  const FlowTimes times = play(traffic);
  EXPECT_EQ(times.end, Instant(200'000));
  EXPECT_EQ(times.instants, 2);
  EXPECT_EQ(times.rate_changes, 100);  // at 100 ns each route loses a flow and gets one
}

TEST(Flows, RefusesWhatCannotBePlayed) {
  const auto refuses = [](const FlowTraffic& traffic, const std::string& why) {
    try {
      play(traffic);
      ADD_FAILURE() << "took it: " << why;
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.what()), testing::HasSubstr(why));
    }
  };
  FlowTraffic traffic = links(1);
  traffic.messages = {{1, {}, 0, -1}, {1, {}, 0, -1}};
  refuses(traffic, "first_dependent");
  set_dependencies(traffic, {});
  FlowTraffic bad = traffic;
  bad.messages[1].bytes = -1;
  refuses(bad, "negative");
  bad = traffic;
  bad.messages[1].latency = Duration(-1);
  refuses(bad, "negative");
  bad = traffic;
  bad.messages[1].route = 1;
  refuses(bad, "takes route 1 of 1");
  bad = traffic;
  bad.messages[1].follower = 2;
  refuses(bad, "followed by message 2 of 2");
  bad = traffic;
  bad.messages.push_back({1, {}, 0, 0});
  bad.messages[1].follower = 0;
  set_dependencies(bad, {});
  refuses(bad, "message 0: follows two messages");
  bad = traffic;
  EXPECT_THROW(set_dependencies(bad, std::vector<Dependency>{{0, 2}}), Error);
  set_dependencies(bad, std::vector<Dependency>{{2, 0}});
  refuses(bad, "message 2: is to wait, but there are 2");
  bad = traffic;
  set_dependencies(bad, std::vector<Dependency>{{0, 1}, {1, 0}});
  refuses(bad, "message 0: is one of 2 that wait for each other");
  bad = traffic;
  bad.messages[1].follower = 0;
  set_dependencies(bad, std::vector<Dependency>{{1, 0}});
  refuses(bad, "wait for each other");
  bad = traffic;
  bad.capacities = {0};
  refuses(bad, "no capacity");
}

// ------------------------------------------------------------------- against the obvious way

struct FlowsCase {
  FlowTraffic traffic;
  std::vector<Dependency> dependencies;
};

FlowsCase random_flows(std::mt19937& random) {
  const auto below = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
  FlowsCase result;
  FlowTraffic& traffic = result.traffic;
  const auto count = static_cast<unsigned>(2 + below(6));
  for (unsigned l = 0; l < count; ++l) traffic.capacities.push_back(1e9 * (1 + below(3)));
  std::vector<std::int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int r = 0; r < 8; ++r) {
    std::shuffle(order.begin(), order.end(), random);
    traffic.routes.add(std::span(order).first(static_cast<std::size_t>(1 + below(2))));
  }
  std::vector<std::int32_t> last(8, -1);  // of each route
  for (std::int32_t m = 0; m < 40; ++m) {
    const std::int32_t route = below(8);
    const Message message{100.0 * (1 + below(10)), nanoseconds(100 * below(3)), route, -1};
    if (below(2) == 0) {
      std::int32_t& before = last[static_cast<std::size_t>(route)];
      if (before >= 0) traffic.messages[static_cast<std::size_t>(before)].follower = m;
      before = m;
    }
    traffic.messages.push_back(message);
    for (int d = below(3); m > 0 && d > 0; --d) {
      result.dependencies.push_back({m, below(static_cast<unsigned>(m))});
    }
  }
  set_dependencies(traffic, result.dependencies);
  return result;
}

// Seconds, everything looked at anew at each event: of all that can happen next, the first.
std::vector<double> slowly(const FlowsCase& c) {
  const FlowTraffic& traffic = c.traffic;
  const std::size_t n = traffic.messages.size();
  std::vector<double> end(n, -1), left(n);
  for (std::size_t m = 0; m < n; ++m) left[m] = traffic.messages[m].bytes;
  std::vector<std::int32_t> before(n, -1);  // in line
  for (std::size_t m = 0; m < n; ++m) {
    const std::int32_t follower = traffic.messages[m].follower;
    if (follower >= 0) before[static_cast<std::size_t>(follower)] = static_cast<std::int32_t>(m);
  }
  double now = 0;
  while (std::count(end.begin(), end.end(), -1) > 0) {
    double next = 1e9;
    std::vector<std::int32_t> counts(static_cast<std::size_t>(traffic.routes.size()), 0);
    std::vector<std::size_t> moving;
    for (std::size_t m = 0; m < n; ++m) {
      if (end[m] >= 0) continue;
      double ready = 0;
      for (const Dependency& d : c.dependencies) {
        if (static_cast<std::size_t>(d.message) != m) continue;
        const double other = end[static_cast<std::size_t>(d.on)];
        ready = other < 0 || ready < 0 ? -1 : std::max(ready, other);
      }
      if (ready < 0) continue;
      ready += static_cast<double>(traffic.messages[m].latency.picoseconds) * 1e-12;
      if (ready > now + 1e-15) {
        next = std::min(next, ready);
      } else if (before[m] < 0 || end[static_cast<std::size_t>(before[m])] >= 0) {
        moving.push_back(m);
        ++counts[static_cast<std::size_t>(traffic.messages[m].route)];
      }
    }
    const std::vector<double> rates = max_min_rates(traffic.capacities, traffic.routes, counts);
    const auto rate = [&](std::size_t m) {
      return rates[static_cast<std::size_t>(traffic.messages[m].route)];
    };
    for (const std::size_t m : moving) next = std::min(next, now + left[m] / rate(m));
    for (const std::size_t m : moving) {
      left[m] -= rate(m) * (next - now);
      if (left[m] < 1e-5) end[m] = next;
    }
    now = next;
  }
  return end;
}

TEST(Flows, DoesAsTheObviousSimulationDoes) {
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const FlowsCase c = random_flows(random);
    const std::vector<double> expected = slowly(c);
    const FlowTimes times = play(c.traffic);
    for (std::size_t m = 0; m < expected.size(); ++m) {
      // Some hundred events, each rounded to half a picosecond.
      ASSERT_NEAR(static_cast<double>(times.ends[m].picoseconds), expected[m] * 1e12, 100)
          << "case " << i << " message " << m;
    }
  }
}

// The same traffic with messages, routes, links and dependencies in another order.
FlowTraffic shuffled(const FlowsCase& c, std::vector<std::size_t>& place, std::mt19937& random) {
  const FlowTraffic& traffic = c.traffic;
  const auto permutation = [&](std::size_t n) {
    std::vector<std::size_t> p(n);
    std::iota(p.begin(), p.end(), std::size_t{0});
    std::shuffle(p.begin(), p.end(), random);
    return p;
  };
  const auto moved = [](const std::vector<std::size_t>& p, std::int32_t i) {
    return i < 0 ? -1 : static_cast<std::int32_t>(p[static_cast<std::size_t>(i)]);
  };
  place = permutation(traffic.messages.size());
  const auto route_place = permutation(static_cast<std::size_t>(traffic.routes.size()));
  const auto link_place = permutation(traffic.capacities.size());
  FlowTraffic result = traffic;
  for (std::size_t l = 0; l < link_place.size(); ++l) {
    result.capacities[link_place[l]] = traffic.capacities[l];
  }
  result.routes = {};
  for (std::size_t r = 0; r < route_place.size(); ++r) {
    const auto from = std::find(route_place.begin(), route_place.end(), r) - route_place.begin();
    std::vector<std::int32_t> route;
    for (const std::int32_t l : traffic.routes.links_of(static_cast<std::int32_t>(from))) {
      route.insert(route.begin(), moved(link_place, l));
    }
    result.routes.add(route);
  }
  for (std::size_t m = 0; m < place.size(); ++m) {
    Message message = traffic.messages[m];
    message.route = moved(route_place, message.route);
    message.follower = moved(place, message.follower);
    result.messages[place[m]] = message;
  }
  std::vector<Dependency> dependencies = c.dependencies;
  for (Dependency& d : dependencies) d = {moved(place, d.message), moved(place, d.on)};
  std::shuffle(dependencies.begin(), dependencies.end(), random);
  set_dependencies(result, dependencies);
  return result;
}

TEST(Flows, DoesNotDependOnTheOrderOfAnything) {
  std::mt19937 random(6);
  for (int i = 0; i < 100; ++i) {
    const FlowsCase c = random_flows(random);
    const FlowTimes times = play(c.traffic);
    std::vector<std::size_t> place;
    const FlowTimes again = play(shuffled(c, place, random));
    for (std::size_t m = 0; m < place.size(); ++m) {
      ASSERT_EQ(again.ends[place[m]], times.ends[m]) << "case " << i << " message " << m;
    }
    EXPECT_EQ(again.instants, times.instants);
  }
}

}  // namespace
}  // namespace stepcast
