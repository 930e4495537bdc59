// Pace: which of a step's devices the others wait for.
//
// Devices of one kind are not equally fast (Device::spread). Ranks that meet in every layer go at
// the pace of the slowest of them all. Stages of a pipeline wait for each other once a micro-batch,
// so its period is that of the stage whose work and whose slowest device together take longest: a
// stage with more to do than the others, as that of the head, sets it without being the one with
// the slowest device of all.
#pragma once

#include "sim/hardware/hardware.h"
#include "sim/program/program.h"

namespace stepcast {

// How many of Device::spread above the mean the device's time is that sets the pace. With N ranks
// in stages of n, whose kernels take w + s e where their slowest device is e above the mean, the
// period T is where
//   product over the stages of share_below((T - w) / s) ^ n = share_below(highest_of(N)) ^ N
// that is, at the same quantile as the slowest of N devices with equal work; what is asked for is
// the (T - w) / s of the stage that reaches it first. So it is highest_of(N) where all stages have
// the same work, and from about highest_of(n) up where one has more. Transfers are left out: they
// are taken as alike in all stages, and what all have adds to T alone. Kernels weigh as op_cost()
// has them, timed or not. With few micro-batches, where each stage passes at its own slowest,
// equal stages come out a little slow. Cost: linear in the text of the bodies and the calls.
double pace_deviate(const Job& job, const Device& device);

}  // namespace stepcast
