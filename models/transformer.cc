// The layers follow Megatron-LM (Shoeybi et al. 2019; Korthikanti et al. 2022): the first matrix of
// each half is split by columns, the second by rows, so that one exchange enters and one leaves.
// Without sequence parallelism these are f (backward all-reduce) and g (forward all-reduce); with
// it, an all-gather and a reduce-scatter of the same volume, and everything between two halves is
// split by tokens.
//
// With 8-bit products (Plan::eight_bit) the products of a layer's weights read quantised copies.
// Under sequence parallelism it is the shard that is quantised, and the copy that is gathered.
#include "models/transformer.h"

#include "models/context.h"
#include "models/eight_bit.h"

namespace stepcast {

namespace {

using Parts = std::array<std::int64_t, kPartsMax>;

class Writer {
 public:
  Writer(const Model& model, const Plan& plan, std::string_view name)
      : model_(model),
        plan_(plan),
        tokens_(plan.tokens()),
        rows_(plan.sequence_parallel ? tokens_ / plan.tensor : tokens_),
        hidden_(model.hidden),
        split_(plan.tensor > 1),
        scattered_(split_ && plan.sequence_parallel) {
    block_.name = name;
  }

  Block embedding();
  Block layer();
  Block head();

 private:
  ValueId act(std::string_view name, Shape shape) {
    return block_.activation(name, shape, plan_.compute);
  }
  ValueId weight(std::string_view name, Shape shape, bool partial = false) {
    return block_.weight(name, shape, plan_.compute, partial);
  }
  ValueId cut_weight(std::string_view name, Shape shape, Cut cut, Parts parts = {}) {
    const ValueId id = weight(name, shape);
    Value& value = block_.values[static_cast<std::size_t>(id)];
    value.cut = cut;
    value.parts = parts;
    return id;
  }
  ValueId table_weight();
  // A gradient scaled in blocks is needed in two copies of 8 bits: 16 bits are no more.
  bool crosses_in_eight_bits() const {
    return plan_.eight_bit.on() && !plan_.eight_bit.blocks();
  }

  ValueId norm(std::string_view name, ValueId x, std::uint16_t modules);
  // Before a matrix split by columns: the value that all tensor ranks see, with all tokens.
  ValueId enter(std::string_view name, ValueId x, std::uint16_t modules);
  // After a matrix split by rows: sums the ranks' parts.
  ValueId leave(std::string_view name, ValueId partial, std::uint16_t modules,
                bool eight_bit_gradient = false);
  // What the product `name` reads of x: of a matrix split by columns (it enters) or by rows.
  ValueId input(std::string_view name, ValueId x, std::uint16_t modules, Cut cut);
  ValueId gathered_input(std::string_view name, ValueId x, std::uint16_t modules);
  // What it reads of its weight.
  ValueId weight_read(std::string_view name, ValueId w, std::uint16_t modules);
  // x enters, or is a part already. Split by rows of its matrix (of each part packed in it), or by
  // columns; then without bias.
  ValueId linear(std::string_view name, ValueId x, std::int64_t in, std::int64_t out, bool bias,
                 std::uint16_t modules, Cut cut, Parts parts = {});
  ValueId residual(std::string_view name, ValueId branch, ValueId x, bool bias,
                   std::uint16_t modules);
  ValueId attention(ValueId x);
  ValueId attention_core(ValueId qk, ValueId qkv);
  ValueId softmax(ValueId scores);
  ValueId unfused_core(ValueId qk, ValueId qkv);
  ValueId mlp(ValueId x);

  const Model& model_;
  const Plan& plan_;
  const std::int64_t tokens_;  // s b / context
  const std::int64_t rows_;    // of what lies between the halves
  const std::int64_t hidden_;
  const bool split_;
  const bool scattered_;
  Block block_;
};

ValueId Writer::table_weight() {
  ValueId table = cut_weight(
      "embedding.weight", {padded_vocabulary(model_, plan_) / plan_.tensor, hidden_}, Cut::kRows);
  if (model_.tied_embeddings) {
    block_.values[static_cast<std::size_t>(table)].shared = "embedding.weight";
  }
  return table;
}

ValueId Writer::norm(std::string_view name, ValueId x, std::uint16_t modules) {
  const std::string base(name);
  const bool layer_norm = model_.norm == NormKind::kLayer;
  ValueId w = weight(base + ".weight", {hidden_}, scattered_);
  ValueId b = layer_norm ? weight(base + ".bias", {hidden_}, scattered_) : kNoValue;
  ValueId y = act(base + ".out", {rows_, hidden_});
  ValueId statistics = block_.activation(base + ".statistics", {rows_, layer_norm ? 2 : 1},
                                         Dtype::kFp32);
  Norm op{Pass::kForward, model_.norm, rows_, hidden_, plan_.compute};
  block_.add(name, op, {x, w, b}, {y, statistics}, modules);
  return y;
}

ValueId Writer::enter(std::string_view name, ValueId x, std::uint16_t modules) {
  if (!split_) return x;
  if (!scattered_) {
    block_.exchange(name, ExchangeKind::kEnter, {x}, {}, modules);
    return x;
  }
  ValueId full = act(name, {tokens_, hidden_});
  block_.exchange(name, ExchangeKind::kAllGather, {x}, {full},
                  static_cast<std::uint16_t>(modules | kModuleGather));
  return full;
}

ValueId Writer::leave(std::string_view name, ValueId partial, std::uint16_t modules,
                      bool eight_bit_gradient) {
  if (!split_) return partial;
  if (!scattered_) {
    block_.exchange(name, ExchangeKind::kAllReduce, {partial}, {partial}, modules);
    return partial;
  }
  ValueId shard = act(name, {rows_, hidden_});
  block_.exchange(name, ExchangeKind::kReduceScatter, {partial}, {shard}, modules);
  std::get<Exchange>(block_.nodes.back().work).eight_bit_gradient = eight_bit_gradient;
  return shard;
}

ValueId Writer::input(std::string_view name, ValueId x, std::uint16_t modules, Cut cut) {
  const bool enters = cut == Cut::kRows && split_;  // of the weight's rows: of the output's columns
  const std::string gather = std::string(name) + ".gather";
  if (!plan_.eight_bit.on()) return enters ? enter(gather, x, modules) : x;
  if (enters && scattered_) return gathered_input(name, x, modules);
  const auto again = static_cast<std::uint16_t>(modules | kModuleQuantize);
  const ValueId copy = quantize(block_, block_.nodes, plan_.eight_bit,
                                {std::string(name) + ".input", x, again});
  if (enters) block_.exchange(gather, ExchangeKind::kEnter, {copy}, {}, modules);
  return copy;
}

// One scale a tensor: the gathered copy is transposed where backward reads it so (backward.cc).
// Scaled in blocks: backward gathers the shards of the other copy.
ValueId Writer::gathered_input(std::string_view name, ValueId x, std::uint16_t modules) {
  const EightBit& eight_bit = plan_.eight_bit;
  Quantization what{std::string(name) + ".input", x,
                    static_cast<std::uint16_t>(modules | kModuleQuantize)};
  what.both = eight_bit.blocks();
  what.shared_scale = true;
  const ValueId shard = quantize(block_, block_.nodes, eight_bit, what);
  const ValueId original = act(what.name, {tokens_, hidden_});  // never there: what the copies mean
  const auto gather = [&](std::string_view suffix, ValueId part, std::uint16_t more) {
    Value value = block_.values[static_cast<std::size_t>(part)];
    value.name = what.name + std::string(suffix);
    value.shape = eight_bit_shape(eight_bit, tokens_, hidden_, false);
    value.original = original;
    value.columns = kNoValue;
    block_.values.push_back(value);
    const auto whole = static_cast<ValueId>(block_.values.size()) - 1;
    block_.exchange(std::string(name) + std::string(suffix), ExchangeKind::kAllGather, {part},
                    {whole}, static_cast<std::uint16_t>(modules | kModuleGather | more));
    return whole;
  };
  const ValueId whole = gather(".gather", shard, 0);
  const ValueId shard_columns = block_.values[static_cast<std::size_t>(shard)].columns;
  if (shard_columns != kNoValue) {
    const ValueId columns = gather(".gather_columns", shard_columns, kModuleLate);
    block_.values[static_cast<std::size_t>(whole)].columns = columns;
  }
  return whole;
}

// Whole weights have copies that last a step. Gathered ones are quantised when they have arrived:
// in forward as it reads them, in backward as that does.
ValueId Writer::weight_read(std::string_view name, ValueId w, std::uint16_t modules) {
  const EightBit& eight_bit = plan_.eight_bit;
  if (!eight_bit.on()) return w;
  const bool streams = plan_.effective_zero() == 3;
  const std::string base = std::string(name) + ".weight";
  const auto value = [&](ValueId id) -> Value& {
    return block_.values[static_cast<std::size_t>(id)];
  };
  std::vector<Node>& nodes = streams ? block_.nodes : block_.prepare;
  const ValueKind kind = streams ? ValueKind::kActivation : ValueKind::kCopy;
  const auto again = static_cast<std::uint16_t>(modules | (streams ? kModuleGather : 0));
  const auto late = static_cast<std::uint16_t>(again | (streams ? kModuleLate : 0));
  if (eight_bit.weights) {
    if (!eight_bit.two_copies()) return w;
    const Shape turned = {value(w).shape.sizes[1], value(w).shape.sizes[0]};
    block_.values.push_back({base + ".fp8_columns", turned, Dtype::kFp8, kind});
    const auto columns = static_cast<ValueId>(block_.values.size()) - 1;
    value(columns).original = w;
    value(w).columns = columns;
    const Pointwise op{PointwiseKind::kTranspose, turned.sizes[1], turned.sizes[0], Dtype::kFp8,
                       Dtype::kFp8};
    nodes.push_back({Op(op), {w}, {columns}, base + ".transpose", late, NodeUse::kPlain,
                     Phase::kForward});
    return w;
  }
  Quantization what{base, w, again};
  what.kind = kind;
  what.both = !streams;
  const ValueId copy = quantize(block_, nodes, eight_bit, what);
  if (streams && eight_bit.two_copies()) {
    what.name += ".columns";
    what.modules = late;
    const ValueId columns = quantize(block_, nodes, eight_bit, what);
    value(copy).columns = columns;
  }
  return copy;
}

ValueId Writer::linear(std::string_view name, ValueId x, std::int64_t in, std::int64_t out,
                       bool bias, std::uint16_t modules, Cut cut, Parts parts) {
  const std::string base(name);
  ValueId entered = input(name, x, modules, cut);
  ValueId w = cut_weight(base + ".weight", {out, in}, cut, parts);
  if (plan_.eight_bit.weights) block_.values[static_cast<std::size_t>(w)].dtype = Dtype::kFp8;
  ValueId b = bias ? cut_weight(base + ".bias", {out}, cut, parts) : kNoValue;
  ValueId read = weight_read(name, w, modules);
  ValueId y = act(base + ".out", {tokens_, out});
  Gemm op{tokens_, out, in, 1, GemmRole::kForward, plan_.product(), plan_.compute, false, bias};
  op.block_scales = plan_.eight_bit.blocks();
  block_.add(name, op, {entered, read, b}, {y}, modules);
  return y;
}

// x + branch, with dropout on the branch where the model trains with it. The bias of a matrix split
// by rows must be added once, after the sum over ranks: here, fused as Megatron fuses it.
ValueId Writer::residual(std::string_view name, ValueId branch, ValueId x, bool bias,
                         std::uint16_t modules) {
  const std::string base(name);
  ValueId b = bias ? weight(base + ".bias", {hidden_}, scattered_) : kNoValue;
  ValueId y = act(base + ".out", {rows_, hidden_});
  if (plan_.dropout) {
    ValueId mask = block_.activation(base + ".mask", {rows_, hidden_}, Dtype::kUint8);
    Pointwise op{PointwiseKind::kDropoutAdd, rows_, hidden_, plan_.compute, plan_.compute, false};
    block_.add(name, op, {branch, x, b}, {y, mask}, modules);
  } else {
    Pointwise op{PointwiseKind::kAdd, rows_, hidden_, plan_.compute, plan_.compute, false};
    block_.add(name, op, {branch, x, b}, {y}, modules);
  }
  return y;
}

// Where Megatron-LM has no fused kernel (softmax_is_fused), its forward_torch_softmax: in fp32
// `input.float() * scale` there, in the compute type without a scale in Megatron-Core; then
// masked_fill_, torch.nn.Softmax, and the copy back of what was in fp32.
ValueId Writer::softmax(ValueId scores) {
  constexpr std::uint8_t kCore = kModuleAttentionCore | kModuleAttention;
  const Shape shape = block_.values[static_cast<std::size_t>(scores)].shape;
  const bool fused = softmax_is_fused(plan_, model_);
  const bool scaled = !fused && plan_.softmax == SoftmaxKernels::kMegatron;
  const Dtype inner = scaled ? Dtype::kFp32 : plan_.compute;
  Pointwise op{PointwiseKind::kCast, shape.sizes[0], shape.sizes[1], plan_.compute, inner, false};
  const auto step = [&](PointwiseKind kind, std::string_view name) {
    const std::string whole = "attention.softmax" + std::string(name);
    const ValueId out = block_.activation(whole, shape, op.output);
    op.kind = kind;
    block_.add(whole, op, {scores}, {out}, kCore);
    scores = out;
    op.dtype = op.output;
  };
  if (inner != plan_.compute) step(PointwiseKind::kCast, ".wide");
  if (scaled) step(PointwiseKind::kScale, ".scaled");
  if (!fused) {
    op.kind = PointwiseKind::kMask;
    block_.add("attention.softmax.mask", op, {scores}, {scores}, kCore);
  }
  op.causal = fused;
  step(PointwiseKind::kSoftmax, "");
  op.causal = false;
  op.output = plan_.compute;
  if (inner != plan_.compute) step(PointwiseKind::kCast, ".narrow");
  return scores;
}

// Scores, softmax and their product with the values, each kept: what attention costs without a
// fused kernel. Heads that share a key-value head are rows of one batched product.
ValueId Writer::unfused_core(ValueId qk, ValueId qkv) {
  const std::int64_t s = plan_.sequence_length;
  const std::int64_t heads = model_.heads / plan_.tensor;
  const std::int64_t groups = model_.kv_heads / plan_.tensor;
  const std::int64_t batch = plan_.micro_batch * groups;
  const std::int64_t query_rows = s * (heads / groups);
  const std::int64_t score_rows = plan_.micro_batch * heads * s;
  constexpr std::uint8_t kCore = kModuleAttentionCore | kModuleAttention;

  ValueId scores = act("attention.scores", {score_rows, s});
  Gemm product{query_rows, s, model_.head_dim, batch, GemmRole::kForward,
               plan_.compute, plan_.compute, false, false};
  block_.add("attention.scores", product, {qk, qkv}, {scores}, kCore, NodeUse::kScores);

  ValueId probabilities = softmax(scores);
  if (plan_.dropout) {
    ValueId mask = block_.activation("attention.mask", {score_rows, s}, Dtype::kUint8);
    ValueId dropped = act("attention.dropout", {score_rows, s});
    Pointwise drop{PointwiseKind::kDropout, score_rows, s, plan_.compute, plan_.compute, false};
    drop.scores = true;
    block_.add("attention.dropout", drop, {probabilities}, {dropped, mask}, kCore);
    probabilities = dropped;
  }
  ValueId out = act("attention.out", {tokens_, heads * model_.head_dim});
  Gemm context{query_rows, model_.head_dim, s, batch, GemmRole::kForward,
               plan_.compute, plan_.compute, false, false};
  block_.add("attention.context", context, {probabilities, qkv}, {out}, kCore, NodeUse::kContext);
  return out;
}

ValueId Writer::attention_core(ValueId qk, ValueId qkv) {
  if (!plan_.fused_attention) return unfused_core(qk, qkv);
  const std::int64_t s = plan_.attended() / plan_.context;
  const std::int64_t heads = model_.heads / plan_.tensor;
  ValueId out = act("attention.out", {tokens_, heads * model_.head_dim});
  ValueId lse = block_.activation("attention.lse", {plan_.documents(), heads, s}, Dtype::kFp32);
  Attention op{Pass::kForward, plan_.documents(), heads, model_.kv_heads / plan_.tensor,
               s, s, model_.head_dim, true, plan_.dropout, plan_.compute};
  if (plan_.context > 1) {
    context_attention(block_, plan_, op, {qk, qkv, out, lse});
    return out;
  }
  block_.add("attention", op, {qk, qkv}, {out, lse}, kModuleAttentionCore | kModuleAttention);
  return out;
}

ValueId Writer::attention(ValueId x) {
  const std::int64_t query_width = model_.query_width() / plan_.tensor;
  const std::int64_t kv_width = model_.kv_width() / plan_.tensor;
  const std::int64_t rotated_width = query_width + kv_width;
  ValueId qkv = linear("qkv", x, hidden_, query_width + 2 * kv_width, model_.qkv_bias,
                       kModuleAttention, Cut::kRows, {query_width, kv_width, kv_width});
  constexpr std::uint16_t kQkv = kModuleAttention | kModuleQkv;
  block_.nodes.back().modules |= kModuleQkv;  // the product alone, not how its input came here
  ValueId qk = kNoValue;
  if (model_.qk_norm) {
    const std::int64_t rows = tokens_ * (rotated_width / model_.head_dim);
    // Every tensor rank normalises its own heads with the same weight: its gradient is partial.
    ValueId w = weight("qk_norm.weight", {2, model_.head_dim}, split_);
    qk = act("qk_norm.out", {tokens_, rotated_width});
    ValueId statistics = block_.activation("qk_norm.statistics", {rows}, Dtype::kFp32);
    Norm op{Pass::kForward, NormKind::kRms, rows, model_.head_dim, plan_.compute};
    block_.add("qk_norm", op, {qkv, w}, {qk, statistics}, kQkv, NodeUse::kQkNorm);
  }
  if (model_.rotary) {
    ValueId target = qk == kNoValue ? qkv : qk;
    Pointwise op{PointwiseKind::kRotary, tokens_, rotated_width, plan_.compute, plan_.compute,
                 false, model_.head_dim};
    block_.add("rotary", op, {target}, {target}, kQkv);
  }
  ValueId core = attention_core(qk, qkv);
  constexpr std::uint16_t kProjection = kModuleAttention | kModuleProjection;
  ValueId out = linear("proj", core, query_width, hidden_, false, kProjection, Cut::kColumns);
  return leave("proj.reduce", out, kProjection, crosses_in_eight_bits());
}

ValueId Writer::mlp(ValueId x) {
  const std::int64_t width = model_.ffn / plan_.tensor;
  const Parts branches = {width, model_.gated() ? width : 0};
  ValueId up = linear("fc1", x, hidden_, model_.gated() ? 2 * width : width, model_.mlp_bias,
                      kModuleMlp, Cut::kRows, branches);
  block_.nodes.back().modules |= kModuleUp;  // the product alone, not how its input came here
  PointwiseKind kind = PointwiseKind::kGelu;
  if (model_.activation == Activation::kSwiglu) kind = PointwiseKind::kSwiglu;
  if (model_.activation == Activation::kGeglu) kind = PointwiseKind::kGeglu;
  ValueId active = act("activation.out", {tokens_, width});
  Pointwise op{kind, tokens_, width, plan_.compute, plan_.compute, false};
  block_.add("activation", op, {up}, {active}, kModuleActivation | kModuleMlp);
  ValueId down = linear("fc2", active, width, hidden_, false, kModuleMlp, Cut::kColumns);
  return leave("fc2.reduce", down, kModuleMlp, crosses_in_eight_bits());
}

Block Writer::layer() {
  ValueId x = block_.x = act("x", {rows_, hidden_});
  ValueId branch = attention(norm("norm1", x, kModuleNorm));
  if (model_.post_norms) branch = norm("post_norm1", branch, kModuleNorm);
  ValueId middle = residual("attention.add", branch, x, model_.attention_output_bias,
                            kModuleProjection);
  branch = mlp(norm("norm2", middle, kModuleNorm));
  if (model_.post_norms) branch = norm("post_norm2", branch, kModuleNorm);
  block_.y = residual("mlp.add", branch, middle, model_.mlp_bias, kModuleNone);
  return std::move(block_);
}

Block Writer::embedding() {
  block_.numbered = false;
  ValueId ids = block_.data("ids", {tokens_}, Dtype::kInt64);
  ValueId table = table_weight();
  ValueId y = act("embedding.out", {tokens_, hidden_});
  Gather lookup{Pass::kForward, tokens_, hidden_, padded_vocabulary(model_, plan_) / plan_.tensor,
                plan_.compute, plan_.gradients};
  block_.add("embedding", lookup, {ids, table}, {y});
  y = leave("embedding.reduce", y, kModuleNone);
  if (model_.learned_positions) {
    ValueId positions = weight("positions.weight", {model_.positions, hidden_}, scattered_);
    ValueId sum = act("positions.out", {rows_, hidden_});
    Pointwise op{PointwiseKind::kAddRows, rows_, hidden_, plan_.compute, plan_.compute, false};
    block_.add("positions", op, {y, positions}, {sum});
    y = sum;
  }
  if (plan_.dropout) {
    ValueId dropped = act("embedding.dropout", {rows_, hidden_});
    ValueId mask = block_.activation("embedding.mask", {rows_, hidden_}, Dtype::kUint8);
    Pointwise op{PointwiseKind::kDropout, rows_, hidden_, plan_.compute, plan_.compute, false};
    block_.add("embedding.dropout", op, {y}, {dropped, mask});
    y = dropped;
  }
  block_.y = y;
  return std::move(block_);
}

// Final norm, logits, and the cross-entropy of a vocabulary split over tensor ranks: maximum and
// sums are reduced between its parts, three numbers a token instead of all logits.
Block Writer::head() {
  block_.numbered = false;
  ValueId x = block_.x = act("x", {rows_, hidden_});
  const std::int64_t vocabulary = padded_vocabulary(model_, plan_) / plan_.tensor;
  ValueId in = enter("head.gather", norm("final_norm", x, kModuleNone), kModuleNone);
  ValueId table = model_.tied_embeddings
                      ? table_weight()
                      : cut_weight("head.weight", {vocabulary, hidden_}, Cut::kRows);
  ValueId logits = act("head.logits", {tokens_, vocabulary});
  Gemm product{tokens_, vocabulary, hidden_, 1, GemmRole::kForward,
               plan_.compute, plan_.compute, false, false};
  block_.add("head", product, {in, table}, {logits});

  ValueId ids = block_.data("targets", {tokens_}, Dtype::kInt64);
  ValueId maximum = block_.activation("loss.maximum", {tokens_}, Dtype::kFp32);
  ValueId sums = block_.activation("loss.sums", {tokens_, 2}, Dtype::kFp32);
  ValueId loss = block_.activation("loss.out", {tokens_}, Dtype::kFp32);
  Loss part{LossPart::kMaximum, tokens_, vocabulary, plan_.compute, Dtype::kFp32};
  if (plan_.loss == CrossEntropy::kMegatronFused) {
    ValueId copy = block_.activation("loss.logits", {tokens_, vocabulary}, Dtype::kFp32);
    Pointwise cast{PointwiseKind::kCast, tokens_, vocabulary, plan_.compute, Dtype::kFp32, false};
    block_.add("loss.copy", cast, {logits}, {copy});
    logits = copy;
    part.dtype = Dtype::kFp32;
  }
  ValueId probabilities = logits;
  if (plan_.loss == CrossEntropy::kTransformerEngine) {
    part.statistics = plan_.compute;
  } else {
    probabilities = block_.activation("loss.probabilities", {tokens_, vocabulary}, Dtype::kFp32);
  }
  block_.add("loss.maximum", part, {logits}, {maximum});
  if (split_) {
    block_.exchange("loss.maximum.reduce", ExchangeKind::kAllReduce, {maximum}, {maximum},
                    kModuleNone, Reduction::kMaximum);
  }
  part.part = LossPart::kSums;
  block_.add("loss.sums", part, {logits, ids, maximum}, {sums});
  if (split_) block_.exchange("loss.sums.reduce", ExchangeKind::kAllReduce, {sums}, {sums});
  part.part = LossPart::kFinish;
  block_.add("loss.finish", part, {logits, maximum, sums, ids}, {loss, probabilities});
  return std::move(block_);
}

}  // namespace

Network transformer(const Model& model, const Plan& plan) {
  Network network;
  network.vocabulary = model.vocabulary;
  network.kinds.push_back(Writer(model, plan, "embedding").embedding());
  network.kinds.push_back(Writer(model, plan, "layer").layer());
  network.kinds.push_back(Writer(model, plan, "head").head());
  network.chain.push_back(0);
  network.chain.insert(network.chain.end(), static_cast<std::size_t>(model.layers), 1);
  network.chain.push_back(2);
  return network;
}

}  // namespace stepcast
