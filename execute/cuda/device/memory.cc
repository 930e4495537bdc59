// A thin layer over cudaMalloc and cudaHostAlloc.
#include "execute/cuda/device/memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast::cuda {

DeviceMemory device_memory(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status != cudaSuccess) {
    cudaGetLastError();  // it was heard
    throw Error("cuda", fmt::format("{} needs {} bytes, the GPU has {} left; use a smaller "
                                    "micro-batch, more recomputation or more ranks",
                                    what, bytes, free_bytes().count));
  }
  DeviceMemory owned(static_cast<std::byte*>(memory), [](std::byte* m) { cudaFree(m); });
  check(cudaMemset(memory, 0, bytes), "cudaMemset");
  settle();
  return owned;
}

DeviceMemory pinned_memory(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault),
        "cudaHostAlloc");
  return {static_cast<std::byte*>(memory), [](std::byte* m) { cudaFreeHost(m); }};
}

void settle() { check(cudaStreamSynchronize(nullptr), "the default stream"); }

Bytes free_bytes() {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return Bytes(static_cast<std::int64_t>(free));
}

}  // namespace stepcast::cuda
