// One pass over the timed kernels, keeping the best so far.
#include "sim/cost/timed.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/program/program.h"

namespace stepcast {

namespace {

// Further away the model's ratio is no better than the model.
constexpr double kFarthest = 16;
// Distances are logarithms of ratios; these only order what is of the same size.
constexpr double kOtherMicroBatch = 1e-9, kOtherPhase = 2e-9, kOtherSize = 4e-9, kOtherRanks = 8e-9;

// The op with its sizes made equal: two of the same kind compare equal.
Op kind_of(Op op) {
  match(
      op, [](Gemm& g) { g.m = g.n = g.k = g.batch = 1; },
      [](Attention& a) {
        a.batch = a.heads = a.kv_heads = a.queries = a.keys = a.head_dim = 1;
        a.value_dim = 0;
        a.window = std::min<std::int64_t>(a.window, 1);
        a.step = std::min<std::int64_t>(a.step, 1);  // all steps of a ring do the same
      },
      [](Norm& n) { n.rows = n.columns = 1; },
      [](Pointwise& p) {
        p.rows = p.columns = p.head_dim = 1;
        p.rotated = 0;
        p.experts = std::min<std::int64_t>(p.experts, 1);
      },
      [](Gather& g) { g.rows = g.columns = g.vocabulary = 1; },
      [](Loss& l) { l.rows = l.vocabulary = 1; }, [](Update& u) { u.elements = 1; },
      [](Route& r) { r.rows = r.experts = r.chosen = r.capacity = 1; },
      [](Permute& p) { p.rows = p.chosen = p.slots = p.columns = 1; },
      [](ShareHeads& s) {
        s.rows = s.ranks = 1;
        s.columns = {1, 0, 0};
      },
      [](OwnSlots& o) { o.rows = o.chosen = o.experts = o.capacity = o.ranks = 1; },
      [](Regroup& r) { r.outer = r.inner = r.rows = r.columns = 1; },
      [](LatentKeys& l) { l.rows = l.heads = l.own = l.rotated = l.values = 1; });
  return op;
}

// The nearest timed kernel of some work, so far.
struct Nearest {
  const TimedKernel* kernel = nullptr;
  double distance = std::numeric_limits<double>::infinity();
  double scale = 1;
};

void look_in(const TimedWork& work, bool here, const Op& op, const KernelPlace& place,
             const Device& device, Nearest& best) {
  const Op kind = kind_of(op);
  const Seconds model = op_cost(op, device).time;
  for (const TimedKernel& timed : work.kernels) {
    double distance = here ? 0 : kOtherRanks, ratio = 1;
    if (timed.first != place.first) distance += kOtherMicroBatch;
    if (timed.phase != place.phase) distance += kOtherPhase;
    if (timed.op != op) {
      if (kind_of(timed.op) != kind) continue;
      ratio = model / op_cost(timed.op, device).time;
      distance += kOtherSize + std::abs(std::log(ratio));
    }
    if (distance < best.distance) best = {&timed, distance, ratio};
  }
}

}  // namespace

std::optional<Cost> timed_cost(const Op& op, const KernelPlace& place, const Profile& profile,
                               const Device& device) {
  Nearest best;
  const TimedWork* nearest = work_of(profile, place.ranks);
  for (const TimedWork& work : profile.work) {
    if (device.one_stream && &work != nearest) continue;
    look_in(work, !device.one_stream || work.ranks == place.ranks, op, place, device, best);
  }
  if (best.kernel == nullptr || best.distance > std::log(kFarthest)) return std::nullopt;
  const bool as_it_is = best.distance == 0 || profile.basis != Basis::kMeasured;
  return Cost{best.kernel->time.mean * best.scale, as_it_is ? profile.basis : Basis::kInterpolated};
}

}  // namespace stepcast
