// One gradient rule a kind of op: which nodes compute the gradients of what it read, and what they
// need again. O(1) each.
#include "models/backward_rules.h"

#include "models/eight_bit.h"
#include "models/fill.h"

namespace stepcast {

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
// quantised (it has been gathered since), it is transposed now, once.
ValueId Backward::columns_of(const Node& node, ValueId copy, std::string_view suffix) {
  if (value(copy).columns != kNoValue) return value(copy).columns;
  if (!options_.eight_bit.two_copies()) return copy;
  if (turned_[static_cast<std::size_t>(copy)] != kNoValue) {
    return turned_[static_cast<std::size_t>(copy)];
  }
  const std::int64_t rows = value(copy).shape.sizes[0], columns = value(copy).shape.sizes[1];
  const ValueId turned = like(copy, ".columns");
  value(turned).shape = {columns, rows};
  const Pointwise op{PointwiseKind::kTranspose, rows, columns, Dtype::kFp8, Dtype::kFp8};
  pending_.push_back(make(node, suffix, op, {copy}, {turned}));
  turned_[static_cast<std::size_t>(copy)] = turned;
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
  const Gemm input{op.m,     op.k,      op.n,  op.batch, GemmRole::kInputGradient,
                   op.dtype, op.output, false, false,    op.block_scales,
                   op.grouped};
  push(make(node, ".input_gradient", input, {dy, w}, {dx}));
  give(node, input_of, dx);
  const ValueId dw = weight_gradient(weight_of), db = weight_gradient(b);
  const Gemm weight{op.n, op.k, op.m, op.batch, GemmRole::kWeightGradient, op.dtype,
                    options_.gradients, options_.accumulate, op.bias, op.block_scales, op.grouped};
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
  switch (op.source) {
    case KeySource::kOwn:
      if (!ring_.empty()) return ring(node, op);
      own_attention(node, op);
      return;
    case KeySource::kGathered: return gathered_attention(node, op);
    case KeySource::kPassed: return ring_.push_back(node);  // until the rank's own comes
  }
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

// y = p f(x), of experts.
void Backward::weighted(const Node& node, const Pointwise& op, PointwiseKind kind) {
  const ValueId dy = gradient(node.out[0]);
  const ValueId x = want(node.in[0]), p = want(node.in[1]);
  const ValueId dx = contribution(x), dp = contribution(p);
  Pointwise backward = op;
  backward.kind = kind;
  backward.columns = value(x).shape.elements() / op.rows;  // a gate's input is twice as wide
  push(make(node, ".gradient", backward, {dy, x, p}, {dx, dp}));
  give(node, x, dx);
  give(node, p, dp);
}

// Of one tensor that holds gate and up, or of two.
void Backward::gate(const Node& node, const Pointwise& op, PointwiseKind kind) {
  if (op.weighted) return weighted(node, op, kind);
  if (node.in.size() == 1) return unary(node, op, kind, node.in[0]);
  const ValueId dy = gradient(node.out[0]);
  const ValueId gate = want(node.in[0]), up = want(node.in[1]);
  const ValueId d_gate = contribution(gate), d_up = contribution(up);
  Pointwise backward = op;
  backward.kind = kind;
  backward.columns = 2 * op.columns;
  push(make(node, ".gradient", backward, {dy, gate, up}, {d_gate, d_up}));
  give(node, gate, d_gate);
  give(node, up, d_up);
}

void Backward::unary(const Node& node, const Pointwise& op, PointwiseKind kind, ValueId saved) {
  const ValueId dy = gradient(node.out[0]);
  want(saved);
  const ValueId x = node.in[0];
  const ValueId dx = contribution(x);
  Pointwise backward = op;
  backward.kind = kind;
  backward.columns = value(x).shape.elements() / op.rows;  // a gate's input is twice as wide
  backward.scores = false;                                 // of dropout: the mask tells all
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

// y = x + p b, of experts.
void Backward::expert_bias(const Node& node, const Pointwise& op) {
  const ValueId dy = gradient(node.out[0]);
  const ValueId bias = node.in[1], p = want(node.in[2]);
  const ValueId db = weight_gradient(bias), dp = contribution(p);
  Pointwise backward = op;
  backward.kind = PointwiseKind::kAddExpertBiasBackward;
  backward.output = options_.gradients;
  push(make(node, ".gradient", backward, {dy, bias, p, read_back(db)}, {db, dp}));
  give(node, p, dp);
  alias(node, node.in[0], dy);
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
      if (op.weighted) return weighted(node, op, PointwiseKind::kGeluBackward);
      return unary(node, op, PointwiseKind::kGeluBackward, node.in[0]);
    case PointwiseKind::kSwiglu:
      return gate(node, op, PointwiseKind::kSwigluBackward);
    case PointwiseKind::kGeglu:
      return gate(node, op, PointwiseKind::kGegluBackward);
    case PointwiseKind::kSwigluOai:
      return gate(node, op, PointwiseKind::kSwigluOaiBackward);
    case PointwiseKind::kAddExpertBias: return expert_bias(node, op);
    case PointwiseKind::kDropout:
      return unary(node, op, PointwiseKind::kDropoutBackward, node.out[1]);
    case PointwiseKind::kSoftmax:
      return unary(node, op, PointwiseKind::kSoftmaxBackward, node.out[0]);
    case PointwiseKind::kRotary: {
      Pointwise backward = op;
      backward.kind = PointwiseKind::kRotaryBackward;
      push(make(node, ".gradient", backward, {dy}, {dy}));  // no one else reads it unrotated
      if (node.in[0] != node.out[0]) give(node, node.in[0], dy);
      return;
    }
    case PointwiseKind::kScale: {
      const ValueId d = contribution(node.in[0]);
      push(make(node, ".gradient", op, {dy}, {d}));
      return give(node, node.in[0], d);
    }
    case PointwiseKind::kMask: {  // autograd's masked_fill of a copy
      const ValueId d = like(dy, ".masked");
      const Pointwise copy{PointwiseKind::kCast, op.rows, op.columns, op.dtype, op.dtype, false};
      push(make(node, ".gradient.copy", copy, {dy}, {d}));
      Pointwise backward = op;
      backward.kind = PointwiseKind::kMaskBackward;
      push(make(node, ".gradient", backward, {d}, {d}));
      gradient_[static_cast<std::size_t>(node.in[0])] = d;
      return;
    }
    case PointwiseKind::kCast: {
      const ValueId d = contribution(node.in[0]);
      const Dtype from = value(dy).dtype, to = value(d).dtype;  // 16 bits of an 8-bit copy
      const Pointwise back{PointwiseKind::kCast, op.rows, op.columns, from, to, false};
      push(make(node, ".gradient", back, {dy}, {d}));
      give(node, node.in[0], d);
      return;
    }
    case PointwiseKind::kKeysValues: return keys_values(node, op);
    case PointwiseKind::kMergeAttention:  // each part's rule takes the merged result
      gradient_[static_cast<std::size_t>(node.in[2])] = dy;
      return;
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

// The gradient starts here: (probabilities - one-hot) over the number of tokens. Where the
// probabilities overwrote the logits, their gradient overwrites them in turn.
void Backward::rule(const Node& node, const Loss& op) {
  if (op.part != LossPart::kFinish) return;
  const ValueId logits = node.in[0], ids = node.in[3];
  const ValueId probabilities = want(node.out[1]);
  const bool in_place = probabilities == logits;
  const ValueId d = in_place ? logits : contribution(logits);
  ValueId likelihood = kNoValue;
  if (options_.likelihood_gradient) {
    likelihood = like(probabilities, ".gradient");
    const Pointwise zeros = fill_of(out_.block.values[static_cast<std::size_t>(likelihood)].shape,
                                    op.statistics);
    push(make(node, ".likelihood_gradient", zeros, {}, {likelihood}));
  }
  Loss backward = op;
  backward.part = LossPart::kBackward;
  push(make(node, ".gradient", backward, {probabilities, ids, likelihood}, {d}));
  give(node, logits, d);
}

void Backward::rule(const Node&, const Update&) {
  STEPCAST_CHECK(false, "an optimizer has no place in a forward pass");
}

// Which experts are chosen has no gradient, their weights have.
void Backward::rule(const Node& node, const Route& op) {
  const ValueId weights = want(node.out[0]), slots = want(node.out[1]);
  const ValueId d = contribution(node.in[0]);
  Route backward = op;
  backward.pass = Pass::kBackward;
  push(make(node, ".gradient", backward, {gradient(weights), weights, slots}, {d}));
  give(node, node.in[0], d);
}

void Backward::rule(const Node& node, const Permute& op) {
  const bool forth = op.part == PermutePart::kPermute;
  const ValueId x = node.in[0], slots = want(node.in[1]);
  const ValueId weights = op.weighted ? node.in[2] : kNoValue;
  const ValueId dx = contribution(x);
  const ValueId dw = op.weighted ? contribution(weights) : kNoValue;
  const ValueId dp = op.weighted ? gradient(node.out[1]) : kNoValue;
  Permute backward = op;
  backward.part = forth ? PermutePart::kUnpermute : PermutePart::kPermute;
  push(make(node, ".gradient", backward, {gradient(node.out[0]), slots, dp}, {dx, dw}));
  give(node, x, dx);
  if (op.weighted) give(node, weights, dw);
}

void Backward::rule(const Node&, const OwnSlots&) {}  // which rows go where has no gradient

void Backward::rule(const Node& node, const Regroup& op) {
  const ValueId dx = contribution(node.in[0]);
  Regroup backward = op;
  std::swap(backward.outer, backward.inner);
  if (op.order == Regrouping::kToSequence) backward.order = Regrouping::kToRanks;
  if (op.order == Regrouping::kToRanks) backward.order = Regrouping::kToSequence;
  push(make(node, ".gradient", backward, {gradient(node.out[0])}, {dx}));
  give(node, node.in[0], dx);
}

void Backward::rule(const Node& node, const ShareHeads& op) {
  const ValueId dx = contribution(node.in[0]);
  ShareHeads backward = op;
  backward.back = !op.back;
  push(make(node, ".gradient", backward, {gradient(node.out[0])}, {dx}));
  give(node, node.in[0], dx);
}

void Backward::rule(const Node& node, const LatentKeys& op) {
  const ValueId kv = node.in[0], shared = node.in[1];
  const ValueId d_kv = contribution(kv), d_shared = contribution(shared);
  LatentKeys backward = op;
  backward.pass = Pass::kBackward;
  push(make(node, ".gradient", backward, {gradient(node.out[0]), gradient(node.out[1])},
            {d_kv, d_shared}));
  give(node, kv, d_kv);
  give(node, shared, d_shared);
}

ValueId Backward::copied(const Node& node, ValueId d) {
  const ValueId copy = like(d, ".copy");
  push(make(node, ".gradient.copy", copy_op(value(d)), {d}, {copy}));
  return copy;
}

void Backward::rule(const Node& node, const Exchange& exchange) {
  Node back = node;
  back.name += ".gradient";
  back.phase = Phase::kBackward;
  switch (exchange.kind) {
    case ExchangeKind::kShift:
      STEPCAST_CHECK(false, "the gradients of a ring are its attention's business");
      break;
    case ExchangeKind::kAllReduce:
      break;  // every rank holds the whole gradient of the sum already
    case ExchangeKind::kAllToAll: {
      const ValueId dx = contribution(node.in[0]);
      back.work = exchange;
      back.in = {gradient(node.out[0])};
      back.out = {dx};
      push(std::move(back));
      give(node, node.in[0], dx);
      break;
    }
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
      if (exchange.copied_gradient) d = copied(node, d);
      if (exchange.eight_bit_gradient) {
        const Shape whole = value(dx).shape;
        d = quantize_now(node, d, true);
        dx = like(d, ".gather");
        value(dx).shape = whole;
      }
      back.work = Exchange{exchange.kind == ExchangeKind::kAllGather ? ExchangeKind::kReduceScatter
                                                                     : ExchangeKind::kAllGather,
                           Reduction::kSum, false, exchange.axes};
      back.in = {d};
      back.out = {dx};
      push(std::move(back));
      give(node, node.in[0], dx);
      break;
    }
  }
}

}  // namespace stepcast
