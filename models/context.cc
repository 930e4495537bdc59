// Llama 3's gathered keys and values (Dubey et al. 2024, section 3.3.2), and ring attention (Liu et
// al. 2023) over two stretches a rank (Brandon et al. 2023, "Striped Attention", balance causal
// work in like manner); DeepSpeed-Ulysses (Jacobs et al. 2023), which shares out heads.
// NVIDIA/TransformerEngine has all three (context_parallel.py). O(c) nodes.
#include "models/context.h"

#include <array>
#include <string>

namespace stepcast {

namespace {

constexpr std::uint16_t kCore = kModuleAttentionCore | kModuleAttention;
constexpr std::uint16_t kAgain = kCore | kModuleGather;  // made again rather than kept

// What a rank's neighbours get to see.
ValueId pack(Block& block, const Attention& own, const AttentionValues& values) {
  const Values& heads = values.heads;
  const std::int64_t rows = block.values[static_cast<std::size_t>(heads[0])].shape.sizes[0];
  const std::int64_t columns = 2 * own.kv_heads * own.head_dim;
  const ValueId kv = block.activation("attention.kv", {rows, columns}, own.dtype);
  const Pointwise op{PointwiseKind::kKeysValues, rows, columns, own.dtype, own.dtype, false};
  const Values parts = values.separate() ? Values{heads[1], heads[2]} : heads;
  block.add("attention.keys_values", op, parts, {kv}, kAgain);
  return kv;
}

// The queries, and keys and values that are not the rank's own.
Values reads(const AttentionValues& values, ValueId kv) {
  Values list = values.separate() ? Values{values.heads[0]} : values.heads;
  list.add(kv);
  return list;
}

void gathered_attention(Block& block, std::int64_t ranks, const Attention& own,
                        const AttentionValues& values) {
  const ValueId kv = pack(block, own, values);
  const Value part = block.values[static_cast<std::size_t>(kv)];
  const ValueId all = block.activation(
      "attention.kv_all", {part.shape.sizes[0] * ranks, part.shape.sizes[1]}, part.dtype);
  block.context_exchange("attention.kv.gather", ExchangeKind::kAllGather, kv, all, kAgain);
  Attention op = own;
  op.source = KeySource::kGathered;
  op.keys = own.keys * ranks;
  block.add("attention", op, reads(values, all), {values.out, values.lse}, kCore);
}

void ring_attention(Block& block, std::int64_t ranks, const Attention& own,
                    const AttentionValues& values) {
  const auto like = [&](ValueId id, std::int64_t step) {
    const Value& value = block.values[static_cast<std::size_t>(id)];
    return block.activation(value.name + "_" + std::to_string(step), Shape(value.shape),
                            value.dtype);
  };
  const ValueId kv = pack(block, own, values);
  ValueId here = kv;
  const auto shift = [&](std::int64_t step) {
    const ValueId next = like(kv, step);
    block.context_exchange("attention.kv.shift", ExchangeKind::kShift, here, next, kCore);
    return next;
  };
  ValueId next = shift(1);
  block.add("attention", own, values.heads, {values.out, values.lse}, kCore);
  Attention op = own;
  op.source = KeySource::kPassed;
  op.keys = own.keys / 2;
  op.causal = false;
  for (op.step = 1; op.step < ranks; ++op.step) {
    here = next;
    if (op.step + 1 < ranks) next = shift(op.step + 1);
    const ValueId out = like(values.out, op.step), lse = like(values.lse, op.step);
    block.add("attention.step", op, reads(values, here), {out, lse}, kCore);
    const Shape& shape = block.values[static_cast<std::size_t>(out)].shape;
    const Pointwise merge{PointwiseKind::kMergeAttention,
                          shape.sizes[0],
                          shape.sizes[1],
                          own.dtype,
                          own.dtype,
                          false};
    block.add("attention.merge", merge, {values.out, values.lse, out, lse},
              {values.out, values.lse}, kCore);
  }
}

// A rank's share of the heads, of all tokens, in their order: of what has the columns of all heads.
class HeadShares {
 public:
  HeadShares(Block& block, std::int64_t ranks, Dtype dtype)
      : block_(block), ranks_(ranks), dtype_(dtype) {}

  ValueId to_heads(const std::string& name, ValueId x, std::array<std::int64_t, 3> columns) {
    const std::int64_t rows = block_.values[static_cast<std::size_t>(x)].shape.sizes[0];
    const ShareHeads share{false, rows, ranks_, columns, dtype_};
    const ValueId sent = shares(name + ".shares", share);
    block_.add(name + ".share", share, {x}, {sent}, kCore);
    const ValueId received = exchange(name, sent, share);
    const ValueId whole = shares(name + ".whole", share);
    const Regroup order{ranks_, 2, rows / 2, share.width() / ranks_, dtype_,
                        Regrouping::kToSequence};
    block_.add(name + ".order", order, {received}, {whole}, kCore);
    return whole;
  }
  void to_tokens(const std::string& name, ValueId whole, ValueId y) {
    const Shape shape = block_.values[static_cast<std::size_t>(y)].shape;
    const std::int64_t rows = shape.sizes[0];
    const ShareHeads share{true, rows, ranks_, {shape.sizes[1], 0, 0}, dtype_};
    const ValueId sent = shares(name + ".shares", share);
    const Regroup order{2, ranks_, rows / 2, share.width() / ranks_, dtype_,
                        Regrouping::kToRanks};
    block_.add(name + ".order", order, {whole}, {sent}, kCore);
    block_.add(name + ".share", share, {exchange(name, sent, share)}, {y}, kCore);
  }

 private:
  ValueId shares(const std::string& name, const ShareHeads& share) {
    return block_.activation(name, {ranks_ * share.rows, share.width() / ranks_}, dtype_);
  }
  ValueId exchange(const std::string& name, ValueId sent, const ShareHeads& share) {
    const ValueId received = shares(name + ".received", share);
    block_.context_exchange(name + ".all_to_all", ExchangeKind::kAllToAll, sent, received, kCore);
    return received;
  }

  Block& block_;
  const std::int64_t ranks_;
  const Dtype dtype_;
};

void head_attention(Block& block, std::int64_t ranks, const Attention& own,
                    const AttentionValues& values) {
  HeadShares shares(block, ranks, own.dtype);
  const std::int64_t queries = own.heads * own.head_dim, keys = own.kv_heads * own.head_dim;
  Values read;
  if (values.separate()) {
    const std::int64_t columns = own.kv_heads * value_columns(own);
    read.add(shares.to_heads("attention.q", values.heads[0], {queries, 0, 0}));
    read.add(shares.to_heads("attention.k", values.heads[1], {keys, 0, 0}));
    read.add(shares.to_heads("attention.v", values.heads[2], {columns, 0, 0}));
  } else {
    read.add(shares.to_heads("attention.qkv", values.heads[0], {queries, keys, keys}));
  }
  Attention op = own;
  op.heads /= ranks;
  op.kv_heads /= ranks;
  op.queries *= ranks;
  op.keys *= ranks;
  const Shape of_tokens = block.values[static_cast<std::size_t>(values.out)].shape;
  const ValueId out = block.activation(
      "attention.whole", {of_tokens.sizes[0] * ranks, of_tokens.sizes[1] / ranks}, own.dtype);
  block.add("attention", op, read, {out, values.lse}, kCore);
  shares.to_tokens("attention.out", out, values.out);
}

}  // namespace

void context_attention(Block& block, const Plan& plan, const Attention& own,
                       const AttentionValues& values) {
  if (plan.context_exchange == ContextExchange::kAllGather) {
    gathered_attention(block, plan.context, own, values);
  } else if (plan.shares_heads()) {
    head_attention(block, plan.context, own, values);
  } else {
    ring_attention(block, plan.context, own, values);
  }
}

}  // namespace stepcast
