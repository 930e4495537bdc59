// EmulatedBlock: runs the kernels of execute/cuda on the host, thread by thread.
//
// Each thread of a block is a fiber. It runs until it must meet the others: at a sync(), a shuffle,
// a matrix load or product; then the next one runs. What a GPU leaves open is chosen against the
// kernel: each warp runs as far ahead of the others as barriers let it, the first warp first or the
// last; asynchronous copies land when they are waited for and no sooner, or at once; shared memory
// begins as NaNs. A kernel that lacks a barrier or a wait gives another result then. One that
// leaves a thread behind at a barrier, or brings a warp's lanes to different meetings, throws.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "execute/cuda/lanes.h"

namespace stepcast::cuda {

enum class WarpOrder : std::uint8_t {
  kUp,    // first warp first, copies late
  kDown,  // last warp first, copies at once
};

struct EmulatedRun {
  std::int64_t meetings = 0;        // of a warp or of a block
  std::int64_t bank_conflicts = 0;  // of matrix loads: rows of one that meet in a bank
};

class EmulationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All blocks of the grid, one after the other. Throws EmulationError.
EmulatedRun emulate(const Geometry& geometry, const std::function<void(const Thread&)>& thread,
                    WarpOrder order = WarpOrder::kUp);

// A kernel as execute/cuda writes them: knows its geometry.
template <class Kernel>
EmulatedRun emulate(const Kernel& kernel, WarpOrder order = WarpOrder::kUp) {
  return emulate(
      kernel.geometry(), [&](const Thread& t) { kernel(t); }, order);
}

}  // namespace stepcast::cuda
