// Fused attention, one head at a time: its scores live in scratch of queries x keys numbers.
// Backward makes them again from the log-sum-exp that forward kept (Dao et al. 2022): with
// P = exp(S - lse),
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dO O)),  dQ = scale dS K,  dK = scale dS^T Q.
// With dropout, of factors M on the probabilities (0 or 1 / (1 - rate)), O = (P M) V, so that
//   dV = (P M)^T dO,  dP = M dO V^T;  rowsum(dP P) is still rowsum(dO O).
// A sink is a score in lse alone: its probability is exp(sink - lse), its dP zero, so that
//   d_sink = -sum over the queries of exp(sink - lse) rowsum(dO O).
// Of keys that are a part of all, backward takes O and lse of all: P is then their part of the
// whole softmax, and the sums are over the parts.
// Cost: O(queries keys d) a head; a causal mask saves no work here.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "execute/cpu/gemm.h"
#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
#include "execute/cpu/masks.h"
#include "execute/cpu/packed.h"
#include "execute/cpu/sight.h"

namespace stepcast::cpu {

namespace {

// What dropout does to the scores of one head.
class RowDropout {
 public:
  // REQUIRES: `factors` has room for a row.
  RowDropout(const Attention& op, const Work& work, std::int64_t sequence, std::int64_t head,
             float* factors)
      : on_(op.dropout), sight_(op, work.place), factors_(factors) {
    if (!on_) return;
    mask_ = work.dropout.rule.now();
    const DropoutRows rows = dropout_rows(op, work);
    positions_ = rows.positions;
    first_row_ = rows.of((sequence * op.heads + head) * positions_);
  }

  void make(std::int64_t query) {
    if (on_) drop_factors(mask_, first_row_ + sight_.query_position(query), positions_, factors_);
  }
  // Of the query that was made last, to its scores of keys [first, seen).
  template <class Real>
  void apply(Real* row, std::int64_t first, std::int64_t seen) const {
    for (std::int64_t j = first; on_ && j < seen; ++j) {
      row[j] *= static_cast<Real>(factors_[sight_.key_position(j)]);
    }
  }

 private:
  bool on_;
  Sight sight_;
  float* factors_;
  DropoutMask mask_;
  std::int64_t positions_ = 0, first_row_ = 0;
};

// Of one head: scores become probabilities, dropped; their log-sum-exp into lse. `sink`: the
// head's; null: it has none.
template <class Real>
void probabilities(const Sight& sight, Real* scores, const Real* sink, Real* lse,
                   RowDropout dropout) {
  for (std::int64_t i = 0; i < sight.queries(); ++i) {
    Real* row = scores + i * sight.keys();
    const std::int64_t first = sight.first(i), seen = sight.visible(i);
    Real *begin = row + first, *end = row + seen;
    if (seen == 0) {
      lse[i] = std::numeric_limits<Real>::lowest();
    } else if constexpr (std::is_same_v<Real, float>) {
      float most = loops().maximum(begin, seen - first);
      if (sink != nullptr) most = std::max(most, *sink);
      float sum = loops().exponentials(begin, most, begin, seen - first);
      if (sink != nullptr) sum += std::exp(*sink - most);
      loops().scale(begin, 1 / sum, seen - first);
      lse[i] = most + std::log(sum);
    } else {
      Real most = *std::max_element(begin, end);
      if (sink != nullptr) most = std::max(most, *sink);
      double sum = sink != nullptr ? std::exp(*sink - most) : 0;
      for (Real* score = begin; score < end; ++score) sum += *score = std::exp(*score - most);
      for (Real* score = begin; score < end; ++score) *score = static_cast<Real>(*score / sum);
      lse[i] = static_cast<Real>(static_cast<double>(most) + std::log(sum));
    }
    std::fill(row, begin, Real(0));
    std::fill(end, row + sight.keys(), Real(0));
    dropout.make(i);
    dropout.apply(row, first, seen);
  }
}

template <class Real>
void forward(const Attention& op, const Work& work, const Sight& sight, Scratch<Real>& scratch) {
  const Packed p(op);
  KeyRows<Real> keys(op, work, scratch.gathered);
  const std::int64_t queries = sight.queries(), d = p.head_dim;
  Real* scores = scratch.scores.data();
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      if (head % p.group() == 0) keys.turn_to(sequence, head / p.group());
      const auto q = p.view<Real>(heads_of(op, work), 0, sequence, head);
      const auto o = p.view<Real>(work.writes[0], sequence, p.result_column(head));
      const auto &k = keys.k, &v = keys.v;
      Real* lse = values<Real>(work.writes[1]) + (sequence * p.heads + head) * queries;
      multiply<Real>(queries, sight.keys(), d, p.scale(), {q.data, q.stride, false},
                     {k.data, k.stride, true}, 0, scores, sight.keys());
      const Real* sink = op.sinks ? values<Real>(work.reads.back()) + head : nullptr;
      probabilities<Real>(sight, scores, sink, lse,
                          RowDropout(op, work, sequence, head, scratch.factors.data()));
      multiply<Real>(queries, p.value_dim, sight.keys(), 1, {scores, sight.keys(), false},
                     {v.data, v.stride, false}, 0, o.data, o.stride);
    }
  }
}

// Of one head: probabilities, dropped, into scratch.scores, the scores' gradients into
// scratch.gradients. Gives that of the head's sink; 0 where it has none.
template <class Real>
double score_gradients(const Sight& sight, std::int64_t columns, Rows<Real> o, Rows<Real> d_o,
                       const Real* lse, const Real* sink, RowDropout dropout,
                       Scratch<Real>& scratch) {
  double d_sink = 0;
  for (std::int64_t i = 0; i < sight.queries(); ++i) {
    Real* row = scratch.scores.data() + i * sight.keys();
    Real* gradient = scratch.gradients.data() + i * sight.keys();
    double dot = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
      dot += static_cast<double>(o.data[i * o.stride + c]) * d_o.data[i * d_o.stride + c];
    }
    if (sink != nullptr) d_sink -= std::exp(static_cast<double>(*sink) - lse[i]) * dot;
    const std::int64_t first = sight.first(i), seen = sight.visible(i);
    dropout.make(i);
    dropout.apply(gradient, first, seen);
    if constexpr (std::is_same_v<Real, float>) {
      loops().exponentials(row + first, lse[i], row + first, seen - first);
      loops().softmax_backward(gradient + first, row + first, static_cast<float>(dot),
                               gradient + first, seen - first);
    }
    for (std::int64_t j = first; j < seen && !std::is_same_v<Real, float>; ++j) {
      row[j] = std::exp(row[j] - lse[i]);
      gradient[j] = row[j] * (gradient[j] - static_cast<Real>(dot));
    }
    dropout.apply(row, first, seen);
    for (Real* numbers : {row, gradient}) {
      std::fill_n(numbers, first, Real(0));
      std::fill(numbers + seen, numbers + sight.keys(), Real(0));
    }
  }
  return d_sink;
}

// Where the result has columns that this op knows nothing of, they become zero.
template <class Real>
void clear_key_columns(const Attention& op, const Operand& d_qkv) {
  const std::int64_t rows = d_qkv.tensor->shape.sizes[0], width = d_qkv.tensor->shape.sizes[1];
  const std::int64_t queries = op.heads * op.head_dim;
  for (std::int64_t i = 0; i < rows; ++i) {
    std::fill_n(values<Real>(d_qkv) + i * width + queries, width - queries, Real(0));
  }
}

template <class Real>
void backward(const Attention& op, const Work& work, const Sight& sight, Scratch<Real>& scratch) {
  const bool passed = op.source == KeySource::kPassed;
  const std::size_t n = work.reads.size() - behind_gradient(op, work);
  const Packed p(op);
  const std::int64_t queries = sight.queries(), key_count = sight.keys(), d = p.head_dim;
  Real* scores = scratch.scores.data();
  Real* gradients = scratch.gradients.data();
  KeyRows<Real> keys(op, work, scratch.gathered);
  if (op.source == KeySource::kGathered) clear_key_columns<Real>(op, work.writes[0]);
  Real* d_sinks = op.sinks ? values<Real>(work.writes.back()) : nullptr;
  if (op.sinks && !accumulates(work, work.writes.size() - 1, 0)) {
    std::fill_n(d_sinks, p.heads, Real(0));
  }
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const bool first = head % p.group() == 0;
      if (first) keys.turn_to(sequence, head / p.group());
      const auto q = p.view<Real>(heads_of(op, work), 0, sequence, head);
      const auto o = p.view<Real>(work.reads[n - 3], sequence, p.result_column(head));
      const auto d_o = p.view<Real>(work.reads[n - 1], sequence, p.result_column(head));
      const auto dq = p.view<Real>(work.writes[0], sequence, p.query_column(head));
      const auto &k = keys.k, &v = keys.v, &dk = keys.dk, &dv = keys.dv;
      const Real* lse = values<Real>(work.reads[n - 2]) + (sequence * p.heads + head) * queries;
      multiply<Real>(queries, key_count, d, p.scale(), {q.data, q.stride, false},
                     {k.data, k.stride, true}, 0, scores, key_count);
      multiply<Real>(queries, key_count, p.value_dim, 1, {d_o.data, d_o.stride, false},
                     {v.data, v.stride, true}, 0, gradients, key_count);
      const Real* sink = op.sinks ? values<Real>(work.reads[n]) + head : nullptr;
      const double d_sink = score_gradients<Real>(
          sight, p.value_dim, o, d_o, lse, sink,
          RowDropout(op, work, sequence, head, scratch.factors.data()), scratch);
      if (op.sinks) d_sinks[head] += static_cast<Real>(d_sink);
      const double beta = first ? 0 : 1;
      multiply<Real>(queries, d, key_count, p.scale(), {gradients, key_count, false},
                     {k.data, k.stride, false}, passed ? 1 : 0, dq.data, dq.stride);
      multiply<Real>(key_count, d, queries, p.scale(), {gradients, key_count, true},
                     {q.data, q.stride, false}, beta, dk.data, dk.stride);
      multiply<Real>(key_count, p.value_dim, queries, 1, {scores, key_count, true},
                     {d_o.data, d_o.stride, false}, beta, dv.data, dv.stride);
      if ((head + 1) % p.group() == 0) keys.put_back();
    }
  }
}

}  // namespace

template <class Real>
void run(const Attention& op, const Work& work, Scratch<Real>& scratch) {
  const Sight sight(op, work.place);
  const auto size = static_cast<std::size_t>(sight.queries() * sight.keys());
  if (scratch.scores.size() < size) scratch.scores.resize(size);
  if (scratch.gradients.size() < size) scratch.gradients.resize(size);
  if (op.dropout) {
    scratch.factors.resize(static_cast<std::size_t>(dropout_rows(op, work).positions));
  }
  if (op.pass == Pass::kForward) {
    forward<Real>(op, work, sight, scratch);
  } else {
    backward<Real>(op, work, sight, scratch);
  }
}

template void run<float>(const Attention&, const Work&, Scratch<float>&);
template void run<double>(const Attention&, const Work&, Scratch<double>&);

}  // namespace stepcast::cpu
