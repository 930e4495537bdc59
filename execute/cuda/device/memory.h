// Memory of the device, of the host where the device reads it, and streams, each given back by who
// owns it.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include "execute/cuda/device/library.h"
#include "sim/base/units.h"

namespace stepcast::cuda {

using DeviceMemory = std::unique_ptr<std::byte, void (*)(std::byte*)>;

// Zeroed when this returns. Throws Error that names `what` needs it where there is not that much.
DeviceMemory device_memory(std::size_t bytes, const char* what);
DeviceMemory pinned_memory(std::size_t bytes);
// The same as device_memory, by NCCL, whose communicators can work in it (Groups::register_buffer).
DeviceMemory registrable_memory(std::size_t bytes, const char* what);

// The default stream's work is done: memsets and copies that return before it is, which streams
// that do not block (all of ours) would not wait for.
void settle();

// Bytes that the device has left, by cudaMemGetInfo.
Bytes free_bytes();

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using OwnedStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;

}  // namespace stepcast::cuda
