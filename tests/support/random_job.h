// Random small Jobs that verify: tensor, data and pipeline degrees, several chunks whose messages
// wrap around, collectives in flight next to compute, events that live from call to call,
// collectives across stages and of the pipeline's ends. The same seed gives the same Job.
#pragma once

#include <cstdint>

#include "sim/engine/simulate.h"
#include "sim/program/program.h"

namespace stepcast {

Job random_job(std::uint64_t seed);

// Durations of up to about 1 us (a fifth of them zero), and an issue time that is zero, small or so
// large that the host is what everything waits for.
Prices random_prices(const Job& job, std::uint64_t seed);

}  // namespace stepcast
