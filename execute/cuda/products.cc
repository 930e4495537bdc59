// Index arithmetic alone; what is addressed is what execute/cpu/linear.cc addresses.
#include "execute/cuda/products.h"

#include <cmath>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

// A row-major (rows, columns) matrix with a row stride, or the transpose of one.
struct Rows {
  Operand operand;
  std::int64_t offset = 0, stride = 0, batch_stride = 0;
  bool transposed = false;  // stored (columns, rows)
};

Panel panel(const Rows& matrix, std::int64_t rows, std::int64_t columns) {
  const std::int64_t stored_rows = matrix.transposed ? columns : rows;
  const std::int64_t stored_columns = matrix.transposed ? rows : columns;
  return {matrix.operand, matrix.offset,       stored_columns,   stored_rows,
          matrix.stride,  matrix.batch_stride, matrix.transposed};
}

// C (m, n) = alpha A (m, k) B (k, n) + beta C, row-major.
Product product(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, const Rows& a,
                const Rows& b, double beta, const Rows& c) {
  Product out;
  out.first = panel(b, k, n);
  out.second = panel(a, m, k);
  out.result = panel(c, m, n);
  out.inner = k;
  out.alpha = static_cast<float>(alpha);
  out.beta = static_cast<float>(beta);
  return out;
}

Products linear(const Gemm& op, const Work& work) {
  const bool weight_gradient = op.role == GemmRole::kWeightGradient;
  const Rows a{work.reads[0], 0, weight_gradient ? op.m : op.k, 0, weight_gradient};
  const bool forward = op.role == GemmRole::kForward;
  const Rows b{work.reads[1], 0, forward ? op.k : op.n, 0, forward};
  const Rows c{work.writes[0], 0, op.n, 0, false};
  Products out;
  out.calls.push_back(product(op.m, op.n, op.k, 1, a, b, op.accumulate ? 1 : 0, c));
  if (op.bias && forward) out.calls[0].bias = work.reads[2];
  if (op.bias && weight_gradient) {
    out.d_y = work.reads[0];
    out.bias_gradient = work.writes[1];
  }
  return out;
}

// The heads of a packed qkv (execute/cpu/packed.h), one sequence and one head of a group at a time.
struct Heads {
  std::int64_t positions = 0, sequences = 0, heads = 0, kv_heads = 0, head_dim = 0;

  Heads(const Tensor& qkv, std::int64_t kv, std::int64_t dim, std::int64_t micro_batch)
      : positions(qkv.shape.sizes[0] / micro_batch),
        sequences(micro_batch),
        heads(qkv.shape.sizes[1] / dim - 2 * kv),
        kv_heads(kv),
        head_dim(dim) {}
  std::int64_t group() const { return heads / kv_heads; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }

  Rows token_rows(const Operand& operand, std::int64_t sequence, std::int64_t column,
                  std::int64_t batch_stride, bool transposed) const {
    const std::int64_t width = operand.tensor->shape.sizes[1];
    return {operand, sequence * width + column, sequences * width, batch_stride, transposed};
  }
  // Head g of every group, or the key-value heads; in a tensor (tokens, columns).
  Rows queries(const Operand& o, std::int64_t sequence, std::int64_t g, bool t = false) const {
    return token_rows(o, sequence, g * head_dim, group() * head_dim, t);
  }
  Rows keys(const Operand& o, std::int64_t sequence, bool t = false) const {
    return token_rows(o, sequence, heads * head_dim, head_dim, t);
  }
  Rows values(const Operand& o, std::int64_t sequence, bool t = false) const {
    return token_rows(o, sequence, (heads + kv_heads) * head_dim, head_dim, t);
  }
  // Scores or probabilities: s x s numbers a head.
  Rows scores(const Operand& o, std::int64_t sequence, std::int64_t g, bool t = false) const {
    const std::int64_t square = positions * positions;
    return {o, (sequence * heads + g) * square, positions, group() * square, t};
  }
};

template <class Call>
Products for_heads(const Heads& h, Call call) {
  Products out;
  for (std::int64_t sequence = 0; sequence < h.sequences; ++sequence) {
    for (std::int64_t g = 0; g < h.group(); ++g) {
      out.calls.push_back(call(sequence, g));
      out.calls.back().batch = h.kv_heads;
    }
  }
  return out;
}

// S = scale Q K^T,  dQ = scale dS K,  dK = scale sum over the group of dS^T Q.
Products scores(const Gemm& op, const Work& work, const Heads& h) {
  const std::int64_t s = h.positions, d = h.head_dim;
  return for_heads(h, [&](std::int64_t sequence, std::int64_t g) {
    const double add = g == 0 ? 0 : 1;
    switch (op.role) {
      case GemmRole::kForward:
        return product(s, s, d, h.scale(), h.queries(work.reads[0], sequence, g),
                       h.keys(work.reads[0], sequence, true), 0,
                       h.scores(work.writes[0], sequence, g));
      case GemmRole::kInputGradient:
        return product(s, d, s, h.scale(), h.scores(work.reads[0], sequence, g),
                       h.keys(work.reads[1], sequence), 0, h.queries(work.writes[0], sequence, g));
      default:
        return product(s, d, s, h.scale(), h.scores(work.reads[0], sequence, g, true),
                       h.queries(work.reads[1], sequence, g), add,
                       h.keys(work.writes[0], sequence));
    }
  });
}

// O = P V,  dP = dO V^T,  dV = sum over the group of P^T dO.
Products context(const Gemm& op, const Work& work, const Heads& h) {
  const std::int64_t s = h.positions, d = h.head_dim;
  return for_heads(h, [&](std::int64_t sequence, std::int64_t g) {
    const double add = g == 0 ? 0 : 1;
    switch (op.role) {
      case GemmRole::kForward:
        return product(s, d, s, 1, h.scores(work.reads[0], sequence, g),
                       h.values(work.reads[1], sequence), 0,
                       h.queries(work.writes[0], sequence, g));
      case GemmRole::kInputGradient:
        return product(s, s, d, 1, h.queries(work.reads[0], sequence, g),
                       h.values(work.reads[1], sequence, true), 0,
                       h.scores(work.writes[0], sequence, g));
      default:
        return product(s, d, s, 1, h.scores(work.reads[0], sequence, g, true),
                       h.queries(work.reads[1], sequence, g), add,
                       h.values(work.writes[0], sequence));
    }
  });
}

bool is_weight(const Operand& operand) { return operand.tensor->scope == Scope::kChunk; }

bool writes_in_place(const Work& work) {
  for (std::size_t i = 2; i < work.reads.size(); ++i) {
    if (work.reads[i].data == work.writes[0].data) return true;
  }
  return false;
}

}  // namespace

Products products_of(const Gemm& op, const Work& work) {
  const bool weight_gradient = op.role == GemmRole::kWeightGradient;
  const std::size_t reads = work.reads.size();
  if (weight_gradient ? is_weight(work.writes[0]) : reads > 1 && is_weight(work.reads[1])) {
    return linear(op, work);
  }
  const std::int64_t micro_batch = work.place.batch.micro_batch;
  const std::int64_t kv = op.batch / micro_batch;
  if (op.role == GemmRole::kForward) {
    const Tensor& qkv = *work.reads[reads - 1].tensor;
    // [qk,] qkv -> scores, or probabilities (rows, keys), qkv -> o: a qk is wider than a head.
    const bool product = reads == 2 && work.reads[0].tensor->shape.sizes[1] == op.k;
    const Heads h(qkv, kv, product ? op.n : op.k, micro_batch);
    return product ? context(op, work, h) : scores(op, work, h);
  }
  // What scores' gradients write, they name among their reads.
  if (writes_in_place(work)) {
    return scores(op, work, Heads(*work.writes[0].tensor, kv, op.n, micro_batch));
  }
  const Tensor& packed = weight_gradient ? *work.writes[0].tensor : *work.reads[1].tensor;
  return context(op, work, Heads(packed, kv, weight_gradient ? op.n : op.k, micro_batch));
}

}  // namespace stepcast::cuda
