// Packed: where the queries, keys and values of one head lie (see Attention in op.h), in one tensor
// qkv or in three. Tokens are ordered sequence first, so the rows of one sequence are `sequences`
// apart.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "execute/backend.h"

namespace stepcast::cpu {

template <class Real>
struct Rows {
  Real* data = nullptr;
  std::int64_t stride = 0;  // from one position to the next
};

struct Packed {
  std::int64_t positions = 0, sequences = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t value_dim = 0;

  Packed(const Tensor& qkv, std::int64_t kv, std::int64_t dim, std::int64_t micro_batch)
      : positions(qkv.shape.sizes[0] / micro_batch), sequences(micro_batch),
        heads(qkv.shape.sizes[1] / dim - 2 * kv), kv_heads(kv), head_dim(dim), value_dim(dim) {}
  explicit Packed(const Attention& op)
      : positions(op.queries), sequences(op.batch), heads(op.heads), kv_heads(op.kv_heads),
        head_dim(op.head_dim), value_dim(value_columns(op)) {}

  std::int64_t group() const { return heads / kv_heads; }  // heads that share a kv head
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }
  std::int64_t query_column(std::int64_t head) const { return head * head_dim; }
  std::int64_t result_column(std::int64_t head) const { return head * value_dim; }
  std::int64_t key_column(std::int64_t kv) const { return (heads + kv) * head_dim; }
  std::int64_t value_column(std::int64_t kv) const { return (heads + kv_heads + kv) * head_dim; }

  // The rows of one sequence, from a column on, of a tensor (tokens, columns).
  template <class Real>
  Rows<Real> view(const Operand& operand, std::int64_t sequence, std::int64_t column) const {
    const std::int64_t width = operand.tensor->shape.sizes[1];
    return {static_cast<Real*>(operand.data) + sequence * width + column, sequences * width};
  }

  // Of the queries, keys or values (part 0, 1, 2) among `operands`: qkv, or qk and qkv, or q, k, v.
  template <class Real>
  Rows<Real> view(std::span<const Operand> operands, int part, std::int64_t sequence,
                  std::int64_t head) const {
    if (operands.size() == 3) {
      return view<Real>(operands[static_cast<std::size_t>(part)], sequence,
                        head * (part == 2 ? value_dim : head_dim));
    }
    const std::int64_t first[] = {query_column(head), key_column(head), value_column(head)};
    return view<Real>(part == 2 ? operands.back() : operands.front(), sequence, first[part]);
  }
};

}  // namespace stepcast::cpu
