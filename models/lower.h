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

}  // namespace stepcast
