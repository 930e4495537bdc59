// Without CUDA at hand when this was built, there is only a reason to give.
#include "execute/cuda/cuda_device.h"

namespace stepcast {

#ifndef STEPCAST_CUDA
std::string cuda_missing() {
  return "this stepcast was built without CUDA; install the CUDA toolkit (nvcc, cuBLASLt) and "
         "NCCL, "
         "and build again with --preset cuda";
}
#endif

}  // namespace stepcast
