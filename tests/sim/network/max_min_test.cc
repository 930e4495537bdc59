// Max-min rates against hand-worked examples, the bottleneck certificate and a textbook filling.
#include "sim/network/max_min.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr double kNoCap = std::numeric_limits<double>::infinity();
constexpr double kUnit = 1.0 / 1024;  // of rate

FlowRoutes routes_of(const std::vector<std::vector<std::int32_t>>& lists) {
  FlowRoutes routes;
  for (const auto& list : lists) routes.add(list);
  return routes;
}

std::vector<double> rates_of(const std::vector<double>& capacities, const FlowRoutes& routes) {
  const std::vector<std::int32_t> one(static_cast<std::size_t>(routes.size()), 1);
  return max_min_rates(capacities, routes, one);
}

// A case with everything in it: routes of different lengths, loads, caps, several flows a route.
struct SharingCase {
  std::vector<double> capacities;
  FlowRoutes routes;
  std::vector<std::int32_t> counts;
};

SharingCase random_sharing(std::mt19937& random) {
  const auto below = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
  SharingCase c;
  const auto links = static_cast<unsigned>(1 + below(12));
  for (unsigned l = 0; l < links; ++l) {
    // Few values, so that ties are common, and now and then anything, or nothing.
    const double capacity = below(4) == 0 ? 1 + below(1000000) * 0.37 : 1000.0 * (1 + below(4));
    c.capacities.push_back(below(20) == 0 ? 0 : capacity);
  }
  const bool loads = below(3) == 0, caps = below(3) == 0;
  std::vector<std::int32_t> order(links);
  std::iota(order.begin(), order.end(), 0);
  const int flows = below(30);
  for (int r = 0; r < flows; ++r) {
    std::shuffle(order.begin(), order.end(), random);
    const auto length = static_cast<std::size_t>(1 + below(std::min(links, 5u)));
    c.routes.add(std::span(order).first(length));
    c.counts.push_back(below(4));
    if (caps) c.routes.caps.push_back(below(2) == 0 ? kNoCap : 100.0 * below(20));
  }
  if (loads) {
    for (std::size_t h = 0; h < c.routes.links.size(); ++h) c.routes.loads.push_back(1 + below(3));
  }
  return c;
}

// What a link carries, and how many flows it has.
struct Carried {
  double rate = 0;
  double flows = 0;
};
std::vector<Carried> carried_of(const SharingCase& c, const std::vector<double>& rates) {
  std::vector<Carried> carried(c.capacities.size());
  for (std::int32_t r = 0; r < c.routes.size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    for (auto h = static_cast<std::size_t>(c.routes.first[index]);
         h < static_cast<std::size_t>(c.routes.first[index + 1]); ++h) {
      const double flows = c.counts[index] * (c.routes.loads.empty() ? 1.0 : c.routes.loads[h]);
      Carried& link = carried[static_cast<std::size_t>(c.routes.links[h])];
      link.rate += flows * rates[index];
      link.flows += flows;
    }
  }
  return carried;
}

// The bottleneck theorem. Empty if the rates are max-min fair up to the unit of rates, else why
// not.
std::string objection(const SharingCase& c, const std::vector<double>& rates) {
  const std::vector<Carried> carried = carried_of(c, rates);
  std::vector<double> fastest(c.capacities.size(), 0);
  for (std::int32_t r = 0; r < c.routes.size(); ++r) {
    if (c.counts[static_cast<std::size_t>(r)] == 0) continue;
    for (const std::int32_t l : c.routes.links_of(r)) {
      double& most = fastest[static_cast<std::size_t>(l)];
      most = std::max(most, rates[static_cast<std::size_t>(r)]);
    }
  }
  for (std::size_t l = 0; l < carried.size(); ++l) {
    if (carried[l].rate > c.capacities[l]) return "link " + std::to_string(l) + " carries too much";
  }
  for (std::int32_t r = 0; r < c.routes.size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (c.counts[index] == 0) continue;
    const double cap = c.routes.caps.empty() ? kNoCap : c.routes.caps[index];
    if (rates[index] > cap) return "route " + std::to_string(r) + " is above its cap";
    bool held = rates[index] > cap - kUnit;
    for (const std::int32_t l : c.routes.links_of(r)) {
      const auto link = static_cast<std::size_t>(l);
      const bool full = c.capacities[link] - carried[link].rate < kUnit * (carried[link].flows + 1);
      held |= full && rates[index] >= fastest[link];
    }
    if (!held) return "route " + std::to_string(r) + " has no bottleneck";
  }
  return "";
}

// Bertsekas and Gallager's filling word by word, in real numbers: at each round, the link with the
// least room for each of its moving flows, or the least cap, stops.
std::vector<double> textbook(const SharingCase& c) {
  std::vector<double> rates(c.counts.size(), -1);
  while (true) {
    std::vector<double> room = c.capacities, moving(c.capacities.size(), 0);
    double level = kNoCap;
    bool any = false;
    for (std::size_t r = 0; r < rates.size(); ++r) {
      if (c.counts[r] == 0) continue;
      any |= rates[r] < 0;
      if (rates[r] < 0 && !c.routes.caps.empty()) level = std::min(level, c.routes.caps[r]);
      for (auto h = static_cast<std::size_t>(c.routes.first[r]);
           h < static_cast<std::size_t>(c.routes.first[r + 1]); ++h) {
        const auto link = static_cast<std::size_t>(c.routes.links[h]);
        const double flows = c.counts[r] * (c.routes.loads.empty() ? 1.0 : c.routes.loads[h]);
        (rates[r] < 0 ? moving[link] : room[link]) += rates[r] < 0 ? flows : -flows * rates[r];
      }
    }
    if (!any) break;
    for (std::size_t l = 0; l < room.size(); ++l) {
      if (moving[l] > 0) level = std::min(level, std::max(0.0, room[l] / moving[l]));
    }
    for (std::size_t r = 0; r < rates.size(); ++r) {
      if (rates[r] >= 0 || c.counts[r] == 0) continue;
      bool stops = !c.routes.caps.empty() && c.routes.caps[r] <= level;
      for (const std::int32_t l : c.routes.links_of(static_cast<std::int32_t>(r))) {
        const auto link = static_cast<std::size_t>(l);
        stops |= room[link] / moving[link] <= level * (1 + 1e-12);
      }
      if (stops) rates[r] = level;
    }
  }
  for (double& rate : rates) rate = std::max(rate, 0.0);
  return rates;
}

TEST(MaxMin, GivesTwoFlowsOnOneLinkHalfEach) {
  EXPECT_THAT(rates_of({100}, routes_of({{0}, {0}})), testing::ElementsAre(50, 50));
}

// The parking lot: one flow over three links of 1, 2, 3 (x 1024), one more on each. The first link
// gives 1/2 to both of its flows; the long one having 1/2, 3/2 and 5/2 are left for the others.
TEST(MaxMin, SharesTheParkingLot) {
  const FlowRoutes routes = routes_of({{0, 1, 2}, {0}, {1}, {2}});
  EXPECT_THAT(rates_of({1024, 2048, 3072}, routes), testing::ElementsAre(512, 512, 1536, 2560));
}

// Five flows over links of 1, as in the example of Bertsekas and Gallager, section 6.5.2: three
// share the link that fills first at 1/3, one shares another with one of these and gets 2/3, and
// the last has 1 alone.
TEST(MaxMin, FillsLinkAfterLink) {
  const FlowRoutes routes = routes_of({{0, 1}, {1}, {1, 2}, {2}, {3}});
  const double third = std::floor(1e9 * 1024 / 3) / 1024;
  EXPECT_THAT(rates_of({1e9, 1e9, 1e9, 1e9}, routes),
              testing::ElementsAre(third, third, third, 1e9 - third, 1e9));
}

TEST(MaxMin, LeavesToOthersWhatACapKeepsAFlowFromTaking) {
  FlowRoutes routes = routes_of({{0}, {0}, {0}});
  routes.caps = {10, kNoCap, 60};
  EXPECT_THAT(rates_of({100}, routes), testing::ElementsAre(10, 45, 45));
  routes.caps = {10, 20, 30};
  EXPECT_THAT(rates_of({100}, routes), testing::ElementsAre(10, 20, 30));
}

TEST(MaxMin, GivesAFlowOverADeadLinkNothingAndTheOthersTheRest) {
  EXPECT_THAT(rates_of({0, 100}, routes_of({{0, 1}, {1}})), testing::ElementsAre(0, 100));
}

TEST(MaxMin, GivesAFlowWithoutLinksAllThatItsCapAllows) {
  FlowRoutes routes = routes_of({{}, {}});
  routes.caps = {kNoCap, 7};
  EXPECT_THAT(rates_of({}, routes), testing::ElementsAre(kNoCap, 7));
}

TEST(MaxMin, HasNothingToDoWithoutFlows) {
  EXPECT_TRUE(rates_of({100}, FlowRoutes{}).empty());
  const std::vector<std::int32_t> none = {0};
  EXPECT_THAT(max_min_rates(std::vector<double>{100}, routes_of({{0}}), none),
              testing::ElementsAre(0));
}

// Weighted: three flows on one route and one on another are a flow of weight 3 against one of 1.
TEST(MaxMin, CountsFlowsOfOneRouteAsSoMany) {
  const std::vector<std::int32_t> counts = {3, 1};
  EXPECT_THAT(max_min_rates(std::vector<double>{100}, routes_of({{0}, {0}}), counts),
              testing::ElementsAre(25, 25));
}

// A class of 8 flows over 4 equal links, 2 on each, beside one class with 3 on each: 5 share a
// link.
TEST(MaxMin, CountsALoadAsSoManyFlowsOnTheLink) {
  FlowRoutes routes = routes_of({{0}, {0}});
  routes.loads = {2, 3};
  EXPECT_THAT(rates_of({100}, routes), testing::ElementsAre(20, 20));
}

TEST(MaxMin, RefusesWhatIsNoNetwork) {
  const auto refuses = [](std::vector<double> capacities, const FlowRoutes& routes) {
    EXPECT_THROW(MaxMin(capacities, routes), Error);
  };
  refuses({-1}, routes_of({{0}}));
  refuses({std::nan("")}, routes_of({{0}}));
  refuses({kNoCap}, routes_of({{0}}));
  refuses({1}, routes_of({{1}}));
  refuses({1}, routes_of({{-1}}));
  refuses({1, 1}, routes_of({{0, 1, 0}}));
  FlowRoutes routes = routes_of({{0}});
  routes.loads = {0};
  refuses({1}, routes);
  routes = routes_of({{0}});
  routes.caps = {-1};
  refuses({1}, routes);
}

TEST(MaxMin, CheckerFindsWhatIsNotFair) {
  SharingCase c;
  c.capacities = {100, 100};
  c.routes = routes_of({{0}, {0}, {1}});
  c.counts = {1, 1, 1};
  EXPECT_EQ(objection(c, {50, 50, 100}), "");
  EXPECT_EQ(objection(c, {60, 40, 100}), "route 1 has no bottleneck");
  EXPECT_EQ(objection(c, {50, 50, 99}), "route 2 has no bottleneck");
  EXPECT_EQ(objection(c, {51, 51, 100}), "link 0 carries too much");
  c.routes.caps = {kNoCap, kNoCap, 80};
  EXPECT_EQ(objection(c, {50, 50, 100}), "route 2 is above its cap");
  EXPECT_EQ(objection(c, {50, 50, 80}), "");
}

TEST(MaxMin, HoldsTheCertificateAndTheTextbookOnRandomNetworks) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const SharingCase c = random_sharing(random);
    const std::vector<double> rates = max_min_rates(c.capacities, c.routes, c.counts);
    ASSERT_EQ(objection(c, rates), "") << "case " << i;
    const std::vector<double> expected = textbook(c);
    for (std::size_t r = 0; r < rates.size(); ++r) {
      // Each of the at most 12 levels below passes its rounding on, times the flows there.
      ASSERT_NEAR(rates[r], expected[r], 1.0) << "case " << i << " route " << r;
    }
  }
}

// To the bit, after every change, single or several at once; and what solve() reports as changed is
// what changed.
TEST(MaxMin, AddsAndRemovesAsIfSolvedFromScratch) {
  std::mt19937 random(2);
  for (int i = 0; i < 400; ++i) {
    SharingCase c = random_sharing(random);
    if (c.routes.size() == 0) continue;
    std::fill(c.counts.begin(), c.counts.end(), 0);
    MaxMin solver(c.capacities, c.routes);
    std::vector<double> before(c.counts.size(), -1);
    for (int change = 0; change < 60; ++change) {
      for (auto n = 1 + random() % (change % 5 == 0 ? 8 : 1); n > 0; --n) {
        const auto r = static_cast<std::int32_t>(random() % c.counts.size());
        std::int32_t& count = c.counts[static_cast<std::size_t>(r)];
        if (count > 0 && random() % 2 == 0) {
          const auto gone = static_cast<std::int32_t>(1 + random() % static_cast<unsigned>(count));
          solver.remove(r, gone);
          count -= gone;
        } else {
          const auto more = static_cast<std::int32_t>(1 + random() % 2);
          solver.add(r, more);
          count += more;
        }
      }
      const auto changed = solver.solve();
      const std::vector<double> rates = max_min_rates(c.capacities, c.routes, c.counts);
      for (std::size_t r = 0; r < rates.size(); ++r) {
        if (c.counts[r] == 0) {
          before[r] = -1;
          continue;
        }
        const auto route = static_cast<std::int32_t>(r);
        ASSERT_EQ(solver.rate(route), rates[r]) << "case " << i << " change " << change;
        const bool told = std::find(changed.begin(), changed.end(), route) != changed.end();
        ASSERT_EQ(told, rates[r] != before[r]) << "case " << i << " change " << change;
        before[r] = rates[r];
      }
    }
  }
}

// The same where a change reaches a small part of many flows, as the repair is made for: 32 hosts,
// each with one link up and one down, 200 flows.
TEST(MaxMin, RepairsAConnectedNetworkOfManyFlowsAsIfSolvedFromScratch) {
  std::mt19937 random(3);
  SharingCase c;
  for (int l = 0; l < 64; ++l) c.capacities.push_back(1e9 + static_cast<double>(random() % 1000));
  for (int r = 0; r < 400; ++r) {
    const auto up = static_cast<std::int32_t>(random() % 32);
    const std::vector<std::int32_t> route = {up, static_cast<std::int32_t>(32 + random() % 32)};
    c.routes.add(route);
    c.counts.push_back(r < 200 ? 1 : 0);
  }
  MaxMin solver(c.capacities, c.routes);
  for (std::int32_t r = 0; r < 200; ++r) solver.add(r);
  solver.solve();
  for (int change = 0; change < 1000; ++change) {
    const auto r = static_cast<std::int32_t>(random() % 400);
    std::int32_t& count = c.counts[static_cast<std::size_t>(r)];
    count == 0 ? solver.add(r) : solver.remove(r);
    count = 1 - count;
    solver.solve();
    const std::vector<double> rates = max_min_rates(c.capacities, c.routes, c.counts);
    for (std::int32_t s = 0; s < 400; ++s) {
      if (c.counts[static_cast<std::size_t>(s)] == 0) continue;
      ASSERT_EQ(solver.rate(s), rates[static_cast<std::size_t>(s)]) << "change " << change;
    }
  }
  EXPECT_EQ(objection(c, max_min_rates(c.capacities, c.routes, c.counts)), "");
}

TEST(MaxMin, DoesNotDependOnTheOrderOfFlows) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    SharingCase c = random_sharing(random);
    c.routes.loads.clear();
    c.routes.caps.clear();
    const std::vector<double> rates = max_min_rates(c.capacities, c.routes, c.counts);
    std::vector<std::size_t> order(c.counts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    FlowRoutes shuffled;
    std::vector<std::int32_t> counts;
    for (const std::size_t r : order) {
      shuffled.add(c.routes.links_of(static_cast<std::int32_t>(r)));
      counts.push_back(c.counts[r]);
    }
    const std::vector<double> again = max_min_rates(c.capacities, shuffled, counts);
    for (std::size_t k = 0; k < order.size(); ++k) ASSERT_EQ(again[k], rates[order[k]]);
  }
}

}  // namespace
}  // namespace stepcast
