// Prices: every distinct Op and Transfer of a Job once, rounded to picoseconds here and nowhere
// else, and every Op once more beside the transfers of each stream. Cost: linear in Job::ops times
// streams in use, Job::transfers and the text of the bodies.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "sim/base/error.h"
#include "sim/cost/cost.h"
#include "sim/engine/simulate.h"
#include "sim/network/network.h"

namespace stepcast {
namespace {

constexpr Seconds kLongest{9e6};  // what fits into a Duration

Duration rounded(Seconds time, const std::string& what) {
  STEPCAST_CHECK(!std::isnan(time.value) && time >= Seconds(0), what);
  if (time < kLongest) return to_duration(time);
  throw Error("cluster", what + " takes longer than 100 days; check its rates and latencies");
}

// Bytes that pass through memory for each byte on a wire. A user's A100 with an all-gather beside
// lost more than this gives (NVIDIA/nccl#1428): products and attention took 1.8 times as long,
// elementwise kernels 2.5 times, where this says 1.3 and 1.4. One report does not say why.
constexpr double kMemoryBytes = 2.5;
constexpr int kMessageBlocks = 2;     // of a send or an all-to-all, whose channels are not known

// What a stream's transfers take from whatever runs beside them.
struct Pull {
  Transfer transfer;            // the one with the most bytes
  Setting setting;
  bool between_nodes = false;   // through the NICs
};

// By stream; none where nothing is sent.
using Pulls = std::array<std::optional<Pull>, kStreams>;

Pulls pulls_of(const Job& job, const Cluster& cluster) {
  Pulls pulls;
  const auto see = [&](Stream stream, TransferId id) {
    const Transfer& transfer = job.transfers[static_cast<std::size_t>(id)];
    std::optional<Pull>& pull = pulls[static_cast<std::size_t>(stream)];
    if (stream == Stream::kCompute || sent_bytes(transfer, job.mesh) == Bytes(0)) return;
    if (!pull || transfer.bytes > pull->transfer.bytes) pull = Pull{transfer, {}, false};
  };
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      if (const auto* c = std::get_if<Collective>(&instruction)) see(c->stream, c->transfer);
      if (const auto* s = std::get_if<Send>(&instruction)) see(s->stream, s->transfer);
    }
  }
  for (std::optional<Pull>& pull : pulls) {
    if (!pull) continue;
    const Transfer& transfer = pull->transfer;
    const TransferChoice choice = choose_transfer(transfer, job.mesh, cluster);
    if (choice.time <= Seconds(0)) continue;
    const double wire =
        static_cast<double>(sent_bytes(transfer, job.mesh).count) / choice.time.value;
    pull->setting.multiprocessors_taken = choice.channels > 0 ? choice.channels : kMessageBlocks;
    pull->setting.memory_taken =
        kMemoryBytes * wire /
        (cluster.device.memory_bandwidth.value * cluster.device.kernels.memory);
    pull->between_nodes =
        place(job.mesh, transfer.axes, transfer.ends_only, cluster).nodes > 1;
  }
  return pulls;
}

std::vector<Beside> price_beside(const Job& job, const Cluster& cluster) {
  const Pulls pulls = pulls_of(job, cluster);
  std::vector<Beside> all;
  for (std::size_t stream = 0; stream < pulls.size(); ++stream) {
    const std::optional<Pull>& pull = pulls[stream];
    if (!pull) continue;
    Beside beside;
    beside.stream = static_cast<Stream>(stream);
    for (const Op& op : job.ops) {
      const double factor = op_cost(op, cluster.device, pull->setting).time /
                            op_cost(op, cluster.device).time;
      beside.ops.push_back(std::max(1.0, factor));
    }
    for (const Transfer& transfer : job.transfers) {
      const bool moves = sent_bytes(transfer, job.mesh) > Bytes(0);
      const bool between_nodes =
          moves && place(job.mesh, transfer.axes, transfer.ends_only, cluster).nodes > 1;
      beside.transfers.push_back(moves && between_nodes == pull->between_nodes ? 2 : 1);
    }
    all.push_back(std::move(beside));
  }
  return all;
}

}  // namespace

Prices price(const Job& job, const Cluster& cluster) {
  Prices prices;
  prices.ops.reserve(job.ops.size());
  prices.basis.reserve(job.ops.size());
  prices.transfers.reserve(job.transfers.size());
  for (const Op& op : job.ops) {
    const Cost cost = op_cost(op, cluster.device);
    prices.ops.push_back(rounded(cost.time, to_text(op)));
    prices.basis.push_back(cost.basis);
  }
  for (const Transfer& transfer : job.transfers) {
    prices.transfers.push_back(
        rounded(transfer_time(transfer, job.mesh, cluster),
                std::string(transfer_name(transfer.kind)) + " of " +
                    std::to_string(transfer.bytes.count) + " bytes"));
  }
  prices.beside = price_beside(job, cluster);
  prices.issue = rounded(cluster.device.launch, "a launch");
  // Ranks are laid on devices in rank order. A slow device that no rank uses slows nobody.
  const int ranks = job.mesh.ranks();
  for (const auto& [device, factor] : cluster.slow_devices) {
    if (device >= ranks || factor == 1.0) continue;
    STEPCAST_CHECK(device >= 0 && std::isfinite(factor) && factor > 0, "a slow device's factor");
    if (prices.slow.empty()) prices.slow.assign(static_cast<std::size_t>(ranks), 1.0);
    prices.slow[static_cast<std::size_t>(device)] = factor;
  }
  return prices;
}

}  // namespace stepcast
