// Eight-bit operands: how a 16-bit matrix becomes what 8-bit products read.
//
// A linear layer has three products, and two of them read each matrix: x serves y = x W^T along
// its columns and dW = dy^T x along its rows; likewise W and dy. So each is quantised twice (see
// EightBit::two_copies), in one pass where both copies are made at once. Only the copy that
// backward reads is kept: one byte an element instead of two.
#pragma once

#include <string>
#include <vector>

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

struct Quantization {
  std::string name;            // of what is quantised, "qkv.input"
  ValueId x = kNoValue;        // 16 bits, (rows, columns)
  std::uint16_t modules = kModuleNone;
  Phase phase = Phase::kForward;
  bool both = true;            // the copy for the columns, too, where there is to be one
  bool shared_scale = false;   // x is a part of a matrix that tensor ranks share: one scale for all
  ValueKind kind = ValueKind::kActivation;  // of the copies
  ValueId amax = kNoValue;  // with one scale a tensor, where x's largest value is known already
};

// Adds values to `block` and nodes to `nodes` (its own or others'). Returns the copy; its `columns`
// is the other one, `original` is x. The last node added is the one that quantises.
// REQUIRES: eight_bit.on().
ValueId quantize(Block& block, std::vector<Node>& nodes, const EightBit& eight_bit,
                 const Quantization& what);

// Of a copy of (rows, columns): with the scales of its blocks, a byte for every 32 elements (MX:
// one byte each; 1 x 128: an fp32). Weights' blocks of 128 x 128 have next to none.
Shape eight_bit_shape(const EightBit& eight_bit, std::int64_t rows, std::int64_t columns,
                      bool weight);

}  // namespace stepcast
