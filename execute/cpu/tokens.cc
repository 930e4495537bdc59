// Table lookup and cross-entropy, both over a vocabulary of which this rank may hold a slice: its
// ids begin at (tensor rank) x (rows of the slice). What the ranks add up or take the maximum of
// between the parts of the loss is Megatron-LM's vocabulary-parallel cross-entropy (Shoeybi et al.
// 2019). O(rows columns).
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"

namespace stepcast::cpu {

namespace {

const std::int64_t* ids(const Operand& operand) {
  return static_cast<const std::int64_t*>(operand.data);
}

// Of exp(in - shift); the exponentials themselves are thrown away, block by block.
double sum_of_exponentials(const float* in, float shift, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;
  float block[kBlock];
  double sum = 0;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    sum +=
        static_cast<double>(loops().exponentials(in + at, shift, block, std::min(kBlock, n - at)));
  }
  return sum;
}

}  // namespace

template <class Real>
void run(const Gather& op, const Work& work) {
  const std::int64_t first = work.place.tensor_rank * op.vocabulary;
  const std::int64_t* id = ids(work.reads[0]);
  const bool forward = op.pass == Pass::kForward;
  const Real* from = values<Real>(work.reads[1]);
  Real* to = values<Real>(work.writes[0]);
  if (!forward && !accumulates(work, 0, 2)) std::fill_n(to, op.vocabulary * op.columns, Real(0));
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const std::int64_t local = id[i] - first;
    const bool here = local >= 0 && local < op.vocabulary;
    if (forward && here) {
      std::copy_n(from + local * op.columns, op.columns, to + i * op.columns);
    } else if (forward) {
      std::fill_n(to + i * op.columns, op.columns, Real(0));
    } else if (here) {
      const Real* d = from + i * op.columns;
      for (std::int64_t j = 0; j < op.columns; ++j) to[local * op.columns + j] += d[j];
    }
  }
}

template <class Real>
void run(const Loss& op, const Work& work) {
  const std::int64_t first = work.place.tensor_rank * op.vocabulary;
  // Columns beyond the real vocabulary are padding.
  const std::int64_t columns =
      std::clamp<std::int64_t>(work.place.batch.vocabulary - first, 0, op.vocabulary);
  const Real mean = static_cast<Real>(1.0 / static_cast<double>(work.place.batch_tokens));
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* in = values<Real>(work.reads[0]) + i * op.vocabulary;
    switch (op.part) {
      case LossPart::kMaximum: {
        Real most = std::numeric_limits<Real>::lowest();
        if constexpr (std::is_same_v<Real, float>) {
          most = loops().maximum(in, columns);
        } else {
          for (std::int64_t j = 0; j < columns; ++j) most = std::max(most, in[j]);
        }
        values<Real>(work.writes[0])[i] = most;
        break;
      }
      case LossPart::kSums: {
        const Real most = values<Real>(work.reads[2])[i];
        double sum = 0;
        if constexpr (std::is_same_v<Real, float>) {
          sum = sum_of_exponentials(in, most, columns);
        } else {
          for (std::int64_t j = 0; j < columns; ++j) sum += std::exp(in[j] - most);
        }
        const std::int64_t target = ids(work.reads[1])[i] - first;
        Real* sums = values<Real>(work.writes[0]) + 2 * i;
        sums[0] = static_cast<Real>(sum);
        sums[1] = target >= 0 && target < op.vocabulary ? in[target] - most : Real(0);
        break;
      }
      case LossPart::kFinish: {
        const Real most = values<Real>(work.reads[1])[i];
        const Real* sums = values<Real>(work.reads[2]) + 2 * i;
        Real* p = values<Real>(work.writes[1]) + i * op.vocabulary;
        values<Real>(work.writes[0])[i] = std::log(sums[0]) - sums[1];
        if constexpr (std::is_same_v<Real, float>) {
          loops().exponentials(in, most, p, columns);
          loops().scale(p, 1 / sums[0], columns);
        } else {
          for (std::int64_t j = 0; j < columns; ++j) p[j] = std::exp(in[j] - most) / sums[0];
        }
        std::fill(p + columns, p + op.vocabulary, Real(0));
        break;
      }
      case LossPart::kBackward: {
        const std::int64_t target = ids(work.reads[1])[i] - first;
        const bool mine = target >= 0 && target < op.vocabulary;
        const Real chosen = mine ? in[target] : Real(0);  // first: it may be one tensor with d
        Real* d = values<Real>(work.writes[0]) + i * op.vocabulary;
        for (std::int64_t j = 0; j < op.vocabulary; ++j) d[j] = in[j] * mean;
        if (mine) d[target] = (chosen - 1) * mean;
        break;
      }
    }
  }
}

template void run<float>(const Gather&, const Work&);
template void run<double>(const Gather&, const Work&);
template void run<float>(const Loss&, const Work&);
template void run<double>(const Loss&, const Work&);

}  // namespace stepcast::cpu
