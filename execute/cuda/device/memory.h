// Memory of the device, or of the host where the device reads it; given back at the end.
#pragma once

#include <cstddef>
#include <memory>

namespace stepcast::cuda {

using DeviceMemory = std::unique_ptr<std::byte, void (*)(std::byte*)>;
// Zeroed. Throws Error where the device has not as much left; `what` needs it.
DeviceMemory device_memory(std::size_t bytes, const char* what);
DeviceMemory pinned_memory(std::size_t bytes);

}  // namespace stepcast::cuda
