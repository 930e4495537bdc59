// Curves of measurements, linear between points in log-log. Cost: linear in the profile's curves to
// find the one (a handful), then a binary search.
#include "sim/network/measured.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace stepcast {

std::string collective_name(TransferKind kind) {
  std::string name(transfer_name(kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

MeasuredTime time_on(const WireCurve& curve, Bytes bytes, Basis basis) {
  STEPCAST_CHECK(!curve.points.empty() && bytes >= Bytes(0), "a curve with points, a size");
  const WirePoint& first = curve.points.front();
  const WirePoint& last = curve.points.back();
  const auto above = std::lower_bound(
      curve.points.begin(), curve.points.end(), bytes,
      [](const WirePoint& point, Bytes size) { return point.bytes < size; });
  if (above != curve.points.end() && above->bytes == bytes) return {above->time, basis};
  if (bytes < first.bytes) return {first.time, Basis::kFitted};
  const auto log_size = [](Bytes size) { return std::log(static_cast<double>(size.count)); };
  if (above == curve.points.end()) {
    const double times = static_cast<double>(bytes.count) / static_cast<double>(last.bytes.count);
    return {last.time * times, Basis::kFitted};
  }
  const WirePoint& below = *(above - 1);
  const double share = (log_size(bytes) - log_size(below.bytes)) /
                       (log_size(above->bytes) - log_size(below.bytes));
  const Seconds time = below.time * std::pow(above->time / below.time, share);
  return {time, basis == Basis::kMeasured ? Basis::kInterpolated : basis};
}

namespace {

// What was timed of one kind over groups of one size, by size.
WireCurve curve_of(const TimedWork& work, std::string_view transfer, int ranks) {
  WireCurve curve;
  curve.ranks = ranks;
  for (const TimedTransfer& timed : work.transfers) {
    if (timed.transfer != transfer || timed.ranks != ranks) continue;
    curve.points.push_back({timed.bytes, timed.time.mean});
  }
  std::sort(curve.points.begin(), curve.points.end(),
            [](const WirePoint& a, const WirePoint& b) { return a.bytes < b.bytes; });
  return curve;
}

}  // namespace

std::optional<TransferChoice> timed_choice(const Transfer& transfer, bool receives,
                                           const Mesh& mesh, const Profile& profile) {
  const TimedWork* work = work_of(profile, mesh.ranks());
  if (work == nullptr) return std::nullopt;
  std::string name = collective_name(transfer.kind);
  if (transfer.kind == TransferKind::kSendReceive) {
    name = receives ? "receive" : "send";
    if (!transfer.axes.has(Axis::kPipeline)) name = "shift";
  }
  const int ranks =
      transfer.ends_only ? std::min(2, mesh.stages()) : mesh.group_size(transfer.axes);
  const WireCurve curve = curve_of(*work, name, ranks);
  if (curve.points.empty()) return std::nullopt;
  const bool here = work->ranks == mesh.ranks();
  const Basis basis =
      here || profile.basis != Basis::kMeasured ? profile.basis : Basis::kInterpolated;
  const MeasuredTime measured = time_on(curve, transfer.bytes, basis);
  TransferChoice choice;
  choice.time = measured.time;
  choice.basis = measured.basis;
  choice.algorithm = choice.protocol = "unknown";
  return choice;
}

double bus_factor(TransferKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case TransferKind::kAllReduce: return 2 * (n - 1) / n;
    case TransferKind::kAllGather:
    case TransferKind::kReduceScatter:
    case TransferKind::kAllToAll: return (n - 1) / n;
    case TransferKind::kBroadcast:
    case TransferKind::kSendReceive: return 1;
  }
  STEPCAST_CHECK(false, "a kind of transfer out of range");
}

std::optional<TransferChoice> measured_choice(TransferKind kind, Bytes bytes,
                                              const Placement& placement, const Profile& profile) {
  const std::string name = collective_name(kind);
  const auto curve =
      std::find_if(profile.wires.begin(), profile.wires.end(), [&](const WireCurve& one) {
        return one.ranks == placement.ranks && one.nodes == placement.nodes &&
               one.groups_per_node == placement.groups_per_node && one.collective == name;
      });
  if (curve == profile.wires.end()) return std::nullopt;
  const MeasuredTime measured = time_on(*curve, bytes, profile.basis);
  TransferChoice choice;
  choice.time = measured.time;
  choice.basis = measured.basis;
  choice.algorithm = choice.protocol = "unknown";  // whatever ran when it was measured
  // Of the largest size, where latency counts least.
  const WirePoint& last = curve->points.back();
  choice.bus_bandwidth = Bandwidth(static_cast<double>(last.bytes.count) / last.time.value *
                                   bus_factor(kind, placement.ranks));
  return choice;
}

}  // namespace stepcast
