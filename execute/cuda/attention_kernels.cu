// Launches of attention, and the scratch of every Op.
#include "execute/cuda/attention_kernels.h"

#include "execute/cuda/kernels.h"
#include "execute/cuda/launch.cuh"

namespace stepcast::cuda {

void launch(const Attention& op, const Work& work, const Launch& at) {
  op_kernels(op, work, scratch_floats(at, attention_scratch_floats(op)),
             [&](const auto& kernel) { launch_kernel(kernel, at.stream); });
}

// No kernel here asks for more on a larger device.
std::size_t scratch_bytes(const Op& op, int /*multiprocessors*/) {
  return static_cast<std::size_t>(op_scratch_floats(op)) * sizeof(float);
}

}  // namespace stepcast::cuda
