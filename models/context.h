// Attention of a sequence that several ranks share (context parallelism; Batch in
// sim/program/program.h says which tokens each has). All else of a layer is a token's own business.
#pragma once

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

// What attention reads and writes.
struct AttentionValues {
  Values heads;  // [qk,] qkv, or q, k, v (Attention in sim/program/op.h)
  ValueId out = kNoValue;
  ValueId lse = kNoValue;

  bool separate() const { return heads.size() == 3; }
};

// Adds the nodes of attention over the keys of all `plan.context` ranks. `own`: that over a rank's
// own tokens. With g key-value heads of d columns, n tokens a rank and c ranks, a rank sends
// (c - 1) n 2 g d elements of keys and values in forward and twice that in backward, be it block by
// block or gathered; or heads are exchanged:
//   all_gather  keys and values are gathered, again in backward (none stay); their gradients are
//               reduced and scattered
//   all_to_all  with h query heads, (c - 1) / c n (2 h + 2 g) d in forward and again in backward:
//               queries, keys, values and results of all tokens for those of all heads
//   ring        c - 1 shifts, each beside attention on the block before; the results of the blocks
//               are merged by their log-sum-exps. In backward blocks and their gradients go round
void context_attention(Block& block, const Plan& plan, const Attention& own,
                       const AttentionValues& values);

}  // namespace stepcast
