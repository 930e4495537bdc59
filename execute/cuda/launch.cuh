// How a kernel value gets onto a stream: its geometry says with how many blocks. Compiled by
// another compiler than nvcc, where tests emulate it, on a stream of theirs.
#pragma once

#include <functional>

#include "execute/cuda/kernels.h"
#include "execute/cuda/lanes.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

inline void check_launch(cudaError_t status) {
  if (status != cudaSuccess) throw Error("cuda", cudaGetErrorString(status));
}

#if defined(__CUDACC__)

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksMin)
    carry_out(const Kernel kernel) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Thread thread{static_cast<int>(threadIdx.x),
                      static_cast<int>(blockDim.x),
                      static_cast<int>(blockIdx.x),
                      static_cast<int>(blockIdx.y),
                      static_cast<int>(blockIdx.z),
                      static_cast<int>(gridDim.x),
                      shared};
  kernel(thread);
}

// Throws Error for what the driver refuses: more shared memory than the device has, say.
template <class Kernel>
void launch_kernel(const Kernel& kernel, cudaStream_t stream) {
  constexpr int kWithoutAsking = 48 * 1024;  // bytes of shared memory
  const Geometry g = kernel.geometry();
  if (g.shared_bytes > kWithoutAsking) {
    check_launch(cudaFuncSetAttribute(carry_out<Kernel>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared_bytes));
  }
  const dim3 grid(static_cast<unsigned>(g.blocks), static_cast<unsigned>(g.blocks_y),
                  static_cast<unsigned>(g.blocks_z));
  carry_out<<<grid, static_cast<unsigned>(g.threads), static_cast<unsigned>(g.shared_bytes),
              stream>>>(kernel);
  check_launch(cudaGetLastError());
}

#else

// In tests/support/fake_cuda/kernels.cc.
cudaError_t launch_on_host(const Geometry& geometry,
                           const std::function<void(const Thread&)>& kernel, cudaStream_t stream);

template <class Kernel>
void launch_kernel(const Kernel& kernel, cudaStream_t stream) {
  check_launch(launch_on_host(
      kernel.geometry(), [kernel](const Thread& t) { kernel(t); }, stream));
  check_launch(cudaGetLastError());
}

#endif

// The scratch of a launch, which must have room for `floats`.
inline float* scratch_floats(const Launch& at, std::int64_t floats) {
  STEPCAST_CHECK(static_cast<std::int64_t>(at.scratch.bytes / sizeof(float)) >= floats,
                 "scratch is as large as scratch_bytes says");
  return static_cast<float*>(at.scratch.data);
}

}  // namespace stepcast::cuda
