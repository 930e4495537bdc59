// Norms over columns. With x^ = (x - mean) r and g = dy w:
//   LayerNorm  dx = r (g - avg(g) - x^ avg(g x^))
//   RMSNorm    dx = r (g - x^ avg(g x^)), mean = 0
//   dw = sum over rows of dy x^,  db = sum of dy.
// Two passes over a row, in double sums: O(rows columns). A norm of queries and keys walks the
// heads of a packed qkv; its rows lie a token's width apart.
#include <cmath>
#include <type_traits>

#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"

namespace stepcast::cpu {

namespace {

// Where row i of the op begins, in the tensor that is normalised and in the result, and which row
// of the weight it takes.
struct RowPlan {
  std::int64_t heads = 1;        // rows of the op in one row of the tensors
  std::int64_t queries = 1;      // of them: queries, which take the weight's first row
  std::int64_t in_width = 0, out_width = 0, columns = 0;

  std::int64_t in(std::int64_t i) const { return i / heads * in_width + i % heads * columns; }
  std::int64_t out(std::int64_t i) const { return i / heads * out_width + i % heads * columns; }
  std::int64_t weight(std::int64_t i) const { return i % heads < queries ? 0 : columns; }
};

RowPlan plan_rows(const Norm& op, const Tensor& x, const Tensor& y, const Tensor& weight) {
  RowPlan plan;
  plan.columns = plan.in_width = plan.out_width = op.columns;
  if (weight.shape.rank < 2) return plan;
  plan.in_width = x.shape.sizes[1];
  plan.out_width = y.shape.sizes[1];
  plan.heads = op.rows / x.shape.sizes[0];  // a + g
  plan.queries = 2 * plan.heads - plan.in_width / op.columns;
  return plan;
}

template <class Real>
void forward(const Norm& op, const Work& work) {
  const RowPlan plan = plan_rows(op, *work.reads[0].tensor, *work.writes[0].tensor,
                                 *work.reads[1].tensor);
  const bool layer = op.kind == NormKind::kLayer;
  const Real* bias = work.reads.size() > 2 ? values<Real>(work.reads[2]) : nullptr;
  Real* statistics = values<Real>(work.writes[1]);
  const auto n = static_cast<double>(op.columns);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* x = values<Real>(work.reads[0]) + plan.in(i);
    const Real* w = values<Real>(work.reads[1]) + plan.weight(i);
    Real* y = values<Real>(work.writes[0]) + plan.out(i);
    if constexpr (std::is_same_v<Real, float>) {
      loops().norm(x, w, bias, y, layer, static_cast<float>(kNormEpsilon),
                   statistics + (layer ? 2 * i : i), op.columns);
      continue;
    }
    double sum = 0, squares = 0;
    for (std::int64_t j = 0; j < op.columns && layer; ++j) sum += x[j];
    const double mean = sum / n;
    for (std::int64_t j = 0; j < op.columns; ++j) {
      squares += (x[j] - mean) * (x[j] - mean);
    }
    const double scale = 1.0 / std::sqrt(squares / n + kNormEpsilon);
    for (std::int64_t j = 0; j < op.columns; ++j) {
      const auto normal = static_cast<Real>((x[j] - mean) * scale);
      y[j] = normal * w[j] + (bias != nullptr ? bias[j] : Real(0));
    }
    if (layer) {
      statistics[2 * i] = static_cast<Real>(mean);
      statistics[2 * i + 1] = static_cast<Real>(scale);
    } else {
      statistics[i] = static_cast<Real>(scale);
    }
  }
}

template <class Real>
void clear(const Work& work, std::size_t write) {
  if (accumulates(work, write, 4)) return;
  Real* gradient = values<Real>(work.writes[write]);
  for (std::int64_t j = 0; j < work.writes[write].tensor->shape.elements(); ++j) gradient[j] = 0;
}

template <class Real>
void backward(const Norm& op, const Work& work) {
  const RowPlan plan = plan_rows(op, *work.reads[1].tensor, *work.writes[0].tensor,
                                 *work.reads[2].tensor);
  const bool layer = op.kind == NormKind::kLayer;
  for (std::size_t w = 1; w < work.writes.size(); ++w) clear<Real>(work, w);
  Real* d_bias = work.writes.size() > 2 ? values<Real>(work.writes[2]) : nullptr;
  const Real* statistics = values<Real>(work.reads[3]);
  const auto n = static_cast<double>(op.columns);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* dy = values<Real>(work.reads[0]) + plan.out(i);
    const Real* x = values<Real>(work.reads[1]) + plan.in(i);
    const Real* w = values<Real>(work.reads[2]) + plan.weight(i);
    Real* dx = values<Real>(work.writes[0]) + plan.out(i);
    Real* dw = values<Real>(work.writes[1]) + plan.weight(i);
    const Real mean = layer ? statistics[2 * i] : Real(0);
    const Real scale = layer ? statistics[2 * i + 1] : statistics[i];
    if constexpr (std::is_same_v<Real, float>) {
      loops().norm_backward(dy, x, w, mean, scale, layer, dx, dw, d_bias, op.columns);
      continue;
    }
    double sum = 0, product = 0;
    for (std::int64_t j = 0; j < op.columns; ++j) {
      const Real normal = (x[j] - mean) * scale;
      const Real g = dy[j] * w[j];
      dw[j] += dy[j] * normal;
      sum += g;
      product += static_cast<double>(g) * normal;
    }
    for (std::int64_t j = 0; j < op.columns && d_bias != nullptr; ++j) d_bias[j] += dy[j];
    const auto average = static_cast<Real>(layer ? sum / n : 0);
    const auto along = static_cast<Real>(product / n);
    for (std::int64_t j = 0; j < op.columns; ++j) {
      dx[j] = scale * (dy[j] * w[j] - average - (x[j] - mean) * scale * along);
    }
  }
}

}  // namespace

template <class Real>
void run(const Norm& op, const Work& work) {
  if (op.pass == Pass::kForward) {
    forward<Real>(op, work);
  } else {
    backward<Real>(op, work);
  }
}

template void run<float>(const Norm&, const Work&);
template void run<double>(const Norm&, const Work&);

}  // namespace stepcast::cpu
