// Lanes: what a kernel of this folder may ask of the machine that runs it.
//
// A kernel is a value: a struct of operands whose operator()(const Thread&) is what one thread
// does. nvcc compiles it for the device, where the functions below are CUDA's; any C++20 compiler
// compiles the same lines for the host, where they meet in HostLanes. Tests run whole blocks that
// way, thread by thread (tests/support/emulated_block.h), so the indexing is tested and not only
// the formulas. Nothing here includes a header of CUDA.
//
// A warp is 32 lanes; what says "warp" must be reached by all 32 of them together.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "execute/host_device.h"

namespace stepcast::cuda {

inline constexpr int kWarp = 32;

// Blocks of a grid, threads of a block, bytes of shared memory a block.
struct Geometry {
  int blocks = 1, blocks_y = 1, blocks_z = 1;
  int threads = kWarp;
  int shared_bytes = 0;
};

// One thread of a block (threadIdx.x, blockIdx, blockDim.x, gridDim.x) and the block's shared
// memory, which is aligned to 128 bytes.
struct Thread {
  int thread = 0, threads = 1;
  int block = 0, block_y = 0, block_z = 0;
  int blocks = 1;
  unsigned char* shared = nullptr;

  STEPCAST_HD int lane() const { return thread % kWarp; }
  STEPCAST_HD int warp() const { return thread / kWarp; }
  STEPCAST_HD int warps() const { return threads / kWarp; }
  // Of a grid-stride loop.
  STEPCAST_HD std::int64_t first() const {
    return static_cast<std::int64_t>(block) * threads + thread;
  }
  STEPCAST_HD std::int64_t stride() const { return static_cast<std::int64_t>(blocks) * threads; }
};

enum class Meeting : std::uint8_t { kSync, kShuffle, kLoadMatrices, kMultiply };

// Where the threads of an emulated block meet.
class HostLanes {
 public:
  static constexpr std::size_t kSlotBytes = 32;

  virtual ~HostLanes() = default;
  virtual void sync() = 0;
  // Hands in at most kSlotBytes and returns what all lanes of the warp handed in, kSlotBytes apart;
  // good until the warp meets again twice.
  virtual const unsigned char* gather(Meeting meeting, const void* value, std::size_t bytes) = 0;
  virtual void copy_async(void* to, const void* from, int bytes) = 0;
  virtual void commit_copies() = 0;
  // Until at most `groups` of this thread's groups of copies are on their way.
  virtual void wait_copies(int groups) = 0;
};

inline HostLanes*& host_lanes() {
  static thread_local HostLanes* lanes = nullptr;
  return lanes;
}

// __syncthreads
STEPCAST_HD void sync() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#else
  host_lanes()->sync();
#endif
}

// The value of the lane whose number differs in the bits of `mask`: a float, or 32 bits.
template <class Word>
STEPCAST_HD Word shuffle_xor([[maybe_unused]] const Thread& t, Word value, int mask) {
  static_assert(sizeof(Word) == 4);
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xffffffffu, value, mask);
#else
  const unsigned char* all = host_lanes()->gather(Meeting::kShuffle, &value, sizeof value);
  const auto from = static_cast<std::size_t>(t.lane() ^ mask);
  return *reinterpret_cast<const Word*>(all + from * HostLanes::kSlotBytes);
#endif
}

// Sixteen bytes from global into shared memory without passing registers; zeros where not `valid`
// (then nothing is read). Both addresses are multiples of 16. Seen by this thread after
// wait_copies, by the others after a sync() beyond that.
STEPCAST_HD void copy_async(void* to, const void* from, bool valid) {
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#else
  host_lanes()->copy_async(to, from, valid ? 16 : 0);
#endif
}

STEPCAST_HD void commit_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  host_lanes()->commit_copies();
#endif
}

template <int kGroups>
STEPCAST_HD void wait_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  host_lanes()->wait_copies(kGroups);
#endif
}

// 2^x. On the device ex2.approx: relative error below 2^-22, subnormal results are zero.
STEPCAST_HD float exp2_fast(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

template <class Integer>
STEPCAST_HD Integer ceil_divide(Integer a, Integer b) {
  return (a + b - 1) / b;
}

template <class Number>
STEPCAST_HD Number lesser(Number a, Number b) {
  return b < a ? b : a;
}

template <class Number>
STEPCAST_HD Number greater(Number a, Number b) {
  return a < b ? b : a;
}

}  // namespace stepcast::cuda
