// Multi-head latent attention in training (DeepSeek-V2, arXiv 2405.04434, section 2.1;
// Megatron-Core, megatron/core/transformer/multi_latent_attention.py): every tensor rank has the
// whole of the matrices that give the latents, and its share of the heads of those that make
// queries, keys and values of them. So under sequence parallelism it is latents that are gathered,
// which are narrow.
#include "models/transformer_writer.h"

namespace stepcast {

namespace {
constexpr std::uint16_t kOfHeads = kModuleAttention | kModuleQkv;
}

// Of this rank's own tokens.
ValueId TransformerWriter::down(std::string_view name, ValueId x, std::int64_t width) {
  const ValueId read = input(name, x, kOfHeads, Cut::kColumns);
  return product(name, read, {rows_, 0, scattered_}, hidden_, width, false, kOfHeads, Cut::kWhole,
                 {});
}

Values TransformerWriter::latent_heads(ValueId x) {
  const std::int64_t heads = model_.heads / plan_.tensor, values = model_.value_dim;
  const std::int64_t rotated = model_.rotary_dim, own = model_.head_dim - rotated;
  const std::int64_t width = heads * model_.head_dim;
  const bool whole = model_.q_rank == 0;
  const ValueId of_queries =
      whole ? x : norm("q_norm", down("q_down", x, model_.q_rank), kOfHeads);
  const ValueId latents = norm("kv_norm", down("kv_down", x, model_.kv_rank), kOfHeads);
  const ValueId shared = enter("k.shared.gather", down("k.shared", x, rotated), kOfHeads);

  constexpr std::uint16_t kUp = kOfHeads | kModuleLatentUp;
  const ValueId q = linear("q", of_queries, whole ? hidden_ : model_.q_rank, width, false, kUp,
                           Cut::kRows);
  Pointwise turned{PointwiseKind::kRotary, tokens_, width, plan_.compute, plan_.compute,
                   false, model_.head_dim};
  turned.rotated = rotated;
  block_.add("q.rotary", turned, {q}, {q}, kUp);
  const ValueId kv =
      linear("kv", latents, model_.kv_rank, heads * (own + values), false, kUp, Cut::kRows);
  const ValueId k = act("k", {tokens_, width}), v = act("v", {tokens_, heads * values});
  const LatentKeys op{Pass::kForward, tokens_, heads, own, rotated, values, plan_.compute};
  block_.add("k.latent", op, {kv, shared}, {k, v}, kUp);
  return {q, k, v};
}

}  // namespace stepcast
