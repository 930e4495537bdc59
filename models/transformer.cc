// The layers follow Megatron-LM (Shoeybi et al. 2019; Korthikanti et al. 2022): the first matrix of
// each half is split by columns, the second by rows, so that one exchange enters and one leaves.
// Without sequence parallelism these are f (backward all-reduce) and g (forward all-reduce); with
// it, an all-gather and a reduce-scatter of the same volume, and everything between two halves is
// split by tokens.
#include "models/transformer.h"

#include <map>
#include <utility>

#include "models/context.h"
#include "models/transformer_writer.h"

namespace stepcast {

ValueId TransformerWriter::table_weight() {
  ValueId table = cut_weight(
      "embedding.weight", {padded_vocabulary(model_, plan_) / plan_.tensor, hidden_}, Cut::kRows);
  if (model_.tied_embeddings) {
    block_.values[static_cast<std::size_t>(table)].shared = "embedding.weight";
  }
  return table;
}

ValueId TransformerWriter::norm(std::string_view name, ValueId x, std::uint16_t modules) {
  const std::string base(name);
  const bool layer_norm = model_.norm == NormKind::kLayer;
  const std::int64_t columns = block_.values[static_cast<std::size_t>(x)].shape.sizes[1];
  ValueId w = weight(base + ".weight", {columns}, scattered_);
  ValueId b = layer_norm ? weight(base + ".bias", {columns}, scattered_) : kNoValue;
  ValueId y = act(base + ".out", {rows_, columns});
  ValueId statistics = block_.activation(base + ".statistics", {rows_, layer_norm ? 2 : 1},
                                         Dtype::kFp32);
  Norm op{Pass::kForward, model_.norm, rows_, columns, plan_.compute};
  block_.add(name, op, {x, w, b}, {y, statistics}, modules);
  return y;
}

ValueId TransformerWriter::enter(std::string_view name, ValueId x, std::uint16_t modules,
                                 bool several) {
  if (!split_) return x;
  if (!scattered_) {
    block_.exchange(name, ExchangeKind::kEnter, {x}, {}, modules);
    return x;
  }
  ValueId full =
      act(name, {tokens_, block_.values[static_cast<std::size_t>(x)].shape.sizes[1]});
  if (plan_.gather_again) modules |= kModuleGather;
  block_.exchange(name, ExchangeKind::kAllGather, {x}, {full}, modules);
  copy_gradient(several);
  return in_order(name, full, modules);
}

void TransformerWriter::copy_gradient(bool several) {
  const bool in_pieces = plan_.batch_first && plan_.tensor_pieces > 1 && block_.numbered;
  std::get<Exchange>(block_.nodes.back().work).copied_gradient = in_pieces && several;
}

// PyTorch's functional collectives work along the first dimension. Of activations (batch, sequence,
// hidden) they take the second by a copy: of the parts that a gather has put one after the other,
// or into such parts, which are then reduced and scattered.
ValueId TransformerWriter::in_order(std::string_view name, ValueId x, std::uint16_t modules) {
  const bool whole = plan_.tensor_pieces == 1 || !block_.numbered;
  if (!plan_.batch_first || !whole) return x;
  const std::string copy = std::string(name) + ".copy";
  Value value = block_.values[static_cast<std::size_t>(x)];
  value.name = copy;
  block_.values.push_back(value);
  const auto y = static_cast<ValueId>(block_.values.size()) - 1;
  block_.add(copy, copy_op(value), {x}, {y}, modules);
  return y;
}

ValueId TransformerWriter::leave(std::string_view name, ValueId partial, std::uint16_t modules,
                                 bool eight_bit_gradient) {
  if (!split_) return partial;
  if (!scattered_) {
    block_.exchange(name, ExchangeKind::kAllReduce, {partial}, {partial}, modules);
    return partial;
  }
  ValueId shard = act(name, {rows_, hidden_});
  partial = in_order(name, partial, modules);
  block_.exchange(name, ExchangeKind::kReduceScatter, {partial}, {shard}, modules);
  std::get<Exchange>(block_.nodes.back().work).eight_bit_gradient = eight_bit_gradient;
  return shard;
}

// x + branch, with dropout on the branch where the model trains with it. The bias of a matrix split
// by rows must be added once, after the sum over ranks: here, fused as Megatron fuses it.
ValueId TransformerWriter::residual(std::string_view name, ValueId branch, ValueId x, bool bias,
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
ValueId TransformerWriter::softmax(ValueId scores) {
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
ValueId TransformerWriter::unfused_core(const Values& heads_read) {
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
  block_.add("attention.scores", product, heads_read, {scores}, kCore, NodeUse::kScores);

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
  const ValueId qkv = heads_read[heads_read.size() - 1];
  block_.add("attention.context", context, {probabilities, qkv}, {out}, kCore, NodeUse::kContext);
  return out;
}

ValueId TransformerWriter::attention_core(Values heads_read) {
  if (!plan_.fused_attention) return unfused_core(heads_read);
  const std::int64_t s = plan_.attended() / plan_.context;
  const std::int64_t heads = model_.heads / plan_.tensor;
  ValueId out = act("attention.out", {tokens_, model_.result_width() / plan_.tensor});
  const std::int64_t shares = plan_.shares_heads() ? plan_.context : 1;
  ValueId lse = block_.activation(
      "attention.lse", {plan_.documents(), heads / shares, s * shares}, Dtype::kFp32);
  Attention op{Pass::kForward, plan_.documents(), heads, model_.kv_heads / plan_.tensor,
               s, s, model_.head_dim, true, plan_.dropout, plan_.compute};
  if (model_.latent()) op.value_dim = model_.value_dim;
  op.window = window_;
  op.sinks = model_.attention_sinks;
  if (op.sinks) heads_read.add(cut_weight("attention.sinks", {heads}, Cut::kRows));
  if (plan_.context > 1) {
    context_attention(block_, plan_, op, {heads_read, out, lse});
    return out;
  }
  block_.add("attention", op, heads_read, {out, lse}, kModuleAttentionCore | kModuleAttention);
  return out;
}

// Of the first `width` columns of x, in place where y is x.
ValueId TransformerWriter::rotary(std::string_view name, ValueId x, ValueId y, std::int64_t width) {
  Pointwise op{PointwiseKind::kRotary, tokens_, width, plan_.compute, plan_.compute, false,
               model_.head_dim};
  op.scale = model_.rotary_attention_factor;
  block_.add(name, op, {x}, {y}, kModuleAttention | kModuleQkv);
  return y;
}

Values TransformerWriter::packed_heads(ValueId x) {
  const std::int64_t query_width = model_.query_width() / plan_.tensor;
  const std::int64_t kv_width = model_.kv_width() / plan_.tensor;
  const std::int64_t rotated_width = query_width + kv_width;
  ValueId qkv = linear("qkv", x, hidden_, query_width + 2 * kv_width, model_.qkv_bias,
                       kModuleAttention, Cut::kRows, {query_width, kv_width, kv_width});
  block_.nodes.back().modules |= kModuleQkv;  // the product alone, not how its input came here
  ValueId qk = kNoValue;
  if (model_.qk_norm) {
    const std::int64_t rows = tokens_ * (rotated_width / model_.head_dim);
    // Every tensor rank normalises its own heads with the same weight: its gradient is partial.
    ValueId w = weight("qk_norm.weight", {2, model_.head_dim}, split_);
    qk = act("qk_norm.out", {tokens_, rotated_width});
    ValueId statistics = block_.activation("qk_norm.statistics", {rows}, Dtype::kFp32);
    Norm op{Pass::kForward, NormKind::kRms, rows, model_.head_dim, plan_.compute};
    block_.add("qk_norm", op, {qkv, w}, {qk, statistics}, kModuleAttention | kModuleQkv,
               NodeUse::kQkNorm);
  }
  const ValueId target = qk == kNoValue ? qkv : qk;
  if (model_.rotary) rotary("rotary", target, target, rotated_width);
  return {qk, qkv};
}

// As Hugging Face's and Meta's models have them: three matrices, which read one input.
Values TransformerWriter::separate_heads(ValueId x) {
  const ValueId entered = input("qkv", x, kModuleAttention, Cut::kRows, true);
  const auto one = [&](std::string_view name, std::int64_t heads) {
    const ValueId y = product(name, entered, hidden_, heads * model_.head_dim, model_.qkv_bias,
                              kModuleAttention, Cut::kRows);
    block_.nodes.back().modules |= kModuleQkv;
    return y;
  };
  const auto turned = [&](const std::string& name, ValueId y, std::int64_t heads) {
    const std::int64_t width = heads * model_.head_dim;
    if (model_.qk_norm) {
      ValueId w = weight(name + "_norm.weight", {model_.head_dim}, split_);
      const ValueId in = y;
      y = act(name + "_norm.out", {tokens_, width});
      ValueId statistics =
          block_.activation(name + "_norm.statistics", {tokens_ * heads, 1}, Dtype::kFp32);
      Norm op{Pass::kForward, NormKind::kRms, tokens_ * heads, model_.head_dim, plan_.compute};
      block_.add(name + "_norm", op, {in, w}, {y, statistics}, kModuleAttention | kModuleQkv);
    }
    if (!model_.rotary) return y;
    return rotary(name + ".rotary", y, act(name + ".rotary.out", {tokens_, width}), width);
  };
  const std::int64_t heads = model_.heads / plan_.tensor, groups = model_.kv_heads / plan_.tensor;
  const ValueId q = one("q", heads), k = one("k", groups), v = one("v", groups);
  const ValueId q_turned = turned("q", q, heads), k_turned = turned("k", k, groups);
  return {q_turned, k_turned, v};
}

ValueId TransformerWriter::attention(ValueId x) {
  const Values heads = model_.latent()    ? latent_heads(x)
                       : plan_.fused_qkv ? packed_heads(x)
                                         : separate_heads(x);
  ValueId core = attention_core(heads);
  constexpr std::uint16_t kProjection = kModuleAttention | kModuleProjection;
  ValueId out = linear("proj", core, model_.result_width() / plan_.tensor, hidden_, false,
                       kProjection, Cut::kColumns);
  return leave("proj.reduce", out, kProjection, crosses_in_eight_bits());
}

// The MLP's first product, or both: of the gate, of what it gates.
Values TransformerWriter::up(std::string_view prefix, ValueId x, std::int64_t ffn) {
  const std::int64_t width = ffn / plan_.tensor;
  const std::string base(prefix);
  const auto mark = [&](ValueId y) {
    block_.nodes.back().modules |= kModuleUp;  // the product alone, not how its input came here
    return y;
  };
  if (!model_.gated() || plan_.fused_gate_up) {
    const Parts branches = {width, model_.gated() ? width : 0};
    return {mark(linear(base + "fc1", x, hidden_, model_.gated() ? 2 * width : width,
                        model_.mlp_bias, kModuleMlp, Cut::kRows, branches))};
  }
  const ValueId entered = input(base + "fc1", x, kModuleMlp, Cut::kRows, true);
  const auto one = [&](std::string_view name) {
    return mark(product(base + std::string(name), entered, hidden_, width, model_.mlp_bias,
                        kModuleMlp, Cut::kRows));
  };
  const ValueId gate = one("gate");
  return {gate, one("up")};
}

PointwiseKind TransformerWriter::activation() const {
  switch (model_.activation) {
    case Activation::kGelu: break;
    case Activation::kSwiglu: return PointwiseKind::kSwiglu;
    case Activation::kGeglu: return PointwiseKind::kGeglu;
    case Activation::kSwigluOai: return PointwiseKind::kSwigluOai;
  }
  return PointwiseKind::kGelu;
}

ValueId TransformerWriter::mlp(std::string_view prefix, ValueId x, std::int64_t ffn) {
  const std::int64_t width = ffn / plan_.tensor;
  const std::string base(prefix);
  const Values branches = up(prefix, x, ffn);
  ValueId active = act(base + "activation.out", {tokens_, width});
  Pointwise op{activation(), tokens_, width, plan_.compute, plan_.compute, false};
  block_.add(base + "activation", op, branches, {active}, kModuleActivation | kModuleMlp);
  ValueId down = linear(base + "fc2", active, width, hidden_, false, kModuleMlp, Cut::kColumns);
  return leave(base + "fc2.reduce", down, kModuleMlp, crosses_in_eight_bits());
}

Block TransformerWriter::layer(bool experts, std::int64_t window) {
  window_ = window;
  ValueId x = block_.x = act("x", {rows_, hidden_});
  ValueId branch = attention(norm("norm1", x, kModuleNorm));
  if (model_.post_norms) branch = norm("post_norm1", branch, kModuleNorm);
  ValueId middle = residual("attention.add", branch, x, model_.attention_output_bias,
                            kModuleProjection);
  branch = norm("norm2", middle, kModuleNorm);
  branch = experts ? mixture(branch) : mlp("", branch, model_.ffn);
  if (model_.post_norms) branch = norm("post_norm2", branch, kModuleNorm);
  block_.y = residual("mlp.add", branch, middle, model_.mlp_bias && !experts, kModuleNone);
  return std::move(block_);
}

Block TransformerWriter::embedding() {
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
Block TransformerWriter::head() {
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
  ValueId copied = kNoValue;
  if (plan_.loss == CrossEntropy::kMegatronFused || plan_.loss == CrossEntropy::kTorch) {
    ValueId copy = block_.activation("loss.logits", {tokens_, vocabulary}, Dtype::kFp32);
    Pointwise cast{PointwiseKind::kCast, tokens_, vocabulary, plan_.compute, Dtype::kFp32, false};
    block_.add("loss.copy", cast, {logits}, {copy});
    copied = std::exchange(logits, copy);
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
  block_.add("loss.finish", part, {logits, maximum, sums, ids, copied}, {loss, probabilities});
  return std::move(block_);
}

Network transformer(const Model& model, const Plan& plan) {
  Network network;
  network.vocabulary = model.vocabulary;
  const auto add = [&](Block block) {
    network.kinds.push_back(std::move(block));
    network.chain.push_back(static_cast<std::int32_t>(network.kinds.size()) - 1);
  };
  add(TransformerWriter(model, plan, "embedding").embedding());
  std::map<std::pair<bool, std::int64_t>, std::int32_t> known;  // layers: experts or not, window
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t window = model.window_of(layer);
    const std::pair kind(model.experts > 0 && layer >= model.dense_layers,
                         window < plan.attended() ? window : 0);
    const auto same = known.find(kind);
    if (same != known.end()) {
      network.chain.push_back(same->second);
    } else {
      add(TransformerWriter(model, plan, "layer").layer(kind.first, kind.second));
      known.emplace(kind, network.chain.back());
    }
  }
  add(TransformerWriter(model, plan, "head").head());
  return network;
}

}  // namespace stepcast
