// Mailboxes: messages on their way, one queue a channel, their links in a common pool, which grows
// with what is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/units.h"

namespace stepcast {

class Mailboxes {
 public:
  explicit Mailboxes(std::size_t channels) : queues_(channels) {}

  void push(std::size_t channel, Instant arrival) {
    std::int32_t link = free_;
    if (link >= 0) {
      free_ = links_[static_cast<std::size_t>(link)].next;
    } else {
      link = static_cast<std::int32_t>(links_.size());
      links_.emplace_back();
    }
    links_[static_cast<std::size_t>(link)] = {arrival, -1};
    Queue& queue = queues_[channel];
    (queue.first < 0 ? queue.first : links_[static_cast<std::size_t>(queue.last)].next) = link;
    queue.last = link;
  }

  bool pop(std::size_t channel, Instant& arrival) {
    Queue& queue = queues_[channel];
    if (queue.first < 0) return false;
    const std::int32_t index = queue.first;
    Link& link = links_[static_cast<std::size_t>(index)];
    arrival = link.arrival;
    queue.first = link.next;
    link.next = free_;
    free_ = index;
    return true;
  }

 private:
  struct Link {
    Instant arrival;
    std::int32_t next = -1;
  };
  struct Queue {
    std::int32_t first = -1, last = -1;
  };
  std::vector<Queue> queues_;
  std::vector<Link> links_;
  std::int32_t free_ = -1;
};

}  // namespace stepcast
