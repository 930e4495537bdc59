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

// Queries, keys and values of the rank's own tokens: all of d_qkv is written.
ValueId Backward::own_attention(const Node& node, const Attention& op) {
  const ValueId d_out = gradient(node.out[0]);
  const ValueId qkv = want(node.in[node.in.size() - 1]);
  const ValueId qk = node.in.size() > 1 ? want(node.in[0]) : kNoValue;
  want(node.out[0]);
  want(node.out[1]);
  const ValueId d_qkv = contribution(qkv);
  push(make(node, ".gradient", backward_of(op), {qk, qkv, node.out[0], node.out[1], d_out},
            {d_qkv}));
  give(node, qkv, d_qkv);
  if (qk != kNoValue) gradient_[static_cast<std::size_t>(qk)] = d_qkv;
  return d_qkv;
}

void Backward::gathered_attention(const Node& node, const Attention& op) {
  const ValueId d_out = gradient(node.out[0]);
  const ValueId kv = want(node.in[node.in.size() - 1]);
  const ValueId qkv = want(node.in[node.in.size() - 2]);
  const ValueId qk = node.in.size() > 2 ? want(node.in[0]) : kNoValue;
  want(node.out[0]);
  want(node.out[1]);
  const ValueId d_qkv = contribution(qkv), d_kv = contribution(kv);
  push(make(node, ".gradient", backward_of(op), {qk, qkv, kv, node.out[0], node.out[1], d_out},
            {d_qkv, d_kv}));
  give(node, qkv, d_qkv);
  give(node, kv, d_kv);
  if (qk != kNoValue) gradient_[static_cast<std::size_t>(qk)] = d_qkv;
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
  const ValueId d_qkv = own_attention(own, op);
  ValueId d_kv = kNoValue;  // on its way home
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Node& node = steps[i];
    const ValueId here = next;
    if (i + 1 < steps.size()) next = shift(own, ".kv.shift", here, block(i + 2));
    const ValueId qkv = own.in[own.in.size() - 1];
    const ValueId qk = own.in.size() > 1 ? own.in[0] : kNoValue;
    const ValueId part = like(kv, ".gradient_" + std::to_string(i + 1));
    push(make(node, ".gradient", backward_of(std::get<Attention>(std::get<Op>(node.work))),
              {qk, qkv, here, out, lse, d_out, d_qkv}, {d_qkv, part}));
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
