// A copy is a node of the forward pass like any other, so time, memory and execution follow.
#include "models/stack.h"

#include <algorithm>
#include <utility>

namespace stepcast {

namespace {

// The stack's slice of a value: a value like it.
ValueId add_slice(Differentiated& derived, ValueId id) {
  Value slice = derived.block.values[static_cast<std::size_t>(id)];
  slice.name += ".stack";
  derived.block.values.push_back(std::move(slice));
  derived.saved.push_back(true);
  derived.saved[static_cast<std::size_t>(id)] = false;
  if (!derived.gradient_of.empty()) derived.gradient_of.push_back(kNoValue);
  return static_cast<ValueId>(derived.block.values.size()) - 1;
}

Node copy_of(const Value& value, ValueId from, ValueId to) {
  Node node;
  node.work = Op(copy_op(value));
  node.in = {from};
  node.out = {to};
  node.name = value.name + ".stack";
  return node;
}

Values renamed(const Values& values, ValueId from, ValueId to) {
  Values now;
  for (ValueId v : values) now.add(v == from ? to : v);
  return now;
}

}  // namespace

void stack_saved(Differentiated& derived) {
  std::vector<Node>& nodes = derived.block.nodes;
  const std::size_t values = derived.block.values.size();
  for (std::size_t i = 0; i < values; ++i) {
    const Value value = derived.block.values[i];
    const bool activation = value.kind == ValueKind::kActivation && dtype_size(value.dtype) > 1;
    if (!derived.saved[i] || !activation) continue;
    const auto id = static_cast<ValueId>(i);
    const auto writes = [id](const Node& node) {
      return std::find(node.out.begin(), node.out.end(), id) != node.out.end();
    };
    const auto last = std::find_if(nodes.rbegin(), nodes.rend(), writes);
    const ValueId slice = add_slice(derived, id);
    nodes.insert(last.base(), copy_of(value, id, slice));
    for (Node& node : derived.backward) {
      node.in = renamed(node.in, id, slice);
      node.out = renamed(node.out, id, slice);
    }
  }
}

}  // namespace stepcast
