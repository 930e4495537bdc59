// What no Op names: the sum of the losses of a step.
#include "execute/cuda/launch.cuh"
#include "execute/cuda/update_kernels.h"

namespace stepcast::cuda {

void launch_add_up(const float* values, std::int64_t elements, double* sum, const Launch& at) {
  launch_kernel(AddUp{values, elements, sum}, at.stream);
}

}  // namespace stepcast::cuda
