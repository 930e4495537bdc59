// Transformer: the forward pass of a decoder-only model as a chain of blocks.
//
// Symbols: s sequence, b micro-batch, h hidden, a heads, g key-value heads, d head_dim, f FFN
// width, t tensor degree. Rows are tokens, s b of them, or s b / t where sequence parallelism
// splits them.
#pragma once

#include "models/block.h"
#include "models/model.h"
#include "models/plan.h"

namespace stepcast {

// embedding, L equal layers, head with loss. REQUIRES: check_plan(plan, model) passed.
Network transformer(const Model& model, const Plan& plan);

}  // namespace stepcast
