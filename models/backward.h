// Backward: the gradient of a block, derived from its forward pass.
//
// One rule a kind of op (reverse-mode differentiation, as in any autograd): given the gradients of
// what a node wrote, the rule says which nodes compute the gradients of what it read, and which
// forward values it needs again. What is needed again is what gets saved: the activation memory of
// a training step is nothing else.
//
// A recomputation policy (recompute.h) names slices of the forward pass whose values are dropped
// instead; when a rule needs one, the slice runs again. Korthikanti et al. (2022) and Chen et al.
// (2016) give the closed forms of what results; here they are tests.
#pragma once

#include <vector>

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

// Nodes [first, last) of a block. Their values are dropped after forward and made again when first
// needed, by running the whole slice. What nodes outside the slice read stays, unless
// `discard_output`: then it is made again too.
struct Slice {
  std::int32_t first = 0;
  std::int32_t last = 0;
  bool discard_output = false;
};

struct BackwardOptions {
  Dtype gradients = Dtype::kBf16;      // of weight gradients
  bool accumulate = true;              // weight gradients are added to what their buffer holds
  EightBit eight_bit = {};             // copies that 8-bit products read of gradients
  bool deterministic = false;          // of fused attention
  bool likelihood_gradient = false;    // that of the log-probabilities, zeros but for the targets,
                                       // is a tensor of its own (PyTorch's nll_loss)
};

struct Differentiated {
  Block block;                         // as given, plus the gradients' values
  std::vector<Node> backward;          // in order; phases kBackward and kRecompute
  std::vector<bool> saved;             // by value: kept from forward to backward
  std::vector<ValueId> gradient_of;    // by value: a weight's gradient (kNoValue for others)
  ValueId dy = kNoValue;               // the gradient of block.y, given
  ValueId dx = kNoValue;               // the gradient of block.x, result
};

// REQUIRES: slices are disjoint. Cost: linear in nodes and operands.
Differentiated differentiate(const Block& block, const std::vector<Slice>& slices,
                             const BackwardOptions& options);

}  // namespace stepcast
