// Prices: every distinct Op and Transfer of a Job once, rounded to picoseconds here and nowhere
// else. Cost: linear in Job::ops and Job::transfers.
#include <cmath>
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
