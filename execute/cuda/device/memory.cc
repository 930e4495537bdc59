// A thin layer over cudaMalloc, cudaHostAlloc and ncclMemAlloc.
#include "execute/cuda/device/memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

[[noreturn]] void throw_too_much(std::size_t bytes, const char* what) {
  cudaGetLastError();  // it was heard
  throw Error("cuda", fmt::format("{} needs {} bytes, the GPU has {} left; use a smaller "
                                  "micro-batch, more recomputation or more ranks",
                                  what, bytes, free_bytes().count));
}

DeviceMemory zeroed(void* memory, std::size_t bytes, void (*give_back)(std::byte*)) {
  DeviceMemory owned(static_cast<std::byte*>(memory), give_back);
  check(cudaMemset(memory, 0, bytes), "cudaMemset");
  settle();
  return owned;
}

}  // namespace

DeviceMemory device_memory(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status != cudaSuccess) throw_too_much(bytes, what);
  return zeroed(memory, bytes, [](std::byte* m) { cudaFree(m); });
}

// NVLink Sharp reads and writes in place only what ncclMemAlloc made (NCCL's user guide, "User
// buffer registration").
DeviceMemory registrable_memory(std::size_t bytes, const char* what) {
  if (!nccl().registers()) {
    throw Error("--register-buffers",
                "this NCCL registers no buffers; 2.19 and later do, or leave it out");
  }
  void* memory = nullptr;
  const ncclResult_t status = nccl().ncclMemAlloc(&memory, std::max<std::size_t>(bytes, 1));
  if (status == ncclUnhandledCudaError) throw_too_much(bytes, what);
  check(status, "ncclMemAlloc");
  return zeroed(memory, bytes, [](std::byte* m) { nccl().ncclMemFree(m); });
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
