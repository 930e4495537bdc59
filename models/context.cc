// Llama 3's gathered keys and values (Dubey et al. 2024, section 3.3.2), and ring attention (Liu et
// al. 2023) over two stretches a rank (Brandon et al. 2023, "Striped Attention", balance causal
// work in like manner); NVIDIA/TransformerEngine has both (context_parallel.py). O(c) nodes.
#include "models/context.h"

#include <string>

namespace stepcast {

namespace {

constexpr std::uint16_t kCore = kModuleAttentionCore | kModuleAttention;
constexpr std::uint16_t kAgain = kCore | kModuleGather;  // made again rather than kept

// What a rank's neighbours get to see.
ValueId pack(Block& block, const Attention& own, const AttentionValues& values) {
  const std::int64_t rows = block.values[static_cast<std::size_t>(values.qkv)].shape.sizes[0];
  const std::int64_t columns = 2 * own.kv_heads * own.head_dim;
  const ValueId kv = block.activation("attention.kv", {rows, columns}, own.dtype);
  const Pointwise op{PointwiseKind::kKeysValues, rows, columns, own.dtype, own.dtype, false};
  block.add("attention.keys_values", op, {values.qk, values.qkv}, {kv}, kAgain);
  return kv;
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
  block.add("attention", op, {values.qk, values.qkv, all}, {values.out, values.lse}, kCore);
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
  block.add("attention", own, {values.qk, values.qkv}, {values.out, values.lse}, kCore);
  Attention op = own;
  op.source = KeySource::kPassed;
  op.keys = own.keys / 2;
  op.causal = false;
  for (op.step = 1; op.step < ranks; ++op.step) {
    here = next;
    if (op.step + 1 < ranks) next = shift(op.step + 1);
    const ValueId out = like(values.out, op.step), lse = like(values.lse, op.step);
    block.add("attention.step", op, {values.qk, values.qkv, here}, {out, lse}, kCore);
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

}  // namespace

void context_attention(Block& block, const Plan& plan, const Attention& own,
                       const AttentionValues& values) {
  if (plan.context_exchange == ContextExchange::kAllGather) {
    gathered_attention(block, plan.context, own, values);
  } else {
    ring_attention(block, plan.context, own, values);
  }
}

}  // namespace stepcast
