// Reverse-mode differentiation over a straight list of nodes. Nodes are visited last to first; each
// rule appends the nodes that compute the gradients of what its node read. A value that several
// nodes read gets the sum of their contributions: the second contribution is computed into a value
// of its own and the first is added to it in place.
//
// Order matters for overlap, not for meaning: of a linear layer, the input gradient comes first,
// then the exchange that it feeds, then the weight gradient, which runs beside that exchange. A
// gather that the weight gradient needs again is issued before the input gradient for the same
// reason (Megatron-LM's asynchronous tensor-parallel backward).
#include "models/backward.h"

#include <algorithm>
#include <utility>

#include "models/backward_rules.h"

namespace stepcast {

// A slice drops what it writes, except what is read outside it (unless it discards its outputs
// too).
void Backward::mark_dropped() {
  const Block& block = out_.block;
  dropped_.assign(block.values.size(), -1);
  rerun_.assign(slices_.size(), false);
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    for (std::int32_t n = slices_[s].first; n < slices_[s].last; ++n) {
      for (ValueId v : block.nodes[static_cast<std::size_t>(n)].out) {
        dropped_[static_cast<std::size_t>(v)] = static_cast<std::int32_t>(s);
      }
    }
    if (slices_[s].discard_output) continue;
    for (std::int32_t n = 0; n < static_cast<std::int32_t>(block.nodes.size()); ++n) {
      if (n >= slices_[s].first && n < slices_[s].last) continue;
      for (ValueId v : block.nodes[static_cast<std::size_t>(n)].in) {
        auto& slice = dropped_[static_cast<std::size_t>(v)];
        if (slice == static_cast<std::int32_t>(s)) slice = -1;
      }
    }
  }
}

ValueId Backward::want(ValueId id) {
  if (id == kNoValue || value(id).kind != ValueKind::kActivation) return id;
  const std::int32_t slice = dropped_[static_cast<std::size_t>(id)];
  if (slice < 0) {
    out_.saved[static_cast<std::size_t>(id)] = true;
  } else {
    rerun(static_cast<std::size_t>(slice));
  }
  return id;
}

void Backward::rerun(std::size_t slice) {
  if (rerun_[slice]) return;
  rerun_[slice] = true;
  const auto inside = [&](ValueId id) {
    return dropped_[static_cast<std::size_t>(id)] == static_cast<std::int32_t>(slice);
  };
  // Inputs first: they may have to be made again themselves.
  std::vector<ValueId> made;
  for (std::int32_t n = slices_[slice].first; n < slices_[slice].last; ++n) {
    const Node& node = out_.block.nodes[static_cast<std::size_t>(n)];
    for (ValueId v : node.in) {
      if (std::find(made.begin(), made.end(), v) == made.end()) want(v);
    }
    made.insert(made.end(), node.out.begin(), node.out.end());
  }
  // What stayed must not be overwritten while others may hold it: a kept output is made again into
  // a value of its own, under which the rest of the slice reads it.
  std::vector<std::pair<ValueId, ValueId>> renamed;
  const auto name_now = [&](ValueId id) {
    for (const auto& [before, now] : renamed) {
      if (before == id) return now;
    }
    return id;
  };
  for (std::int32_t n = slices_[slice].first; n < slices_[slice].last; ++n) {
    Node again = out_.block.nodes[static_cast<std::size_t>(n)];
    again.phase = again.modules & kModuleLate ? Phase::kBackward : Phase::kRecompute;
    Values ins, outs;
    for (ValueId v : again.in) ins.add(name_now(v));
    for (ValueId v : again.out) {
      if (!inside(v) && name_now(v) == v) renamed.emplace_back(v, like(v, ".again"));
      outs.add(name_now(v));
    }
    again.in = ins;
    again.out = outs;
    push(std::move(again));
  }
}

void Backward::cover_new_values() {
  const std::size_t values = out_.block.values.size();
  out_.saved.resize(values, false);
  gradient_.resize(values, kNoValue);
  weight_gradient_.resize(values, kNoValue);
  turned_.resize(values, kNoValue);
  dropped_.resize(values, -1);
}

ValueId Backward::new_value(Value v) {
  out_.block.values.push_back(std::move(v));
  cover_new_values();
  return static_cast<ValueId>(out_.block.values.size()) - 1;
}

ValueId Backward::like(ValueId id, std::string_view suffix) {
  Value v = value(id);
  v.name += suffix;
  v.kind = ValueKind::kActivation;
  v.partial = false;
  v.shared.clear();
  v.cut = Cut::kWhole;
  v.parts = {};
  v.experts = 0;
  v.original = v.columns = kNoValue;
  return new_value(std::move(v));
}

ValueId Backward::weight_gradient(ValueId weight) {
  if (weight == kNoValue) return kNoValue;
  if (weight_gradient_[static_cast<std::size_t>(weight)] == kNoValue) {
    Value v = value(weight);
    v.name += ".gradient";
    v.kind = ValueKind::kGradient;
    v.dtype = options_.gradients;
    v.columns = kNoValue;
    const ValueId id = new_value(std::move(v));
    weight_gradient_[static_cast<std::size_t>(weight)] = id;
  }
  return weight_gradient_[static_cast<std::size_t>(weight)];
}

Node Backward::make(const Node& forward, std::string_view suffix, Op op, Values in,
                    Values out) const {
  Node node = forward;
  node.work = op;
  node.in = in;
  node.out = out;
  node.name += suffix;
  node.phase = Phase::kBackward;
  node.read = HostRead::kNone;  // known from forward
  return node;
}

// sum = what is known of the gradient of `id` + one more contribution.
void Backward::add_to(const Node& forward, ValueId id, ValueId more, ValueId sum) {
  const ValueId original = value(id).original;  // of an 8-bit copy
  const Value& v = value(original == kNoValue ? id : original);
  const std::int64_t columns = v.shape.sizes[static_cast<std::size_t>(v.shape.rank - 1)];
  const Pointwise add{PointwiseKind::kAdd, v.shape.elements() / columns, columns, v.dtype, v.dtype,
                      false};
  push(make(forward, ".gradient_sum", add, {gradient(id), more}, {sum}));
}

void Backward::give(const Node& forward, ValueId id, ValueId contribution) {
  if (gradient(id) != kNoValue) add_to(forward, id, contribution, contribution);
  gradient_[static_cast<std::size_t>(id)] = contribution;
}

// The gradient of `id` is (also) the value `same`, which others hold: a sum goes elsewhere.
void Backward::alias(const Node& forward, ValueId id, ValueId same) {
  ValueId known = same;
  if (gradient(id) != kNoValue) {
    known = contribution(id);
    add_to(forward, id, same, known);
  }
  gradient_[static_cast<std::size_t>(id)] = known;
}

void Backward::flush_weight_gradient() {
  for (Node& node : pending_) push(std::move(node));
  pending_.clear();
}

void Backward::visit(const Node& node) {
  const bool exchange = std::holds_alternative<Exchange>(node.work);
  const auto* op = std::get_if<Op>(&node.work);
  const bool starts = op != nullptr && std::holds_alternative<Loss>(*op);
  const bool enters = exchange && node.out.empty();
  const ValueId written = enters ? node.in[0] : node.out[0];
  if (!starts && gradient(written) == kNoValue) return;  // nobody asks for it
  // A weight gradient goes behind the exchange that its input gradient feeds, if one comes next.
  if (!exchange) flush_weight_gradient();
  if (exchange) {
    rule(node, std::get<Exchange>(node.work));
    flush_weight_gradient();
  } else {
    std::visit([&](const auto& o) { rule(node, o); }, *op);
  }
}

Differentiated Backward::run() {
  const std::vector<Node> forward = out_.block.nodes;  // backward only appends values
  if (out_.block.y != kNoValue) {
    out_.dy = gradient_[static_cast<std::size_t>(out_.block.y)] =
        like(out_.block.y, ".gradient");
  }
  for (auto node = forward.rbegin(); node != forward.rend(); ++node) visit(*node);
  flush_weight_gradient();
  if (out_.block.x != kNoValue) {
    out_.dx = gradient(out_.block.x);
    STEPCAST_CHECK(out_.dx != kNoValue && out_.dx != out_.dy, "a block must change its input");
  }
  STEPCAST_CHECK(out_.block.y == kNoValue || !out_.saved[static_cast<std::size_t>(out_.block.y)],
                 "a block's output belongs to the next block");
  out_.gradient_of = weight_gradient_;
  return std::move(out_);
}

Differentiated differentiate(const Block& block, const std::vector<Slice>& slices,
                             const BackwardOptions& options) {
  return Backward(block, slices, options).run();
}

}  // namespace stepcast
