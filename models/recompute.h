// Recompute: which slices of a block are run again in backward instead of being kept.
//
// "full" and {"every": k} drop whole layers; that is a matter of the chunk (lower.cc). Here are the
// policies inside a layer: "selective", {"modules": [...]}, "per_op" (attention and every second
// product stay, all else is run again), and what is always made again: the gathers of sequence
// parallelism (Korthikanti et al. 2022, section 4.2.2: the shard is kept), the 8-bit copies of
// gathered weights.
#pragma once

#include <vector>

#include "models/backward.h"
#include "models/plan.h"

namespace stepcast {

std::vector<Slice> recompute_slices(const Block& block, const Plan& plan);

}  // namespace stepcast
