// Progressive filling (Bertsekas and Gallager 1992) and its repair in order of levels (after
// Ramalingam and Reps 1996); mathematics and costs are in max_min.h.
//
// Why whole numbers suffice. The level of a link with C left for n flows is floor(C / n). If k of
// them stop at a level m <= C / n, then (C - k m) / (n - k) >= C / n: rounded down or not, levels
// only rise, nothing is ever negative, and the flows' rates are a function of the flows alone:
//   L_l = the least m with  floor((C_l - sum of x_f < m) / (flows with x_f >= m)) <= m.
// Links that fill at the same level fill together: both count the flows that they have in common.
//
// Why the repair is right. Let m be the least of level and implied level over all inconsistent
// links. Whatever lies below m is consistent, hence as the filling would leave it; levels at m
// depend on nothing else. So a link that implies m has level m for good, and one that had level m
// and implies more has lost it: its flows then heed their other links until it comes up again. No
// level changes more than twice.
#include "sim/network/max_min.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr double kUnits = 1024;  // of rate in one byte/s
constexpr double kRateMax = 4503599627370496.0;  // 2^52 bytes/s
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
// A change of more than one in four hops is filled anew at once.
constexpr std::size_t kRepairShare = 4;

std::int64_t to_level(double rate, const char* what, std::size_t index) {
  if (!(rate >= 0 && rate <= kRateMax)) {
    throw Error(fmt::format("{} {}", what, index),
                fmt::format("{} bytes/s; must be from 0 to 2^52", rate));
  }
  return static_cast<std::int64_t>(std::floor(rate * kUnits));
}

}  // namespace

std::int32_t FlowRoutes::add(std::span<const std::int32_t> route) {
  links.insert(links.end(), route.begin(), route.end());
  if (!loads.empty()) loads.resize(links.size(), 1);
  if (!caps.empty()) caps.push_back(std::numeric_limits<double>::infinity());
  first.push_back(static_cast<std::int32_t>(links.size()));
  return size() - 1;
}

MaxMin::MaxMin(std::span<const double> capacities, const FlowRoutes& routes)
    : queue_(capacities.size()) {
  links_.resize(capacities.size());
  for (std::size_t l = 0; l < links_.size(); ++l) {
    links_[l].capacity = to_level(capacities[l], "link", l);
    links_[l].level = links_[l].implied = kNone;
  }
  read_routes(routes);
  std::sort(capped_.begin(), capped_.end(),
            [&](std::int32_t a, std::int32_t b) { return at(a).cap < at(b).cap; });
  std::int32_t slot = 0;
  for (Link& l : links_) {
    l.first_slot = slot;
    slot += std::exchange(l.slots, 0);
  }
  slots_.resize(static_cast<std::size_t>(slot));
}

// Leaves in `slots` of each link how many routes cross it.
void MaxMin::read_routes(const FlowRoutes& routes) {
  const auto complain = [](std::int32_t route, std::string_view what) {
    throw Error(fmt::format("route {}", route), what);
  };
  routes_.resize(static_cast<std::size_t>(routes.size()) + 1);
  hops_.resize(routes.links.size());
  std::vector<std::int32_t> seen(links_.size(), -1);
  for (std::int32_t r = 0; r < routes.size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    Route& route = routes_[index];
    route.first_hop = routes.first[index];
    at(r + 1).first_hop = routes.first[index + 1];
    route.cap = kNone;
    if (!routes.caps.empty() && routes.caps[index] != std::numeric_limits<double>::infinity()) {
      route.cap = to_level(routes.caps[index], "cap of route", index);
      capped_.push_back(r);
    }
    for (Hop& hop : hops(r)) {
      const auto h = static_cast<std::size_t>(&hop - hops_.data());
      hop = {routes.links[h], routes.loads.empty() ? 1 : routes.loads[h], -1};
      if (hop.link < 0 || static_cast<std::size_t>(hop.link) >= links_.size()) {
        complain(r, fmt::format("names link {} of {}", hop.link, links_.size()));
      }
      if (std::exchange(seen[static_cast<std::size_t>(hop.link)], r) == r) {
        complain(r, fmt::format("crosses link {} twice; give it load 2 there", hop.link));
      }
      if (hop.load < 1) complain(r, fmt::format("has load {} on link {}", hop.load, hop.link));
      ++link(hop.link).slots;
    }
  }
}

std::span<MaxMin::Hop> MaxMin::hops(std::int32_t route) {
  const auto begin = static_cast<std::size_t>(at(route).first_hop);
  return {hops_.data() + begin, static_cast<std::size_t>(at(route + 1).first_hop) - begin};
}

std::span<const MaxMin::Slot> MaxMin::slots(const Link& l) const {
  return {slots_.data() + l.first_slot, static_cast<std::size_t>(l.slots)};
}

// ------------------------------------------------------------------------------------ changes

void MaxMin::touch(std::int32_t route) {
  if (!std::exchange(at(route).touched, true)) touched_.push_back(route);
}

void MaxMin::add(std::int32_t route, std::int32_t count) {
  at(route).count += count;
  touch(route);
}

void MaxMin::remove(std::int32_t route, std::int32_t count) {
  STEPCAST_CHECK(at(route).count >= count, "more flows removed than there are");
  at(route).count -= count;
  touch(route);
}

void MaxMin::soil(std::int32_t l) {
  if (!std::exchange(link(l).dirty, true)) dirty_.push_back(l);
}

void MaxMin::note(std::int32_t route, Level before) {
  Route& r = at(route);
  if (std::exchange(r.noted, true)) return;
  r.before = before;
  changed_.push_back(route);
}

// The route gets a slot at each of its links.
void MaxMin::occupy(std::int32_t route) {
  Route& r = at(route);
  r.place = static_cast<std::int32_t>(active_.size());
  active_.push_back(route);
  for (Hop& hop : hops(route)) {
    Link& l = link(hop.link);
    hop.slot = l.first_slot + l.slots++;
    slots_[static_cast<std::size_t>(hop.slot)] = {route, 0};
  }
  active_hops_ += hops(route).size();
  r.level = limit(route);
  note(route, -1);
}

// The last slot of each link, and the last of the active routes, take the free places.
void MaxMin::vacate(std::int32_t route) {
  for (Hop& hop : hops(route)) {
    Link& l = link(hop.link);
    const Slot last = slots_[static_cast<std::size_t>(l.first_slot + --l.slots)];
    slots_[static_cast<std::size_t>(hop.slot)] = last;
    for (Hop& moved : hops(last.route)) {
      if (moved.link == hop.link) moved.slot = hop.slot;
    }
  }
  active_hops_ -= hops(route).size();
  Route& r = at(route);
  at(active_.back()).place = r.place;
  active_[static_cast<std::size_t>(r.place)] = active_.back();
  active_.pop_back();
}

// Returns how many hops have another load now. A flow that went and one that came on the same route
// leave nothing to do.
std::size_t MaxMin::apply_changes() {
  std::size_t changed = 0;
  for (const std::int32_t route : touched_) {
    Route& r = at(route);
    r.touched = false;
    if (r.count == r.solved) continue;
    if (r.solved == 0) occupy(route);
    const std::int64_t more = r.count - r.solved;
    for (const Hop& hop : hops(route)) {
      const std::int64_t load = std::int64_t{r.count} * hop.load;
      STEPCAST_CHECK(load <= std::numeric_limits<std::int32_t>::max(), "too many flows");
      slots_[static_cast<std::size_t>(hop.slot)].load = static_cast<std::int32_t>(load);
      link(hop.link).load += more * hop.load;
      soil(hop.link);
    }
    changed += hops(route).size();
    if (r.count == 0) vacate(route);
    r.solved = r.count;
  }
  touched_.clear();
  return changed;
}

std::span<const std::int32_t> MaxMin::finish() {
  std::erase_if(changed_, [&](std::int32_t route) {
    Route& r = at(route);
    r.noted = false;
    return r.count == 0 || r.level == r.before;
  });
  return changed_;
}

std::span<const std::int32_t> MaxMin::solve() {
  changed_.clear();
  const std::size_t changed = apply_changes();
  if (kRepairShare * changed > active_hops_ || !repair()) fill();
  return finish();
}

std::span<const std::int32_t> MaxMin::solve_from_scratch() {
  changed_.clear();
  apply_changes();
  fill();
  return finish();
}

double MaxMin::rate(std::int32_t route) const {
  const Level level = at(route).level;
  return level == kNone ? std::numeric_limits<double>::infinity()
                        : static_cast<double>(level) / kUnits;
}

// ------------------------------------------------------------------------------------- repair

// What the route's links and its cap allow.
MaxMin::Level MaxMin::limit(std::int32_t route) {
  Level least = at(route).cap;
  for (const Hop& hop : hops(route)) least = std::min(least, link(hop.link).level);
  return least;
}

// The level that the flows of a link imply: from below, take out the flows that stop earlier until
// none is left to take out. Seldom more than three rounds.
MaxMin::Level MaxMin::share(const Link& l) {
  Level level = l.capacity / l.load;
  while (true) {
    Level rest = l.capacity;
    std::int64_t active = l.load;
    for (const Slot& slot : slots(l)) {
      const Level held = at(slot.route).level;
      if (held >= level) continue;
      rest -= slot.load * held;
      active -= slot.load;
    }
    work_ += static_cast<std::size_t>(l.slots);
    if (active == 0) return kNone;
    const Level next = rest / active;
    if (next == level) return level;
    level = next;
  }
}

void MaxMin::evaluate(std::int32_t index) {
  Link& l = link(index);
  l.dirty = l.risen = false;
  if (queue_.holds(index)) queue_.erase(index);
  if (l.load == 0) {
    l.level = l.implied = kNone;
    return;
  }
  l.implied = share(l);
  if (l.implied != l.level) queue_.push(index, std::min(l.implied, l.level));
}

// At the level of the filling or below, a link that is consistent is so for good.
bool MaxMin::settled(std::int32_t index, Level level) {
  const Link& l = link(index);
  return l.level == l.implied && l.level <= level;
}

// A flow of the link has slowed down, which leaves the others more. When the link comes up all its
// slower flows have settled: time enough to see what its level is.
void MaxMin::rise(std::int32_t index) {
  Link& l = link(index);
  if (l.dirty || l.implied == kNone) return;
  if (!queue_.holds(index)) {
    if (l.level != l.implied) return;  // its turn is now
    queue_.push(index, l.level);
  }
  l.risen = true;
}

void MaxMin::tighten(std::int32_t index) {
  Link& l = link(index);
  l.level = l.implied;
  for (const Slot& slot : slots(l)) {
    Route& route = at(slot.route);
    if (route.level <= l.level) continue;
    note(slot.route, route.level);
    route.level = l.level;
    for (const Hop& hop : hops(slot.route)) {
      if (!settled(hop.link, l.level)) rise(hop.link);
    }
  }
}

void MaxMin::loosen(std::int32_t index) {
  Link& l = link(index);
  const Level lost = std::exchange(l.level, kNone);
  soil(index);
  for (const Slot& slot : slots(l)) {
    if (at(slot.route).level != lost) continue;
    const Level level = limit(slot.route);
    if (level == lost) continue;
    note(slot.route, lost);
    at(slot.route).level = level;
    for (const Hop& hop : hops(slot.route)) {
      if (!settled(hop.link, lost)) soil(hop.link);
    }
  }
}

// Returns false, with levels out of order, if filling all anew is cheaper.
bool MaxMin::repair() {
  work_ = 0;
  const std::size_t enough = active_hops_ + 256;
  while (true) {
    for (const std::int32_t l : dirty_) evaluate(l);
    dirty_.clear();
    if (queue_.empty()) return true;
    if (work_ > enough) return false;
    const Level level = queue_.least();
    batch_.clear();
    queue_.pop(batch_);
    std::erase_if(batch_, [&](std::int32_t l) {
      if (!link(l).risen) return false;
      evaluate(l);
      if (!queue_.holds(l)) return true;
      const bool later = std::min(link(l).level, link(l).implied) > level;
      if (!later) queue_.erase(l);
      return later;
    });
    // Tight links first: a flow at this level on one of them stays where it is.
    for (const std::int32_t l : batch_) {
      if (link(l).implied == level) tighten(l);
    }
    for (const std::int32_t l : batch_) {
      if (link(l).implied != link(l).level) loosen(l);
    }
  }
}

// ------------------------------------------------------------------------------------ filling

void MaxMin::stop(std::int32_t route, Level level) {
  at(route).level = level;
  for (const Hop& hop : hops(route)) {
    Link& l = link(hop.link);
    const std::int64_t load = slots_[static_cast<std::size_t>(hop.slot)].load;
    l.rest -= load * level;
    l.active -= load;
  }
}

// Stops the flows whose caps are at most `level`.
void MaxMin::stop_capped(Level level) {
  for (; next_capped_ < capped_.size(); ++next_capped_) {
    const std::int32_t route = capped_[next_capped_];
    if (at(route).cap > level) return;
    if (at(route).count > 0 && at(route).level == kNone) stop(route, at(route).cap);
  }
}

void MaxMin::fill() {
  for (const std::int32_t l : dirty_) {
    link(l).dirty = link(l).risen = false;
    link(l).level = link(l).implied = kNone;
  }
  dirty_.clear();
  queue_.clear();
  for (const std::int32_t route : active_) {
    note(route, at(route).level);
    at(route).level = kNone;
    for (const Hop& hop : hops(route)) {
      if (queue_.holds(hop.link)) continue;
      Link& l = link(hop.link);
      l.risen = false;
      l.level = l.implied = kNone;
      l.rest = l.capacity;
      l.active = l.load;
      queue_.push(hop.link, l.rest / l.active);
    }
  }
  next_capped_ = 0;
  while (!queue_.empty()) {
    const Level level = queue_.least();
    stop_capped(level - 1);  // at the level itself they count for its links
    batch_.clear();
    queue_.pop(batch_);
    // All links that fill here are found before a flow stops.
    std::erase_if(batch_, [&](std::int32_t index) {
      const Link& l = link(index);
      if (l.active == 0) return true;
      const Level now = l.rest / l.active;
      if (now > level) queue_.push(index, now);
      return now > level;
    });
    for (const std::int32_t index : batch_) {
      Link& l = link(index);
      l.level = l.implied = level;
      for (const Slot& slot : slots(l)) {
        if (at(slot.route).level == kNone) stop(slot.route, level);
      }
    }
  }
  stop_capped(kNone - 1);
}

std::vector<double> max_min_rates(std::span<const double> capacities, const FlowRoutes& routes,
                                  std::span<const std::int32_t> counts) {
  MaxMin solver(capacities, routes);
  for (std::int32_t r = 0; r < routes.size(); ++r) {
    if (counts[static_cast<std::size_t>(r)] > 0) solver.add(r, counts[static_cast<std::size_t>(r)]);
  }
  solver.solve_from_scratch();
  std::vector<double> rates(static_cast<std::size_t>(routes.size()), 0);
  for (std::int32_t r = 0; r < routes.size(); ++r) {
    if (solver.flows(r) > 0) rates[static_cast<std::size_t>(r)] = solver.rate(r);
  }
  return rates;
}

}  // namespace stepcast
