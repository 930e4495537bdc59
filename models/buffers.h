// What a framework keeps on a device beside the training state, for as long as it trains: tensors
// that no op reads. Each is a fact of a framework's sources, switched on by a key of the plan:
//
//   weight_gradient_placeholders
//       Transformer Engine, pytorch/module/base.py, get_dummy_wgrad(): where weight gradients are
//       added to the main gradients inside the product, autograd still wants a tensor of the
//       weight's shape; one of each shape is kept. (rows, columns) of the matrices of a layer and
//       of the head (of Megatron-LM since core 0.14), in the compute type.
//   gather_buffer
//       Megatron-LM, core/tensor_parallel/layers.py: what the head gathers under sequence
//       parallelism lies in a buffer that stays. (tokens, hidden) in the compute type, on the stage
//       with the head.
//   kernel_workspace
//       Transformer Engine, get_cublas_workspace_size_bytes(): 32 MiB on Hopper and later, 4 MiB
//       before. One a rank.
#pragma once

#include <vector>

#include "models/block.h"
#include "models/fragment.h"
#include "models/plan.h"

namespace stepcast {

// Adds the tensors of one stage to the Job; `head` is whether it ends the network.
std::vector<TensorId> framework_buffers(Tables& tables, const Network& network, const Plan& plan,
                                        bool head);

}  // namespace stepcast
