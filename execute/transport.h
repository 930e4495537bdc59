// Transport: how ranks exchange numbers. One object a rank.
//
// All calls block until this rank's part is done, but a send never waits for its receive: it
// copies. Members of a group call the same collectives in the same order, which verify() proves of
// a Job. What reduces adds up in the order of the ranks where the implementation can promise it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/program/program.h"

namespace stepcast {

// The members of a collective, ascending; this rank's index among them.
struct Group {
  AxisSet axes;
  bool ends_only = false;
  std::vector<int> members;
  std::size_t index = 0;
};

Group group_of(const Mesh& mesh, int rank, AxisSet axes, bool ends_only);

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual void all_reduce(const Group& group, std::span<float> values, Reduction reduction) = 0;
  // From each member's `mine` into everybody's `all`, in the order of the members.
  virtual void all_gather(const Group& group, std::span<const float> mine,
                          std::span<float> all) = 0;
  // The sum over the members of their `all`; this rank's piece of it into `mine`.
  virtual void reduce_scatter(const Group& group, std::span<const float> all,
                              std::span<float> mine, Reduction reduction) = 0;
  // `mine` in equal parts, one for each member in their order; into `all` what the members have for
  // this one, in their order.
  virtual void all_to_all(const Group& group, std::span<const std::byte> mine,
                          std::span<std::byte> all) = 0;
  virtual void send(int to, Stream stream, std::span<const std::byte> message) = 0;
  // Seconds that it waited for the message to be there. `stream` is the sender's.
  virtual double receive(int from, Stream stream, std::span<std::byte> message) = 0;
  // Sum over all ranks, in double, for everybody.
  virtual void sum_everywhere(std::span<double> values) = 0;
  // This rank cannot go on: everybody who waits for it, now or later, throws Error.
  virtual void abort() noexcept = 0;
};

// Transports of ranks that are threads of this process, one a rank. Reductions are in the order
// of the ranks: the same numbers whatever the threads do.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int ranks);

// Of a rank that runs without the others: sums are its own, what it gathers is its own part again
// and again (in an all-to-all, what it has for the others), a message is lost, and none comes: what
// is received are zeros.
std::unique_ptr<Transport> make_lone_transport(int rank);

}  // namespace stepcast
