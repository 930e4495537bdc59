// A mixture of experts (op.h): its router, tokens to their slots and back, and activations times
// the router's weight of a row; and rows that change places, of experts or of a sequence's ranks.
// Slots are given out in one pass over the tokens, so the earlier ones have them. O(rows experts
// chosen) the router, O(elements) all else.
#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>

#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
#include "sim/base/error.h"

namespace stepcast::cpu {

namespace {

std::int32_t* slots_of(const Operand& operand) { return static_cast<std::int32_t*>(operand.data); }

std::int64_t expert_of(std::int64_t slot, std::int64_t capacity) {
  return slot >= 0 ? slot / capacity : -2 - slot;
}

template <class Real>
void add_row(const Real* in, Real* sum, std::int64_t columns) {
  if constexpr (std::is_same_v<Real, float>) {
    loops().add_to(sum, in, columns);
  } else {
    for (std::int64_t j = 0; j < columns; ++j) sum[j] += in[j];
  }
}

// The untaken expert with the highest logit, of equal ones the first; numbers that are none lose.
// `taken` says at which row each expert was chosen last.
template <class Real>
std::int64_t next_choice(const Real* logits, std::span<const std::int64_t> taken,
                         std::int64_t row) {
  const auto experts = static_cast<std::int64_t>(taken.size());
  std::int64_t best = -1;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (taken[static_cast<std::size_t>(e)] == row) continue;
    if (best < 0 || logits[e] > logits[best]) best = e;
  }
  return best;
}

template <class Real>
void route(const Route& op, const Work& work, Scratch<Real>& scratch) {
  const auto experts = static_cast<std::size_t>(op.experts);
  scratch.experts.assign(2 * experts, -1);
  const auto chosen_at = std::span(scratch.experts).first(experts);  // row by row
  const auto filled = std::span(scratch.experts).last(experts);      // slots of each, given out
  std::fill(filled.begin(), filled.end(), 0);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* logits = values<Real>(work.reads[0]) + i * op.experts;
    Real* weights = values<Real>(work.writes[0]) + i * op.chosen;
    std::int32_t* slots = slots_of(work.writes[1]) + i * op.chosen;
    Real most = 0, sum = 0;
    for (std::int64_t j = 0; j < op.chosen; ++j) {
      const std::int64_t expert = next_choice<Real>(logits, chosen_at, i);
      chosen_at[static_cast<std::size_t>(expert)] = i;
      std::int64_t& place = filled[static_cast<std::size_t>(expert)];
      slots[j] = static_cast<std::int32_t>(place < op.capacity ? expert * op.capacity + place++
                                                               : -2 - expert);
      if (j == 0) most = logits[expert];
      sum += weights[j] = std::exp(logits[expert] - most);
    }
    for (std::int64_t j = 0; j < op.chosen; ++j) weights[j] /= sum;
  }
}

// Of a softmax over the chosen: d_logit = w (d_w - sum w d_w); the others have no part in it.
template <class Real>
void route_backward(const Route& op, const Work& work) {
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* d = values<Real>(work.reads[0]) + i * op.chosen;
    const Real* weights = values<Real>(work.reads[1]) + i * op.chosen;
    const std::int32_t* slots = slots_of(work.reads[2]) + i * op.chosen;
    Real* d_logits = values<Real>(work.writes[0]) + i * op.experts;
    std::fill_n(d_logits, op.experts, Real(0));
    Real dot = 0;
    for (std::int64_t j = 0; j < op.chosen; ++j) dot += weights[j] * d[j];
    for (std::int64_t j = 0; j < op.chosen; ++j) {
      d_logits[expert_of(slots[j], op.capacity)] = weights[j] * (d[j] - dot);
    }
  }
}

// Slot by slot, so that each is written once, whoever takes it.
template <class Real>
void permute(const Permute& op, const Work& work, Scratch<Real>& scratch) {
  const std::int32_t* slots = slots_of(work.reads[1]);
  scratch.taken.assign(static_cast<std::size_t>(op.slots), -1);
  for (std::int64_t i = 0; i < op.rows * op.chosen; ++i) {
    if (slots[i] >= 0) scratch.taken[static_cast<std::size_t>(slots[i])] = i;
  }
  for (std::int64_t slot = 0; slot < op.slots; ++slot) {
    const std::int64_t choice = scratch.taken[static_cast<std::size_t>(slot)];
    Real* y = values<Real>(work.writes[0]) + slot * op.columns;
    if (choice < 0) {
      std::fill_n(y, op.columns, Real(0));
    } else {
      std::copy_n(values<Real>(work.reads[0]) + choice / op.chosen * op.columns, op.columns, y);
    }
    if (!op.weighted) continue;
    values<Real>(work.writes[1])[slot] = choice < 0 ? Real(0) : values<Real>(work.reads[2])[choice];
  }
}

template <class Real>
void unpermute(const Permute& op, const Work& work) {
  for (std::int64_t i = 0; i < op.rows; ++i) {
    Real* x = values<Real>(work.writes[0]) + i * op.columns;
    std::fill_n(x, op.columns, Real(0));
    for (std::int64_t choice = i * op.chosen; choice < (i + 1) * op.chosen; ++choice) {
      const std::int64_t slot = slots_of(work.reads[1])[choice];
      if (slot >= 0) add_row(values<Real>(work.reads[0]) + slot * op.columns, x, op.columns);
      if (!op.weighted) continue;
      values<Real>(work.writes[1])[choice] = slot < 0 ? Real(0) : values<Real>(work.reads[2])[slot];
    }
  }
}

template <class Real>
Real dot_product(const Real* a, const Real* b, std::int64_t n) {
  if constexpr (std::is_same_v<Real, float>) return loops().dot(a, b, n);
  Real sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Each row times its weight.
template <class Real>
void scale_rows(const Pointwise& op, const Operand& weights, const Operand& rows) {
  for (std::int64_t i = 0; i < op.rows; ++i) {
    Real* row = values<Real>(rows) + i * op.columns;
    const Real weight = values<Real>(weights)[i];
    for (std::int64_t j = 0; j < op.columns; ++j) row[j] *= weight;
  }
}

PointwiseKind forward_of(PointwiseKind gradient) {
  switch (gradient) {
    case PointwiseKind::kGeluBackward: return PointwiseKind::kGelu;
    case PointwiseKind::kSwigluBackward: return PointwiseKind::kSwiglu;
    case PointwiseKind::kGegluBackward: return PointwiseKind::kGeglu;
    case PointwiseKind::kSwigluOaiBackward: return PointwiseKind::kSwigluOai;
    default: STEPCAST_CHECK(false, "only the gradient of an activation is weighted");
  }
  return gradient;
}

// d_p = sum of d_y f(x) over a row: f is worked out again, as it was not kept.
template <class Real>
void weight_gradient(const Pointwise& op, const Work& work, Scratch<Real>& scratch) {
  const std::int64_t columns = work.reads[0].tensor->shape.elements() / op.rows;
  scratch.activated.resize(static_cast<std::size_t>(columns));
  Pointwise forward = op;
  forward.kind = forward_of(op.kind);
  forward.rows = 1;
  forward.columns = columns;
  forward.weighted = false;
  const Op again = forward;
  const Operand out{scratch.activated.data(), work.reads[0].tensor};
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Operand x{values<Real>(work.reads[1]) + i * op.columns, work.reads[1].tensor};
    run<Real>(forward, Work{again, {&x, 1}, {&out, 1}, work.place}, scratch);
    values<Real>(work.writes[1])[i] = dot_product<Real>(values<Real>(work.reads[0]) + i * columns,
                                                        scratch.activated.data(), columns);
  }
}

}  // namespace

template <class Real>
void run(const Route& op, const Work& work, Scratch<Real>& scratch) {
  op.pass == Pass::kForward ? route<Real>(op, work, scratch) : route_backward<Real>(op, work);
}

template <class Real>
void run(const Permute& op, const Work& work, Scratch<Real>& scratch) {
  op.part == PermutePart::kPermute ? permute<Real>(op, work, scratch) : unpermute<Real>(op, work);
}

template <class Real>
void run(const Regroup& op, const Work& work) {
  const std::int64_t block = op.rows * op.columns;
  const auto in_sequence = [](std::int64_t rank, std::int64_t stretch, std::int64_t ranks) {
    return stretch == 0 ? rank : 2 * ranks - 1 - rank;
  };
  for (std::int64_t i = 0; i < op.outer; ++i) {
    for (std::int64_t j = 0; j < op.inner; ++j) {
      std::int64_t from = i * op.inner + j, to = j * op.outer + i;
      if (op.order == Regrouping::kToSequence) to = in_sequence(i, j, op.outer);
      if (op.order == Regrouping::kToRanks) from = in_sequence(j, i, op.inner);
      std::copy_n(values<Real>(work.reads[0]) + from * block, block,
                  values<Real>(work.writes[0]) + to * block);
    }
  }
}

template <class Real>
void run(const ShareHeads& op, const Work& work) {
  const std::int64_t share = op.width() / op.ranks;
  const Real* in = values<Real>(work.reads[0]);
  Real* out = values<Real>(work.writes[0]);
  for (std::int64_t row = 0; row < op.rows; ++row) {
    std::int64_t column = row * op.width();
    for (std::int64_t part = 0, before = 0; part < 3; ++part) {
      const std::int64_t each = op.columns[static_cast<std::size_t>(part)] / op.ranks;
      for (std::int64_t rank = 0; rank < op.ranks; ++rank, column += each) {
        const std::int64_t shared = (rank * op.rows + row) * share + before;
        op.back ? std::copy_n(in + shared, each, out + column)
                : std::copy_n(in + column, each, out + shared);
      }
      before += each;
    }
  }
}

void run(const OwnSlots& op, const Work& work) {
  const std::int32_t* slots = slots_of(work.reads[0]);
  auto* own = static_cast<std::int32_t*>(work.writes[0].data);
  const std::int64_t first = work.place.expert_rank * op.experts;
  const std::int64_t each = op.rows / op.ranks * op.chosen;  // choices of one rank
  for (std::int64_t i = 0; i < op.rows * op.chosen; ++i) {
    const std::int64_t expert = slots[i] < 0 ? -1 : slots[i] / op.capacity - first;
    const bool here = expert >= 0 && expert < op.experts;
    const std::int64_t of_rank = (expert * op.ranks + i / each) * op.capacity;
    own[i] = here ? static_cast<std::int32_t>(of_rank + slots[i] % op.capacity) : -1;
  }
}

template <class Real>
void run_weighted(const Pointwise& op, const Work& work, Scratch<Real>& scratch) {
  if (is_activation_gradient(op.kind)) weight_gradient<Real>(op, work, scratch);
  Pointwise plain = op;
  plain.weighted = false;
  const Op same = plain;
  const auto reads = work.reads.first(work.reads.size() - 1);
  run<Real>(plain, Work{same, reads, work.writes.first(1), work.place}, scratch);
  scale_rows<Real>(op, work.reads.back(), work.writes[0]);
}

template <class Real>
void add_expert_bias(const Pointwise& op, const Work& work) {
  const Real *x = values<Real>(work.reads[0]), *biases = values<Real>(work.reads[1]);
  const Real* weights = values<Real>(work.reads[2]);
  Real* y = values<Real>(work.writes[0]);
  const std::int64_t each = op.rows / op.experts;
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* bias = biases + i / each * op.columns;
    for (std::int64_t j = 0; j < op.columns; ++j) {
      y[i * op.columns + j] = x[i * op.columns + j] + weights[i] * bias[j];
    }
  }
}

template <class Real>
void add_expert_bias_backward(const Pointwise& op, const Work& work) {
  const Real *d = values<Real>(work.reads[0]), *biases = values<Real>(work.reads[1]);
  const Real* weights = values<Real>(work.reads[2]);
  Real *d_biases = values<Real>(work.writes[0]), *d_weights = values<Real>(work.writes[1]);
  if (!accumulates(work, 0, 3)) {
    std::fill_n(d_biases, work.writes[0].tensor->shape.elements(), Real(0));
  }
  const std::int64_t each = op.rows / op.experts;
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const std::int64_t expert = i / each * op.columns;
    const Real* row = d + i * op.columns;
    d_weights[i] = dot_product<Real>(row, biases + expert, op.columns);
    for (std::int64_t j = 0; j < op.columns; ++j) d_biases[expert + j] += weights[i] * row[j];
  }
}

template void add_expert_bias<float>(const Pointwise&, const Work&);
template void add_expert_bias<double>(const Pointwise&, const Work&);
template void add_expert_bias_backward<float>(const Pointwise&, const Work&);
template void add_expert_bias_backward<double>(const Pointwise&, const Work&);
template void run<float>(const Route&, const Work&, Scratch<float>&);
template void run<double>(const Route&, const Work&, Scratch<double>&);
template void run<float>(const Permute&, const Work&, Scratch<float>&);
template void run<double>(const Permute&, const Work&, Scratch<double>&);
template void run<float>(const ShareHeads&, const Work&);
template void run<double>(const ShareHeads&, const Work&);
template void run<float>(const Regroup&, const Work&);
template void run<double>(const Regroup&, const Work&);
template void run_weighted<float>(const Pointwise&, const Work&, Scratch<float>&);
template void run_weighted<double>(const Pointwise&, const Work&, Scratch<double>&);

}  // namespace stepcast::cpu
