// Arena: the memory of one rank, laid out before the first step.
//
// A Job says when each tensor comes and goes, and every step does the same. So a walk over the
// schedule decides, once, where each Alloc lies (first fit into the lowest gap); running a step
// only takes the next place from the list and never asks the machine for memory. What is counted
// are the tensors' bytes, exactly, as the accounting of a Job counts them; the arena itself is
// larger by alignment and by gaps between tensors that live at different times.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"

namespace stepcast {

struct MemoryPlan {
  std::vector<std::size_t> residents;  // where each lies, in the order of the Program's residents
  std::vector<std::size_t> allocs;     // in the order in which a step issues its Allocs
  std::size_t size = 0;                // bytes of the arena
};

// A cache line, and the widest vector of a CPU. CUDA's memory comes in multiples of 512 bytes, as
// PyTorch's allocator rounds too.
inline constexpr std::size_t kHostAlignment = 64, kCudaAlignment = 512;

// How the places of messages are kept where a send ends only when its receive is under way, as
// NCCL's may: what then waits for a send waits for another rank.
struct MessagePlaces {
  bool apart = false;    // what is received lies behind all else, so that no receive takes the
                         // place of what is still being sent: two neighbours that both send before
                         // they receive would wait for each other
  std::size_t hold = 0;  // what was sent gives its place away after so many more receives only
};

// Places are multiples of `alignment`.
// REQUIRES: verify(job) is "". Cost: Allocs of a step times the live tensors.
MemoryPlan plan_memory(const Job& job, const Program& program,
                       std::size_t alignment = kHostAlignment, MessagePlaces messages = {});

class Arena {
 public:
  // Every page is touched, so that no step pays for it. Throws Error if there is not that much.
  explicit Arena(MemoryPlan plan);
  // Over memory of plan.size bytes that somebody else owns, of the host or of a device: it is
  // never touched.
  Arena(MemoryPlan plan, std::byte* memory);

  std::byte* resident(std::size_t index, const Tensor& tensor);
  // The next Alloc of the step, and its end.
  std::byte* allocate(const Tensor& tensor);
  void free(const Tensor& tensor);
  void begin_step() { next_ = 0; }

  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }
  // Of each category at the (first) peak; sums to peak().
  const std::array<Bytes, kCategories>& at_peak() const { return at_peak_; }
  std::size_t size() const { return plan_.size; }

 private:
  void count(const Tensor& tensor);

  MemoryPlan plan_;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory_;
  std::size_t next_ = 0;
  Bytes live_, peak_;
  std::array<Bytes, kCategories> by_category_ = {}, at_peak_ = {};
};

}  // namespace stepcast
