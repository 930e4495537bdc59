// Discrete events over a fluid: one queue holds, for each message on its way, the instant at which
// its latency ends or its bytes do.
//
// A flow is looked at only when its own rate changes: its remaining bytes are brought up to date
// and its end is queued anew. Equal flows have equal histories, so their ends tie exactly and come
// up together (tie_queue.h). Cost of an event: O(1) amortised where events tie, plus the repair of
// the rates (max_min.h). Memory: 13 bytes a message beside the traffic, and 44 for each on its way.
#include "sim/network/flows.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr double kPicoseconds = 1e12;  // in a second
constexpr double kLongest = 9e18;      // picoseconds that an Instant can hold

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

[[noreturn]] void complain(std::int32_t m, std::string_view what) {
  throw Error(fmt::format("message {}", m), what);
}

class Player {
 public:
  explicit Player(const FlowTraffic& traffic);
  FlowTimes run();

 private:
  // A message whose latency passes or whose bytes move.
  struct Flight {
    double remaining = 0;    // bytes, at `since`
    std::int64_t since = 0;  // picoseconds
    std::int32_t message = 0;
    std::int32_t next = -1;  // neighbours among the flows of its route
    std::int32_t before = -1;
    bool moving = false;
  };

  Flight& flight(std::int32_t f) { return flights_[index(f)]; }
  const Message& message(std::int32_t m) const { return traffic_.messages[index(m)]; }

  void read_messages();
  void read_dependents();
  std::int32_t take_off(std::int32_t m);
  void land(std::int32_t f) { free_.push_back(f); }
  void send(std::int32_t m);
  void pass_gate(std::int32_t m);
  void begin(std::int32_t m);
  void end(std::int32_t f);
  void queue_end(std::int32_t f, double rate);
  void share_links();

  const FlowTraffic& traffic_;
  MaxMin solver_;
  TieQueue queue_;  // of flights
  std::vector<Flight> flights_;
  std::vector<std::int32_t> free_;   // flights out of use
  std::vector<std::int32_t> waits_;  // of each message: that must end before its latency begins
  // Of each message: what its bytes wait for, its latency and the message before it in line.
  std::vector<std::int8_t> gates_;
  std::vector<std::int32_t> head_;  // of each route: its moving flights
  std::vector<double> rate_;        // of each route: of its flows
  std::vector<std::int32_t> begun_, batch_;
  std::int64_t now_ = 0;
  FlowTimes times_;
};

Player::Player(const FlowTraffic& traffic)
    : traffic_(traffic),
      solver_(traffic.capacities, traffic.routes),
      waits_(traffic.messages.size(), 0),
      gates_(traffic.messages.size(), 1),
      head_(index(traffic.routes.size()), -1),
      rate_(index(traffic.routes.size()), 0) {
  times_.ends.resize(traffic.messages.size());
  read_messages();
  read_dependents();
}

void Player::read_messages() {
  const auto count = static_cast<std::int32_t>(traffic_.messages.size());
  for (std::int32_t m = 0; m < count; ++m) {
    const Message& it = message(m);
    if (!(it.bytes >= 0) || !std::isfinite(it.bytes) || it.latency < Duration{}) {
      complain(m, "has negative bytes or a negative latency");
    }
    if (it.route < 0 || it.route >= traffic_.routes.size()) {
      complain(m, fmt::format("takes route {} of {}", it.route, traffic_.routes.size()));
    }
    if (it.follower == -1) continue;
    if (it.follower < 0 || it.follower >= count) {
      complain(m, fmt::format("is followed by message {} of {}", it.follower, count));
    }
    if (++gates_[index(it.follower)] > 2) {
      complain(it.follower, "follows two messages; a connection is one line");
    }
  }
}

void Player::read_dependents() {
  const auto& first = traffic_.first_dependent;
  if (first.size() != traffic_.messages.size() + 1 || first.front() != 0 ||
      index(first.back()) != traffic_.dependents.size() ||
      !std::is_sorted(first.begin(), first.end())) {
    throw Error("traffic", "first_dependent does not fit the messages and dependents");
  }
  for (const std::int32_t m : traffic_.dependents) {
    if (m < 0 || index(m) >= waits_.size()) {
      complain(m, fmt::format("is to wait, but there are {} messages", waits_.size()));
    }
    ++waits_[index(m)];
  }
}

std::int32_t Player::take_off(std::int32_t m) {
  if (free_.empty()) {
    const std::size_t more = std::max<std::size_t>(64, 2 * flights_.size());
    for (std::size_t f = more; f > flights_.size(); --f) {
      free_.push_back(static_cast<std::int32_t>(f - 1));
    }
    flights_.resize(more);
    queue_.grow(more);
  }
  const std::int32_t f = free_.back();
  free_.pop_back();
  flight(f) = {message(m).bytes, now_, m, -1, -1, false};
  return f;
}

// A latency of zero passes at once, without a turn in the queue.
void Player::send(std::int32_t m) {
  if (message(m).latency == Duration{}) {
    pass_gate(m);
  } else {
    queue_.push(take_off(m), now_ + message(m).latency.picoseconds);
  }
}

void Player::pass_gate(std::int32_t m) {
  if (--gates_[index(m)] == 0) begin(m);
}

void Player::begin(std::int32_t m) {
  const std::int32_t f = take_off(m);
  flight(f).moving = true;
  if (message(m).bytes == 0) {  // takes no part in the sharing
    queue_.push(f, now_);
    return;
  }
  const std::int32_t route = message(m).route;
  const std::int32_t next = std::exchange(head_[index(route)], f);
  flight(f).next = next;
  if (next >= 0) flight(next).before = f;
  solver_.add(route);
  begun_.push_back(f);
}

void Player::end(std::int32_t f) {
  const Flight it = flight(f);
  const Message& m = message(it.message);
  if (m.bytes > 0) {
    if (it.next >= 0) flight(it.next).before = it.before;
    (it.before >= 0 ? flight(it.before).next : head_[index(m.route)]) = it.next;
    solver_.remove(m.route);
  }
  land(f);
  times_.ends[index(it.message)] = Instant(now_);
  if (m.follower >= 0) pass_gate(m.follower);
  const auto last = index(traffic_.first_dependent[index(it.message) + 1]);
  for (auto d = index(traffic_.first_dependent[index(it.message)]); d < last; ++d) {
    const std::int32_t dependent = traffic_.dependents[d];
    if (--waits_[index(dependent)] == 0) send(dependent);
  }
}

void Player::queue_end(std::int32_t f, double rate) {
  if (rate == 0) {
    complain(flight(f).message, "can never end: a link on its route has no capacity left");
  }
  const double left = std::max(flight(f).remaining, 0.0) / rate * kPicoseconds;
  if (left > kLongest - static_cast<double>(now_)) {
    complain(flight(f).message, "takes more than 100 days");
  }
  queue_.push(f, now_ + std::llround(left));
}

void Player::share_links() {
  for (const std::int32_t route : solver_.solve()) {
    const double rate = solver_.rate(route);
    const double old = std::exchange(rate_[index(route)], rate);
    ++times_.rate_changes;
    for (std::int32_t f = head_[index(route)]; f >= 0; f = flight(f).next) {
      Flight& it = flight(f);
      if (queue_.holds(f)) queue_.erase(f);
      if (it.since < now_) {
        it.remaining -= old * (static_cast<double>(now_ - it.since) / kPicoseconds);
        it.since = now_;
      }
      queue_end(f, rate);
    }
  }
  for (const std::int32_t f : begun_) {
    if (!queue_.holds(f)) queue_end(f, rate_[index(message(flight(f).message).route)]);
  }
  begun_.clear();
}

FlowTimes Player::run() {
  const auto count = static_cast<std::int32_t>(waits_.size());
  std::int32_t ended = 0;
  for (std::int32_t m = 0; m < count; ++m) {
    if (waits_[index(m)] == 0) send(m);
  }
  share_links();
  while (!queue_.empty()) {
    now_ = queue_.least();
    ++times_.instants;
    do {
      batch_.clear();
      queue_.pop(batch_);
      for (const std::int32_t f : batch_) {
        if (flight(f).moving) {
          end(f);
          ++ended;
        } else {
          const std::int32_t m = flight(f).message;
          land(f);
          pass_gate(m);
        }
      }
    } while (!queue_.empty() && queue_.least() == now_);
    share_links();
  }
  times_.end = Instant(now_);
  if (ended < count) {
    std::int32_t stuck = 0;
    while (waits_[index(stuck)] == 0 && gates_[index(stuck)] == 0) ++stuck;
    complain(stuck, fmt::format("is one of {} that wait for each other", count - ended));
  }
  return std::move(times_);
}

}  // namespace

// Counting sort by what is depended on.
void set_dependencies(FlowTraffic& traffic, std::span<const Dependency> dependencies) {
  const auto count = traffic.messages.size();
  std::vector<std::int32_t> next(count + 1, 0);
  for (const Dependency& d : dependencies) {
    if (d.on < 0 || index(d.on) >= count) {
      complain(d.message, fmt::format("depends on message {} of {}", d.on, count));
    }
    ++next[index(d.on) + 1];
  }
  for (std::size_t m = 0; m < count; ++m) next[m + 1] += next[m];
  traffic.first_dependent = next;
  traffic.dependents.resize(dependencies.size());
  for (const Dependency& d : dependencies) {
    traffic.dependents[index(next[index(d.on)]++)] = d.message;
  }
}

FlowTimes play(const FlowTraffic& traffic) { return Player(traffic).run(); }

}  // namespace stepcast
