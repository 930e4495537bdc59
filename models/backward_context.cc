// Backward of attention between context ranks (models/context.h). Every block of keys takes the
// gradient of the merged result with the merged log-sum-exp: P = exp(S - lse) are then its shares
// of the whole softmax (FlashAttention's backward, block by block).
//
// Round a ring the blocks go once more, as they went in forward, so that none needs to be kept. The
// gradient of a block follows it one step behind, grows at every rank, and comes home with one
// shift more: c - 1 shifts each, as in NVIDIA/TransformerEngine.
#include "models/backward_rules.h"

#include <string>

namespace stepcast {

Attention Backward::backward_of(const Attention& op) const {
  Attention backward = op;
  backward.pass = Pass::kBackward;
  backward.deterministic = options_.deterministic;
  return backward;
}

// Queries, keys and values of the rank's own tokens. Gives the gradient that holds the queries'.
ValueId Backward::own_attention(const Node& node, const Attention& op) {
  const std::size_t heads = node.in.size() - (op.sinks ? 1 : 0);
  Values in, out;
  for (std::size_t i = 0; i < heads; ++i) in.add(want(node.in[i]));
  for (ValueId v : {want(node.out[0]), want(node.out[1]), gradient(node.out[0])}) in.add(v);
  const bool separate = heads == 3;
  const std::size_t first = separate ? 0 : heads - 1;  // that has its own gradient
  for (std::size_t i = first; i < heads; ++i) out.add(contribution(node.in[i]));
  if (op.sinks) {
    const ValueId d_sinks = weight_gradient(node.in[heads]);
    for (ValueId v : {node.in[heads], read_back(d_sinks)}) in.add(v);
    out.add(d_sinks);
  }
  push(make(node, ".gradient", backward_of(op), in, out));
  for (std::size_t i = first; i < heads; ++i) give(node, node.in[i], out[i - first]);
  if (!separate && first > 0) gradient_[static_cast<std::size_t>(node.in[0])] = out[0];
  return out[0];
}

void Backward::gathered_attention(const Node& node, const Attention& op) {
  Values in;
  for (ValueId v : node.in) in.add(want(v));
  for (ValueId v : {want(node.out[0]), want(node.out[1]), gradient(node.out[0])}) in.add(v);
  const std::size_t heads = node.in.size() - 1;
  const ValueId queries = node.in[heads - 1], kv = node.in[heads];
  const ValueId d_queries = contribution(queries), d_kv = contribution(kv);
  push(make(node, ".gradient", backward_of(op), in, {d_queries, d_kv}));
  give(node, queries, d_queries);
  give(node, kv, d_kv);
  if (heads > 1) gradient_[static_cast<std::size_t>(node.in[0])] = d_queries;
}

// What came home is added to what attention to the rank's own keys has left there, or to the
// zeros beside the queries' gradient; or it is all there is.
void Backward::keys_values(const Node& node, const Pointwise& op) {
  Values in = {gradient(node.out[0])}, out;
  for (ValueId v : node.in) {
    const bool known = gradient(v) != kNoValue;
    const ValueId d = known ? gradient(v) : contribution(v);
    if (!out.empty() && out[0] == d) continue;  // one for queries and keys, and values
    if (known) in.add(d);
    out.add(d);
    if (!known) give(node, v, d);
  }
  Pointwise backward = op;
  backward.kind = PointwiseKind::kKeysValuesBackward;
  push(make(node, ".gradient", backward, in, out));
}

// The block of keys that was passed on to become `next`.
ValueId Backward::passed_on(ValueId next) const {
  for (const Node& node : out_.block.nodes) {
    const bool exchange = std::holds_alternative<Exchange>(node.work);
    if (exchange && node.out.size() == 1 && node.out[0] == next) return node.in[0];
  }
  STEPCAST_CHECK(false, "a block of keys that nobody passed on");
}

ValueId Backward::shift(const Node& like_node, std::string_view suffix, ValueId from, ValueId to) {
  Node node = make(like_node, suffix, Op(), {from}, {to});
  node.work = Exchange{ExchangeKind::kShift, Reduction::kSum, false, Axis::kContext};
  push(std::move(node));
  return to;
}

// `own`: attention to the rank's own keys, which stands first in forward; `ring_` holds the nodes
// of the other steps, last step first.
void Backward::ring(const Node& own, const Attention& op) {
  const std::vector<Node> steps(ring_.rbegin(), ring_.rend());
  ring_.clear();
  const ValueId out = own.out[0], lse = own.out[1], d_out = gradient(out);
  const ValueId kv = want(passed_on(steps.front().in[steps.front().in.size() - 1]));
  const auto block = [&](std::size_t step) {
    return like(kv, "_" + std::to_string(step) + ".again");
  };
  ValueId next = shift(own, ".kv.shift", kv, block(1));
  const ValueId d_queries = own_attention(own, op);
  ValueId d_kv = kNoValue;  // on its way home
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Node& node = steps[i];
    const ValueId here = next;
    if (i + 1 < steps.size()) next = shift(own, ".kv.shift", here, block(i + 2));
    Values in;
    for (std::size_t head = 0; head + 1 < node.in.size(); ++head) in.add(node.in[head]);
    for (ValueId v : {here, out, lse, d_out, d_queries}) in.add(v);
    const ValueId part = like(kv, ".gradient_" + std::to_string(i + 1));
    push(make(node, ".gradient", backward_of(std::get<Attention>(std::get<Op>(node.work))), in,
              {d_queries, part}));
    if (d_kv == kNoValue) {
      d_kv = part;
    } else {
      const Shape& shape = value(kv).shape;
      const Pointwise add{
          PointwiseKind::kAdd, shape.sizes[0], shape.sizes[1], op.dtype, op.dtype, false};
      push(make(node, ".gradient_sum", add, {d_kv, part}, {d_kv}));
    }
    d_kv = shift(own, ".kv_gradient.shift", d_kv, like(kv, ".gradient"));
  }
  give(own, kv, d_kv);
}

}  // namespace stepcast
