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

#include "models/eight_bit.h"

namespace stepcast {

namespace {

class Backward {
 public:
  Backward(const Block& block, const std::vector<Slice>& slices, const BackwardOptions& options)
      : slices_(slices), options_(options) {
    out_.block = block;
    const std::size_t values = block.values.size();
    out_.saved.assign(values, false);
    gradient_.assign(values, kNoValue);
    weight_gradient_.assign(values, kNoValue);
    mark_dropped();
  }

  Differentiated run();

 private:
  void mark_dropped();
  void visit(const Node& node);
  void flush_weight_gradient();

  // The forward value is there when backward comes here: saved, or made again now.
  ValueId want(ValueId value);
  void rerun(std::size_t slice);

  Value& value(ValueId id) { return out_.block.values[static_cast<std::size_t>(id)]; }
  ValueId gradient(ValueId id) const { return gradient_[static_cast<std::size_t>(id)]; }
  ValueId new_value(Value v);
  ValueId like(ValueId id, std::string_view suffix);
  // The buffer of a weight's gradient, made at its first use.
  ValueId weight_gradient(ValueId weight);
  // A weight gradient as it stands in a node's reads: it is read only where it accumulates.
  ValueId read_back(ValueId gradient) const { return options_.accumulate ? gradient : kNoValue; }

  Node make(const Node& forward, std::string_view suffix, Op op, Values in, Values out) const;
  void push(Node node) { out_.backward.push_back(std::move(node)); }
  // Adds a copy of 8 bits to backward; its other copy, too, unless it is to be gathered first.
  ValueId quantize_now(const Node& forward, ValueId gradient, bool gathered);
  void cover_new_values();
  // A fresh value for one more contribution to the gradient of `id`, and its registration once the
  // node that computes it has been pushed.
  ValueId contribution(ValueId id) {
    const ValueId original = value(id).original;
    return like(original == kNoValue ? id : original, ".gradient");
  }
  void add_to(const Node& forward, ValueId id, ValueId more, ValueId sum);
  void give(const Node& forward, ValueId id, ValueId contribution);
  void alias(const Node& forward, ValueId id, ValueId same);

  void rule(const Node& node, const Gemm& op);
  void linear(const Node& node, const Gemm& op);
  ValueId quantized_gradient(const Node& node, ValueId dy);
  ValueId columns_of(const Node& node, ValueId copy, std::string_view suffix);
  void scores(const Node& node, const Gemm& op);
  void context(const Node& node, const Gemm& op);
  void rule(const Node& node, const Attention& op);
  void rule(const Node& node, const Norm& op);
  void rule(const Node& node, const Pointwise& op);
  void rule(const Node& node, const Gather& op);
  void rule(const Node& node, const Loss& op);
  void rule(const Node& node, const Update& op);
  void rule(const Node& node, const Exchange& exchange);
  void unary(const Node& node, const Pointwise& op, PointwiseKind kind, ValueId saved);
  void bias_gradient(const Node& node, const Pointwise& op, ValueId bias, ValueId d);

  const std::vector<Slice>& slices_;
  const BackwardOptions& options_;
  Differentiated out_;
  std::vector<ValueId> gradient_;         // by value
  std::vector<ValueId> weight_gradient_;  // by value
  std::vector<std::int32_t> dropped_;     // by value: its slice, or -1
  std::vector<bool> rerun_;               // by slice
  std::vector<Node> pending_;  // a weight gradient and its copies; waits for an exchange to start
};

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
  return node;
}

// sum = what is known of the gradient of `id` + one more contribution.
void Backward::add_to(const Node& forward, ValueId id, ValueId more, ValueId sum) {
  const Value& v = value(id);
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

ValueId Backward::quantize_now(const Node& forward, ValueId gradient, bool gathered) {
  Quantization what{forward.name + ".gradient", gradient, forward.modules, Phase::kBackward};
  what.both = !gathered;
  what.shared_scale = gathered;
  const ValueId copy = quantize(out_.block, out_.backward, options_.eight_bit, what);
  cover_new_values();
  return copy;
}

// The copy of dy that 8-bit products read; what was gathered in 8 bits is one already.
ValueId Backward::quantized_gradient(const Node& node, ValueId dy) {
  return value(dy).dtype == Dtype::kFp8 ? dy : quantize_now(node, dy, false);
}

// The copy of the same matrix that a weight gradient reads. Where none was made when it was
// quantised (it has been gathered since), it is transposed now.
ValueId Backward::columns_of(const Node& node, ValueId copy, std::string_view suffix) {
  if (value(copy).columns != kNoValue) return value(copy).columns;
  if (!options_.eight_bit.two_copies()) return copy;
  const std::int64_t rows = value(copy).shape.sizes[0], columns = value(copy).shape.sizes[1];
  const ValueId turned = like(copy, ".columns");
  value(turned).shape = {columns, rows};
  const Pointwise op{PointwiseKind::kTranspose, rows, columns, Dtype::kFp8, Dtype::kFp8};
  pending_.push_back(make(node, suffix, op, {copy}, {turned}));
  return turned;
}

// y = x W^T + b:  dx = dy W,  dW = dy^T x,  db = column sums of dy.
void Backward::linear(const Node& node, const Gemm& op) {
  const bool eight_bit = op.dtype == Dtype::kFp8;
  ValueId dy = gradient(node.out[0]);
  ValueId x = node.in[0], w = node.in[1];
  const ValueId input_of = x, weight_of = value(w).original == kNoValue ? w : value(w).original;
  const ValueId b = node.in.size() > 2 ? node.in[2] : kNoValue;
  ValueId dy_columns = dy;
  if (eight_bit) {
    dy = quantized_gradient(node, dy);
    dy_columns = columns_of(node, dy, ".gradient.transpose");
    if (value(w).columns != kNoValue) w = value(w).columns;
    want(w);
    if (value(x).columns != kNoValue) x = value(x).columns;
  }
  want(x);
  if (eight_bit && x == input_of) x = columns_of(node, x, ".input.transpose");
  const ValueId dx = contribution(input_of);
  const Gemm input{op.m,     op.k,      op.n,  1,    GemmRole::kInputGradient,
                   op.dtype, op.output, false, false, op.block_scales};
  push(make(node, ".input_gradient", input, {dy, w}, {dx}));
  give(node, input_of, dx);
  const ValueId dw = weight_gradient(weight_of), db = weight_gradient(b);
  const Gemm weight{op.n, op.k, op.m, 1, GemmRole::kWeightGradient, op.dtype,
                    options_.gradients, options_.accumulate, op.bias, op.block_scales};
  pending_.push_back(make(node, ".weight_gradient", weight,
                          {dy_columns, x, read_back(dw), read_back(db)}, {dw, db}));
}

// S = Q K^T:  dQ = dS K,  dK = dS^T Q, both into their columns of d_qkv.
void Backward::scores(const Node& node, const Gemm& op) {
  const ValueId ds = gradient(node.out[0]);
  const ValueId qkv = node.in[node.in.size() - 1];
  const ValueId qk = node.in.size() > 1 ? node.in[0] : kNoValue;
  const ValueId source = want(qk == kNoValue ? qkv : qk);
  const ValueId d_qkv = gradient(qkv);  // made by the product with the values, which came later
  STEPCAST_CHECK(d_qkv != kNoValue, "scores without a product with the values");
  const Gemm queries{op.m, op.k, op.n, op.batch, GemmRole::kInputGradient, op.dtype, op.output,
                     false, false};
  push(make(node, ".query_gradient", queries, {ds, source, d_qkv}, {d_qkv}));
  const Gemm keys{op.n, op.k, op.m, op.batch, GemmRole::kWeightGradient, op.dtype, op.output,
                  false, false};
  push(make(node, ".key_gradient", keys, {ds, source, d_qkv}, {d_qkv}));
  if (qk != kNoValue) gradient_[static_cast<std::size_t>(qk)] = d_qkv;
}

// O = P V:  dP = dO V^T,  dV = P^T dO.
void Backward::context(const Node& node, const Gemm& op) {
  const ValueId d_out = gradient(node.out[0]);
  const ValueId p = want(node.in[0]), qkv = want(node.in[1]);
  const ValueId dp = contribution(p);
  const Gemm probabilities{op.m, op.k, op.n, op.batch, GemmRole::kInputGradient, op.dtype,
                           op.output, false, false};
  push(make(node, ".probability_gradient", probabilities, {d_out, qkv}, {dp}));
  give(node, p, dp);
  const ValueId d_qkv = contribution(qkv);
  const Gemm values{op.k, op.n, op.m, op.batch, GemmRole::kWeightGradient, op.dtype, op.output,
                    false, false};
  push(make(node, ".value_gradient", values, {p, d_out}, {d_qkv}));
  give(node, qkv, d_qkv);
}

void Backward::rule(const Node& node, const Gemm& op) {
  switch (node.use) {
    case NodeUse::kScores: return scores(node, op);
    case NodeUse::kContext: return context(node, op);
    default: return linear(node, op);
  }
}

void Backward::rule(const Node& node, const Attention& op) {
  const ValueId d_out = gradient(node.out[0]);
  const ValueId qkv = want(node.in[node.in.size() - 1]);
  const ValueId qk = node.in.size() > 1 ? want(node.in[0]) : kNoValue;
  want(node.out[0]);
  want(node.out[1]);
  const ValueId d_qkv = contribution(qkv);
  Attention backward = op;
  backward.pass = Pass::kBackward;
  push(make(node, ".gradient", backward, {qk, qkv, node.out[0], node.out[1], d_out}, {d_qkv}));
  give(node, qkv, d_qkv);
  if (qk != kNoValue) gradient_[static_cast<std::size_t>(qk)] = d_qkv;
}

void Backward::rule(const Node& node, const Norm& op) {
  const ValueId x = want(node.in[0]), w = node.in[1];
  const ValueId b = node.in.size() > 2 ? node.in[2] : kNoValue;
  const ValueId statistics = want(node.out[1]);
  const ValueId dw = weight_gradient(w), db = weight_gradient(b);
  Norm backward = op;
  backward.pass = Pass::kBackward;
  const bool in_place = node.use == NodeUse::kQkNorm;
  const ValueId dy = gradient(node.out[0]);
  const ValueId dx = in_place ? gradient(x) : contribution(x);
  push(make(node, ".gradient", backward, {dy, x, w, statistics, read_back(dw), read_back(db)},
            {dx, dw, db}));
  if (!in_place) give(node, x, dx);
}

void Backward::unary(const Node& node, const Pointwise& op, PointwiseKind kind, ValueId saved) {
  const ValueId dy = gradient(node.out[0]);
  want(saved);
  const ValueId x = node.in[0];
  const ValueId dx = contribution(x);
  Pointwise backward = op;
  backward.kind = kind;
  backward.columns = value(x).shape.elements() / op.rows;  // a gate's input is twice as wide
  push(make(node, ".gradient", backward, {dy, saved}, {dx}));
  give(node, x, dx);
}

void Backward::bias_gradient(const Node& node, const Pointwise& op, ValueId bias, ValueId d) {
  if (bias == kNoValue) return;
  const ValueId db = weight_gradient(bias);
  Pointwise backward{PointwiseKind::kAddRowsBackward, op.rows, op.columns, op.dtype,
                     options_.gradients, false};
  push(make(node, ".bias_gradient", backward, {d, read_back(db)}, {db}));
}

void Backward::rule(const Node& node, const Pointwise& op) {
  const ValueId dy = gradient(node.out[0]);
  switch (op.kind) {
    case PointwiseKind::kAdd:
      alias(node, node.in[0], dy);
      alias(node, node.in[1], dy);
      bias_gradient(node, op, node.in.size() > 2 ? node.in[2] : kNoValue, dy);
      return;
    case PointwiseKind::kAddRows:
      alias(node, node.in[0], dy);
      bias_gradient(node, op, node.in[1], dy);
      return;
    case PointwiseKind::kDropoutAdd: {
      const ValueId mask = want(node.out[1]);
      const ValueId branch = node.in[0];
      const ValueId d = contribution(branch);
      const Pointwise drop{PointwiseKind::kDropoutBackward, op.rows, op.columns, op.dtype,
                           op.output, false};
      push(make(node, ".gradient", drop, {dy, mask}, {d}));
      give(node, branch, d);
      alias(node, node.in[1], dy);
      bias_gradient(node, op, node.in.size() > 2 ? node.in[2] : kNoValue, d);
      return;
    }
    case PointwiseKind::kGelu:
      return unary(node, op, PointwiseKind::kGeluBackward, node.in[0]);
    case PointwiseKind::kSwiglu:
      return unary(node, op, PointwiseKind::kSwigluBackward, node.in[0]);
    case PointwiseKind::kGeglu:
      return unary(node, op, PointwiseKind::kGegluBackward, node.in[0]);
    case PointwiseKind::kDropout:
      return unary(node, op, PointwiseKind::kDropoutBackward, node.out[1]);
    case PointwiseKind::kSoftmax:
      return unary(node, op, PointwiseKind::kSoftmaxBackward, node.out[0]);
    case PointwiseKind::kRotary: {
      Pointwise backward = op;
      backward.kind = PointwiseKind::kRotaryBackward;
      push(make(node, ".gradient", backward, {dy}, {dy}));
      return;
    }
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth:  // rounding is not differentiated
      return alias(node, node.in[0], dy);
    default:
      STEPCAST_CHECK(false, "this op has no place in a forward pass");
  }
}

void Backward::rule(const Node& node, const Gather& op) {
  const ValueId dy = gradient(node.out[0]);
  const ValueId table = weight_gradient(node.in[1]);
  Gather backward = op;
  backward.pass = Pass::kBackward;
  push(make(node, ".gradient", backward, {node.in[0], dy, read_back(table)}, {table}));
}

// The gradient starts here: (probabilities - one-hot) over the number of tokens.
void Backward::rule(const Node& node, const Loss& op) {
  if (op.part != LossPart::kFinish) return;
  const ValueId logits = node.in[0], ids = node.in[3];
  const ValueId probabilities = want(node.out[1]);
  const ValueId d = contribution(logits);
  Loss backward = op;
  backward.part = LossPart::kBackward;
  push(make(node, ".gradient", backward, {probabilities, ids}, {d}));
  give(node, logits, d);
}

void Backward::rule(const Node&, const Update&) {
  STEPCAST_CHECK(false, "an optimizer has no place in a forward pass");
}

void Backward::rule(const Node& node, const Exchange& exchange) {
  Node back = node;
  back.name += ".gradient";
  back.phase = Phase::kBackward;
  switch (exchange.kind) {
    case ExchangeKind::kAllReduce:
      break;  // every rank holds the whole gradient of the sum already
    case ExchangeKind::kEnter: {
      const ValueId d = gradient(node.in[0]);
      back.work = Exchange{ExchangeKind::kAllReduce, Reduction::kSum};
      back.in = back.out = {d};
      push(std::move(back));
      break;
    }
    case ExchangeKind::kAllGather:
    case ExchangeKind::kReduceScatter: {
      ValueId d = gradient(node.out[0]);
      ValueId dx = contribution(node.in[0]);
      if (exchange.eight_bit_gradient) {
        const Shape whole = value(dx).shape;
        d = quantize_now(node, d, true);
        dx = like(d, ".gather");
        value(dx).shape = whole;
      }
      back.work = Exchange{exchange.kind == ExchangeKind::kAllGather ? ExchangeKind::kReduceScatter
                                                                     : ExchangeKind::kAllGather,
                           Reduction::kSum};
      back.in = {d};
      back.out = {dx};
      push(std::move(back));
      give(node, node.in[0], dx);
      break;
    }
  }
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

}  // namespace

Differentiated differentiate(const Block& block, const std::vector<Slice>& slices,
                             const BackwardOptions& options) {
  return Backward(block, slices, options).run();
}

}  // namespace stepcast
