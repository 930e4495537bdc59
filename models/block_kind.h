// BlockKind: everything that is the same for all blocks of one kind, made once a lowering: the
// derived backward, the block's tensors as slots, and its fragments.
#pragma once

#include <string>
#include <vector>

#include "models/backward.h"
#include "models/fragment.h"
#include "models/plan.h"

namespace stepcast {

// A weight of a block and its gradient, as slots (see fragment.h).
struct WeightSlots {
  TensorId weight = 0;
  TensorId gradient = 0;
  std::int64_t elements = 0;
  bool partial = false;
  Dtype dtype = Dtype::kBf16;
  bool experts = false;    // it holds matrices of experts that ranks share
};

struct SharedWeight {
  std::string name;
  WeightSlots slots;      // in places
};

struct BlockKind {
  bool numbered = true;
  bool checkpointed = false;          // under "full": its input may be all that is kept
  std::vector<Tensor> tensors;        // by slot; labels without a layer
  Tensor x, y;                        // what passes between blocks; y absent: shape.rank == 0
  std::vector<WeightSlots> weights;   // its own
  std::vector<SharedWeight> shared;   // places kPlaceShared - 2 i (weight) and - 2 i - 1 (gradient)
  std::vector<TensorId> residents;    // slots of kData and kCopy values
  std::vector<Tensor> shared_tensors; // per shared weight: weight, gradient

  Fragment prepare;                   // 8-bit copies of its weights; empty: there are none
  Fragment forward;                   // keeps what backward needs
  Fragment forward_keep;              // checkpointed: keeps x only
  Fragment forward_drop;              // checkpointed, and x is not kept either (inside a group)
  Fragment recompute;                 // checkpointed: forward again, keeping what backward needs
  Fragment recompute_last;            // the same where nobody needs y again
  Fragment backward;
};

BlockKind make_kind(Tables& tables, const Block& block, const Plan& plan);

}  // namespace stepcast
