// What a machine has: asked of the CUDA runtime, which says so without a driver too.
#include <cuda_runtime_api.h>

#include <string>

#include "execute/cuda/cuda_device.h"

namespace stepcast {

std::string cuda_missing() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  // The runtime has no driver to ask: libcuda.so.1 comes with it.
  if (status == cudaErrorInsufficientDriver) {
    return "no NVIDIA driver is loaded here, or it is older than the CUDA runtime that this "
           "stepcast was built with; run it on a machine with a GPU";
  }
  return std::string("no GPU is found here (") + cudaGetErrorString(status) +
         "); run it on a machine with one, and look at CUDA_VISIBLE_DEVICES";
}

}  // namespace stepcast
