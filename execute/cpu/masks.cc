// A call of the generator (execute/dropout.h) every four elements.
#include "execute/cpu/masks.h"

#include <algorithm>

namespace stepcast::cpu {

void drop_factors(const DropoutMask& mask, std::int64_t row, std::int64_t columns, float* out) {
  for (std::int64_t j = 0; j < columns; j += 4) {
    const PhiloxWords words = mask.words(row, j / 4);
    const std::int64_t count = std::min<std::int64_t>(4, columns - j);
    for (std::int64_t k = 0; k < count; ++k) out[j + k] = mask.factor(words.words[k]);
  }
}

template <class Real>
void drop(const Pointwise& op, const Work& work) {
  const bool adds = op.kind == PointwiseKind::kDropoutAdd;
  const DropoutMask mask = work.dropout.rule.now();
  const DropoutRows rows = dropout_rows(op, work);
  const Real* bias = work.reads.size() > 2 ? values<Real>(work.reads[2]) : nullptr;
  auto* kept = static_cast<std::uint8_t*>(work.writes[1].data);
  std::vector<float> factors(static_cast<std::size_t>(op.columns));
  for (std::int64_t i = 0; i < op.rows; ++i) {
    drop_factors(mask, rows.of(i), op.columns, factors.data());
    const Real* x = values<Real>(work.reads[0]) + i * op.columns;
    const Real* residual = adds ? values<Real>(work.reads[1]) + i * op.columns : nullptr;
    Real* y = values<Real>(work.writes[0]) + i * op.columns;
    for (std::int64_t j = 0; j < op.columns; ++j) {
      const float factor = factors[static_cast<std::size_t>(j)];
      const Real branch = (bias != nullptr ? x[j] + bias[j] : x[j]) * static_cast<Real>(factor);
      y[j] = adds ? branch + residual[j] : branch;
      *kept++ = factor != 0 ? 1 : 0;
    }
  }
}

template <class Real>
void drop_backward(const Pointwise& op, const Work& work) {
  const Real* d_y = values<Real>(work.reads[0]);
  const auto* kept = static_cast<const std::uint8_t*>(work.reads[1].data);
  Real* d_x = values<Real>(work.writes[0]);
  const auto scale = static_cast<Real>(work.dropout.rule.scale);
  for (std::int64_t i = 0; i < op.rows * op.columns; ++i) {
    d_x[i] = kept[i] != 0 ? d_y[i] * scale : Real(0);
  }
}

template void drop<float>(const Pointwise&, const Work&);
template void drop<double>(const Pointwise&, const Work&);
template void drop_backward<float>(const Pointwise&, const Work&);
template void drop_backward<double>(const Pointwise&, const Work&);

}  // namespace stepcast::cpu
