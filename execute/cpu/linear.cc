// Products of linear layers, and the batched products of attention without a fused kernel: one
// multiply() a layer or expert, one a sequence and head.
#include <algorithm>
#include <type_traits>

#include "execute/cpu/gemm.h"
#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
#include "execute/cpu/packed.h"
#include "sim/base/error.h"

namespace stepcast::cpu {

namespace {

// sums (m) = the column sums of a (k, m), added to what is there or not.
template <class Real>
void bias_gradient(const Gemm& op, const Real* a, Real* sums) {
  for (std::int64_t j = 0; j < op.m && !op.accumulate; ++j) sums[j] = 0;
  for (std::int64_t i = 0; i < op.k; ++i) {
    if constexpr (std::is_same_v<Real, float>) {
      loops().add_to(sums, a + i * op.m, op.m);
    } else {
      for (std::int64_t j = 0; j < op.m; ++j) sums[j] += a[i * op.m + j];
    }
  }
}

// Expert by expert, whose operands lie one behind the other; without experts there is one.
template <class Real>
void linear(const Gemm& op, const Work& work) {
  for (std::int64_t expert = 0; expert < op.batch; ++expert) {
    const Real* a = values<Real>(work.reads[0]) + expert * op.m * op.k;
    const Real* b = values<Real>(work.reads[1]) + expert * op.k * op.n;
    Real* c = values<Real>(work.writes[0]) + expert * op.m * op.n;
    double beta = op.accumulate ? 1 : 0;
    switch (op.role) {
      case GemmRole::kForward:
        if (op.bias) {
          const Real* bias = values<Real>(work.reads[2]) + expert * op.n;
          for (std::int64_t i = 0; i < op.m; ++i) std::copy_n(bias, op.n, c + i * op.n);
          beta = 1;
        }
        multiply<Real>(op.m, op.n, op.k, 1, {a, op.k, false}, {b, op.k, true}, beta, c, op.n);
        break;
      case GemmRole::kInputGradient:
        multiply<Real>(op.m, op.n, op.k, 1, {a, op.k, false}, {b, op.n, false}, beta, c, op.n);
        break;
      case GemmRole::kWeightGradient:
        multiply<Real>(op.m, op.n, op.k, 1, {a, op.m, true}, {b, op.n, false}, beta, c, op.n);
        if (op.bias) bias_gradient(op, a, values<Real>(work.writes[1]) + expert * op.m);
        break;
    }
  }
}

// S = scale Q K^T, and with it dQ = scale dS K, dK = scale sum over the heads of dS^T Q.
template <class Real>
void scores(const Gemm& op, const Work& work, const Packed& p, bool forward, bool queries) {
  const Operand& source = work.reads[forward ? 0 : 1];  // qk where there is one
  const std::int64_t s = p.positions, d = p.head_dim;
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t kv = head / p.group();
      const std::int64_t at = (sequence * p.heads + head) * s * s;
      const auto q = p.view<Real>(source, sequence, p.query_column(head));
      const auto k = p.view<Real>(source, sequence, p.key_column(kv));
      if (forward) {
        multiply<Real>(s, s, d, p.scale(), {q.data, q.stride, false}, {k.data, k.stride, true}, 0,
                       values<Real>(work.writes[0]) + at, s);
        continue;
      }
      const Real* ds = values<Real>(work.reads[0]) + at;
      if (queries) {
        const auto dq = p.view<Real>(work.writes[0], sequence, p.query_column(head));
        multiply<Real>(s, d, s, p.scale(), {ds, s, false}, {k.data, k.stride, false}, 0, dq.data,
                       dq.stride);
      } else {
        const auto dk = p.view<Real>(work.writes[0], sequence, p.key_column(kv));
        const double beta = head % p.group() == 0 ? 0 : 1;
        multiply<Real>(s, d, s, p.scale(), {ds, s, true}, {q.data, q.stride, false}, beta, dk.data,
                       dk.stride);
      }
    }
  }
  STEPCAST_CHECK(op.batch == p.sequences * p.kv_heads, "attention's products are one a kv head");
}

// O = P V:  dP = dO V^T,  dV = sum over the heads of P^T dO.
template <class Real>
void context(const Gemm& op, const Work& work, const Packed& p) {
  const std::int64_t s = p.positions, d = p.head_dim;
  for (std::int64_t sequence = 0; sequence < p.sequences; ++sequence) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t kv = head / p.group();
      const std::int64_t at = (sequence * p.heads + head) * s * s;
      switch (op.role) {
        case GemmRole::kForward: {
          const auto v = p.view<Real>(work.reads[1], sequence, p.value_column(kv));
          const auto o = p.view<Real>(work.writes[0], sequence, p.query_column(head));
          multiply<Real>(s, d, s, 1, {values<Real>(work.reads[0]) + at, s, false},
                         {v.data, v.stride, false}, 0, o.data, o.stride);
          break;
        }
        case GemmRole::kInputGradient: {
          const auto d_o = p.view<Real>(work.reads[0], sequence, p.query_column(head));
          const auto v = p.view<Real>(work.reads[1], sequence, p.value_column(kv));
          multiply<Real>(s, s, d, 1, {d_o.data, d_o.stride, false}, {v.data, v.stride, true}, 0,
                         values<Real>(work.writes[0]) + at, s);
          break;
        }
        case GemmRole::kWeightGradient: {
          const auto d_o = p.view<Real>(work.reads[1], sequence, p.query_column(head));
          const auto dv = p.view<Real>(work.writes[0], sequence, p.value_column(kv));
          multiply<Real>(s, d, s, 1, {values<Real>(work.reads[0]) + at, s, true},
                         {d_o.data, d_o.stride, false}, head % p.group() == 0 ? 0 : 1, dv.data,
                         dv.stride);
          break;
        }
      }
    }
  }
}

bool is_weight(const Operand& operand) { return operand.tensor->scope == Scope::kChunk; }

}  // namespace

template <class Real>
void run(const Gemm& op, const Work& work) {
  const bool weight_gradient = op.role == GemmRole::kWeightGradient;
  const std::size_t reads = work.reads.size();
  if (weight_gradient ? is_weight(work.writes[0]) : reads > 1 && is_weight(work.reads[1])) {
    return linear<Real>(op, work);
  }
  const std::int64_t micro_batch = work.place.batch.micro_batch;
  if (op.role == GemmRole::kForward) {
    // [qk,] qkv -> scores, or probabilities (rows, keys), qkv -> o: a qk is wider than a head.
    const Tensor& qkv = *work.reads[reads - 1].tensor;
    const bool product = reads == 2 && work.reads[0].tensor->shape.sizes[1] == op.k;
    const Packed p(qkv, op.batch / micro_batch, product ? op.n : op.k, micro_batch);
    return product ? context<Real>(op, work, p) : scores<Real>(op, work, p, true, false);
  }
  // What scores' gradients write, they name among their reads.
  const bool in_place = accumulates(work, 0, 2);
  if (in_place) {
    const Packed p(*work.writes[0].tensor, op.batch / micro_batch, op.n, micro_batch);
    return scores<Real>(op, work, p, false, !weight_gradient);
  }
  const Tensor& packed = weight_gradient ? *work.writes[0].tensor : *work.reads[1].tensor;
  const Packed p(packed, op.batch / micro_batch, weight_gradient ? op.n : op.k, micro_batch);
  context<Real>(op, work, p);
}

template void run<float>(const Gemm&, const Work&);
template void run<double>(const Gemm&, const Work&);

}  // namespace stepcast::cpu
