// Cost of one kernel from its data sheet: a roofline (Williams, Waterman and Patterson 2009) with
// the shape's own efficiency on the compute side and a size ramp on the memory side. Matrix
// products are in gemm.cc. Everything here is O(1).
//
// Attention. FlashAttention keeps the scores on chip, so a long sequence is bound by the matrix
// units. The published curves (Dao-AILab/flash-attention, assets/flash2_a100_fwd_bwd_benchmark.png,
// flash2_h100_fwd_bwd_benchmark.png, flash3_fp16_fwd.png; MooreThreads/SimuMax configs/system) fall
// on one form,
//   FLOP/s = limit / ((1 + s0 / keys) fill width),  fill = sqrt(1 + (b processors / blocks)^2)
//   * s0     what each block of queries pays besides its keys; more where half of the scores is
//            masked, because the blocks on the diagonal are computed whole
//   * blocks of 128 queries. With few of them the last ones to finish set the time, with many the
//            sum of all; the root is a smooth maximum of the two
//   * width  exponentials cost the same for any head_dim, so narrow heads run below the rate of
//            d = 128: (1 + c / d) / (1 + c / 128). Wide ones may not fit: 1 + w (d / 128 - 1)
// s0, b, c and w are those of AttentionKernels, for each implementation its own. Time is
// non-decreasing in every size, but for what follows.
//
// Those curves are of kernels alone, mostly few and short, on a rested device. Kernel after kernel
// the power limit lowers the clocks, as it does for products, but attention draws less: of cuDNN's
// and FlashAttention-4's kernels on one H200 (NVIDIA/cudnn-frontend, benchmark/attention_training),
// those that last some 100 ms run at 0.89 of the rate of short ones forward and at 0.94 to 0.97
// backward. AttentionKernels::sustained is what is left of a figure in training.
//
// Deterministic backward of FlashAttention-2 (csrc/flash_attn/src/flash_bwd_launch_template.h):
// each head of each sequence is cut into ceil(processors / (batch heads)) equal shares of its keys,
// a block of threads each, one to a processor. The last wave of blocks leaves processors idle, and
// each share has a gradient of q of its own in fp32, zeroed before and added up behind.
//
// Dropout in fused attention. Its mask is made again in each pass, in a kernel that the issue of
// vector instructions bounds already, so little of it hides ("Reducing the Cost of Dropout in
// Flash-Attention by Hiding RNG with GEMM", arXiv 2410.07531). FlashAttention-2 counts (csrc/
// flash_attn/src/philox.cuh, dropout.h): Philox 4x32 of seven rounds for 16 scores, a round two
// wide multiplies, two three-way exclusive ors and two additions to the key: with its start some
// 50 integer instructions, 3 a score; 2 more unpack, compare and select. That is 0.08 cycles of a
// multiprocessor with 64 integer lanes: at head_dim 128 a fifth of FlashAttention-2's forward and
// a twelfth of its backward. Its CuTe kernels lose a quarter and a tenth on a GB10 with head_dim
// 64, less with 128 (Dao-AILab/flash-attention#2439), and 15 to 25 and 30 to 40 % of their rate on
// a GB200 (#2597).
//
// All else is bound by the memory bus: traffic over the long-stream bandwidth plus a ramp.
//
// Norms. PyTorch's kernels (layer_norm_kernel.cu) and Apex's first (csrc/layer_norm_cuda_kernel.cu)
// leave the gradients of the weights to kernels of their own, and all of them run below a long
// stream: at 0.57 to 0.69 of its rate on A100 and H100, either pass (linkedin/Liger-Kernel,
// benchmark/data/all_benchmark_data.csv, layer_norm and megatron_rms_norm from 4,096 columns up,
// backward with both inputs read twice; NVIDIA/apex#1037, "current": 0.64 and 0.68). Kernels that
// sum those gradients as they go are near it: 0.90 and 0.83 (#1037, "new", from which Transformer
// Engine's come).
#include "sim/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "sim/program/program.h"

namespace stepcast {
namespace {

constexpr double kQueryBlock = 128;
constexpr double kMemoryLeft = 0.1;     // of the bandwidth, whatever is taken
constexpr double kHeadReference = 128;  // head_dim of AttentionKernels' shares
constexpr double kDropoutWork = 2 * 5;  // of a score, in integer operations (multiply-add: two)
constexpr double kPlainNorm = 0.62;     // of a long stream's rate
constexpr double kSoftmaxRow = 48 << 10;  // bytes of shared memory that PyTorch asks for

struct Waves {
  double slower = 1;  // than with all processors at work
  double bytes = 0;   // of the further gradients of q
};

Waves deterministic_waves(const Attention& a, double processors) {
  const double heads = static_cast<double>(a.batch) * static_cast<double>(a.heads);
  const double shares = std::ceil(processors / heads);
  const double blocks = shares * heads;
  const double written = 2 * static_cast<double>(dtype_size(Dtype::kFp32));  // zeroed, read
  return {std::ceil(blocks / processors) * processors / blocks,
          (shares - 1) * written * heads * static_cast<double>(a.queries) *
              static_cast<double>(a.head_dim)};
}

// For the random numbers of dropout; only of scores that are not masked, of which each is as many
// multiply-adds as head_dim in each of the products, two forward and five backward.
Seconds dropout_time(const Attention& a, const Device& device, const Room& room) {
  if (!a.dropout) return Seconds(0);
  const double products = a.pass == Pass::kForward ? 2 : 5;
  Attention square = a;  // whose products are all alike
  square.value_dim = 0;
  const double scores =
      flops(Op(square)).value / (2 * products * static_cast<double>(a.head_dim));
  const FlopRate rate = device.integer_rate.value_or(device.vector_rate * 0.5);
  return Seconds(scores * kDropoutWork / rate.value * device.multiprocessors /
                 room.multiprocessors);
}

Seconds attention_time(const Attention& a, const Device& device, const Room& room) {
  STEPCAST_CHECK(a.batch >= 1 && a.heads >= 1 && a.kv_heads >= 1 && a.queries >= 1 &&
                     a.keys >= 1 && a.head_dim >= 1,
                 "an attention of no size");
  const AttentionKernels& kernels = device.kernels.usual();
  const bool forward = a.pass == Pass::kForward;
  const double rate =
      matrix_rate(a.dtype, device).value * (forward ? kernels.forward : kernels.backward) *
      room.multiprocessors / device.multiprocessors;
  // Blocks on the diagonal are half of use; of a window, those on its other edge, too.
  const bool sliding = a.window > 0 && a.window < a.keys;
  const double keys = 1 + (a.causal ? kernels.causal_keys : kernels.keys) /
                              static_cast<double>(sliding ? a.window : a.keys);
  // Not rounded to whole blocks: `fill` already pays for the last, partial one.
  const double blocks = static_cast<double>(a.batch) * static_cast<double>(a.heads) *
                        std::max(1.0, static_cast<double>(a.queries) / kQueryBlock);
  const double few = (forward ? kernels.forward_blocks : kernels.backward_blocks) *
                     room.multiprocessors / blocks;
  const double fill = std::sqrt(1 + few * few);
  const double d = static_cast<double>(a.head_dim + value_columns(a)) / 2;
  const double wide = forward ? kernels.forward_wide : kernels.backward_wide;
  const double width = d <= kHeadReference
                           ? (1 + kernels.narrow / d) / (1 + kernels.narrow / kHeadReference)
                           : 1 + wide * (d / kHeadReference - 1);
  const bool waves = !forward && a.deterministic && kernels.deterministic_waves;
  const Waves more = waves ? deterministic_waves(a, room.multiprocessors) : Waves{};
  const double kept = room.rested ? 1 : kernels.sustained;
  const double compute = flops(Op(a)).value / (rate * kept) * keys * fill * width * more.slower;
  const double bytes = static_cast<double>(traffic(Op(a)).count);
  const Seconds time = Seconds(std::max(compute, memory_time(bytes, device, room).value)) +
                       dropout_time(a, device, room);
  return more.bytes > 0 ? time + memory_time(more.bytes, device, room) : time;
}

// Bytes that pass through memory besides the Op's own, and the kernels that move them.
struct Passes {
  double bytes = 0;
  double kernels = 0;
};

double count(std::int64_t rows, std::int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

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

Gemm as_made(Gemm g, const Fusion& fusion) {
  if (!apart(g, fusion) && !regrouped(g, fusion)) return g;
  g.accumulate = false;
  g.output = g.dtype == Dtype::kFp8 ? Dtype::kBf16 : g.dtype;
  return g;
}

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

// A linear layer: m outputs of n inputs over k tokens in its weight gradient. What is added to the
// buffer afterwards is read, and the buffer read and written: nothing of that is hidden behind the
// product. A cast of its own writes the addend once more, in the buffer's type, and reads it again.
Passes unfused(const Gemm& g, const Fusion& fusion) {
  if (g.role != GemmRole::kWeightGradient || !of_weight(g)) return copied(g, fusion);
  const double elements = static_cast<double>(g.batch) * count(g.m, g.n);
  Passes passes;
  if (g.bias && !fusion.bias_gradients) {
    passes.bytes += count(g.m, g.k) * static_cast<double>(dtype_size(g.dtype));
    ++passes.kernels;
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
    // A copy to fp32, the product of complex numbers, a copy back (torchtitan, as Meta's models).
    case PointwiseKind::kRotary:
    case PointwiseKind::kRotaryBackward:
      return fusion.rotary ? Passes{} : Passes{16 * elements, 2};
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

// All other kinds are one kernel in every framework.
template <class Any>
Passes unfused(const Any&, const Fusion&) {
  return {};
}

// Of passes that follow a kernel bound by the matrix units.
Seconds behind(const Passes& passes, const Device& device, const Room& room) {
  if (!(passes.kernels > 0)) return Seconds(0);
  return memory_time(passes.bytes, device, room) + device.kernel_start * passes.kernels;
}

// The embedding as products with a one-hot matrix, which forward writes first.
Seconds one_hot_time(const Gather& g, const Device& device, const Room& room) {
  Gemm product{g.rows, g.columns, g.vocabulary};
  product.dtype = product.output = g.dtype;
  if (g.pass == Pass::kForward) {
    const double bytes = count(g.rows, g.vocabulary) * static_cast<double>(dtype_size(g.dtype));
    return memory_time(bytes, device, room) + device.kernel_start +
           gemm_time(product, device, room);
  }
  std::swap(product.m, product.k);
  product.role = GemmRole::kWeightGradient;
  product.output = g.gradient;
  return gemm_time(product, device, room);
}

// Share of a long stream's rate that the kernels of an Op reach. What XLA makes of a norm are its
// own loops, and PyTorch's single operations stream.
double streaming_share(const Norm& n, const Fusion& fusion) {
  const bool one_kernel = fusion.norm_sums && (fusion.norms || n.kind != NormKind::kRms);
  return fusion.norm_gradients || !one_kernel ? 1 : kPlainNorm;
}

template <class Any>
double streaming_share(const Any&, const Fusion&) {
  return 1;
}

Seconds streaming_time(const Op& op, const Passes& passes, const Device& device, Room room) {
  room.memory *=
      match(op, [&](const auto& any) { return streaming_share(any, device.kernels.fusion); });
  const double compute = (flops(op) / device.vector_rate).value;
  const double bytes = static_cast<double>(traffic(op).count) + passes.bytes;
  return Seconds(std::max(compute, memory_time(bytes, device, room).value)) +
         device.kernel_start * passes.kernels;
}

// What the highest of n standard normal deviates is expected to be: see slowest_of(). By bisection,
// since the normal distribution's inverse has no closed form.
double highest_of(int n) {
  const double share = (n - 0.375) / (n + 0.25);
  double low = 0, high = 10;
  for (int halved = 0; halved < 50; ++halved) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
  }
  return low;
}

}  // namespace

Device slowest_of(const Device& device, int devices) {
  STEPCAST_CHECK(devices >= 1, "no device at all");
  Device slowest = device;
  const double pace = 1 + device.spread * highest_of(devices);
  slowest.kernels.matrix.efficiency /= pace;
  for (auto& [name, attention] : slowest.kernels.attention) attention.sustained /= pace;
  return slowest;
}

// The host's time for one of TransformerEngine's products in a loop: descriptors, the heuristic and
// the launch. Of MooreThreads/SimuMax's grouped products on a B200 those with the least work, of 80
// to 256 experts, take 8.8 to 9.4 us each (four shapes, five rows), as far apart as their work is.
constexpr Seconds kProductIssue{9e-6};

Seconds issue_time(const Op& op, const Device& device) {
  const auto* gemm = std::get_if<Gemm>(&op);
  if (gemm == nullptr || !gemm->grouped || device.kernels.fusion.groups) return Seconds(0);
  return kProductIssue * static_cast<double>(gemm->batch - 1);
}

Cost op_cost(const Op& op, const Device& device, const Setting& setting) {
  const Kernels& kernels = device.kernels;
  const Room room = {std::max(1, device.multiprocessors - setting.multiprocessors_taken),
                     std::max(kMemoryLeft, 1 - setting.memory_taken), setting.rested};
  const auto cost = [&](Seconds work, Basis basis) {
    return Cost{device.kernel_start + work, basis};
  };
  return match(
      op,
      [&](const Gemm& gemm) {
        return cost(gemm_time(as_made(gemm, kernels.fusion), device, room) +
                        behind(unfused(gemm, kernels.fusion), device, room),
                    kernels.matrix.basis);
      },
      [&](const Attention& attention) {
        return cost(attention_time(attention, device, room) +
                        behind(unfused(attention, kernels.fusion), device, room),
                    kernels.usual().basis);
      },
      [&](const Loss& loss) {
        const Passes passes = unfused(loss, kernels.fusion.loss);
        return cost(streaming_time(op, passes, device, room), kernels.memory_basis);
      },
      [&](const Gather& gather) {
        if (!kernels.fusion.lookups) {
          return cost(one_hot_time(gather, device, room), kernels.matrix.basis);
        }
        return cost(streaming_time(op, {}, device, room), kernels.memory_basis);
      },
      [&](const auto& other) {
        const Passes passes = unfused(other, kernels.fusion);
        return cost(streaming_time(op, passes, device, room), kernels.memory_basis);
      });
}

}  // namespace stepcast
