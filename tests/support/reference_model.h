// A transformer in plain loops over doubles, differentiated by a tape of scalars: slow, and written
// from the papers without a line of what execute/ runs. What it shares with it are the initial
// weights, the tokens and the generator of dropout's masks. Its experts drop no token.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/backend.h"
#include "execute/data.h"
#include "models/model.h"

namespace stepcast {

struct ReferenceRun {
  std::int64_t sequence = 0;     // tokens a sequence
  std::int64_t global = 0;       // sequences a step
  std::int64_t steps = 0;
  AdamW optimizer;
  double deviation = 0;          // of initial weights
  std::uint64_t seed = 1;
  double dropout = 0;  // its rate; 0: none
  bool separate = false;  // queries, keys, values, gate and up have matrices of their own
};

// The losses of a run on one device.
std::vector<double> reference_losses(const Model& model, const ReferenceRun& run,
                                     const Corpus& corpus);

}  // namespace stepcast
