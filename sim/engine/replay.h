// Replay: a stage's allocations, in order, through the caching allocator. Internal to sim/engine;
// users call account() of simulate.h.
//
// Two steps are replayed. In the first, as in PyTorch, optimizer state appears with the first
// update (torch.optim), in whatever the forward and backward passes left free; the second is what
// every later step looks like. Before them stand the stage's other residents, one by one. A matrix
// product library takes a workspace when a thread first uses it: the main thread in forward, the
// autograd engine's in backward (aten/src/ATen/cuda/CublasHandlePool.cpp); it comes from the same
// allocator and stays.
//
// Streams. PyTorch allocates on the stream that is current when a tensor is made. That is compute's
// but for what FSDP and the like make on the streams of their collectives: gathered weights and
// reduced gradients (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). So a tensor whose
// first writer is a collective on the data or the replica stream belongs there; all others, the
// results of tensor-parallel collectives and received messages included, to compute.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/allocator.h"
#include "sim/program/program.h"

namespace stepcast {

struct ReplayOptions {
  AllocatorOptions allocator;
  Bytes workspace;           // of one thread
  bool skips = true;         // do not replay calls that repeat what was seen (same results)
};

struct Replay {
  Bytes reserved_peak;       // workspaces included
  Bytes workspaces;
  int retries = 0;           // of the second step: those that recur
  bool exhausted = false;    // the limit does not hold it
  std::int64_t events = 0;   // allocations and frees that were replayed, not skipped
};

// The stream on which each tensor is allocated, by TensorId.
std::vector<Stream> allocation_streams(const Job& job);

// REQUIRES: verify(job) is "". Cost: linear in the text of the bodies that the stage calls plus the
// events of its calls that do not repeat an earlier one.
Replay replay_stage(const Job& job, std::size_t stage, const std::vector<Stream>& streams,
                    const ReplayOptions& options);

}  // namespace stepcast
