// Timed: a kernel's time from the work of a profile (sim/hardware/work.h), before any model is
// asked.
//
//   the same op, phase and micro-batch        its mean; basis measured
//   the same op in another one, or timed
//   with another number of ranks              its mean; interpolated
//   an op of the same kind, not too far away  its mean x (the model's time of this / of that op);
//                                             interpolated
// Ranks that share a machine's cores (Device::one_stream) are in each other's way; for kernels of a
// device of its own any number of ranks is the same.
// Same kind: the same kernel, part and flags, only sizes differ. Of several the one whose time the
// model has nearest. A profile of another basis (another machine's, a fit's) gives it to all.
#pragma once

#include <optional>
#include <string_view>

#include "sim/cost/cost.h"
#include "sim/hardware/profile.h"

namespace stepcast {

// Where a kernel stands in a step.
struct KernelPlace {
  std::string_view phase;  // "forward", "backward", "recompute", "optimizer"
  bool first = true;       // of the first micro-batch
  int ranks = 1;           // at work on the machine
};

// None: nothing near enough was timed. Linear in the work.
std::optional<Cost> timed_cost(const Op& op, const KernelPlace& place, const Profile& profile,
                               const Device& device);

}  // namespace stepcast
