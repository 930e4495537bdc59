// Elementwise kernels: one loop over the elements each. GELU is its tanh form (Hendrycks & Gimpel
// 2016), as GPT-2 has it; rotary turns a head's columns j and j + d / 2 by the angle position /
// base^(2 j / d) (Su et al. 2021, in the layout of Hugging Face's models).
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
#include "execute/cpu/masks.h"
#include "sim/base/error.h"

namespace stepcast::cpu {

namespace {

// float is what training runs: its loops are vectors (loops.h). double is for the tests.
template <class Real>
constexpr bool kFast = std::is_same_v<Real, float>;

constexpr double kGeluRoot = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <class Real>
Real gelu(Real x) {
  const Real inner = static_cast<Real>(kGeluRoot) * (x + static_cast<Real>(kGeluCubic) * x * x * x);
  return Real(0.5) * x * (1 + std::tanh(inner));
}

template <class Real>
Real gelu_slope(Real x) {
  const Real square = x * x;
  const Real t =
      std::tanh(static_cast<Real>(kGeluRoot) * (x + static_cast<Real>(kGeluCubic) * square * x));
  const Real cubic = static_cast<Real>(kGeluCubic);
  const Real inner = static_cast<Real>(kGeluRoot) * (1 + 3 * cubic * square);
  return Real(0.5) * (1 + t) + Real(0.5) * x * (1 - t * t) * inner;
}

template <class Real>
Real silu(Real x) {
  return x / (1 + std::exp(-x));
}

template <class Real>
Real silu_slope(Real x) {
  const Real s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

template <class Real>
void add(const Pointwise& op, const Work& work) {
  const Real *a = values<Real>(work.reads[0]), *b = values<Real>(work.reads[1]);
  const Real* bias = work.reads.size() > 2 ? values<Real>(work.reads[2]) : nullptr;
  Real* out = values<Real>(work.writes[0]);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const std::int64_t row = i * op.columns;
    if constexpr (kFast<Real>) {
      loops().add(a + row, b + row, out + row, op.columns);
      if (bias != nullptr) loops().add_to(out + row, bias, op.columns);
      continue;
    }
    for (std::int64_t j = row; j < row + op.columns; ++j) out[j] = a[j] + b[j];
    for (std::int64_t j = 0; j < op.columns && bias != nullptr; ++j) out[row + j] += bias[j];
  }
}

// The row of the table that row i of x takes: the only one, or its position's.
std::int64_t table_row(const Pointwise& op, const Work& work, const Operand& table,
                       std::int64_t i) {
  return table.tensor->shape.elements() == op.columns ? 0 : work.place.position(i, op.rows);
}

template <class Real>
void add_rows(const Pointwise& op, const Work& work) {
  const Real *x = values<Real>(work.reads[0]), *table = values<Real>(work.reads[1]);
  Real* y = values<Real>(work.writes[0]);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* row = table + table_row(op, work, work.reads[1], i) * op.columns;
    const std::int64_t at = i * op.columns;
    if constexpr (kFast<Real>) {
      loops().add(x + at, row, y + at, op.columns);
      continue;
    }
    for (std::int64_t j = 0; j < op.columns; ++j) y[at + j] = x[at + j] + row[j];
  }
}

template <class Real>
void add_rows_backward(const Pointwise& op, const Work& work) {
  const Real* d = values<Real>(work.reads[0]);
  Real* table = values<Real>(work.writes[0]);
  if (!accumulates(work, 0, 1)) {
    std::fill_n(table, work.writes[0].tensor->shape.elements(), Real(0));
  }
  for (std::int64_t i = 0; i < op.rows; ++i) {
    Real* row = table + table_row(op, work, work.writes[0], i) * op.columns;
    for (std::int64_t j = 0; j < op.columns; ++j) row[j] += d[i * op.columns + j];
  }
}

// Where rows of a gate and of its partner begin: side by side in one tensor (rows, 2 columns), or
// each in its own.
template <class Real>
struct GateRows {
  Real *gate, *up;
  std::int64_t stride;

  GateRows(std::span<const Operand> operands, std::int64_t columns)
      : gate(values<Real>(operands[0])),
        up(operands.size() > 1 ? values<Real>(operands[1]) : gate + columns),
        stride(operands.size() > 1 ? columns : 2 * columns) {}
};

// What gpt-oss limits: its slope is 0 beyond the limit.
template <class Real>
Real oai_gate(Real x) {
  const Real limited = std::min(x, static_cast<Real>(kOaiLimit));
  return limited / (1 + std::exp(-static_cast<Real>(kOaiSlope) * limited));
}

template <class Real>
Real oai_gate_slope(Real x) {
  if (x > static_cast<Real>(kOaiLimit)) return 0;
  const Real slope = static_cast<Real>(kOaiSlope);
  const Real s = 1 / (1 + std::exp(-slope * x));
  return s * (1 + slope * x * (1 - s));
}

template <class Real>
Real oai_up(Real x) {
  const Real limit = static_cast<Real>(kOaiLimit);
  return std::clamp(x, -limit, limit) + 1;
}

template <class Real>
Real oai_up_slope(Real x) {
  return std::abs(x) <= static_cast<Real>(kOaiLimit) ? 1 : 0;
}

// What a gate multiplies: as it is, elsewhere.
template <class Real>
Real itself(Real x) {
  return x;
}

template <class Real>
Real full_slope(Real) {
  return 1;
}

template <class Real, class Function>
void gate(const Pointwise& op, const Work& work, Function activation,
          Function partner = itself<Real>) {
  const GateRows<Real> in(work.reads, op.columns);
  Real* out = values<Real>(work.writes[0]);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real *g = in.gate + i * in.stride, *up = in.up + i * in.stride;
    for (std::int64_t j = 0; j < op.columns; ++j) {
      out[i * op.columns + j] = activation(g[j]) * partner(up[j]);
    }
  }
}

template <class Real, class Function>
void gate_backward(const Pointwise& op, const Work& work, Function activation, Function slope,
                   Function partner = itself<Real>, Function partner_slope = full_slope<Real>) {
  const std::int64_t columns = op.columns / 2;  // op.columns are those of both gradients
  const Real* d = values<Real>(work.reads[0]);
  const GateRows<Real> in(work.reads.subspan(1), columns), out(work.writes, columns);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const Real dy = d[i * columns + j];
      const Real gate_value = in.gate[i * in.stride + j], up = in.up[i * in.stride + j];
      out.gate[i * out.stride + j] = dy * partner(up) * slope(gate_value);
      out.up[i * out.stride + j] = dy * activation(gate_value) * partner_slope(up);
    }
  }
}

template <class Real>
void fill_rotary(Scratch<Real>& scratch, std::int64_t positions, std::int64_t head_dim) {
  const auto size = static_cast<std::size_t>(positions * head_dim);
  if (scratch.rotary_head_dim == head_dim && scratch.rotary.size() >= size) return;
  scratch.rotary_head_dim = head_dim;
  scratch.rotary.resize(size);
  Real* out = scratch.rotary.data();
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t j = 0; j < head_dim / 2; ++j) {
      const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(position) / std::pow(kRotaryBase, exponent);
      *out++ = static_cast<Real>(std::cos(angle));
      *out++ = static_cast<Real>(std::sin(angle));
    }
  }
}

// One row of a head: columns j and j + half are a pair. In place where `out` is `in`.
template <class Real>
void turn(const Real* in, std::int64_t half, const Real* turns, Real direction, Real* out) {
  for (std::int64_t j = 0; j < half; ++j) {
    const Real cos = turns[2 * j], sin = turns[2 * j + 1] * direction;
    const Real low = in[j], high = in[half + j];
    out[j] = low * cos - high * sin;
    out[half + j] = high * cos + low * sin;
  }
}

template <class Real>
void rotate(const Pointwise& op, const Work& work, Scratch<Real>& scratch, Real direction) {
  STEPCAST_CHECK(op.head_dim > 0 && op.head_dim % 2 == 0, "rotary needs an even head_dim");
  const std::int64_t turned = op.rotated > 0 ? op.rotated : op.head_dim;
  fill_rotary(scratch, work.place.batch.sequence_length, turned);
  const std::int64_t width = work.writes[0].tensor->shape.sizes[1];
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* turns = scratch.rotary.data() + work.place.position(i, op.rows) * turned;
    const Real* in = values<Real>(work.reads[0]) + i * width;
    Real* row = values<Real>(work.writes[0]) + i * width;
    for (std::int64_t head = op.head_dim - turned; head < op.columns; head += op.head_dim) {
      turn(in + head, turned / 2, turns, direction, row + head);
      if (op.scale == 1) continue;
      for (std::int64_t j = 0; j < turned; ++j) row[head + j] *= static_cast<Real>(op.scale);
    }
  }
}

template <class Real>
void softmax(const Pointwise& op, const Work& work) {
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* in = values<Real>(work.reads[0]) + i * op.columns;
    Real* out = values<Real>(work.writes[0]) + i * op.columns;
    const std::int64_t seen = op.causal ? i % op.columns + 1 : op.columns;
    if constexpr (kFast<Real>) {
      const float sum = loops().exponentials(in, loops().maximum(in, seen), out, seen);
      loops().scale(out, 1 / sum, seen);
      std::fill(out + seen, out + op.columns, 0.0f);
      continue;
    }
    const Real most = *std::max_element(in, in + seen);
    double sum = 0;
    for (std::int64_t j = 0; j < seen; ++j) sum += out[j] = std::exp(in[j] - most);
    for (std::int64_t j = 0; j < seen; ++j) out[j] = static_cast<Real>(out[j] / sum);
    std::fill(out + seen, out + op.columns, Real(0));
  }
}

template <class Real>
void softmax_backward(const Pointwise& op, const Work& work) {
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* d = values<Real>(work.reads[0]) + i * op.columns;
    const Real* p = values<Real>(work.reads[1]) + i * op.columns;
    Real* out = values<Real>(work.writes[0]) + i * op.columns;
    if constexpr (kFast<Real>) {
      loops().softmax_backward(d, p, loops().dot(d, p, op.columns), out, op.columns);
      continue;
    }
    double dot = 0;
    for (std::int64_t j = 0; j < op.columns; ++j) dot += static_cast<double>(d[j]) * p[j];
    for (std::int64_t j = 0; j < op.columns; ++j) out[j] = p[j] * (d[j] - static_cast<Real>(dot));
  }
}

// In place: what lies right of the diagonal.
template <class Real>
void mask(const Pointwise& op, const Work& work) {
  const Real masked = op.kind == PointwiseKind::kMask ? Real(kMaskedScore) : Real(0);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    Real* row = values<Real>(work.writes[0]) + i * op.columns;
    std::fill(row + i % op.columns + 1, row + op.columns, masked);
  }
}

// Tensors end to end into one, or the tensor rank's share of the rows of one.
template <class Real>
void copy(const Work& work) {
  Real* out = values<Real>(work.writes[0]);
  const std::int64_t size = work.writes[0].tensor->shape.elements();
  if (work.reads.size() == 1 && work.reads[0].tensor->shape.elements() > size) {
    std::copy_n(values<Real>(work.reads[0]) + work.place.tensor_rank * size, size, out);
    return;
  }
  for (const Operand& in : work.reads) {
    out = std::copy_n(values<Real>(in), in.tensor->shape.elements(), out);
  }
}

// The last columns of what holds the keys, and of what holds the values.
template <class Real>
void keys_values(const Pointwise& op, const Work& work) {
  const std::int64_t half = op.columns / 2;
  const bool packed = work.reads.size() == 1;
  const auto from = [&](std::size_t i, std::int64_t row, std::int64_t columns) {
    const std::int64_t width = work.reads[i].tensor->shape.sizes[1];
    return values<Real>(work.reads[i]) + (row + 1) * width - columns;
  };
  for (std::int64_t i = 0; i < op.rows; ++i) {
    Real* out = values<Real>(work.writes[0]) + i * op.columns;
    std::copy_n(from(0, i, packed ? op.columns : half), half, out);
    std::copy_n(from(packed ? 0 : 1, i, half), half, out + half);
  }
}

template <class Real>
void keys_values_backward(const Pointwise& op, const Work& work) {
  const std::int64_t columns = op.columns / static_cast<std::int64_t>(work.writes.size());
  for (std::size_t part = 0; part < work.writes.size(); ++part) {
    const std::int64_t width = work.writes[part].tensor->shape.sizes[1];
    const bool adds = accumulates(work, part, 1);
    for (std::int64_t i = 0; i < op.rows; ++i) {
      const Real* in = values<Real>(work.reads[0]) + i * op.columns +
                       static_cast<std::int64_t>(part) * columns;
      Real* out = values<Real>(work.writes[part]) + (i + 1) * width - columns;
      for (std::int64_t j = 0; j < columns; ++j) out[j] = (adds ? out[j] : Real(0)) + in[j];
    }
  }
}

// lse is (sequences, heads, positions), o (positions x sequences, heads x head_dim).
template <class Real>
void merge_attention(const Pointwise& op, const Work& work) {
  const auto& sizes = work.reads[1].tensor->shape.sizes;
  const std::int64_t sequences = sizes[0], heads = sizes[1], positions = sizes[2];
  const std::int64_t d = op.columns / heads;
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t at = (row % sequences * heads + head) * positions + row / sequences;
      Real& lse = values<Real>(work.writes[1])[at];
      const Real more = values<Real>(work.reads[3])[at];
      const Real most = std::max(lse, more);
      const Real sum = std::exp(lse - most) + std::exp(more - most);
      const Real share = std::exp(lse - most) / sum, share_more = std::exp(more - most) / sum;
      Real* o = values<Real>(work.writes[0]) + row * op.columns + head * d;
      const Real* part = values<Real>(work.reads[2]) + row * op.columns + head * d;
      for (std::int64_t j = 0; j < d; ++j) o[j] = share * o[j] + share_more * part[j];
      lse = most + std::log(sum);
    }
  }
}

bool is_silu(const Pointwise& op) {
  return op.kind == PointwiseKind::kSwiglu || op.kind == PointwiseKind::kSwigluBackward;
}

void fast_gate(const Pointwise& op, const Work& work) {
  const auto loop = is_silu(op) ? loops().silu_gate : loops().gelu_gate;
  const std::int64_t n = op.columns;
  const GateRows<float> in(work.reads, n);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    loop(in.gate + i * in.stride, in.up + i * in.stride, values<float>(work.writes[0]) + i * n, n);
  }
}

void fast_gate_backward(const Pointwise& op, const Work& work) {
  const auto loop = is_silu(op) ? loops().silu_gate_backward : loops().gelu_gate_backward;
  const std::int64_t n = op.columns / 2;
  const GateRows<float> in(work.reads.subspan(1), n), out(work.writes, n);
  for (std::int64_t i = 0; i < op.rows; ++i) {
    loop(values<float>(work.reads[0]) + i * n, in.gate + i * in.stride, in.up + i * in.stride,
         out.gate + i * out.stride, out.up + i * out.stride, n);
  }
}

// Whether the float kernel has a loop of its own, which has then run.
bool run_fast(const Pointwise& op, const Work& work) {
  const std::int64_t all = op.rows * op.columns;
  switch (op.kind) {
    case PointwiseKind::kGelu:
      loops().gelu(values<float>(work.reads[0]), values<float>(work.writes[0]), all);
      return true;
    case PointwiseKind::kGeluBackward:
      loops().gelu_backward(values<float>(work.reads[0]), values<float>(work.reads[1]),
                            values<float>(work.writes[0]), all);
      return true;
    case PointwiseKind::kSwiglu:
    case PointwiseKind::kGeglu: fast_gate(op, work); return true;
    case PointwiseKind::kSwigluBackward:
    case PointwiseKind::kGegluBackward: fast_gate_backward(op, work); return true;
    default: return false;
  }
}

template <class Real, class Function>
void each(const Pointwise& op, const Work& work, Function function) {
  const Real* in = values<Real>(work.reads[0]);
  Real* out = values<Real>(work.writes[0]);
  for (std::int64_t i = 0; i < op.rows * op.columns; ++i) out[i] = function(in[i]);
}

}  // namespace

template <class Real>
void run(const Pointwise& op, const Work& work, Scratch<Real>& scratch) {
  if (op.weighted) return run_weighted<Real>(op, work, scratch);
  if constexpr (kFast<Real>) {
    if (run_fast(op, work)) return;
  }
  switch (op.kind) {
    case PointwiseKind::kAdd: return add<Real>(op, work);
    case PointwiseKind::kAddRows: return add_rows<Real>(op, work);
    case PointwiseKind::kAddRowsBackward: return add_rows_backward<Real>(op, work);
    case PointwiseKind::kGelu: return each<Real>(op, work, gelu<Real>);
    case PointwiseKind::kGeluBackward: {
      const Real* x = values<Real>(work.reads[1]);
      return each<Real>(op, work, [&](Real d) { return d * gelu_slope(*x++); });
    }
    case PointwiseKind::kSwiglu: return gate<Real>(op, work, silu<Real>);
    case PointwiseKind::kSwigluBackward:
      return gate_backward<Real>(op, work, silu<Real>, silu_slope<Real>);
    case PointwiseKind::kGeglu: return gate<Real>(op, work, gelu<Real>);
    case PointwiseKind::kGegluBackward:
      return gate_backward<Real>(op, work, gelu<Real>, gelu_slope<Real>);
    case PointwiseKind::kSwigluOai:
      return gate<Real>(op, work, oai_gate<Real>, oai_up<Real>);
    case PointwiseKind::kSwigluOaiBackward:
      return gate_backward<Real>(op, work, oai_gate<Real>, oai_gate_slope<Real>, oai_up<Real>,
                                 oai_up_slope<Real>);
    case PointwiseKind::kAddExpertBias: return add_expert_bias<Real>(op, work);
    case PointwiseKind::kAddExpertBiasBackward: return add_expert_bias_backward<Real>(op, work);
    case PointwiseKind::kRotary: return rotate<Real>(op, work, scratch, 1);
    case PointwiseKind::kRotaryBackward: return rotate<Real>(op, work, scratch, -1);
    case PointwiseKind::kSoftmax: return softmax<Real>(op, work);
    case PointwiseKind::kSoftmaxBackward: return softmax_backward<Real>(op, work);
    case PointwiseKind::kMask:
    case PointwiseKind::kMaskBackward: return mask<Real>(op, work);
    case PointwiseKind::kCast:
      if (op.dtype == Dtype::kInt32) return copy<std::int32_t>(work);
      return copy<Real>(work);
    case PointwiseKind::kScale: return copy<Real>(work);
    case PointwiseKind::kUnflatten: return;  // the numbers are where they belong already
    case PointwiseKind::kFill:
      for (const Operand& out : work.writes) {
        std::fill_n(values<Real>(out), out.tensor->shape.elements(), Real(0));
      }
      return;
    case PointwiseKind::kDropout:
    case PointwiseKind::kDropoutAdd: return drop<Real>(op, work);
    case PointwiseKind::kDropoutBackward: return drop_backward<Real>(op, work);
    case PointwiseKind::kKeysValues: return keys_values<Real>(op, work);
    case PointwiseKind::kKeysValuesBackward: return keys_values_backward<Real>(op, work);
    case PointwiseKind::kMergeAttention: return merge_attention<Real>(op, work);
    case PointwiseKind::kAmax:
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth:
    case PointwiseKind::kTranspose: break;
  }
  STEPCAST_CHECK(false, "unsupported() names the ops that no backend carries out");
}

template <class Real>
void run(const LatentKeys& op, const Work& work, Scratch<Real>& scratch) {
  fill_rotary(scratch, work.place.batch.sequence_length, op.rotated);
  const bool forward = op.pass == Pass::kForward;
  const auto& whole = forward ? work.reads : work.writes;   // kv and what is shared
  const auto& heads = forward ? work.writes : work.reads;   // keys and values
  const std::int64_t n = op.own, r = op.rotated, v = op.values;
  std::vector<Real>& sum = scratch.activated;
  sum.resize(static_cast<std::size_t>(r));
  for (std::int64_t i = 0; i < op.rows; ++i) {
    const Real* turns = scratch.rotary.data() + work.place.position(i, op.rows) * r;
    Real* kv = values<Real>(whole[0]) + i * op.heads * (n + v);
    Real* shared = values<Real>(whole[1]) + i * r;
    Real* key = values<Real>(heads[0]) + i * op.heads * (n + r);
    Real* value = values<Real>(heads[1]) + i * op.heads * v;
    std::fill(sum.begin(), sum.end(), Real(0));
    if (forward) turn(shared, r / 2, turns, Real(1), sum.data());
    for (std::int64_t head = 0; head < op.heads; ++head) {
      if (forward) {
        std::copy_n(kv, n, key);
        std::copy(sum.begin(), sum.end(), key + n);
        std::copy_n(kv + n, v, value);
      } else {
        std::copy_n(key, n, kv);
        for (std::int64_t j = 0; j < r; ++j) sum[static_cast<std::size_t>(j)] += key[n + j];
        std::copy_n(value, v, kv + n);
      }
      kv += n + v, key += n + r, value += v;
    }
    if (!forward) turn(sum.data(), r / 2, turns, Real(-1), shared);
  }
}

template void run<float>(const Pointwise&, const Work&, Scratch<float>&);
template void run<float>(const LatentKeys&, const Work&, Scratch<float>&);
template void run<double>(const LatentKeys&, const Work&, Scratch<double>&);
template void run<double>(const Pointwise&, const Work&, Scratch<double>&);

}  // namespace stepcast::cpu
