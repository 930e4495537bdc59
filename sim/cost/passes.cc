// One function a kind of op: what is not fused, from the sources of frameworks that leave it so.
#include "sim/cost/passes.h"

#include <algorithm>

namespace stepcast {

namespace {
constexpr double kSoftmaxRow = 48 << 10;  // bytes of shared memory that PyTorch asks for
// PyTorch's elementwise kernels take their fast path where operands lie alike. A row that is
// broadcast, or columns of a wider matrix, reach 0.62 of 1.39 TB/s (a bias in 16 bits on an H200,
// tile-ai/TileOPs#537): as if each byte were 2.2.
constexpr double kUnlike = 1.39 / 0.62;
}  // namespace

// Of each part: the copy to fp32 and the maximum; differences, exponentials and their sum; the
// quotient; in backward the product with the loss's gradient and the copy back. PyTorch's
// log-softmax (aten/src/ATen/native/cuda/SoftMax.cu) does what is between the copies in one kernel,
// which reads its input once for each of maximum, sum and result unless a row fits in shared
// memory; backward is one more, which reads the gradient for its sum and again, beside the
// probabilities. The copies and the zeros of that gradient have Ops of their own, as the copies of
// Megatron-LM's fusion have. linkedin/Liger-Kernel's cross_entropy on an A100 (huggingface, fp32):
// of each further logit a long stream's time for 9 bytes forward up to 8,192 words, for 17 and 18
// from 32,768 up, and for 33 backward, of which 12 add up gradients of several steps.
// Megatron-LM's fusion: compiled, what is changed in place and summed or scattered into in the same
// step is made in a buffer of its own and copied back: the exponentials, and the gradient (so the
// note in core/fusions/fused_cross_entropy.py, where later versions undo it). With the copies 52
// bytes of a bf16 logit. linkedin/Liger-Kernel's megatron_cross_entropy on an H100 takes what 51 do
// at a long stream's rate (18.2 ms for 8192 x 131072), and the unfused one what 59 do.
// Transformer Engine's backward multiplies the gradient, which forward left in the logits' place,
// by the loss's (pytorch/triton/cross_entropy.py: element_mul_kernel, unless that is the number 1).
Passes unfused(const Loss& l, LossKernels kernels) {
  const double c = static_cast<double>(dtype_size(l.dtype));
  const double p = static_cast<double>(dtype_size(l.statistics));
  double each = 0, more = 0;
  switch (kernels) {
    case LossKernels::kParallel: break;
    case LossKernels::kFused:
      if (l.part == LossPart::kSums) each = -c;
      if (l.part == LossPart::kFinish) each = -c - p;
      if (l.part == LossPart::kBackward) each = 3 * c - p;
      if (l.part == LossPart::kBackward) more = 1;
      break;
    case LossKernels::kMegatronFused:
      if (l.part == LossPart::kMaximum) each = -c;
      if (l.part == LossPart::kSums) each = 3 * c;
      if (l.part == LossPart::kFinish) each = p - c;
      if (l.part == LossPart::kBackward) each = 3 * p - c;
      if (l.part == LossPart::kSums || l.part == LossPart::kBackward) more = 1;
      break;
    case LossKernels::kTorch: {
      const bool fits = c * static_cast<double>(l.vocabulary) <= kSoftmaxRow;
      if (l.part == LossPart::kMaximum) each = -c;
      if (l.part == LossPart::kSums) each = (fits ? 2 : 4) * c - c;
      if (l.part == LossPart::kFinish) each = -c - p;
      if (l.part == LossPart::kBackward) each = 2 * p;  // their gradient, read twice
      if (l.part == LossPart::kBackward) more = 1;
      break;
    }
    case LossKernels::kMegatron:
      if (l.part == LossPart::kMaximum) each = 4 + 4;
      if (l.part == LossPart::kSums) each = 8 + 8 + 4 - c;
      if (l.part == LossPart::kFinish) each = 8 - c - p;
      if (l.part == LossPart::kBackward) each = 8 + 4 - p;
      more = l.part == LossPart::kSums ? 4 : 1;
      break;
  }
  return {each * count(l.rows, l.vocabulary), more};
}

namespace {

// A linear layer's, not unfused attention's.
bool of_weight(const Gemm& g) { return g.batch == 1 || g.grouped; }

// Autograd's weight gradient where accumulation is not fused: a matrix of the compute type.
bool apart(const Gemm& g, const Fusion& fusion) {
  return g.role == GemmRole::kWeightGradient && g.accumulate && !fusion.accumulation;
}

// PyTorch's FSDP reduces one tensor of all gradients of a shard group. FSDP1's parameters are views
// split from a flat one, and the split's backward concatenates; FSDP2 copies them in.
bool regrouped(const Gemm& g, const Fusion& fusion) {
  return g.role == GemmRole::kWeightGradient && !g.accumulate && of_weight(g) &&
         !fusion.flat_gradients;
}

}  // namespace

Gemm as_made(Gemm g, const Fusion& fusion) {
  if (!apart(g, fusion) && !regrouped(g, fusion)) return g;
  g.accumulate = false;
  g.output = g.dtype == Dtype::kFp8 ? Dtype::kBf16 : g.dtype;
  return g;
}

namespace {

// XLA hands products to cuBLAS without an epilogue (a biased result is read and written once more:
// with the split into heads, with gelu or, in a scanned layer, on its way into the stack of what is
// saved), and batched ones with the batch outermost. So what unfused attention makes of the tokens'
// matrices, or reads of them, is transposed, forward the context, backward its gradient and those
// of queries, keys and values: m rows of a head's columns, which are the fewer of n and k.
Passes copied(const Gemm& g, const Fusion& fusion) {
  const double size = 2 * static_cast<double>(dtype_size(g.output));
  const bool forward = g.role == GemmRole::kForward;
  if (of_weight(g)) {
    if (fusion.biases || !forward || !g.bias) return {};
    const double batch = static_cast<double>(g.batch);
    return {size * count(g.m, g.n) * batch, batch};
  }
  const bool scores = forward && g.k < g.n;
  if (fusion.heads || scores) return {};
  return {size * static_cast<double>(g.batch) * count(g.m, std::min(g.n, g.k)), 1};
}

}  // namespace

// A linear layer: m outputs of n inputs over k tokens in its weight gradient. What is added to the
// buffer afterwards is read, and the buffer read and written: nothing of that is hidden behind the
// product. A cast of its own writes the addend once more, in the buffer's type, and reads it again.
Passes unfused(const Gemm& g, const Fusion& fusion) {
  if (g.role != GemmRole::kWeightGradient || !of_weight(g)) return copied(g, fusion);
  const double elements = static_cast<double>(g.batch) * count(g.m, g.n);
  Passes passes;
  if (g.bias && !fusion.bias_gradients) {
    const double batch = static_cast<double>(g.batch);
    passes.bytes += batch * count(g.m, g.k) * static_cast<double>(dtype_size(g.dtype));
    passes.kernels += batch;
  }
  const Dtype made = as_made(g, fusion).output;
  const double buffer = static_cast<double>(dtype_size(g.output));
  if (regrouped(g, fusion)) {
    passes.bytes += (static_cast<double>(dtype_size(made)) + buffer) * elements;
    ++passes.kernels;
  }
  if (!apart(g, fusion)) return passes;
  double each = static_cast<double>(dtype_size(made)) + 2 * buffer;
  ++passes.kernels;
  if (fusion.gradient_fill) {
    each += static_cast<double>(dtype_size(made));
    ++passes.kernels;
  }
  if (made != g.output && !fusion.accumulation_cast) {
    each += 2 * buffer;
    ++passes.kernels;
  }
  passes.bytes += each * elements;
  return passes;
}

namespace {

// RMSNorm as PyTorch's operations, one kernel each, of x (rows, columns) with c bytes an element
// (torchtitan's RMSNorm, Hugging Face's LlamaRMSNorm). Forward: the copy to fp32, its square, the
// mean, the product with 1 / rms, the copy back, the product with the weight: 28 + 4 c bytes, and
// two kernels on rows. Backward, as autograd has it: both products' gradients and the weight's sum
// 6 c; of the copies 8 + 2 c; of the product with 1 / rms 24; the mean's, spread out, 4; x itself,
// twice x and the product, which are the square's, 28; the sum of both gradients of x 12.
Passes unfused_norm(const Norm& n) {
  const double c = static_cast<double>(dtype_size(n.dtype));
  const bool forward = n.pass == Pass::kForward;
  const double all = forward ? 28 + 4 * c : 76 + 8 * c;
  const double own = (forward ? 2 : 3) * c;
  return {(all - own) * count(n.rows, n.columns), forward ? 7.0 : 16.0};
}

}  // namespace

// XLA's norms: a sum over a row ends a kernel, and what lies between is kept in fp32. The first sum
// forward comes with what made x; a layer norm reads x for the variance, then for the result, an
// RMS norm for the result only. Backward reads both inputs for the sums and for d_x.
Passes unfused(const Norm& n, const Fusion& fusion) {
  if (!fusion.norms && n.kind == NormKind::kRms) return unfused_norm(n);
  const double elements = count(n.rows, n.columns);
  const double size = static_cast<double>(dtype_size(n.dtype));
  const bool layer = n.kind == NormKind::kLayer;
  constexpr double kWide = 4;
  Passes passes;
  if (n.pass == Pass::kForward) {
    const double sums = layer ? 2 : 1;
    if (!fusion.norm_sums) passes = {(sums * kWide - size) * elements, sums};
    return passes;
  }
  if (!fusion.norm_sums) passes = {2 * kWide * elements, 1};
  if (!fusion.norm_gradients) {
    passes.bytes += 2 * size * elements;
    ++passes.kernels;
  }
  return passes;
}

// Gradients of queries, keys and values are three tensors, which autograd of the projection's split
// concatenates: read and written, nothing of it behind attention.
Passes unfused(const Attention& a, const Fusion& fusion) {
  if (a.pass == Pass::kForward || fusion.qkv_gradients) return {};
  if (a.source == KeySource::kPassed) return {};  // adds to what the rank's own keys left
  const double width = static_cast<double>((a.heads + 2 * a.kv_heads) * a.head_dim);
  return {2 * count(a.batch, a.queries) * width * static_cast<double>(dtype_size(a.dtype)), 1};
}

namespace {

// Megatron-Core's limits of gpt-oss's gate and its partner (megatron/core/fusions/
// fused_bias_geglu.py, weighted_bias_quick_geglu_impl). Each is clamped, columns of one matrix,
// then both are joined: 4 and 4 bytes for each that the output has. Backward: the masks of one
// limit and of two and what they let pass, 9.5 of such columns and 1.5, and both joined: 4; half of
// it for each byte of the input's gradient. `gates`: what the activation itself costs.
Passes limits(const Pointwise& p, const Fusion& fusion, const Passes& gates) {
  Passes passes = fusion.gates ? Passes{} : gates;
  if (fusion.limits) return passes;
  const double size = count(p.rows, p.columns) * static_cast<double>(dtype_size(p.dtype));
  const bool forward = p.kind == PointwiseKind::kSwigluOai;
  const double each = forward ? 4 * kUnlike + 4 : (9.5 * kUnlike + 1.5 + 4) / 2;
  return {passes.bytes + each * size, passes.kernels + (forward ? 3 : 7)};
}

// A copy to fp32, the product of complex numbers, a copy back (torchtitan, as Meta's models). Or
// Megatron-Core's rotation with a factor, which its fused kernel refuses (megatron/core/models/
// common/embeddings/rope_utils.py, apply_rotary_pos_emb), of queries and again of keys. Half a head
// is negated, both halves are joined; products with cosines and sines, which are broadcast, their
// sum, and a copy (a join with columns that are not rotated, of which there are none); besides six
// small kernels for cosines and sines. Backward both products, what was negated, the halves joined,
// zeros for the columns that are none, and three gradients added up. Of 2 bytes an element each
// way, the Op's own, so much more:
Passes rotation(const Pointwise& p, const Fusion& fusion) {
  const double elements = count(p.rows, p.columns);
  if (fusion.scaled_rotary || p.scale == 1) {
    return fusion.rotary ? Passes{} : Passes{16 * elements, 2};
  }
  const double size = elements * static_cast<double>(dtype_size(p.dtype));
  const bool forward = p.kind == PointwiseKind::kRotary;
  const double each = 5 * kUnlike + (forward ? 2 + 3 + 2 : 2 + 1 + 6);
  return {(each - 2) * size, forward ? 2 * 12 - 1.0 : 2 * 7 - 1.0};
}

// Its biases of experts' second products (megatron/core/transformer/moe/experts.py, _apply_bias),
// in fp32 as the router's weights are. Of each expert bias times weights, broadcast, and the sum;
// all joined, and copied back: 4 and 20 + 2 c bytes an element of c. Backward: the copies to fp32
// and back, those of the experts joined, two products that broadcast and their sums: 16 and 16 + 4
// c.
Passes expert_biases(const Pointwise& p, const Fusion& fusion) {
  if (fusion.expert_biases) return {};
  const double c = static_cast<double>(dtype_size(p.dtype));
  const double experts = static_cast<double>(p.experts);
  const bool forward = p.kind == PointwiseKind::kAddExpertBias;
  const double each = forward ? 4 * kUnlike + 20 : 16 * kUnlike + 16 + 3 * c;  // beyond the Op's
  return {each * count(p.rows, p.columns), forward ? 2 * experts + 1 : 5 * experts + 1};
}

}  // namespace

// Gates: silu(gate), then its product with up; in backward two products, then the activation's
// gradient. Softmax: forward reads the scores for the maximum, for the sum and for the quotient,
// backward reads both inputs for the sum in it and for the result (of which the probabilities are
// made again from the scores; PriorityFusion, xla/service/gpu). Random bits are 32 an element. What
// is cast as it is made is not read for it; a copy for the columns is written, as it is.
Passes unfused(const Pointwise& p, const Fusion& fusion) {
  const double elements = count(p.rows, p.columns);
  const double each = static_cast<double>(dtype_size(p.dtype)) * elements;
  constexpr double kTanh = 4, kBits = 4;
  switch (p.kind) {
    case PointwiseKind::kSwiglu:
    case PointwiseKind::kGeglu: return fusion.gates ? Passes{} : Passes{2 * each, 1};
    case PointwiseKind::kSwigluBackward:  // (rows, columns) is d_gate_up
    case PointwiseKind::kGegluBackward: return fusion.gates ? Passes{} : Passes{2 * each, 2};
    case PointwiseKind::kSwigluOai: return limits(p, fusion, {2 * each, 1});
    case PointwiseKind::kSwigluOaiBackward: return limits(p, fusion, {2 * each, 2});
    case PointwiseKind::kAddExpertBias:
    case PointwiseKind::kAddExpertBiasBackward: return expert_biases(p, fusion);
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward: return rotation(p, fusion);
    case PointwiseKind::kSoftmax:  // what is masked is read, too
      return fusion.softmax ? Passes{} : Passes{(p.causal ? 2.5 : 2) * each, 2};
    case PointwiseKind::kSoftmaxBackward:
      return fusion.softmax ? Passes{} : Passes{(p.causal ? 3 : 2) * each, 1};
    case PointwiseKind::kGelu:
    case PointwiseKind::kGeluBackward:
      return fusion.gelu ? Passes{} : Passes{kTanh * elements, 0};
    case PointwiseKind::kDropout:
    case PointwiseKind::kDropoutAdd:
      return fusion.dropout ? Passes{} : Passes{2 * kBits * elements, 1};
    case PointwiseKind::kAmax:
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth: return fusion.casts ? Passes{-each, 0} : Passes{};
    default: return {};
  }
}

// fp32 gradients are read and written to be unscaled and to be clipped, the norm has its own Op;
// the new weights are copied from the master's.
Passes unfused(const Update& u, const Fusion& fusion) {
  if (fusion.update || u.part == UpdatePart::kSquaredNorm || !u.master) return {};
  const double elements = static_cast<double>(u.elements);
  return {elements * (16 + 4), 3};
}

// Megatron-Core's unfused permute and unpermute (megatron/core/transformer/moe/moe_utils.py). Out:
// the map is transposed and sorted (five kernels), its places and weights are taken, and a row is
// read for each of its slots. Back: zeros, to which each slot is added where they lie. As each
// other's gradients the same, but what was sorted is kept.
Passes unfused(const Permute& p, const Fusion& fusion) {
  if (fusion.permutes) return {};
  const double row = static_cast<double>(p.columns) * static_cast<double>(dtype_size(p.dtype));
  if (p.part == PermutePart::kUnpermute) return {2 * row * static_cast<double>(p.slots), 1};
  const double again = static_cast<double>(std::max<std::int64_t>(p.slots - p.rows, 0));
  return {row * again, p.weighted ? 9.0 : 0.0};
}

// Its unfused router (topk_routing_with_score_function in that file). The highest logits are found
// and sorted, their softmax is worked out and cast; weights and map of all experts are two tensors
// of zeros into which those are scattered, the map by way of integers, and summed up by expert:
// 3 c + 10 bytes of a logit. Backward: gathered, the softmax's gradient, zeros, scattered.
Passes unfused(const Route& r, const Fusion& fusion) {
  if (fusion.routers) return {};
  if (r.pass == Pass::kBackward) return {0, 3};
  return {(3 * static_cast<double>(dtype_size(r.dtype)) + 10) * count(r.rows, r.experts), 11};
}

}  // namespace stepcast
