// From each transfer on, the text is read until the compute stream waits.
#include "sim/engine/overlap.h"

#include <algorithm>
#include <set>

#include "sim/base/error.h"
#include "sim/hardware/probes.h"
#include "sim/program/pieces.h"

namespace stepcast {

namespace {

struct Issued {
  TransferId transfer = -1;
  Stream stream = Stream::kCompute;
};

// Of an instruction that puts a transfer onto a stream of its own.
Issued issued(const Instruction& instruction) {
  if (const auto* c = std::get_if<Collective>(&instruction)) return {c->transfer, c->stream};
  if (const auto* s = std::get_if<Send>(&instruction)) return {s->transfer, s->stream};
  return {};
}

// Seconds of kernels like a product, and of others.
struct Work {
  double products = 0, others = 0;
  double all() const { return products + others; }
};

Work until_waited(const Job& job, const Body& body, std::size_t from, Stream stream,
                  const Prices& prices) {
  Work work;
  std::set<EventId> events;  // that the stream records behind the transfer
  for (std::size_t i = from; i < body.code.size(); ++i) {
    const Instruction& instruction = body.code[i];
    if (const auto* record = std::get_if<Record>(&instruction)) {
      if (record->stream == stream) events.insert(record->event);
    } else if (const auto* wait = std::get_if<Wait>(&instruction)) {
      if (wait->stream == Stream::kCompute && events.contains(wait->event)) break;
    } else if (std::holds_alternative<Synchronize>(instruction)) {
      break;  // the host waits for all streams
    } else if (const auto* read = std::get_if<HostWait>(&instruction)) {
      if (events.contains(read->event)) break;
    } else if (const auto* compute = std::get_if<Compute>(&instruction)) {
      const auto op = static_cast<std::size_t>(compute->op);
      const double time = to_seconds(prices.ops[op]).value;
      (beside_kernel(job.ops[op]) == "product" ? work.products : work.others) += time;
    }
  }
  return work;
}

// Of the product beside a collective in pieces.
double product_time(const Job& job, const Body& body, std::size_t collective,
                    const Prices& prices) {
  const auto at = static_cast<std::size_t>(product_beside(job, body, collective));
  const auto op = static_cast<std::size_t>(std::get<Compute>(body.code[at]).op);
  return to_seconds(prices.ops[op]).value;
}

}  // namespace

std::vector<ComputeBeside> compute_beside(const Job& job, const Prices& prices) {
  STEPCAST_CHECK(
      prices.ops.size() == job.ops.size() && prices.transfers.size() == job.transfers.size(),
      "prices of this Job");
  std::vector<ComputeBeside> all(job.transfers.size());
  std::vector<Work> work(job.transfers.size());
  std::vector<int> places(job.transfers.size());
  for (const Body& body : job.bodies) {
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      const Issued found = issued(body.code[i]);
      if (found.transfer < 0 || found.stream == Stream::kCompute) continue;
      const auto t = static_cast<std::size_t>(found.transfer);
      Work here = until_waited(job, body, i + 1, found.stream, prices);
      const auto* c = std::get_if<Collective>(&body.code[i]);
      if (c != nullptr && c->pieces > 1) here.products += product_time(job, body, i, prices);
      const double time = to_seconds(prices.transfers[t]).value;
      all[t].share += time > 0 ? std::min(1.0, here.all() / time) : 0;
      work[t].products += here.products;
      work[t].others += here.others;
      ++places[t];
    }
  }
  for (std::size_t t = 0; t < all.size(); ++t) {
    if (places[t] > 0) all[t].share /= places[t];
    if (work[t].all() > 0) all[t].products = work[t].products / work[t].all();
  }
  return all;
}

}  // namespace stepcast
