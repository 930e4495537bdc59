// Pass: how a forward or backward body goes through the blocks of a chunk, as steps: one a block,
// two where several layers are checkpointed as a group (forward again, then backward).
//
// A body usually passes all blocks. That of a ring (lower.h) passes some and leaves the others out;
// what moves the state of those (gathers, reductions) may stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepcast {

enum class PassAction : std::uint8_t {
  kForward,
  kForwardDrop,
  kRecompute,
  kRecomputeLast,
  kBackward,
  kReduce,  // not passed: only what follows the backward of a block
};

struct PassStep {
  std::size_t block = 0;
  std::vector<PassAction> actions;  // none: the block is not passed, its weights may move
};

// What matters of a block here.
struct PassBlock {
  bool numbered = true;       // a layer; else it stands before or after them
  bool checkpointed = false;  // its input is kept, its forward run again in backward
  bool group_begins = true;   // it is the first of those that are run again together
};

// The blocks that one micro-batch passes, ascending.
using Visit = std::vector<std::size_t>;

// Of a ring: every layer's turn comes, `layers` at a time (or all, if there are no more), with all
// that is no layer. Of layers that are checkpointed as a group it takes the first and the last:
// together they do all that a group does. At least one visit. REQUIRES: layers >= 2.
std::vector<Visit> ring_visits(const std::vector<PassBlock>& blocks, std::size_t layers);

// `others`: with a step for each block that is not visited.
std::vector<PassStep> forward_steps(const std::vector<PassBlock>& blocks, const Visit& visit,
                                    bool others);
std::vector<PassStep> backward_steps(const std::vector<PassBlock>& blocks, const Visit& visit,
                                     bool others);

}  // namespace stepcast
