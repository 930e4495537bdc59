// Fills: what a deterministic run writes to a new tensor before its op does (Plan::filled).
#pragma once

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

// As whose result a framework makes `value`, which `node` is the first to write; kFilledNone: of a
// kernel that all frameworks here have from ATen's structured ones or from a compiler of graphs
// (the products of unfused attention, sums, activations), or that only looks up. Dropout's masks,
// one byte an element, are left out: executors fill numbers. So is what no op of a block makes
// (workspaces, the random state of attention).
Filled filled_as(const Block& block, const Node& node, const Value& value);

// One kernel that writes all of such a tensor.
Pointwise fill_of(const Shape& shape, Dtype dtype);

}  // namespace stepcast
