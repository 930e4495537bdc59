// A walk over the forward products of every kind of block. Linear in the nodes.
#include "models/buffers.h"

#include <algorithm>
#include <utility>

namespace stepcast {

namespace {

// The shapes of the matrices that a forward product multiplies by, each once; of a rank's experts
// that of one, for each has a product of its own.
std::vector<Shape> matrix_shapes(const Network& network, bool head) {
  std::vector<Shape> shapes;
  for (const Block& block : network.kinds) {
    if (!block.numbered && !head) continue;
    for (const Node& node : block.nodes) {
      const auto* op = std::get_if<Op>(&node.work);
      if (op == nullptr || !std::holds_alternative<Gemm>(*op) || node.in.size() < 2) continue;
      const Value* value = &block.values[static_cast<std::size_t>(node.in[1])];
      if (value->original != kNoValue) {  // a copy in 8 bits
        value = &block.values[static_cast<std::size_t>(value->original)];
      }
      if (value->kind != ValueKind::kWeight) continue;
      Shape shape = value->shape;
      if (value->experts > 0) shape.sizes[0] /= value->experts;
      if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
  }
  return shapes;
}

// The shape of what a block's first product of that use makes; rank 0 if there is none.
Shape made_by_product(const Block& block, NodeUse use) {
  for (const Node& node : block.nodes) {
    const auto* op = std::get_if<Op>(&node.work);
    if (op == nullptr || !std::holds_alternative<Gemm>(*op) || node.use != use) continue;
    return block.values[static_cast<std::size_t>(node.out[0])].shape;
  }
  return {};
}

const Block& last_block(const Network& network) {
  return network.kinds[static_cast<std::size_t>(network.chain.back())];
}

// Under sequence parallelism, what each tensor rank has a part of the rows of.
Shape whole_input(const Block& head, const Plan& plan) {
  STEPCAST_CHECK(head.x != kNoValue, "a head has an input");
  Shape whole = head.values[static_cast<std::size_t>(head.x)].shape;
  whole.sizes[0] *= plan.tensor;
  return whole;
}

// The tokens that the ranks of a layer's experts gather; rank 0 if they gather none.
Shape gathered_tokens(const Network& network) {
  Shape shape;
  bool gathers = false;
  for (const Block& block : network.kinds) {
    for (const Node& node : block.nodes) {
      const auto* op = std::get_if<Op>(&node.work);
      if (op == nullptr) continue;
      gathers = gathers || std::holds_alternative<OwnSlots>(*op);
      const auto* permute = std::get_if<Permute>(op);
      if (permute == nullptr || permute->part != PermutePart::kPermute) continue;
      shape = block.values[static_cast<std::size_t>(node.in[0])].shape;
    }
  }
  return gathers ? shape : Shape{};
}

// Scores and what is gathered for the head and the experts take turns in one buffer.
Shape shared_buffer(const Network& network, const Plan& plan, bool head) {
  Shape shape;
  if (plan.score_buffer) {
    for (const Block& block : network.kinds) {
      if (!block.numbered) continue;
      shape = made_by_product(block, NodeUse::kScores);
    }
  }
  if (!plan.gather_buffer) return shape;
  const auto take = [&](const Shape& gathered) {
    if (gathered.rank > 0 && gathered.elements() > shape.elements()) shape = gathered;
  };
  take(gathered_tokens(network));
  if (head && plan.tensor > 1 && plan.sequence_parallel) {
    take(whole_input(last_block(network), plan));
  }
  return shape;
}

class Buffers {
 public:
  explicit Buffers(Tables& tables) : tables_(tables) {}

  void add(std::string_view name, const Shape& shape, Dtype dtype) {
    std::vector<Tensor>& tensors = tables_.job().tensors;
    ids_.push_back(static_cast<TensorId>(tensors.size()));
    tensors.push_back({tables_.label(name), shape, dtype, Category::kBuffers, Scope::kRank});
  }
  std::vector<TensorId> ids() && { return std::move(ids_); }

 private:
  Tables& tables_;
  std::vector<TensorId> ids_;
};

}  // namespace

std::vector<TensorId> framework_buffers(Tables& tables, const Network& network, const Plan& plan,
                                        bool head) {
  Buffers buffers(tables);
  if (plan.kernel_workspace > Bytes(0)) {
    // In the compute type, as all that an executor of this plan carries.
    const std::int64_t size = dtype_size(plan.compute);
    buffers.add("kernel.workspace", {(plan.kernel_workspace.count + size - 1) / size},
                plan.compute);
  }
  if (plan.weight_gradient_placeholders) {
    for (const Shape& shape : matrix_shapes(network, head)) {
      buffers.add("weight.gradient.placeholder", shape, plan.compute);
    }
  }
  const Shape shared = shared_buffer(network, plan, head);
  if (shared.rank > 0) buffers.add("tensor_parallel.buffer", shared, plan.compute);
  return std::move(buffers).ids();
}

std::vector<TensorId> deferred_buffers(Tables& tables, const Network& network, const Plan& plan) {
  Buffers buffers(tables);
  const std::int64_t kept = std::min(plan.deferred_head, plan.micro_batches() - 1);
  if (kept <= 0) return {};
  const Block& head = last_block(network);
  Shape logits = made_by_product(head, NodeUse::kPlain);
  STEPCAST_CHECK(logits.rank == 2 && head.x != kNoValue, "a head makes logits of its input");
  Shape inputs = head.values[static_cast<std::size_t>(head.x)].shape;
  logits.sizes[0] *= kept;
  inputs.sizes[0] *= kept;
  buffers.add("head.deferred.gradients", logits, plan.compute);
  buffers.add("head.deferred.inputs", inputs, plan.compute);
  return std::move(buffers).ids();
}

}  // namespace stepcast
