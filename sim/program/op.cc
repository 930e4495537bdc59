// What an Op costs in arithmetic and in memory traffic, from its shapes alone. O(1) each.
//
// FLOPs: a matrix product counts 2 m n k. Fused attention counts two products forward and five
// backward (FlashAttention-2, Dao 2023), hence the factor 2.5. Memory-bound kinds count the
// operations that a straight implementation makes per element, a transcendental function as one;
// their time hangs on traffic, so the figure only has to be of the right size.
//
// Traffic: each operand read once, each result written once; what accumulates is read too. Token
// ids count as 8 bytes (int64, as PyTorch keeps them). A table lookup moves only the rows it needs.
// A causal softmax reads no score that it masks, forward or backward, but writes them all, zeros
// (NVIDIA/Megatron-LM megatron/fused_kernels/scaled_upper_triang_masked_softmax.h).
// An operand that the Op does not know of (the optional bias of an add, all but one row of the
// table of kAddRows, the scales of 8-bit blocks) is left out: it is small beside the others.

#include "sim/program/op.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <type_traits>

namespace stepcast {

namespace {

constexpr Dtype kIds = Dtype::kInt64;
constexpr Dtype kStatistics = Dtype::kFp32;
constexpr Dtype kMask = Dtype::kUint8;

double real(std::int64_t n) { return static_cast<double>(n); }

// Sums up bytes. Saturates far beyond any memory, so that absurd shapes stay defined and are
// refused by whoever compares the sum with a limit.
class ByteCount {
 public:
  ByteCount& add(std::initializer_list<std::int64_t> sizes, Dtype dtype) {
    constexpr std::int64_t kMost = std::int64_t{1} << 56;
    std::int64_t elements = 1;
    for (std::int64_t size : sizes) {
      if (size <= 0) return *this;
      elements = size > kMost / elements ? kMost : elements * size;
    }
    bytes_ += Bytes(elements * dtype_size(dtype));  // at most 16 terms of 2^59: no overflow
    return *this;
  }
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// ---- FLOPs -----------------------------------------------------------------------------------

double count_flops(const Gemm& g) {
  return 2.0 * real(g.m) * real(g.n) * real(g.k) * real(g.batch);
}

double count_flops(const Attention& a) {
  const double keys = real(a.head_dim), values = real(value_columns(a));
  const double each = a.pass == Pass::kForward ? keys + values : 3.0 * keys + 2.0 * values;
  const double pass =
      2.0 * real(a.batch) * real(a.heads) * real(a.queries) * real(a.keys) * each;
  const bool half = a.queries == a.keys || a.source == KeySource::kGathered;
  if (!a.causal || !half) return pass;
  if (a.window == 0 || a.window >= a.keys) return pass / 2;
  const double seen = real(a.window) / real(a.keys);  // the triangle without the one out of sight
  return pass * (seen - seen * seen / 2);
}

// LayerNorm forward: sum; subtract, square, sum; subtract, scale by 1/sigma, gain, bias.
double count_flops(const Norm& n) {
  const bool layer = n.kind == NormKind::kLayer;
  const double each = n.pass == Pass::kForward ? (layer ? 8.0 : 4.0) : (layer ? 14.0 : 10.0);
  return each * real(n.rows) * real(n.columns);
}

double pointwise_flops_per_element(PointwiseKind kind) {
  switch (kind) {
    case PointwiseKind::kAdd:
    case PointwiseKind::kAddRows:
    case PointwiseKind::kAddRowsBackward:
    case PointwiseKind::kScale:
    case PointwiseKind::kKeysValuesBackward:
    case PointwiseKind::kAmax: return 1;
    case PointwiseKind::kGelu: return 8;             // tanh form: cubic, tanh, two products
    case PointwiseKind::kGeluBackward: return 14;
    case PointwiseKind::kSwiglu: return 5;           // exp, add, divide, two products
    case PointwiseKind::kSwigluBackward: return 6;
    case PointwiseKind::kGeglu: return 9;
    case PointwiseKind::kGegluBackward: return 12;
    case PointwiseKind::kSwigluOai: return 9;        // SwiGLU's, a product, a sum, two limits
    case PointwiseKind::kSwigluOaiBackward: return 10;
    case PointwiseKind::kAddExpertBias: return 2;
    case PointwiseKind::kAddExpertBiasBackward: return 4;
    case PointwiseKind::kDropout:
    case PointwiseKind::kDropoutBackward: return 2;  // mask, scale
    case PointwiseKind::kDropoutAdd: return 3;
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward:
    case PointwiseKind::kMergeAttention: return 3;   // two products, one sum
    case PointwiseKind::kSoftmax: return 5;          // scale, maximum, exp, sum, divide
    case PointwiseKind::kSoftmaxBackward: return 4;  // product, sum, subtract, product
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth: return 2;     // scale, largest of what is seen
    case PointwiseKind::kCast:
    case PointwiseKind::kTranspose:
    case PointwiseKind::kUnflatten:
    case PointwiseKind::kMask:
    case PointwiseKind::kMaskBackward:
    case PointwiseKind::kKeysValues:
    case PointwiseKind::kFill: return 0;             // moves only
  }
  return 0;
}

double count_flops(const Pointwise& p) {
  return pointwise_flops_per_element(p.kind) * real(p.rows) * real(p.columns);
}

// Forward only copies; backward adds into the table's gradient.
double count_flops(const Gather& g) {
  return g.pass == Pass::kForward ? 0.0 : real(g.rows) * real(g.columns);
}

double count_flops(const Loss& l) {
  double each = 0;
  switch (l.part) {
    case LossPart::kMaximum: each = 1; break;
    case LossPart::kSums: each = 3; break;      // subtract, exp, add
    case LossPart::kFinish: each = 3; break;    // subtract, exp, divide
    case LossPart::kBackward: each = 1; break;  // subtract the target, scale
  }
  return each * real(l.rows) * real(l.vocabulary);
}

// AdamW: clip, decay, moments 3 + 4, bias corrections 2, root, epsilon, divide, scale, subtract.
double count_flops(const Update& u) {
  return (u.part == UpdatePart::kSquaredNorm ? 2.0 : 16.0) * real(u.elements);
}

// The softmax over the chosen and the search for them: a comparison an expert and choice.
double count_flops(const Route& r) {
  return real(r.rows) * (real(r.experts) + 4.0 * real(r.chosen));
}
double count_flops(const Permute& p) {
  return p.part == PermutePart::kPermute ? 0.0 : real(p.rows) * real(p.chosen) * real(p.columns);
}
double count_flops(const Regroup&) { return 0; }
double count_flops(const OwnSlots&) { return 0; }
double count_flops(const ShareHeads&) { return 0; }
double count_flops(const LatentKeys& l) {
  const double heads = l.pass == Pass::kForward ? 1.0 : real(l.heads);  // gradients are summed
  return real(l.rows) * real(l.rotated) * (3.0 + heads);
}

// ---- traffic ---------------------------------------------------------------------------------

void count_traffic(const Gemm& g, ByteCount& sum) {
  sum.add({g.batch, g.m, g.k}, g.dtype).add({g.batch, g.k, g.n}, g.dtype);
  sum.add({g.batch, g.m, g.n}, g.output);
  if (g.accumulate) sum.add({g.batch, g.m, g.n}, g.output);
  if (!g.bias) return;
  if (g.role == GemmRole::kForward) sum.add({g.batch, g.n}, g.dtype);
  if (g.role == GemmRole::kWeightGradient) {
    sum.add({g.batch, g.m}, g.output);
    if (g.accumulate) sum.add({g.batch, g.m}, g.output);
  }
}

void count_traffic(const Attention& a, ByteCount& sum) {
  const std::int64_t passes = a.pass == Pass::kForward ? 1 : 2;
  // Forward moves q and o, k, v; backward moves these and the gradient of each of the four.
  const std::int64_t columns = a.head_dim + value_columns(a);  // of q and o, of k and v
  sum.add({passes, a.batch, a.queries, a.heads, columns}, a.dtype);
  sum.add({passes, a.batch, a.keys, a.kv_heads, columns}, a.dtype);
  sum.add({a.batch, a.heads, a.queries}, kStatistics);
  if (a.source == KeySource::kPassed && a.pass == Pass::kBackward) {  // d_q is added to
    sum.add({a.batch, a.queries, a.heads, a.head_dim}, a.dtype);
  }
}

void count_traffic(const Norm& n, ByteCount& sum) {
  const std::int64_t vectors = n.kind == NormKind::kLayer ? 2 : 1;  // gain and bias; mean and 1/s
  sum.add({n.rows, vectors}, kStatistics);
  if (n.pass == Pass::kForward) {
    sum.add({2, n.rows, n.columns}, n.dtype).add({vectors, n.columns}, n.dtype);
  } else {
    sum.add({3, n.rows, n.columns}, n.dtype).add({n.columns}, n.dtype);
    sum.add({2 * vectors, n.columns}, n.dtype);  // gradients that accumulate: read and written
  }
}

void count_traffic(const Pointwise& p, ByteCount& sum) {
  if (p.rotated > 0) {  // the others stay where they are
    sum.add({2, p.rows, p.columns / p.head_dim, p.rotated}, p.dtype);
    return;
  }
  const bool masked = p.causal && (p.kind == PointwiseKind::kSoftmax ||
                                   p.kind == PointwiseKind::kSoftmaxBackward);
  const std::int64_t read = masked ? (p.columns + 1) / 2 : p.columns;
  const auto in = [&](std::int64_t times) { sum.add({times, p.rows, read}, p.dtype); };
  if (p.kind != PointwiseKind::kFill) in(1);
  if (p.kind == PointwiseKind::kAmax) {
    sum.add({1}, p.output);
  } else if (p.kind == PointwiseKind::kAddRowsBackward) {
    sum.add({2, p.columns}, p.output);  // accumulates: read and written
  } else if (p.kind == PointwiseKind::kAddExpertBiasBackward) {
    sum.add({p.rows}, kStatistics);
  } else {
    sum.add({p.rows, p.columns}, p.output);
  }
  switch (p.kind) {
    case PointwiseKind::kAdd:
    case PointwiseKind::kGeluBackward:
    case PointwiseKind::kSoftmaxBackward:
    case PointwiseKind::kKeysValuesBackward:
    case PointwiseKind::kMergeAttention:
    case PointwiseKind::kSwiglu:  // its one input is twice as wide
    case PointwiseKind::kGeglu:
    case PointwiseKind::kSwigluOai: in(1); break;
    case PointwiseKind::kAddRows: sum.add({p.columns}, p.dtype); break;
    case PointwiseKind::kAddExpertBias:
    case PointwiseKind::kAddExpertBiasBackward: sum.add({p.rows}, kStatistics); break;
    case PointwiseKind::kSwigluBackward:  // (rows, columns) is d_gate_up; d_y is half as wide
    case PointwiseKind::kGegluBackward:
    case PointwiseKind::kSwigluOaiBackward: sum.add({p.rows, p.columns / 2}, p.dtype); break;
    case PointwiseKind::kDropoutAdd:
      in(1);
      sum.add({p.rows, p.columns}, kMask);
      break;
    case PointwiseKind::kDropout:
    case PointwiseKind::kDropoutBackward: sum.add({p.rows, p.columns}, kMask); break;
    case PointwiseKind::kQuantizeBoth: sum.add({p.rows, p.columns}, p.output); break;
    case PointwiseKind::kGelu:
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward:
    case PointwiseKind::kSoftmax:
    case PointwiseKind::kMask:
    case PointwiseKind::kMaskBackward:
    case PointwiseKind::kAddRowsBackward:
    case PointwiseKind::kCast:
    case PointwiseKind::kFill:
    case PointwiseKind::kScale:
    case PointwiseKind::kAmax:
    case PointwiseKind::kQuantize:
    case PointwiseKind::kKeysValues:
    case PointwiseKind::kTranspose:
    case PointwiseKind::kUnflatten: break;
  }
  if (!p.weighted) return;
  sum.add({is_activation_gradient(p.kind) ? 2 : 1, p.rows}, kStatistics);
}

void count_traffic(const Gather& g, ByteCount& sum) {
  sum.add({g.rows}, kIds).add({g.rows, g.columns}, g.dtype);  // ids; y or d_y
  if (g.pass == Pass::kForward) {
    sum.add({g.rows, g.columns}, g.dtype);
  } else {
    const std::int64_t rows = std::min(g.rows, g.vocabulary);
    sum.add({2, rows, g.columns}, g.gradient);  // accumulate: read and written
  }
}

void count_traffic(const Loss& l, ByteCount& sum) {
  if (l.part != LossPart::kMaximum) sum.add({l.rows}, kIds);
  sum.add({l.rows, l.vocabulary}, l.dtype);  // logits, or their gradient
  switch (l.part) {
    case LossPart::kMaximum: sum.add({l.rows}, kStatistics); break;
    case LossPart::kSums: sum.add({3, l.rows}, kStatistics); break;    // maximum; two sums
    case LossPart::kFinish: sum.add({4, l.rows}, kStatistics);         // and the loss
      sum.add({l.rows, l.vocabulary}, l.statistics);
      break;
    case LossPart::kBackward: sum.add({l.rows, l.vocabulary}, l.statistics); break;
  }
}

void count_traffic(const Update& u, ByteCount& sum) {
  sum.add({u.elements}, u.gradient).add({1}, kStatistics);
  if (u.part == UpdatePart::kSquaredNorm) return;
  if (u.master) {
    sum.add({2, u.elements}, Dtype::kFp32).add({u.elements}, u.weight);
  } else {
    sum.add({2, u.elements}, u.weight);
  }
  sum.add({4, u.elements}, u.moment);  // two moments, each read and written
}

void count_traffic(const Route& r, ByteCount& sum) {
  sum.add({r.rows, r.experts}, r.dtype);  // logits, or their gradient
  sum.add({r.pass == Pass::kForward ? 1 : 2, r.rows, r.chosen}, kStatistics);
  sum.add({r.rows, r.chosen}, Dtype::kInt32);
}

// A row is read once for all its slots, if it has any; slots are written, or read, whole.
void count_traffic(const Permute& p, ByteCount& sum) {
  const bool forth = p.part == PermutePart::kPermute;
  sum.add({forth ? std::min(p.rows, p.slots) : p.rows, p.columns}, p.dtype);
  sum.add({p.slots, p.columns}, p.dtype);
  sum.add({p.rows, p.chosen}, Dtype::kInt32);
  if (p.weighted) sum.add({p.rows, p.chosen}, kStatistics).add({p.slots}, kStatistics);
}

void count_traffic(const LatentKeys& l, ByteCount& sum) {
  const std::int64_t latent = l.own + l.values;
  sum.add({l.rows, l.heads, latent}, l.dtype).add({l.rows, l.rotated}, l.dtype);
  sum.add({l.rows, l.heads, latent + l.rotated}, l.dtype);
}

void count_traffic(const Regroup& r, ByteCount& sum) {
  sum.add({2, r.outer, r.inner, r.rows * r.columns}, r.dtype);
}

void count_traffic(const ShareHeads& s, ByteCount& sum) {
  sum.add({2, s.rows, s.width()}, s.dtype);
}

void count_traffic(const OwnSlots& o, ByteCount& sum) {
  sum.add({2, o.rows, o.chosen}, Dtype::kInt32);
}

// ---- hash ------------------------------------------------------------------------------------

auto fields(const Gemm& g) {
  return std::tie(g.m, g.n, g.k, g.batch, g.role, g.dtype, g.output, g.accumulate, g.bias,
                  g.block_scales, g.grouped);
}
auto fields(const Attention& a) {
  return std::tie(a.pass, a.batch, a.heads, a.kv_heads, a.queries, a.keys, a.head_dim, a.causal,
                  a.dropout, a.dtype, a.deterministic, a.source, a.step, a.value_dim,
                  a.window, a.sinks);
}
auto fields(const Norm& n) { return std::tie(n.pass, n.kind, n.rows, n.columns, n.dtype); }
auto fields(const Pointwise& p) {
  return std::tie(p.kind, p.rows, p.columns, p.dtype, p.output, p.causal, p.head_dim, p.scores,
                  p.weighted, p.rotated, p.experts, p.scale);
}
auto fields(const Gather& g) {
  return std::tie(g.pass, g.rows, g.columns, g.vocabulary, g.dtype, g.gradient);
}
auto fields(const Loss& l) {
  return std::tie(l.part, l.rows, l.vocabulary, l.dtype, l.statistics);
}
auto fields(const Update& u) {
  return std::tie(u.part, u.elements, u.weight, u.gradient, u.master, u.moment);
}

auto fields(const Route& r) {
  return std::tie(r.pass, r.rows, r.experts, r.chosen, r.capacity, r.dtype);
}
auto fields(const Permute& p) {
  return std::tie(p.part, p.rows, p.chosen, p.slots, p.columns, p.dtype, p.weighted);
}
auto fields(const LatentKeys& l) {
  return std::tie(l.pass, l.rows, l.heads, l.own, l.rotated, l.values, l.dtype);
}
auto fields(const OwnSlots& o) {
  return std::tie(o.rows, o.chosen, o.experts, o.capacity, o.ranks);
}
auto fields(const Regroup& r) {
  return std::tie(r.outer, r.inner, r.rows, r.columns, r.dtype, r.order);
}
auto fields(const ShareHeads& s) {
  return std::tie(s.back, s.rows, s.ranks, s.columns[0], s.columns[1], s.columns[2], s.dtype);
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014) over the running sum of the fields.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t z = hash * 31 + value + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32: return "fp32";
    case Dtype::kBf16: return "bf16";
    case Dtype::kFp16: return "fp16";
    case Dtype::kFp8: return "fp8";
    case Dtype::kInt64: return "int64";
    case Dtype::kInt32: return "int32";
    case Dtype::kUint8: return "uint8";
  }
  return "?";
}

std::string_view pointwise_name(PointwiseKind kind) {
  switch (kind) {
    case PointwiseKind::kAdd: return "add";
    case PointwiseKind::kAddRows: return "add_rows";
    case PointwiseKind::kAddRowsBackward: return "add_rows_backward";
    case PointwiseKind::kGelu: return "gelu";
    case PointwiseKind::kGeluBackward: return "gelu_backward";
    case PointwiseKind::kSwiglu: return "swiglu";
    case PointwiseKind::kSwigluBackward: return "swiglu_backward";
    case PointwiseKind::kGeglu: return "geglu";
    case PointwiseKind::kGegluBackward: return "geglu_backward";
    case PointwiseKind::kSwigluOai: return "swiglu_oai";
    case PointwiseKind::kSwigluOaiBackward: return "swiglu_oai_backward";
    case PointwiseKind::kAddExpertBias: return "add_expert_bias";
    case PointwiseKind::kAddExpertBiasBackward: return "add_expert_bias_backward";
    case PointwiseKind::kDropout: return "dropout";
    case PointwiseKind::kDropoutBackward: return "dropout_backward";
    case PointwiseKind::kDropoutAdd: return "dropout_add";
    case PointwiseKind::kRotary: return "rotary";
    case PointwiseKind::kRotaryBackward: return "rotary_backward";
    case PointwiseKind::kSoftmax: return "softmax";
    case PointwiseKind::kSoftmaxBackward: return "softmax_backward";
    case PointwiseKind::kMask: return "mask";
    case PointwiseKind::kMaskBackward: return "mask_backward";
    case PointwiseKind::kCast: return "cast";
    case PointwiseKind::kFill: return "fill";
    case PointwiseKind::kScale: return "scale";
    case PointwiseKind::kAmax: return "amax";
    case PointwiseKind::kQuantize: return "quantize";
    case PointwiseKind::kQuantizeBoth: return "quantize_both";
    case PointwiseKind::kTranspose: return "transpose";
    case PointwiseKind::kUnflatten: return "unflatten";
    case PointwiseKind::kKeysValues: return "keys_values";
    case PointwiseKind::kKeysValuesBackward: return "keys_values_backward";
    case PointwiseKind::kMergeAttention: return "merge_attention";
  }
  return "?";
}

Flops flops(const Op& op) {
  return std::visit([](const auto& o) { return Flops(count_flops(o)); }, op);
}

Bytes traffic(const Op& op) {
  ByteCount sum;
  std::visit([&](const auto& o) { count_traffic(o, sum); }, op);
  return sum.bytes();
}

namespace {

template <class Field>
std::uint64_t hashed_word(const Field& field) {
  if constexpr (std::is_same_v<Field, double>) {
    return std::bit_cast<std::uint64_t>(field);
  } else {
    return static_cast<std::uint64_t>(field);
  }
}

}  // namespace

std::size_t hash_value(const Op& op) {
  std::uint64_t hash = op.index();
  std::visit(
      [&](const auto& o) {
        std::apply(
            [&](const auto&... f) { ((hash = mix(hash, hashed_word(f))), ...); },
            fields(o));
      },
      op);
  return hash;
}

}  // namespace stepcast
