// Places: where the tensors of a GPU's rank lie, so that no rank ever waits for itself.
//
// NCCL promises of a send no more than that it ends once its receive is under way: a rendezvous.
// A tensor that takes the place of one that is being sent then waits for the neighbour, and the
// neighbour perhaps for this rank. The Job knows nothing of places, so verify() cannot see this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "execute/arena.h"
#include "execute/cuda/fences.h"
#include "sim/program/program.h"

namespace stepcast::cuda {

// Launches after which the host waits for those before: a stream holds about a thousand, events
// among them, and whoever fills it waits in the driver, deaf to ranks that have failed.
inline constexpr std::int64_t kLaunchesAhead = 128;

struct StagePlaces {
  MemoryPlan memory;
  std::vector<Fence> fences;
};

// How many instructions of a step never begin where every send is a rendezvous, and the host of
// each rank issues nothing before the kernel that many Computes back has ended. One rank of each
// stage stands for all. REQUIRES: verify(job) is "", ahead > 0. Cost: linear in the step.
std::size_t stuck_instructions(const Job& job, const std::vector<StagePlaces>& places,
                               std::size_t ahead);

// Of one stage, with so many receives held (MessagePlaces).
StagePlaces place_stage(const Job& job, const Program& program, std::size_t hold);

// Of each stage, with the least places held (MessagePlaces) with which all ranks get to the end,
// even if each host waits for every kernel. Throws Error where there are none: stages that wait
// until what they sent has left, by the plan itself, and never come to their receives.
std::vector<StagePlaces> plan_places(const Job& job);

}  // namespace stepcast::cuda
