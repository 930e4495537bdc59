// Schedule: the order in which a pipeline stage runs its micro-batches.
//
// p stages, v chunks a stage (virtual stages), m micro-batches. Chunk c of stage i holds the layers
// of model part c p + i.
//   GPipe              all forwards, then all backwards                    (Huang et al. 2019)
//   1F1B               p - 1 - i forwards, then one backward after each    (Narayanan et al. 2019)
//   interleaved 1F1B   the same over v chunks, in groups of micro-batches  (Narayanan et al. 2021)
#pragma once

#include <cstdint>
#include <vector>

#include "models/plan.h"

namespace stepcast {

struct Slot {
  bool backward = false;
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  bool alternates = false;  // a forward behind the warm-up: the backward that follows is its pair
  bool operator==(const Slot&) const = default;
};

// `ahead`: so many forwards more than the schedule needs stand before the first backward. With one,
// a pair is of different micro-batches, of which neither waits for the other (Megatron-Core, where
// experts' exchanges overlap: megatron/core/pipeline_parallel/schedules.py).
//
// Every stage's slots; each (chunk, micro-batch) occurs once forward and once backward, a chunk's
// micro-batches ascending. Interleaved: the micro-batches go in groups of p, or where p does not
// divide m in floor(m / p) groups as equal as can be (one of m if m < p). REQUIRES: all >= 1, v = 1
// unless interleaved.
std::vector<std::vector<Slot>> pipeline_schedule(PipelineSchedule schedule, std::int32_t stages,
                                                 std::int32_t chunks, std::int32_t micro_batches,
                                                 std::int32_t ahead = 0);

}  // namespace stepcast
