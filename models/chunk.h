// Chunk: the bodies of one pipeline part, for all stages and virtual stages that hold the same
// kinds of blocks in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "models/block_kind.h"
#include "models/pass.h"
#include "models/sharding.h"

namespace stepcast {

struct ChunkShape {
  std::vector<std::int32_t> blocks;  // kinds, in model order
  bool previous = false;             // receives its input from the part before
  bool next = false;                 // sends its output to the part after
  bool operator==(const ChunkShape&) const = default;
};

// What the micro-batches pass: all blocks, or as a ring of visits (pass.h).
enum class Passes : std::uint8_t { kAll, kRing };

// The bodies of one visit: one each, or its parts (Plan::expert_overlap).
struct PassBodies {
  BodyRange forward_first;  // of micro-batch 0: may bring weights in for the whole step
  BodyRange forward;
  BodyRange backward;
  BodyRange backward_last;  // of the last micro-batch: may reduce gradients, drop weights
};

struct ChunkBodies {
  std::vector<PassBodies> passes;  // one, or those of a ring's visits
  BodyId settle = 0;               // what is left of reducing, and the norm
  BodyId update = 0;
  std::int32_t residents = 0;
};

// `norm`: the tensor of the global gradient norm, kNoTensor without clipping.
ChunkBodies write_chunk(Tables& tables, const std::vector<BlockKind>& kinds,
                        const ChunkShape& shape, const Plan& plan, TensorId norm, Passes passes);

// Events that bodies of this plan use.
int events_used(const Plan& plan);

// Stage 3: the events that limit how far gathers run ahead, set once before the first call.
BodyId write_begin(Tables& tables, const Plan& plan);

}  // namespace stepcast
