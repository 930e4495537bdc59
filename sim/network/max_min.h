// Max-min fair sharing: the rates of flows that compete for links.
//
// Definition (Bertsekas and Gallager, Data Networks, 2nd edition 1992, section 6.5.2). Flow f
// crosses the links of its route; link l carries at most C_l. Rates x are feasible if no link
// carries more than it can; they are max-min fair if no flow can get more without taking from a
// flow that has no more than it. There is exactly one such x.
//
// Certificate (the same, bottleneck theorem). A feasible x is max-min fair if and only if every
// flow is at its own cap or has a bottleneck: a link on its route that is full and on which no flow
// is faster. So a solution is checked in one pass over the routes, whoever found it.
//
// Levels. Let L_l, the level of link l, be the share at which it fills, given the flows that slower
// links hold back:  L_l = (C_l - sum of the x_f < L_l on it) / (number of its other flows),
// infinite if all its flows are held back. Then x_f = min(cap_f, L_l over its route).
//
// From scratch: progressive filling. All rates grow together; when a link fills, its flows stop,
// and filling goes on with the rest. Links wait in a queue by the level at which they would fill,
// which only rises as flows stop, so it is brought up to date when it comes up. Cost: every hop of
// every route once, plus O(log(different levels)) a link; from-scratch solvers such as SimGrid's
// lmm and Phantora's netsim work this way.
//
// Incremental. A change can matter only at levels from its own upwards, so the filling is repaired
// in ascending order of levels, as Ramalingam and Reps (1996) and LPA* (Koenig, Likhachev and Furcy
// 2004) repair shortest paths: a link is inconsistent if its level is not what its flows now imply;
// the one with the least of both goes first, passes its change to its flows, and they to their
// other links. What no change reaches is not looked at, in a connected network neither. Cost: the
// flows on the links that changed, or had a flow that changed, a few times. If those
// turn out more than the hops of all flows, everything is filled anew instead.
//
// Exactness. Rates are whole multiples of 2^-10 bytes/s, rounded down, as the clock of a simulation
// has whole picoseconds. All sums are then exact: neither the order of links and flows nor the
// history of additions and removals can change a bit of the result. A full link has less than one
// such unit left for each of its flows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/tie_queue.h"

namespace stepcast {

// The routes that flows can take, flat: route r crosses links[first[r]] up to the one before
// links[first[r + 1]].
struct FlowRoutes {
  std::vector<std::int32_t> first = {0};
  std::vector<std::int32_t> links;  // no link twice in one route
  // How many flows one flow of this route counts as on each link; empty: 1. Where equal flows over
  // equal links are folded into one class over one link, this is how many of them each of the links
  // carries.
  std::vector<std::int32_t> loads;
  std::vector<double> caps;  // bytes/s that a flow of this route takes at most; empty: no limit

  std::int32_t size() const { return static_cast<std::int32_t>(first.size()) - 1; }
  std::span<const std::int32_t> links_of(std::int32_t route) const {
    const auto r = static_cast<std::size_t>(route);
    const auto begin = static_cast<std::size_t>(first[r]);
    return {links.data() + begin, static_cast<std::size_t>(first[r + 1]) - begin};
  }
  // Appends a route without cap, of load 1 on each link. Returns its number.
  std::int32_t add(std::span<const std::int32_t> route);
};

class MaxMin {
 public:
  // `capacities` in bytes/s. A link of capacity 0 is dead: its flows get rate 0. Throws Error for a
  // capacity or cap that is negative, not a number or above 2^52 bytes/s, for a route that names a
  // link that is not there or one link twice, for loads below 1.
  MaxMin(std::span<const double> capacities, const FlowRoutes& routes);

  // `count` flows more or fewer on this route. They share as `count` flows do: weighted fairness is
  // a flow of weight w as w flows; at most 2^31 of a route on a link. O(1); nothing is shared anew
  // before solve().
  void add(std::int32_t route, std::int32_t count = 1);
  void remove(std::int32_t route, std::int32_t count = 1);  // REQUIRES: that many are there

  // Shares the links anew. Returns the routes whose flows now have another rate than before, and
  // those that had no flow before, in no meaningful order; valid until the next call.
  std::span<const std::int32_t> solve();
  // The same by filling all anew. For tests and benchmarks: solve() chooses.
  std::span<const std::int32_t> solve_from_scratch();

  // Of each flow of the route, at the last solve(), in bytes/s. Infinite for a route without links
  // and cap. REQUIRES: it had a flow then.
  double rate(std::int32_t route) const;
  std::int32_t flows(std::int32_t route) const { return at(route).count; }

 private:
  using Level = std::int64_t;  // in 2^-10 bytes/s

  struct Hop {
    std::int32_t link;
    std::int32_t load;  // of one flow
    std::int32_t slot;  // its place among the slots of the link, while the route has flows
  };
  struct Slot {
    std::int32_t route;
    std::int32_t load;  // of all flows of the route
  };
  struct Link {
    Level capacity = 0;
    Level level = 0;    // that its flows heed
    Level implied = 0;  // that its flows imply
    Level rest = 0;     // while filling: capacity not taken by flows that have stopped
    std::int64_t load = 0;    // of its flows
    std::int64_t active = 0;  // while filling: of those that have not stopped
    std::int32_t first_slot = 0;
    std::int32_t slots = 0;  // routes with flows
    bool dirty = false;      // `implied` may be out of date, either way
    bool risen = false;      // `implied` may be out of date, too low: waits in the queue
  };
  struct Route {
    Level level = 0;
    Level cap = 0;
    Level before = 0;         // level at the last solve, if noted
    std::int32_t count = 0;   // flows
    std::int32_t solved = 0;  // flows at the last solve
    std::int32_t place = -1;  // in active_
    std::int32_t first_hop = 0;
    bool touched = false;
    bool noted = false;  // is in changed_
  };

  Link& link(std::int32_t l) { return links_[static_cast<std::size_t>(l)]; }
  Route& at(std::int32_t r) { return routes_[static_cast<std::size_t>(r)]; }
  const Route& at(std::int32_t r) const { return routes_[static_cast<std::size_t>(r)]; }
  std::span<Hop> hops(std::int32_t route);
  std::span<const Slot> slots(const Link& link) const;

  void read_routes(const FlowRoutes& routes);
  void touch(std::int32_t route);
  std::size_t apply_changes();
  void occupy(std::int32_t route);
  void vacate(std::int32_t route);
  void soil(std::int32_t link);
  void note(std::int32_t route, Level before);
  std::span<const std::int32_t> finish();

  Level limit(std::int32_t route);
  Level share(const Link& link);
  void evaluate(std::int32_t link);
  bool settled(std::int32_t link, Level level);
  void rise(std::int32_t link);
  void tighten(std::int32_t link);
  void loosen(std::int32_t link);
  bool repair();

  void stop(std::int32_t route, Level level);
  void stop_capped(Level level);
  void fill();

  std::vector<Link> links_;
  std::vector<Route> routes_;
  std::vector<Hop> hops_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> capped_;  // routes with a cap, the least first
  std::size_t next_capped_ = 0;       // while filling
  std::vector<std::int32_t> active_;  // routes with flows
  std::size_t active_hops_ = 0;
  std::vector<std::int32_t> touched_, dirty_, changed_, batch_;
  std::size_t work_ = 0;  // slots looked at by this repair
  TieQueue queue_;        // of links, by level
};

// The rate of each flow of each route, `counts[r]` flows on route r, from scratch. 0 where a route
// has no flow. Throws as MaxMin does.
std::vector<double> max_min_rates(std::span<const double> capacities, const FlowRoutes& routes,
                                  std::span<const std::int32_t> counts);

}  // namespace stepcast
