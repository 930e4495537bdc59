// One pass over the timed kernels, keeping the best so far.
#include "sim/cost/timed.h"

#include <cmath>
#include <limits>

#include "sim/program/program.h"

namespace stepcast {

namespace {

// Further away the model's ratio is no better than the model.
constexpr double kFarthest = 16;
// Distances are logarithms of ratios; these only order what is of the same size.
constexpr double kOtherMicroBatch = 1e-9, kOtherPhase = 2e-9, kOtherSize = 4e-9;

// The op with its sizes made equal: two of the same kind compare equal.
Op kind_of(Op op) {
  match(
      op, [](Gemm& g) { g.m = g.n = g.k = g.batch = 1; },
      [](Attention& a) { a.batch = a.heads = a.kv_heads = a.queries = a.keys = a.head_dim = 1; },
      [](Norm& n) { n.rows = n.columns = 1; },
      [](Pointwise& p) { p.rows = p.columns = p.head_dim = 1; },
      [](Gather& g) { g.rows = g.columns = g.vocabulary = 1; },
      [](Loss& l) { l.rows = l.vocabulary = 1; }, [](Update& u) { u.elements = 1; });
  return op;
}

}  // namespace

std::optional<Cost> timed_cost(const Op& op, const KernelPlace& place, const Profile& profile,
                               const Device& device) {
  const TimedWork* work = work_of(profile, place.ranks);
  if (work == nullptr) return std::nullopt;
  const Basis otherwise = profile.basis == Basis::kMeasured ? Basis::kInterpolated : profile.basis;
  const bool here = work->ranks == place.ranks;
  const Op kind = kind_of(op);
  const Seconds model = op_cost(op, device).time;
  const TimedKernel* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity(), scale = 1;
  for (const TimedKernel& timed : work->kernels) {
    double distance = 0, ratio = 1;
    if (timed.first != place.first) distance += kOtherMicroBatch;
    if (timed.phase != place.phase) distance += kOtherPhase;
    if (timed.op == op) {
      if (distance == 0) return Cost{timed.time.mean, here ? profile.basis : otherwise};
    } else {
      if (kind_of(timed.op) != kind) continue;
      ratio = model / op_cost(timed.op, device).time;
      distance += kOtherSize + std::abs(std::log(ratio));
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = &timed;
      scale = ratio;
    }
  }
  if (best == nullptr || best_distance > std::log(kFarthest)) return std::nullopt;
  return Cost{best->time.mean * scale, otherwise};
}

}  // namespace stepcast
