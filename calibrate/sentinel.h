// Sentinel: a fixed piece of arithmetic, timed before and after what is measured. If it takes
// longer than before, it was the machine that changed (a busy neighbour, heat), not what was
// measured.
#pragma once

#include "sim/base/units.h"

namespace stepcast {

// Mean time of about 10 ms of multiplying and adding in registers, on `threads` threads at once.
// REQUIRES: threads >= 1.
Seconds run_sentinel(int threads);

}  // namespace stepcast
