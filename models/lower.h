// Lowering: a network and a plan become a Job. The only place where a schedule, a buffer's life or
// a message is decided.
//
//   Network network = transformer(model, plan);    // the forward pass, written by a person
//   Job job = lower(network, plan);                // backward derived, state sharded, bodies
//                                                  // scheduled; verify(job) is ""
//
// The order of things on a rank: the schedule's forward and backward calls; then, a chunk at a
// time, what is left of gradient reduction ("settle"); the global gradient norm; the updates.
#pragma once

#include "models/block.h"
#include "models/plan.h"
#include "sim/program/program.h"

namespace stepcast {

// REQUIRES: `plan` is legal for the network (check_plan). Throws Error where the parts of the
// pipeline cannot be laid out. Cost: linear in the text of the distinct bodies, plus the calls.
Job lower(const Network& network, const Plan& plan);

// The ring: a small Job that does the same distinct work as the plan's, for timing it.
//
// Its mesh, tensors, residents and optimizer are the plan's own, so what is cold or warm in the
// plan is so here. But it has three micro-batches at most, and each passes only two layers of each
// chunk (as many as gathers run ahead, if that is more), other ones than the micro-batch before, so
// that all weights' turn comes round. A round ends with the optimizer; from round to round the
// start moves on. Every op, message and collective of lower(network, plan) occurs, in the same
// phase, and nothing else.
Plan ring_plan(const Plan& plan);  // the plan with a ring's micro-batches
// REQUIRES: rounds >= 1. The micro-batches of all rounds bear the same numbers.
Job lower_ring(const Network& network, const Plan& plan, std::int64_t rounds);

}  // namespace stepcast
