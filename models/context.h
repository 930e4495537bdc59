// Attention of a sequence that several ranks share (context parallelism; Batch in
// sim/program/program.h says which tokens each has). All else of a layer is a token's own business.
#pragma once

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

// What attention reads and writes.
struct AttentionValues {
  ValueId qk = kNoValue;  // normalised queries and keys, where there are such
  ValueId qkv = kNoValue;
  ValueId out = kNoValue;
  ValueId lse = kNoValue;
};

// Adds the nodes of attention over the keys of all `plan.context` ranks. `own`: that over a rank's
// own tokens. With g key-value heads of d columns, n tokens a rank and c ranks, a rank sends
// (c - 1) n 2 g d elements of keys and values in forward and twice that in backward, be it block by
// block or gathered:
//   all_gather  keys and values are gathered, again in backward (none stay); their gradients are
//               reduced and scattered
//   ring        c - 1 shifts, each beside attention on the block before; the results of the blocks
//               are merged by their log-sum-exps. In backward blocks and their gradients go round
void context_attention(Block& block, const Plan& plan, const Attention& own,
                       const AttentionValues& values);

}  // namespace stepcast
