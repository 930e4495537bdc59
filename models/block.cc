// Block: values, nodes, and what balancing and sharding ask of them. All linear in the block.
#include "models/block.h"

namespace stepcast {

namespace {

ValueId add_value(Block& block, Value value) {
  block.values.push_back(std::move(value));
  return static_cast<ValueId>(block.values.size()) - 1;
}

}  // namespace

ValueId Block::activation(std::string_view value_name, Shape shape, Dtype dtype) {
  return add_value(*this,
                   {std::string(value_name), shape, dtype, ValueKind::kActivation});
}

ValueId Block::weight(std::string_view value_name, Shape shape, Dtype dtype, bool partial) {
  return add_value(*this, {std::string(value_name), shape, dtype, ValueKind::kWeight, partial});
}

ValueId Block::data(std::string_view value_name, Shape shape, Dtype dtype) {
  return add_value(*this, {std::string(value_name), shape, dtype, ValueKind::kData});
}

void Block::add(std::string_view node_name, Op op, Values in, Values out, std::uint16_t modules,
                NodeUse use) {
  nodes.push_back({op, in, out, std::string(node_name), modules, use, Phase::kForward});
}

void Block::exchange(std::string_view node_name, ExchangeKind kind, Values in, Values out,
                     std::uint16_t modules, Reduction reduction) {
  nodes.push_back({Exchange{kind, reduction}, in, out, std::string(node_name), modules,
                   NodeUse::kPlain, Phase::kForward});
}

void Block::context_exchange(std::string_view node_name, ExchangeKind kind, ValueId in, ValueId out,
                             std::uint16_t modules) {
  exchange(node_name, kind, {in}, {out}, modules);
  std::get<Exchange>(nodes.back().work).axes = Axis::kContext;
}

Pointwise copy_op(const Value& value) {
  const std::int64_t columns = value.shape.sizes[static_cast<std::size_t>(value.shape.rank - 1)];
  return {PointwiseKind::kCast, value.shape.elements() / columns, columns, value.dtype, value.dtype,
          false};
}

Flops forward_flops(const Block& block) {
  Flops sum;
  for (const Node& node : block.nodes) {
    if (const Op* op = std::get_if<Op>(&node.work)) sum += flops(*op);
  }
  return sum;
}

std::int64_t weight_elements(const Block& block) {
  std::int64_t sum = 0;
  for (const Value& value : block.values) {
    if (value.kind == ValueKind::kWeight) sum += value.shape.elements();
  }
  return sum;
}

}  // namespace stepcast
