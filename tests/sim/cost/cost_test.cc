#include "sim/cost/cost.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/kernel_costs.h"
#include "tests/support/shipped_device.h"

namespace stepcast {
namespace {

double rate(const Gemm& gemm, const Device& device) {
  return flops(Op(gemm)).value / kernel_seconds(gemm, device);
}

// stas00/ml-engineering's maximum achievable matmul FLOPS, from which matrix_efficiency is taken.
TEST(Gemm, LargeSquareProductsRunAtThePublishedShareOfThePeak) {
  for (const auto& [name, published] : {std::pair{"a100-80gb", 271.2e12}, {"h100-sxm", 794.5e12},
                                        {"b200", 1745e12}, {"mi300x", 668.4e12}}) {
    const Device device = shipped_device(name);
    const double share = device.kernels.matrix.efficiency;
    const double peak = device.matrix_rate.at(Dtype::kBf16).value * share;
    EXPECT_NEAR(rate(matrix_product(8192, 8192, 8192), device) / peak, 1, 0.05) << name;
    EXPECT_NEAR(rate(matrix_product(16384, 16384, 16384), device) / published, 1, 0.05) << name;
  }
}

// MooreThreads/SimuMax configs/system/a100_pcie.json (A100 PCIe: 312 TFLOP/s, 108 SMs, 1935 GB/s;
// the best product of ml-engineering's scan on it is 252.9 TFLOP/s): share of 312 TFLOP/s measured.
// A regression test: two constants of the model were picked with these rows in view.
TEST(Gemm, AgreesWithShapesMeasuredOnAnA100) {
  Device device = shipped_device("a100-80gb");
  device.kernels.matrix.efficiency = 252.9 / 312;
  device.memory_bandwidth = Bandwidth(1935e9);
  struct Row {
    std::int64_t m, n, k;
    GemmRole role;
    double share;
  };
  for (const Row& row : {Row{4096, 5120, 1536, GemmRole::kForward, 0.788},
                         Row{4096, 7168, 4096, GemmRole::kInputGradient, 0.729},
                         Row{4096, 8192, 7168, GemmRole::kInputGradient, 0.741},
                         Row{4096, 7168, 4096, GemmRole::kWeightGradient, 0.691},
                         Row{6144, 4096, 4096, GemmRole::kWeightGradient, 0.668}}) {
    Gemm gemm = matrix_product(row.m, row.n, row.k);
    gemm.role = row.role;
    if (row.role == GemmRole::kWeightGradient) {
      gemm.output = Dtype::kFp32;
      gemm.accumulate = true;
    }
    EXPECT_NEAR(rate(gemm, device) / 312e12 / row.share, 1, 0.10)
        << row.m << "x" << row.n << "x" << row.k;
  }
}

// 100 tiles of (256, 128) fill 100 multiprocessors once; 10 more rows of them need a second wave.
TEST(Gemm, ASecondWaveCostsAsMuchAsTheFirst) {
  const Device device = plain_device();
  const Gemm one = matrix_product(256 * 10, 128 * 10, 65536);
  const Gemm more = matrix_product(256 * 10, 128 * 20, 65536);
  EXPECT_EQ(gemm_fill(one, device).waves, 1);
  EXPECT_DOUBLE_EQ(gemm_fill(one, device).wave_efficiency, 1);
  EXPECT_DOUBLE_EQ(gemm_fill(one, device).tile_efficiency, 1);
  EXPECT_EQ(gemm_fill(more, device).waves, 2);
  EXPECT_NEAR(kernel_seconds(more, device) / kernel_seconds(one, device), 2, 0.01);
}

// m = 257 in tiles of 256, 128 or 64 rows: the best padding is 5 x 64 = 320, 257 / 320 used.
TEST(Gemm, PadsToWholeTiles) {
  const GemmFill fill = gemm_fill(matrix_product(257, 65536, 8192), plain_device());
  EXPECT_LE(fill.tile_efficiency, 257.0 / 320);
  EXPECT_GT(fill.tile_efficiency, 0.5);
  EXPECT_LE(fill.wave_efficiency, 1);
}

// One tile and a long k: 16 parts on 16 multiprocessors beat one by far.
TEST(Gemm, SplitsKWhenTilesAreFew) {
  const Device device = plain_device();
  const Gemm thin = matrix_product(128, 128, 1 << 20);
  EXPECT_GT(gemm_fill(thin, device).split, 1);
  EXPECT_EQ(gemm_fill(matrix_product(8192, 8192, 8192), device).split, 1);
}

// A vector times a matrix moves the matrix once: 2 n k bytes at 1 TB/s, plus the ramp.
TEST(Gemm, ASkinnyProductIsBoundByTheMemoryBus) {
  const double bound = 2.0 * 8192 * 8192 / 1e12 + 0.7e-6;
  EXPECT_GE(kernel_seconds(matrix_product(1, 8192, 8192), plain_device()), bound);
  EXPECT_NEAR(kernel_seconds(matrix_product(1, 8192, 8192), plain_device()) / bound, 1, 0.05);
}

// Adding into fp32 reads and writes 8 bytes an element where bf16 output writes 2.
TEST(Gemm, AccumulatingInFp32CostsTheTrafficOfC) {
  const Device device = shipped_device("h100-sxm");
  Gemm gradient = matrix_product(4096, 4096, 1024);
  gradient.role = GemmRole::kWeightGradient;
  const double plain_output = kernel_seconds(gradient, device);
  gradient.output = Dtype::kFp32;
  gradient.accumulate = true;
  const double extra = 6.0 * 4096 * 4096 / (device.memory_bandwidth.value * 0.9);
  EXPECT_GT(kernel_seconds(gradient, device), plain_output + 0.4 * extra);
  EXPECT_LT(kernel_seconds(gradient, device), plain_output + 1.1 * extra);
}

// 67 TFLOP/s of fp32 to 989 of bf16 on an H100; fp8 runs as bf16 where there is no fp8.
TEST(Gemm, RunsAtTheRateOfItsDtypeOrTheNextWiderOne) {
  const Device h100 = shipped_device("h100-sxm");
  const Device a100 = shipped_device("a100-80gb");
  const double ratio = kernel_seconds(matrix_product(8192, 8192, 8192, Dtype::kFp32), h100) /
                       kernel_seconds(matrix_product(8192, 8192, 8192), h100);
  EXPECT_NEAR(ratio, 989.0 / 67, 0.05 * 989 / 67);
  Gemm narrow = matrix_product(8192, 8192, 8192);
  narrow.dtype = Dtype::kFp8;
  EXPECT_NEAR(kernel_seconds(narrow, h100) / kernel_seconds(matrix_product(8192, 8192, 8192), h100),
              0.5, 0.03);
  EXPECT_NEAR(kernel_seconds(narrow, a100) / kernel_seconds(matrix_product(8192, 8192, 8192), a100),
              1, 0.03);
}

Attention attention(Pass pass, std::int64_t batch, std::int64_t sequence, std::int64_t heads,
                    std::int64_t head_dim) {
  Attention a;
  a.pass = pass;
  a.batch = batch;
  a.queries = a.keys = sequence;
  a.heads = a.kv_heads = heads;
  a.head_dim = head_dim;
  return a;
}

// 148 processors, 32 heads: ceil(148 / 32) = 5 shares of each, 160 blocks, two waves of 148. Each
// share but one has 4 bytes more an element of q, zeroed and read. One head a processor: neither.
TEST(Attention, LeavesProcessorsIdleWhereDeterministicBackwardCutsHeadsIntoEqualShares) {
  Device device = plain_device();
  device.multiprocessors = 148;
  AttentionKernels kernels = device.kernels.usual();
  device.kernels.usual_attention = "others";
  device.kernels.attention["others"] = kernels;
  kernels.deterministic_waves = true;
  device.kernels.attention["waves"] = kernels;
  Attention a = attention(Pass::kBackward, 1, 8192, 32, 128);
  const double free = kernel_seconds(a, device);
  a.deterministic = true;
  EXPECT_EQ(kernel_seconds(a, device), free);
  device.kernels.usual_attention = "waves";
  EXPECT_NEAR(kernel_seconds(a, device), 296.0 / 160 * free + 4 * 8.0 * 8192 * 32 * 128 / 1e12,
              1e-5);
  a.pass = Pass::kForward;
  EXPECT_EQ(kernel_seconds(a, device),
            kernel_seconds(attention(Pass::kForward, 1, 8192, 32, 128), device));
  a = attention(Pass::kBackward, 4, 2048, 37, 128);
  a.deterministic = true;
  EXPECT_EQ(kernel_seconds(a, device),
            kernel_seconds(attention(Pass::kBackward, 4, 2048, 37, 128), device));
}

// Dao-AILab/flash-attention, causal, batch x sequence = 16k, hidden 2,048: FlashAttention-3 forward
// on an H100 and FlashAttention-2 forward + backward on an A100, in TFLOP/s. The profiles were
// fitted to these among others; on the longest sequences of the H100 the form is 9 % fast.
TEST(Attention, FollowsThePublishedCurves) {
  Device h100 = fitted_device("h100-sxm");
  h100.kernels.usual_attention = "flash3";
  for (const auto& [sequence, published] :
       {std::pair{1024, 423e12}, {2048, 521e12}, {8192, 602e12}, {16384, 616e12}}) {
    const Attention a = attention(Pass::kForward, 16384 / sequence, sequence, 16, 128);
    const double time = op_cost(a, h100, {.rested = true}).time.value;
    EXPECT_NEAR(flops(Op(a)).value / time / published, 1, 0.10) << sequence;
  }
  const Device a100 = fitted_device("a100-80gb");
  for (const auto& [sequence, head_dim, published] :
       {std::tuple{512, 128, 99e12}, {1024, 128, 133e12}, {8192, 128, 182e12}, {16384, 128, 189e12},
        {2048, 64, 140e12}, {8192, 64, 165e12}}) {
    double work = 0, time = 0;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Attention a =
          attention(pass, 16384 / sequence, sequence, 2048 / head_dim, head_dim);
      work += flops(Op(a)).value;
      time += op_cost(a, a100, {.rested = true}).time.value;
    }
    EXPECT_NEAR(work / time / published, 1, 0.04) << sequence << " " << head_dim;
  }
}

// x and weight in, y out, at 1 TB/s: 4 bytes an element of x, and the ramp of 0.7 us.
TEST(Streaming, TakesItsTrafficOverTheBandwidthAndARamp) {
  const Device device = plain_device();
  Pointwise scale;
  scale.kind = PointwiseKind::kScale;
  scale.rows = 8192;
  scale.columns = 8192;
  EXPECT_NEAR(kernel_seconds(scale, device), 4.0 * 8192 * 8192 / 1e12 + 0.7e-6, 1e-9);
  scale.rows = scale.columns = 1;
  EXPECT_NEAR(kernel_seconds(scale, device), 0.7e-6, 1e-9);
}

// Bytes of a logit over all four parts, c = 2: 5 c, 4 c + 8, 2 c + 48; 32 of PyTorch's and 40 of
// Megatron-LM's fusion, whose logits are an fp32 copy (copying is no part). At 1 TB/s a part has a
// ramp of 0.7 us. A part without bytes is left with its arithmetic, 0.05 bytes' time a logit.
TEST(Fusion, SaysHowOftenTheLossPassesOverTheLogits) {
  Device device = plain_device();
  const auto bytes = [&](LossKernels kernels, Dtype logits = Dtype::kBf16,
                         std::int64_t vocabulary = 65536) {
    device.kernels.fusion.loss = kernels;
    double time = 0;
    for (const LossPart part : {LossPart::kMaximum, LossPart::kSums, LossPart::kFinish,
                                LossPart::kBackward}) {
      time += kernel_seconds(Loss{part, 8192, vocabulary, logits, Dtype::kFp32}, device) - 0.7e-6;
    }
    return time * 1e12 / (8192.0 * static_cast<double>(vocabulary));
  };
  EXPECT_NEAR(bytes(LossKernels::kFused), 10, 0.1);
  EXPECT_NEAR(bytes(LossKernels::kParallel), 16, 0.1);
  EXPECT_NEAR(bytes(LossKernels::kTorch, Dtype::kFp32), 32, 0.1);
  EXPECT_NEAR(bytes(LossKernels::kTorch, Dtype::kFp32, 8192), 24, 0.2);  // a row fits
  EXPECT_NEAR(bytes(LossKernels::kMegatron), 52, 0.1);
  EXPECT_NEAR(bytes(LossKernels::kMegatronFused, Dtype::kFp32), 40, 0.1);
}

// Of the data sheet's bandwidth, linkedin/Liger-Kernel's gated activation: 0.88 to 0.91 from 400 MB
// up (benchmark/data/all_benchmark_data.csv, megatron_swiglu, forward).
constexpr double kStreamOfH100 = 0.91;

// linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv (2026-06-15, H100, bf16 logits 8192
// x 131072): Megatron-LM's losses, forward and backward, as written and fused. Copies of the fused
// one are Ops of their own.
TEST(Fusion, AgreesWithLossesMeasuredOnAnH100) {
  Device device = fitted_device("h100-sxm");
  device.kernels.memory = kStreamOfH100;
  const std::int64_t rows = 8192, vocabulary = 131072;
  const auto loss = [&](LossKernels kernels, Dtype logits) {
    device.kernels.fusion.loss = kernels;
    double time = 0;
    for (const LossPart part :
         {LossPart::kMaximum, LossPart::kSums, LossPart::kFinish, LossPart::kBackward}) {
      time += kernel_seconds(Loss{part, rows, vocabulary, logits, Dtype::kFp32}, device);
    }
    return time;
  };
  const auto copy = [&](Dtype from, Dtype to) {
    Pointwise cast;
    cast.kind = PointwiseKind::kCast;
    cast.rows = rows;
    cast.columns = vocabulary;
    cast.dtype = from;
    cast.output = to;
    return kernel_seconds(cast, device);
  };
  EXPECT_NEAR(loss(LossKernels::kMegatron, Dtype::kBf16), 21.2e-3, 0.2 * 21.2e-3);
  EXPECT_NEAR(loss(LossKernels::kMegatronFused, Dtype::kFp32) + copy(Dtype::kBf16, Dtype::kFp32) +
                  copy(Dtype::kFp32, Dtype::kBf16),
              18.2e-3, 0.2 * 18.2e-3);
}

// linkedin/Liger-Kernel, the same file: PyTorch's layer norm of 4,096 fp32 rows on an H100, forward
// and backward in ms. Without the kernels' start they are 15 % apart at most.
TEST(Norms, AgreeWithPlainKernelsMeasuredOnAnH100) {
  Device device = fitted_device("h100-sxm");
  device.kernels.memory = kStreamOfH100;
  device.kernels.fusion.norm_gradients = false;
  const struct {
    std::int64_t columns;
    double forward, backward;
  } measured[] = {
      {4096, 0.0662e-3, 0.1788e-3}, {8192, 0.1527e-3, 0.3337e-3}, {16384, 0.3068e-3, 0.6424e-3}};
  for (const auto& row : measured) {
    Norm norm{Pass::kForward, NormKind::kLayer, 4096, row.columns, Dtype::kFp32};
    EXPECT_NEAR(kernel_seconds(norm, device), row.forward, 0.15 * row.forward) << row.columns;
    norm.pass = Pass::kBackward;
    EXPECT_NEAR(kernel_seconds(norm, device), row.backward, 0.15 * row.backward) << row.columns;
  }
}

// 5 integer instructions a score, at 64 lanes: 2 x 8 x 4096 x 4096 / 2 scores x 10 operations over
// half of 67 TOP/s are 40 us, forward and backward.
TEST(Attention, DropoutCostsARandomNumberAScore) {
  Device device = fitted_device("h100-sxm");
  const auto more = [&](Pass pass) {
    Attention a{pass, 2, 8, 8, 4096, 4096, 128, true, false, Dtype::kBf16};
    const double without = kernel_seconds(a, device);
    a.dropout = true;
    return kernel_seconds(a, device) - without;
  };
  EXPECT_NEAR(more(Pass::kForward), 40.06e-6, 0.1e-6);
  EXPECT_NEAR(more(Pass::kBackward), 40.06e-6, 0.1e-6);
  device.integer_rate = device.vector_rate;
  EXPECT_NEAR(more(Pass::kForward), 20.03e-6, 0.1e-6);
}

// What is not fused costs its bytes once more, at 1 TB/s, and a kernel with its ramp and start.
TEST(Fusion, ChargesAPassAndAKernelForWhatIsLeftUnfused) {
  Device device = plain_device();
  device.kernel_start = microseconds(2);
  const auto more = [&](const Op& op, bool Fusion::*member) {
    return left_apart(op, member, device);
  };
  Gemm weights = matrix_product(4096, 1024, 8192);
  weights.role = GemmRole::kWeightGradient;
  EXPECT_EQ(more(weights, &Fusion::accumulation), 0);
  weights.accumulate = true;
  // Read, and added to the buffer; half of one 2-byte output less is exposed behind the product.
  const double elements = 4096 * 1024;
  EXPECT_NEAR(more(weights, &Fusion::accumulation), (6 - 1) * elements / 1e12 + 2.7e-6, 1e-9);
  weights.output = Dtype::kFp32;  // 2 + 8, less the halves of 4 + 4 behind, for one of 2
  EXPECT_NEAR(more(weights, &Fusion::accumulation), (10 - 3) * elements / 1e12 + 2.7e-6, 1e-9);
  EXPECT_EQ(more(weights, &Fusion::accumulation_cast), 0);
  device.kernels.fusion.gradient_fill = true;  // says nothing of what is added in place
  EXPECT_NEAR(more(weights, &Fusion::accumulation), (12 - 3) * elements / 1e12 + 4.7e-6, 1e-9);
  device.kernels.fusion.gradient_fill = false;
  device.kernels.fusion.accumulation = false;  // now without the cast in one kernel: 8 more
  EXPECT_NEAR(more(weights, &Fusion::accumulation_cast), 8 * elements / 1e12 + 2e-6, 1e-9);
  device.kernels.fusion.accumulation = true;
  Gemm experts = weights;
  experts.batch = 4;
  experts.grouped = true;
  EXPECT_NEAR(more(experts, &Fusion::accumulation), 4 * (10 - 3) * elements / 1e12 + 2.7e-6, 1e-9);
  EXPECT_EQ(more(weights, &Fusion::bias_gradients), 0);
  weights.bias = true;
  EXPECT_NEAR(more(weights, &Fusion::bias_gradients), 2.0 * 4096 * 8192 / 1e12 + 2.7e-6, 1e-9);
  experts.bias = true;  // those of each expert
  EXPECT_NEAR(more(experts, &Fusion::bias_gradients),
              4 * (2.0 * 4096 * 8192 / 1e12 + 2e-6) + 0.7e-6, 1e-9);
  Norm norm{Pass::kForward, NormKind::kLayer, 8192, 4096, Dtype::kBf16};
  const auto plain_norm = [&](double bytes) {  // at 0.62 of the bandwidth
    return (kernel_seconds(norm, device) - 2e-6 + bytes / 1e12) / 0.62 -
           (kernel_seconds(norm, device) - 2e-6);
  };
  EXPECT_NEAR(more(norm, &Fusion::norm_gradients), plain_norm(0), 1e-9);
  norm.pass = Pass::kBackward;
  EXPECT_NEAR(more(norm, &Fusion::norm_gradients), plain_norm(2 * 2.0 * 8192 * 4096) + 2e-6, 1e-9);
  // RMSNorm as operations: 36 bytes an element for 4, 92 for 6; of a LayerNorm there is a kernel.
  EXPECT_EQ(more(norm, &Fusion::norms), 0);
  norm.kind = NormKind::kRms;
  EXPECT_NEAR(more(norm, &Fusion::norms), (92 - 6) * 8192.0 * 4096 / 1e12 + 16 * 2e-6, 1e-9);
  norm.pass = Pass::kForward;
  EXPECT_NEAR(more(norm, &Fusion::norms), (36 - 4) * 8192.0 * 4096 / 1e12 + 7 * 2e-6, 1e-9);
  // In fp32 by way of two copies: 2 + 4, 4 + 4, 4 + 2 for 2 + 2.
  Pointwise rotary{PointwiseKind::kRotary, 8192, 4096, Dtype::kBf16, Dtype::kBf16, false, 128};
  EXPECT_NEAR(more(rotary, &Fusion::rotary), 16 * 8192.0 * 4096 / 1e12 + 2 * 2e-6, 1e-9);
  // With a factor of its own: 7 and 9 bytes for each of an input's, and 5 that are broadcast or lie
  // apart, at 0.62 / 1.39 of the rate; the kernel's own 2 are among them.
  EXPECT_EQ(more(rotary, &Fusion::scaled_rotary), 0);
  rotary.scale = 1.25;
  const double each = 2 * 8192.0 * 4096 / 1e12, apart = 5 * 1.39 / 0.62;
  EXPECT_NEAR(more(rotary, &Fusion::scaled_rotary), (apart + 7 - 2) * each + 23 * 2e-6, 1e-9);
  rotary.kind = PointwiseKind::kRotaryBackward;
  EXPECT_NEAR(more(rotary, &Fusion::scaled_rotary), (apart + 9 - 2) * each + 13 * 2e-6, 1e-9);
  // 2 bytes made and read again, 2 + 4 in all behind a product whose own 4 were half exposed.
  Gemm group = matrix_product(4096, 1024, 8192);
  EXPECT_EQ(more(group, &Fusion::flat_gradients), 0);
  group.role = GemmRole::kWeightGradient;
  EXPECT_NEAR(more(group, &Fusion::flat_gradients), 4 * elements / 1e12 + 2.7e-6, 1e-9);
  group.output = Dtype::kFp32;
  EXPECT_NEAR(more(group, &Fusion::flat_gradients), (6 - 1) * elements / 1e12 + 2.7e-6, 1e-9);
  group.accumulate = true;  // into a buffer of its own, of which no group is made
  EXPECT_EQ(more(group, &Fusion::flat_gradients), 0);
  // 32 heads of queries, 8 each of keys and values: 48 of 128 columns, read and written.
  Attention attention{Pass::kForward, 2, 32, 8, 4096, 4096, 128};
  EXPECT_EQ(more(attention, &Fusion::qkv_gradients), 0);
  attention.pass = Pass::kBackward;
  EXPECT_NEAR(more(attention, &Fusion::qkv_gradients),
              2 * 2.0 * 8192 * 48 * 128 / 1e12 + 2.7e-6, 1e-9);
  const Pointwise gate{PointwiseKind::kSwiglu, 8192, 4096, Dtype::kBf16, Dtype::kBf16, false};
  EXPECT_NEAR(more(gate, &Fusion::gates), 2 * 2.0 * 8192 * 4096 / 1e12 + 2e-6, 1e-9);
  const Pointwise gelu{PointwiseKind::kGelu, 8192, 4096, Dtype::kBf16, Dtype::kBf16, false};
  EXPECT_EQ(more(gelu, &Fusion::gates), 0);
  Update update{UpdatePart::kAdamW, 100'000'000};
  EXPECT_NEAR(more(update, &Fusion::update), 20 * 1e8 / 1e12 + 6e-6, 1e-9);
  update.master = false;
  EXPECT_EQ(more(update, &Fusion::update), 0);
}

// What XLA leaves apart, at 1 TB/s and 2 us a kernel with its ramp, if it is of its own.
TEST(Fusion, ChargesThePassesOfACompilerThatEndsAKernelAtEverySum) {
  Device device = plain_device();
  device.kernel_start = microseconds(2);
  const auto more = [&](const Op& op, bool Fusion::*member) {
    return left_apart(op, member, device);
  };
  const double elements = 8192.0 * 4096;
  Norm norm{Pass::kForward, NormKind::kLayer, 8192, 4096, Dtype::kBf16};
  // 4 for the variance, 4 + 2 for the result, instead of 2 + 2.
  EXPECT_NEAR(more(norm, &Fusion::norm_sums), 6 * elements / 1e12 + 4e-6, 1e-9);
  norm.kind = NormKind::kRms;  // the only sum comes with what made the input
  EXPECT_NEAR(more(norm, &Fusion::norm_sums), 2 * elements / 1e12 + 2e-6, 1e-9);
  norm.pass = Pass::kBackward;  // 2 + 4 for the sums, 2 + 4 + 2 for d_x, instead of 2 + 2 + 2
  EXPECT_NEAR(more(norm, &Fusion::norm_sums), 8 * elements / 1e12 + 2e-6, 1e-9);
  Pointwise softmax{PointwiseKind::kSoftmax, 8192, 4096, Dtype::kBf16, Dtype::kBf16, true};
  // Three reads and a write for half a read and a write; two of both inputs for half of them.
  EXPECT_NEAR(more(softmax, &Fusion::softmax), 5 * elements / 1e12 + 4e-6, 1e-9);
  softmax.kind = PointwiseKind::kSoftmaxBackward;
  EXPECT_NEAR(more(softmax, &Fusion::softmax), 6 * elements / 1e12 + 2e-6, 1e-9);
  Pointwise gelu{PointwiseKind::kGelu, 8192, 4096, Dtype::kBf16, Dtype::kBf16, false};
  EXPECT_NEAR(more(gelu, &Fusion::gelu), 4 * elements / 1e12, 1e-9);
  gelu.kind = PointwiseKind::kGeluBackward;
  EXPECT_NEAR(more(gelu, &Fusion::gelu), 4 * elements / 1e12, 1e-9);
  Pointwise dropout{PointwiseKind::kDropoutAdd, 8192, 4096, Dtype::kBf16, Dtype::kBf16, false};
  EXPECT_NEAR(more(dropout, &Fusion::dropout), 8 * elements / 1e12 + 2e-6, 1e-9);
  dropout.kind = PointwiseKind::kDropoutBackward;  // the mask tells all
  EXPECT_EQ(more(dropout, &Fusion::dropout), 0);
  Pointwise cast{PointwiseKind::kQuantizeBoth, 8192, 4096, Dtype::kBf16, Dtype::kFp8, false};
  device.kernels.fusion.casts = true;  // writes two copies of a byte and does not read 2
  EXPECT_NEAR(more(cast, &Fusion::casts), 2 * elements / 1e12, 1e-9);
}

// A product's result read and written; of unfused attention what has the tokens' width, of 32 heads
// of two sequences of 2048.
TEST(Fusion, ChargesThePassesAroundProductsWithoutEpilogue) {
  Device device = plain_device();
  device.kernel_start = microseconds(2);
  const auto more = [&](const Op& op, bool Fusion::*member) {
    return left_apart(op, member, device);
  };
  Gemm linear = matrix_product(8192, 4096, 1024);
  EXPECT_EQ(more(linear, &Fusion::biases), 0);
  linear.bias = true;
  EXPECT_NEAR(more(linear, &Fusion::biases), 4.0 * 8192 * 4096 / 1e12 + 2.7e-6, 1e-9);
  EXPECT_EQ(more(linear, &Fusion::heads), 0);
  const auto attention = [&](std::int64_t n, std::int64_t k, GemmRole role) {
    Gemm gemm = matrix_product(2048, n, k);
    gemm.batch = 64;
    gemm.role = role;
    return more(gemm, &Fusion::heads);
  };
  const double copy = 4.0 * 64 * 2048 * 128 / 1e12 + 2.7e-6;
  EXPECT_EQ(attention(2048, 128, GemmRole::kForward), 0);  // scores
  EXPECT_NEAR(attention(128, 2048, GemmRole::kForward), copy, 1e-9);
  EXPECT_NEAR(attention(2048, 128, GemmRole::kInputGradient), copy, 1e-9);   // reads d_o
  EXPECT_NEAR(attention(128, 2048, GemmRole::kInputGradient), copy, 1e-9);   // d_q
  EXPECT_NEAR(attention(128, 2048, GemmRole::kWeightGradient), copy, 1e-9);  // d_k, d_v
}

// Forward the one-hot matrix (8192, 50304) is written, and read by a product; backward has the
// product of its transpose with d_y.
TEST(Fusion, TakesAOneHotProductForALookup) {
  Device device = plain_device();
  device.kernels.fusion.lookups = false;
  Gather lookup{Pass::kForward, 8192, 4096, 50304, Dtype::kBf16, Dtype::kFp32};
  EXPECT_NEAR(kernel_seconds(lookup, device),
              2.0 * 8192 * 50304 / 1e12 + 0.7e-6 +
                  kernel_seconds(matrix_product(8192, 4096, 50304), device),
              1e-9);
  lookup.pass = Pass::kBackward;
  Gemm gradient = matrix_product(50304, 4096, 8192);
  gradient.role = GemmRole::kWeightGradient;
  gradient.output = Dtype::kFp32;
  EXPECT_NEAR(kernel_seconds(lookup, device), kernel_seconds(gradient, device), 1e-9);
}

TEST(OpCost, StartsWithTheKernelsStartAndSaysItsBasis) {
  Device device = plain_device();
  const Gemm gemm = matrix_product(4096, 4096, 4096);
  const double without = kernel_seconds(gemm, device);
  device.kernel_start = microseconds(3);
  EXPECT_NEAR(kernel_seconds(gemm, device), without + 3e-6, 1e-12);
  EXPECT_EQ(op_cost(gemm, device).basis, Basis::kDatasheet);
}

// Seeded: a product is never faster for having one of its sizes doubled, or one more.
TEST(OpCost, NeverFallsWhenASizeGrows) {
  std::mt19937_64 random(20240611);
  const auto size = [&](double most) {
    return static_cast<std::int64_t>(
        std::exp(std::uniform_real_distribution<double>(0, std::log(most))(random)));
  };
  for (const Device& device :
       {shipped_device("h100-sxm"), shipped_device("mi300x"), fitted_device("a100-40gb"),
        fitted_device("h100-sxm"), fitted_device("b200")}) {
    for (int i = 0; i < 2000; ++i) {
      Gemm gemm = matrix_product(size(40000), size(40000), size(40000));
      gemm.batch = size(16);
      gemm.accumulate = i % 2 == 0;
      Attention a = attention(i % 2 ? Pass::kForward : Pass::kBackward, size(8), size(40000),
                              size(64), size(256));
      a.causal = i % 3 != 0;
      for (const int step : {0, 1}) {  // 0: double, 1: one more
        const auto grow = [&](std::int64_t n) { return step == 0 ? 2 * n : n + 1; };
        Gemm bigger = gemm;
        std::int64_t* const sizes[] = {&bigger.m, &bigger.n, &bigger.k, &bigger.batch};
        std::int64_t& grown = *sizes[i % 4];
        grown = grow(grown);
        EXPECT_GE(kernel_seconds(bigger, device), kernel_seconds(gemm, device))
            << to_text(Op(gemm));
        Attention longer = a;
        longer.queries = longer.keys = grow(a.keys);
        EXPECT_GE(kernel_seconds(longer, device), kernel_seconds(a, device)) << to_text(Op(a));
      }
      EXPECT_TRUE(std::isfinite(kernel_seconds(gemm, device)) && kernel_seconds(gemm, device) > 0);
      EXPECT_TRUE(std::isfinite(kernel_seconds(a, device)) && kernel_seconds(a, device) > 0);
    }
  }
}

// A tenth of 100 multiprocessors taken: 100 tiles no longer fit one wave, which costs more than the
// share of 100 / 90; smaller tiles save part of a second wave.
TEST(OpCost, AKernelBesideACollectiveHasItsMultiprocessorsLess) {
  const Device device = plain_device();
  const Gemm one_wave = matrix_product(256 * 10, 128 * 10, 65536);
  const double alone = kernel_seconds(one_wave, device);
  const double beside =
      op_cost(one_wave, device, {.multiprocessors_taken = 10}).time.value;
  EXPECT_GT(beside / alone, 1.3);
  EXPECT_LT(beside / alone, 2.01);
  // Many waves: only the share counts.
  const Gemm many = matrix_product(256 * 100, 128 * 90, 8192);
  const double share = op_cost(many, device, {.multiprocessors_taken = 10}).time.value;
  EXPECT_NEAR(share / kernel_seconds(many, device), 100.0 / 90, 0.01);
}

TEST(OpCost, AStreamBesideACollectiveHasItsBandwidthLess) {
  const Device device = plain_device();
  Pointwise scale;
  scale.kind = PointwiseKind::kScale;
  scale.rows = scale.columns = 8192;
  const double beside = op_cost(scale, device, {.memory_taken = 0.25}).time.value;
  EXPECT_NEAR(beside / kernel_seconds(scale, device), 1 / 0.75, 1e-6);
  // Whatever is taken, a tenth is left.
  EXPECT_NEAR(
      op_cost(scale, device, {.memory_taken = 7}).time.value / kernel_seconds(scale, device), 10,
      1e-6);
}

// u = 100 us: a product of 100 us loses half of the 40 %: 1.2 times the rate. Memory is no faster.
TEST(OpCost, ABurstOnARestedDeviceIsFaster) {
  Device device = plain_device();
  device.kernels.matrix.burst = 1.4;
  const Gemm large = matrix_product(8192, 8192, 8192);
  device.kernels.matrix.burst_time = Seconds(kernel_seconds(large, device));
  EXPECT_NEAR(kernel_seconds(large, device) / op_cost(large, device, {.rested = true}).time.value,
              1.2, 0.01);
  device.kernels.matrix.burst_time = Seconds(1);
  EXPECT_NEAR(kernel_seconds(large, device) / op_cost(large, device, {.rested = true}).time.value,
              1.4, 0.01);
  const Gemm thin = matrix_product(1, 8192, 8192);
  EXPECT_EQ(op_cost(thin, device, {.rested = true}).time.value, kernel_seconds(thin, device));
}

// Power takes less of products in 8 bits, with scales for blocks as well: in training only, and of
// no other type.
TEST(OpCost, ProductsIn8BitsLoseLessOfTheirRateInTraining) {
  Device device = plain_device();
  device.matrix_rate[Dtype::kFp8] = device.matrix_rate.at(Dtype::kBf16) * 2;
  Device kept = device;
  kept.kernels.matrix.fp8_sustained = 1.1;
  Gemm product = matrix_product(8192, 8192, 8192);
  EXPECT_EQ(kernel_seconds(product, kept), kernel_seconds(product, device));
  product.dtype = Dtype::kFp8;
  for (const bool blocks : {false, true}) {
    product.block_scales = blocks;
    EXPECT_NEAR(kernel_seconds(product, device) / kernel_seconds(product, kept), 1.1, 0.01);
    EXPECT_EQ(op_cost(product, kept, {.rested = true}).time.value,
              op_cost(product, device, {.rested = true}).time.value);
  }
}

// In training attention runs at 0.8 of the rate that a benchmark times. A few queries to many keys
// are bound by the memory bus, which has no clocks to lose.
TEST(OpCost, AttentionInTrainingKeepsAShareOfTheRateOfABenchmark) {
  const Device benchmark = plain_device();
  Device device = plain_device();
  for (auto& [name, kernels] : device.kernels.attention) kernels.sustained = 0.8;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Attention attention{pass, 2, 32, 32, 8192, 8192, 128};
    const double alone = kernel_seconds(attention, benchmark);
    EXPECT_NEAR(alone / kernel_seconds(attention, device), 0.8, 1e-6);
    EXPECT_EQ(op_cost(attention, device, {.rested = true}).time.value, alone);
  }
  const Attention thin{Pass::kForward, 64, 32, 32, 1, 8192, 128};
  EXPECT_EQ(kernel_seconds(thin, device), kernel_seconds(thin, benchmark));
}

// Of 2 devices the slower one is 1 / sqrt(pi) = 0.564 standard deviations from the mean; Blom's
// quantile, (2 - 3/8) / (2 + 1/4), is 0.589. Tables of normal order statistics (Harter, "Expected
// Values of Normal Order Statistics", 1961): 1.424 for 8, 2.508 for 100, 2.855 for 300.
TEST(OpCost, TheSlowestOfManyDevicesIsAsSlowAsOrderStatisticsSay) {
  Device device = plain_device();
  device.spread = 0.1;
  const Gemm large = matrix_product(8192, 8192, 8192);
  const Attention attention{Pass::kForward, 2, 32, 32, 8192, 8192, 128};
  const auto slower = [&](const Op& op, int devices) {
    const Device slowest = slower_by(device, highest_of(devices));
    return (kernel_seconds(op, slowest) / kernel_seconds(op, device) - 1) / device.spread;
  };
  EXPECT_NEAR(slower(attention, 1), 0, 1e-9);
  EXPECT_NEAR(slower(attention, 2), 0.589, 0.001);
  EXPECT_NEAR(slower(attention, 8), 1.424, 0.015);
  EXPECT_NEAR(slower(attention, 100), 2.508, 0.015);
  EXPECT_NEAR(slower(attention, 300), 2.855, 0.015);
  EXPECT_NEAR(slower(large, 100), 2.508, 0.05);  // its start and its epilogue stay
  const Pointwise fill{PointwiseKind::kFill, 8192, 8192, Dtype::kBf16, Dtype::kBf16, false};
  EXPECT_EQ(slower(fill, 100), 0);  // bound by memory
  const Device slowest = slower_by(device, highest_of(100));
  EXPECT_EQ(op_cost(attention, slowest, {.rested = true}).time.value,
            op_cost(attention, device, {.rested = true}).time.value);
}

// Ten tiles too many for one wave cost a good part of a second one, smaller tiles or not; with no
// loss for a partly filled wave (stream-k) a tenth.
TEST(Gemm, APartlyFilledWaveCostsWhatTheDeviceSays) {
  Device device = plain_device();
  const Gemm one = matrix_product(256 * 10, 128 * 10, 65536);
  const Gemm more = matrix_product(256 * 10, 128 * 11, 65536);
  EXPECT_GT(kernel_seconds(more, device) / kernel_seconds(one, device), 1.3);
  device.kernels.matrix.partial_wave = 0;
  EXPECT_NEAR(kernel_seconds(more, device) / kernel_seconds(one, device), 1.1, 0.01);
}

}  // namespace
}  // namespace stepcast
