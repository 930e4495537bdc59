// What a framework keeps on a device beside the training state, for as long as it trains: tensors
// that no op reads. Each is a fact of a framework's sources, switched on by a key of the plan:
//
//   weight_gradient_placeholders
//       Transformer Engine, pytorch/module/base.py, get_dummy_wgrad(): where weight gradients are
//       added to the main gradients inside the product, autograd still wants a tensor of the
//       weight's shape; one of each shape is kept. (rows, columns) of the matrices of a layer, of
//       one expert, and of the head (of Megatron-LM since core 0.14), in the compute type.
//   gather_buffer
//       Megatron-LM, core/tensor_parallel/layers.py: what the head gathers under sequence
//       parallelism lies in a buffer that stays. (tokens, hidden) in the compute type, on the stage
//       with the head. So do the tokens that all ranks of the experts gather (core/transformer/moe/
//       token_dispatcher.py: use_global_buffer), on every stage; the larger is kept.
//   score_buffer
//       Megatron-LM, core/transformer/dot_product_attention.py: what its own, unfused attention
//       hands to the product of queries and keys to be added, with factor 0, is a buffer that
//       stays. (heads, sequence, sequence) of a micro-batch in the compute type. It is the one of
//       gather_buffer (GlobalMemoryBuffer, "mpu"): of both the larger is kept.
//   kernel_workspace
//       Transformer Engine, get_cublas_workspace_size_bytes(): 32 MiB on Hopper and later, 4 MiB
//       before. One a rank; where experts' products are a kernel each, another on each of their
//       four streams (get_multi_stream_cublas_workspace).
//
// And what lies on the stage with the head for most of a step:
//   deferred_head
//       Megatron-LM, defer_embedding_wgrad_compute: of that many micro-batches (fewer where the
//       step has no more) the logits' gradients and the head's inputs are kept until the pipeline
//       drains, where the head's weight gradient is made of them. Here they take memory from the
//       first forward to the last backward; the products stay where they were, for the stage does
//       the same work later.
#pragma once

#include <vector>

#include "models/block.h"
#include "models/fragment.h"
#include "models/plan.h"

namespace stepcast {

// Adds the tensors of one stage to the Job; `head` is whether it ends the network.
std::vector<TensorId> framework_buffers(Tables& tables, const Network& network, const Plan& plan,
                                        bool head);

// The tensors of deferred_head, none without it. What a backward pass holds besides those of its
// own micro-batch is counted, so one that is alone keeps nothing.
std::vector<TensorId> deferred_buffers(Tables& tables, const Network& network, const Plan& plan);

}  // namespace stepcast
