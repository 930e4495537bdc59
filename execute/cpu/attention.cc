// Fused attention, one head at a time: its scores live in scratch of s x s numbers. Backward makes
// them again from the log-sum-exp that forward kept (Dao et al. 2022): with P = exp(S - lse),
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dO O)),  dQ = scale dS K,  dK = scale dS^T Q.
// With dropout, of factors M on the probabilities (0 or 1 / (1 - rate)), O = (P M) V, so that
//   dV = (P M)^T dO,  dP = M dO V^T;  rowsum(dP P) is still rowsum(dO O).
// Cost: O(s^2 d) a head; a causal mask saves no work here.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "execute/cpu/gemm.h"
#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
#include "execute/cpu/masks.h"
#include "execute/cpu/packed.h"

namespace stepcast::cpu {

namespace {

// The keys that the query at position i sees.
std::int64_t visible(const Attention& op, std::int64_t i) {
  return op.causal && op.queries == op.keys ? i + 1 : op.keys;
}

// What dropout does to the scores of one head.
class RowDropout {
 public:
  // REQUIRES: `factors` has room for a row.
  RowDropout(const Attention& op, const Work& work, std::int64_t sequence, std::int64_t head,
             float* factors)
      : on_(op.dropout), factors_(factors) {
    if (!on_) return;
    mask_ = work.dropout.rule.now();
    first_row_ = dropout_rows(op, work).of((sequence * op.heads + head) * op.queries);
  }

  void make(std::int64_t query, std::int64_t seen) {
    if (on_) drop_factors(mask_, first_row_ + query, seen, factors_);
  }
  // Of the query that was made last.
  template <class Real>
  void apply(Real* row, std::int64_t seen) const {
    for (std::int64_t j = 0; on_ && j < seen; ++j) row[j] *= static_cast<Real>(factors_[j]);
  }

 private:
  bool on_;
  float* factors_;
  DropoutMask mask_;
  std::int64_t first_row_ = 0;
};

// Of one head: scores become probabilities, dropped; their log-sum-exp into lse.
template <class Real>
void probabilities(const Attention& op, const Packed& p, Real* scores, Real* lse,
                   RowDropout dropout) {
  const std::int64_t s = p.positions;
  for (std::int64_t i = 0; i < s; ++i) {
    Real* row = scores + i * s;
    const std::int64_t seen = visible(op, i);
    if constexpr (std::is_same_v<Real, float>) {
      const float most = loops().maximum(row, seen);
      const float sum = loops().exponentials(row, most, row, seen);
      loops().scale(row, 1 / sum, seen);
      lse[i] = most + std::log(sum);
    } else {
      const Real most = *std::max_element(row, row + seen);
      double sum = 0;
      for (std::int64_t j = 0; j < seen; ++j) sum += row[j] = std::exp(row[j] - most);
      for (std::int64_t j = 0; j < seen; ++j) row[j] = static_cast<Real>(row[j] / sum);
      lse[i] = static_cast<Real>(static_cast<double>(most) + std::log(sum));
    }
    std::fill(row + seen, row + s, Real(0));
    dropout.make(i, seen);
    dropout.apply(row, seen);
  }
}

template <class Real>
void forward(const Attention& op, const Work& work, const Packed& p, Scratch<Real>& scratch) {
  const std::int64_t s = p.positions, d = p.head_dim;
  Real* scores = scratch.scores.data();
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t kv = head / p.group();
      const auto q = p.view<Real>(work.reads, 0, sequence, head);
      const auto k = p.view<Real>(work.reads, 1, sequence, kv);
      const auto v = p.view<Real>(work.reads, 2, sequence, kv);
      const auto o = p.view<Real>(work.writes[0], sequence, p.query_column(head));
      Real* lse = values<Real>(work.writes[1]) + (sequence * p.heads + head) * s;
      multiply<Real>(s, s, d, p.scale(), {q.data, q.stride, false}, {k.data, k.stride, true}, 0,
                     scores, s);
      probabilities<Real>(op, p, scores, lse,
                          RowDropout(op, work, sequence, head, scratch.factors.data()));
      multiply<Real>(s, d, s, 1, {scores, s, false}, {v.data, v.stride, false}, 0, o.data,
                     o.stride);
    }
  }
}

// Of one head: probabilities, dropped, into scratch.scores, the scores' gradients into
// scratch.gradients.
template <class Real>
void score_gradients(const Attention& op, const Packed& p, Rows<Real> o, Rows<Real> d_o,
                     const Real* lse, RowDropout dropout, Scratch<Real>& scratch) {
  const std::int64_t s = p.positions;
  for (std::int64_t i = 0; i < s; ++i) {
    Real* row = scratch.scores.data() + i * s;
    Real* gradient = scratch.gradients.data() + i * s;
    double dot = 0;
    for (std::int64_t c = 0; c < p.head_dim; ++c) {
      dot += static_cast<double>(o.data[i * o.stride + c]) * d_o.data[i * d_o.stride + c];
    }
    const std::int64_t seen = visible(op, i);
    dropout.make(i, seen);
    dropout.apply(gradient, seen);
    if constexpr (std::is_same_v<Real, float>) {
      loops().exponentials(row, lse[i], row, seen);
      loops().softmax_backward(gradient, row, static_cast<float>(dot), gradient, seen);
    }
    for (std::int64_t j = 0; j < seen && !std::is_same_v<Real, float>; ++j) {
      row[j] = std::exp(row[j] - lse[i]);
      gradient[j] = row[j] * (gradient[j] - static_cast<Real>(dot));
    }
    dropout.apply(row, seen);
    std::fill(row + seen, row + s, Real(0));
    std::fill(gradient + seen, gradient + s, Real(0));
  }
}

template <class Real>
void backward(const Attention& op, const Work& work, const Packed& p, Scratch<Real>& scratch) {
  const std::size_t n = work.reads.size();
  const std::span<const Operand> sources = work.reads.first(n - 3);
  const std::int64_t s = p.positions, d = p.head_dim;
  Real* scores = scratch.scores.data();
  Real* gradients = scratch.gradients.data();
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t kv = head / p.group();
      const auto q = p.view<Real>(sources, 0, sequence, head);
      const auto k = p.view<Real>(sources, 1, sequence, kv);
      const auto v = p.view<Real>(sources, 2, sequence, kv);
      const auto o = p.view<Real>(work.reads[n - 3], sequence, p.query_column(head));
      const auto d_o = p.view<Real>(work.reads[n - 1], sequence, p.query_column(head));
      const Real* lse = values<Real>(work.reads[n - 2]) + (sequence * p.heads + head) * s;
      multiply<Real>(s, s, d, p.scale(), {q.data, q.stride, false}, {k.data, k.stride, true}, 0,
                     scores, s);
      multiply<Real>(s, s, d, 1, {d_o.data, d_o.stride, false}, {v.data, v.stride, true}, 0,
                     gradients, s);
      score_gradients<Real>(op, p, o, d_o, lse,
                            RowDropout(op, work, sequence, head, scratch.factors.data()), scratch);
      const auto dq = p.view<Real>(work.writes, 0, sequence, head);
      const auto dk = p.view<Real>(work.writes, 1, sequence, kv);
      const auto dv = p.view<Real>(work.writes, 2, sequence, kv);
      const double beta = head % p.group() == 0 ? 0 : 1;
      multiply<Real>(s, d, s, p.scale(), {gradients, s, false}, {k.data, k.stride, false}, 0,
                     dq.data, dq.stride);
      multiply<Real>(s, d, s, p.scale(), {gradients, s, true}, {q.data, q.stride, false}, beta,
                     dk.data, dk.stride);
      multiply<Real>(s, d, s, 1, {scores, s, true}, {d_o.data, d_o.stride, false}, beta, dv.data,
                     dv.stride);
    }
  }
}

}  // namespace

template <class Real>
void run(const Attention& op, const Work& work, Scratch<Real>& scratch) {
  const bool is_forward = op.pass == Pass::kForward;
  const Packed p(op);
  const auto size = static_cast<std::size_t>(p.positions * p.positions);
  if (scratch.scores.size() < size) scratch.scores.resize(size);
  if (scratch.gradients.size() < size) scratch.gradients.resize(size);
  scratch.factors.resize(static_cast<std::size_t>(p.positions));
  if (is_forward) {
    forward<Real>(op, work, p, scratch);
  } else {
    backward<Real>(op, work, p, scratch);
  }
}

template void run<float>(const Attention&, const Work&, Scratch<float>&);
template void run<double>(const Attention&, const Work&, Scratch<double>&);

}  // namespace stepcast::cpu
