// Stages: which blocks of the chain go to which chunk of the pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "models/block.h"
#include "models/plan.h"

namespace stepcast {

// Blocks [first, last) of the chain.
struct BlockRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int32_t size() const { return last - first; }
};

// One part a chunk, p v of them in model order: stage i's chunk c is part c p + i. What stands
// before the chain's first numbered block (the embedding) belongs to the first part, what stands
// after its last (the head) to the last. Throws Error where a part would be empty.
std::vector<BlockRange> lay_out(const Network& network, const Plan& plan);

}  // namespace stepcast
