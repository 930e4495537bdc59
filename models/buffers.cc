// A walk over the forward products of every kind of block. Linear in the nodes.
#include "models/buffers.h"

#include <algorithm>

namespace stepcast {

namespace {

// The shapes of the matrices that a forward product multiplies by, each once.
std::vector<Shape> matrix_shapes(const Network& network, bool head) {
  std::vector<Shape> shapes;
  for (const Block& block : network.kinds) {
    if (!block.numbered && !head) continue;
    for (const Node& node : block.nodes) {
      const auto* op = std::get_if<Op>(&node.work);
      if (op == nullptr || !std::holds_alternative<Gemm>(*op) || node.in.size() < 2) continue;
      const Value& value = block.values[static_cast<std::size_t>(node.in[1])];
      if (value.kind != ValueKind::kWeight) continue;
      if (std::find(shapes.begin(), shapes.end(), value.shape) == shapes.end()) {
        shapes.push_back(value.shape);
      }
    }
  }
  return shapes;
}

}  // namespace

std::vector<TensorId> framework_buffers(Tables& tables, const Network& network, const Plan& plan,
                                        bool head) {
  std::vector<TensorId> ids;
  std::vector<Tensor>& tensors = tables.job().tensors;
  const auto add = [&](std::string_view name, const Shape& shape, Dtype dtype) {
    ids.push_back(static_cast<TensorId>(tensors.size()));
    tensors.push_back({tables.label(name), shape, dtype, Category::kBuffers, Scope::kRank});
  };
  if (plan.kernel_workspace > Bytes(0)) {
    // In the compute type, as all that an executor of this plan carries.
    const std::int64_t size = dtype_size(plan.compute);
    add("kernel.workspace", {(plan.kernel_workspace.count + size - 1) / size}, plan.compute);
  }
  if (plan.weight_gradient_placeholders) {
    for (const Shape& shape : matrix_shapes(network, head)) {
      add("weight.gradient.placeholder", shape, plan.compute);
    }
  }
  if (plan.gather_buffer && head && plan.tensor > 1 && plan.sequence_parallel) {
    const Block& last = network.kinds[static_cast<std::size_t>(network.chain.back())];
    STEPCAST_CHECK(last.x != kNoValue, "a head has an input");
    Shape whole = last.values[static_cast<std::size_t>(last.x)].shape;
    whole.sizes[0] *= plan.tensor;  // its rows are split over the tensor ranks
    add("head.gather.buffer", whole, plan.compute);
  }
  return ids;
}

}  // namespace stepcast
