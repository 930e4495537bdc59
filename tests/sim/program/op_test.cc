#include "sim/program/op.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/program.h"

namespace stepcast {
namespace {

std::vector<Op> one_of_each() {
  return {
      Gemm{4, 8, 16},
      Gemm{4, 8, 16, 3, GemmRole::kWeightGradient, Dtype::kBf16, Dtype::kFp32, true, true},
      Gemm{4, 8, 16, 1, GemmRole::kInputGradient, Dtype::kFp8, Dtype::kBf16, false, false},
      Gemm{4, 8, 16, 1, GemmRole::kInputGradient, Dtype::kFp8, Dtype::kBf16, false, false, true},
      Pointwise{PointwiseKind::kQuantizeBoth, 4, 8, Dtype::kBf16, Dtype::kFp8},
      Attention{Pass::kForward, 2, 8, 2, 64, 64, 16, true, false, Dtype::kBf16},
      Attention{Pass::kBackward, 2, 8, 2, 64, 32, 16, false, true, Dtype::kFp16},
      Attention{Pass::kBackward, 2, 8, 2, 64, 32, 16, true, false, Dtype::kBf16, true},
      Attention{Pass::kForward, 2, 8, 2, 64, 256, 16, true, false, Dtype::kBf16, false,
                KeySource::kGathered},
      Attention{Pass::kForward, 2, 8, 2, 64, 32, 16, false, false, Dtype::kBf16, false,
                KeySource::kPassed, 3},
      Attention{Pass::kBackward, 2, 8, 2, 64, 64, 16, true, false, Dtype::kBf16, true,
                KeySource::kOwn, 0, 0, 8, true},
      Attention{Pass::kForward, 2, 8, 2, 64, 64, 16, true, false, Dtype::kBf16, false,
                KeySource::kOwn, 0, 0, 0, true},
      Pointwise{PointwiseKind::kAddExpertBias, 4, 8, Dtype::kBf16, Dtype::kBf16, false, 0, false,
                false, 0, 2},
      Pointwise{PointwiseKind::kAddExpertBiasBackward, 4, 8, Dtype::kBf16, Dtype::kFp32, false, 0,
                false, false, 0, 4},
      Pointwise{PointwiseKind::kSwigluOai, 4, 8, Dtype::kBf16, Dtype::kBf16, false, 0, false, true},
      Pointwise{PointwiseKind::kMergeAttention, 4, 8},
      Norm{Pass::kForward, NormKind::kRms, 4, 8, Dtype::kBf16},
      Norm{Pass::kBackward, NormKind::kLayer, 4, 8, Dtype::kFp32},
      Pointwise{PointwiseKind::kSwiglu, 4, 8, Dtype::kBf16, Dtype::kBf16, false},
      Pointwise{PointwiseKind::kSoftmax, 4, 8, Dtype::kBf16, Dtype::kFp32, true},
      Pointwise{PointwiseKind::kMask, 4, 8, Dtype::kFp32, Dtype::kFp32},
      Pointwise{PointwiseKind::kMaskBackward, 4, 8, Dtype::kFp32, Dtype::kFp32},
      Pointwise{PointwiseKind::kRotary, 4, 8, Dtype::kBf16, Dtype::kBf16, false, 4},
      Pointwise{.kind = PointwiseKind::kRotary, .rows = 4, .columns = 8, .head_dim = 4,
                .scale = 0.1 + 0.2},
      Pointwise{PointwiseKind::kDropout, 4, 8},
      Pointwise{PointwiseKind::kDropout, 4, 8, Dtype::kBf16, Dtype::kBf16, false, 0, true},
      Gather{Pass::kBackward, 4, 8, 100, Dtype::kBf16, Dtype::kFp32},
      Loss{LossPart::kFinish, 4, 100, Dtype::kBf16, Dtype::kFp32},
      Update{UpdatePart::kSquaredNorm, 100},
      Update{UpdatePart::kAdamW, 100, Dtype::kFp16, Dtype::kFp32, false, Dtype::kBf16},
      Pointwise{PointwiseKind::kSwiglu, 4, 8, Dtype::kBf16, Dtype::kBf16, false, 0, false, true},
      Route{Pass::kForward, 4, 8, 2, 3, Dtype::kBf16},
      Route{Pass::kBackward, 4, 8, 2, 3, Dtype::kFp32},
      Permute{PermutePart::kPermute, 4, 2, 24, 16, Dtype::kBf16, true},
      Permute{PermutePart::kPermute, 4, 2, 24, 16, Dtype::kBf16, false},
      Permute{PermutePart::kUnpermute, 4, 2, 24, 16, Dtype::kFp32, true},
      Regroup{2, 3, 4, 16, Dtype::kBf16},
      OwnSlots{8, 2, 3, 4, 2},
      Regroup{3, 2, 4, 16, Dtype::kBf16, Regrouping::kToSequence},
      Regroup{2, 3, 4, 16, Dtype::kFp32, Regrouping::kToRanks},
      ShareHeads{false, 4, 2, {16, 8, 8}, Dtype::kBf16},
      ShareHeads{true, 4, 2, {16, 0, 0}, Dtype::kFp32},
  };
}

// 2 m n k, batch times: 2 * 4 * 8 * 16 = 1024, three times 3072.
TEST(Op, CountsTwoFlopsAMultiplyAdd) {
  EXPECT_EQ(flops(Gemm{4, 8, 16}).value, 1024);
  EXPECT_EQ(flops(Gemm{4, 8, 16, 3}).value, 3072);
}

// 4 b a s t d = 4 * 2 * 8 * 64 * 64 * 16 = 4194304; causal half; backward 5 products to 2.
TEST(Op, CountsHalfTheScoresOfCausalAttentionAndFiveProductsBackward) {
  Attention a{Pass::kForward, 2, 8, 2, 64, 64, 16, false, false, Dtype::kBf16};
  EXPECT_EQ(flops(a).value, 4194304);
  a.causal = true;
  EXPECT_EQ(flops(a).value, 2097152);
  a.pass = Pass::kBackward;
  EXPECT_EQ(flops(a).value, 2097152 * 2.5);
}

// A quarter of the sequence: 16 queries and 64 keys are a quarter of the whole triangle. In parts:
// its own keys, and three times 16 queries over 8 keys.
TEST(Op, CountsTheSameScoresOfKeysGatheredAndPassedOn) {
  const Attention whole{Pass::kForward, 2, 8, 2, 64, 64, 16, true, false, Dtype::kBf16};
  Attention gathered = whole, own = whole, passed = whole;
  gathered.queries = own.queries = own.keys = passed.queries = 16;
  gathered.source = KeySource::kGathered;
  passed.source = KeySource::kPassed;
  passed.keys = 8;
  passed.causal = false;
  EXPECT_EQ(flops(gathered).value * 4, flops(whole).value);
  EXPECT_EQ(flops(own).value + 3 * flops(passed).value, flops(gathered).value);
}

// 6 rows of 8 scores in bf16: all 48 written, half of them read, from one matrix forward and from
// two backward: (48 + 24) * 2 = 144 and (48 + 2 * 24) * 2 = 192 bytes; not causal: 192 and 288.
TEST(Op, ACausalSoftmaxReadsHalfTheScoresAndWritesAll) {
  Pointwise forward{PointwiseKind::kSoftmax, 6, 8, Dtype::kBf16, Dtype::kBf16, true};
  Pointwise backward{PointwiseKind::kSoftmaxBackward, 6, 8, Dtype::kBf16, Dtype::kBf16, true};
  EXPECT_EQ(traffic(forward), Bytes(144));
  EXPECT_EQ(traffic(backward), Bytes(192));
  forward.causal = backward.causal = false;
  EXPECT_EQ(traffic(forward), Bytes(192));
  EXPECT_EQ(traffic(backward), Bytes(288));
}

// bf16: A 4*16, B 16*8, C 4*8 elements: (64 + 128 + 32) * 2 = 448 bytes.
// fp32 C, added to: 2 * (64 + 128) + 4 * 32 * 2 = 640; a bias of 8 adds 16 bytes.
TEST(Op, MovesEachOperandOfAGemmOnce) {
  Gemm g{4, 8, 16};
  EXPECT_EQ(traffic(g), Bytes(448));
  g.bias = true;
  EXPECT_EQ(traffic(g), Bytes(464));
  g.bias = false;
  g.output = Dtype::kFp32;
  g.accumulate = true;
  EXPECT_EQ(traffic(g), Bytes(640));
}

// q, o: 2*64*8*16 elements each; k, v: 2*64*2*16 each; lse 2*8*64 fp32.
// forward (2 * 16384 + 2 * 4096) * 2 + 1024 * 4 = 86016; backward doubles all but the lse: 167936.
TEST(Op, MovesQueriesKeysValuesAndTheirGradients) {
  Attention a{Pass::kForward, 2, 8, 2, 64, 64, 16, true, false, Dtype::kBf16};
  EXPECT_EQ(traffic(a), Bytes(86016));
  a.pass = Pass::kBackward;
  EXPECT_EQ(traffic(a), Bytes(167936));
}

// (rows, columns) = (4, 8), 64 bytes of bf16 a tensor, 32 of mask.
TEST(Op, MovesOperandsOfPointwiseWork) {
  const auto bytes = [](PointwiseKind kind) { return traffic(Pointwise{kind, 4, 8}).count; };
  EXPECT_EQ(bytes(PointwiseKind::kAdd), 192);             // a, b, sum
  EXPECT_EQ(bytes(PointwiseKind::kAddRows), 144);         // x, 16 of bias, y
  EXPECT_EQ(bytes(PointwiseKind::kAddRowsBackward), 96);  // d_y; bias gradient read and written
  EXPECT_EQ(bytes(PointwiseKind::kSwiglu), 192);          // gate, up, y
  EXPECT_EQ(bytes(PointwiseKind::kSwigluOai), 192);
  EXPECT_EQ(bytes(PointwiseKind::kSwigluOaiBackward), 160);
  EXPECT_EQ(bytes(PointwiseKind::kAddExpertBias), 144);          // x, 16 of fp32 weights, y
  EXPECT_EQ(bytes(PointwiseKind::kAddExpertBiasBackward), 96);   // d_y, weights, their gradients
  EXPECT_EQ(bytes(PointwiseKind::kSwigluBackward), 160);  // d_y half as wide as the other two
  EXPECT_EQ(bytes(PointwiseKind::kDropoutAdd), 224);      // x, residual, y, mask
  EXPECT_EQ(bytes(PointwiseKind::kFill), 64);
  EXPECT_EQ(bytes(PointwiseKind::kMask), 128);  // in place: read and written
  EXPECT_EQ(bytes(PointwiseKind::kMaskBackward), 128);
  EXPECT_EQ(traffic(Pointwise{PointwiseKind::kCast, 4, 8, Dtype::kBf16, Dtype::kFp32}).count, 192);
}

// (4, 8): 64 bytes in bf16, 32 in fp8.
TEST(Op, MovesOperandsOfQuantisation) {
  const auto bytes = [](PointwiseKind kind, Dtype in, Dtype out) {
    return traffic(Pointwise{kind, 4, 8, in, out}).count;
  };
  EXPECT_EQ(bytes(PointwiseKind::kAmax, Dtype::kBf16, Dtype::kFp32), 64 + 4);
  EXPECT_EQ(bytes(PointwiseKind::kQuantize, Dtype::kBf16, Dtype::kFp8), 64 + 32);
  EXPECT_EQ(bytes(PointwiseKind::kQuantizeBoth, Dtype::kBf16, Dtype::kFp8), 64 + 2 * 32);
  EXPECT_EQ(bytes(PointwiseKind::kTranspose, Dtype::kFp8, Dtype::kFp8), 32 + 32);
}

// LayerNorm (4, 8) bf16. Forward: x, y 64 each, gain and bias 16 each, statistics 4*2*4 = 32: 192.
// Backward: d_y, x, d_x 192, gain 16, statistics 32, two gradients read and written 64: 304.
TEST(Op, MovesOperandsOfANorm) {
  EXPECT_EQ(traffic(Norm{Pass::kForward, NormKind::kLayer, 4, 8, Dtype::kBf16}), Bytes(192));
  EXPECT_EQ(traffic(Norm{Pass::kBackward, NormKind::kLayer, 4, 8, Dtype::kBf16}), Bytes(304));
}

// AdamW on 100 elements, bf16 weight and gradient, fp32 the rest: gradient 200, norm 4, master read
// and written 800, weight written 200, two moments read and written 1600.
TEST(Op, MovesTheTrainingStateOnceEachWay) {
  EXPECT_EQ(traffic(Update{UpdatePart::kAdamW, 100}), Bytes(2804));
  EXPECT_EQ(traffic(Update{UpdatePart::kSquaredNorm, 100}), Bytes(204));
}

// ids 4*8 = 32; rows moved, not the table: 2 * 64; backward fp32 rows read and written 2 * 128.
TEST(Op, MovesOnlyTheRowsOfATableThatAreLookedUp) {
  EXPECT_EQ(traffic(Gather{Pass::kForward, 4, 8, 50000}), Bytes(160));
  EXPECT_EQ(traffic(Gather{Pass::kBackward, 4, 8, 50000, Dtype::kBf16, Dtype::kFp32}), Bytes(352));
}

// logits (4, 100) bf16 800, ids 32, rows of fp32 16 each; probabilities fp32 1600.
TEST(Op, MovesOperandsOfALoss) {
  const auto bytes = [](LossPart part) { return traffic(Loss{part, 4, 100}).count; };
  EXPECT_EQ(bytes(LossPart::kMaximum), 816);
  EXPECT_EQ(bytes(LossPart::kSums), 880);
  EXPECT_EQ(bytes(LossPart::kFinish), 800 + 32 + 64 + 1600);
  EXPECT_EQ(bytes(LossPart::kBackward), 1600 + 32 + 800);
}

// Four tokens of 16 columns, of 8 experts two each, 24 slots; bf16. Logits 64, weights (fp32) 32,
// slots 32, twice the weights backward; tokens 128, in slots 768, their weights 96.
TEST(Op, MovesOperandsOfExperts) {
  EXPECT_EQ(traffic(Route{Pass::kForward, 4, 8, 2, 3}), Bytes(64 + 32 + 32));
  EXPECT_EQ(traffic(Route{Pass::kBackward, 4, 8, 2, 3}), Bytes(64 + 2 * 32 + 32));
  Permute permute{PermutePart::kPermute, 4, 2, 24, 16};
  EXPECT_EQ(traffic(permute), Bytes(128 + 768 + 32));
  permute.weighted = true;
  EXPECT_EQ(traffic(permute), Bytes(128 + 768 + 32 + 32 + 96));
  EXPECT_EQ(flops(permute).value, 0);
  permute.part = PermutePart::kUnpermute;
  EXPECT_EQ(flops(permute).value, 4 * 2 * 16);
  EXPECT_EQ(traffic(Regroup{2, 3, 4, 16}), Bytes(2 * 768));
  Pointwise swiglu{PointwiseKind::kSwiglu, 24, 8}, backward{PointwiseKind::kSwigluBackward, 24, 16};
  const Bytes plain = traffic(swiglu), plain_backward = traffic(backward);
  swiglu.weighted = backward.weighted = true;
  EXPECT_EQ(traffic(swiglu), plain + Bytes(96));
  EXPECT_EQ(traffic(backward), plain_backward + Bytes(2 * 96));
}

TEST(Op, ReadsBackFromItsText) {
  for (const Op& op : one_of_each()) {
    EXPECT_EQ(parse_op(to_text(op), "here"), op) << to_text(op);
  }
  EXPECT_EQ(to_text(Gemm{4096, 8192, 1024}), "gemm forward 4096x8192x1024 bf16");
}

TEST(Op, HashesDistinctOpsApart) {
  std::vector<std::size_t> hashes;
  for (const Op& op : one_of_each()) hashes.push_back(hash_value(op));
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(hashes[i], hashes[j]);
  }
  EXPECT_EQ(hash_value(Gemm{4, 8, 16}), hash_value(Gemm{4, 8, 16}));
}

TEST(Op, RefusesTextThatIsNoOpAndSaysWhatItExpected) {
  const auto trouble = [](const char* text) -> std::string {
    try {
      parse_op(text, "here");
    } catch (const Error& error) {
      EXPECT_EQ(error.where(), "here");
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(trouble("gemm forward 4x8 bf16"), "expected 3 sizes such as 4096x1024, found '4x8'");
  EXPECT_NE(trouble("gemm forward 4x8x0 bf16"), "");
  EXPECT_NE(trouble("gemm forward 4x8x16 bf16 bias accumulate"), "");
  EXPECT_NE(trouble("conv 1x1 bf16"), "");
  EXPECT_NE(trouble("pointwise gelu 4x8 bf16 scores"), "");  // of dropout alone
  EXPECT_NE(trouble("pointwise add 4x8 bf16 weighted"), "");  // of activations alone
  EXPECT_NE(trouble("route forward 4x8 chosen=9 capacity=4 bf16"), "");
  EXPECT_NE(trouble("route forward 4x8 chosen=2 capacity=1000000000000000000 bf16"), "");
  EXPECT_NE(trouble("permute scatter 4x8 chosen=2 slots=8 bf16"), "");
  EXPECT_NE(trouble("regroup 2x3x4 bf16"), "");
  EXPECT_NE(trouble("regroup 2x3x4x8 bf16 to_sequence"), "");  // of two stretches each
  EXPECT_NE(trouble("own_slots 5x1 experts=1 capacity=4 ranks=2"), "");
  EXPECT_NE(trouble("share_heads forth 4 ranks=2 queries=16 keys=7 values=8 bf16"), "");
  EXPECT_NE(trouble(""), "");
  EXPECT_NE(trouble("gemm forward 1000000000000x1000000000000x1000000000000 bf16"), "");
}

// A ring sends 2 (n-1)/n of an all-reduce, (n-1)/n of the others, all of a message; rounded up.
TEST(Transfer, SendsWhatARingSends) {
  Mesh mesh;
  mesh.degree(Axis::kTensor) = 4;
  mesh.degree(Axis::kPipeline) = 8;
  const auto sent = [&](TransferKind kind, AxisSet axes, bool ends, std::int64_t bytes) {
    return sent_bytes(Transfer{kind, axes, ends, Bytes(bytes)}, mesh).count;
  };
  EXPECT_EQ(sent(TransferKind::kAllReduce, Axis::kTensor, false, 1000), 1500);
  EXPECT_EQ(sent(TransferKind::kAllGather, Axis::kTensor, false, 1000), 750);
  EXPECT_EQ(sent(TransferKind::kAllGather, Axis::kTensor, false, 1001), 751);  // 750.75
  EXPECT_EQ(sent(TransferKind::kAllReduce, Axis::kPipeline, true, 1000), 1000);
  EXPECT_EQ(sent(TransferKind::kSendReceive, Axis::kPipeline, false, 1000), 1000);
  EXPECT_EQ(sent(TransferKind::kAllReduce, Axis::kData, false, 1000), 0);
  const std::int64_t large = (std::int64_t{1} << 56) + 1;
  EXPECT_EQ(sent(TransferKind::kAllReduce, Axis::kTensor, false, large),
            (std::int64_t{3} << 55) + 2);
}

}  // namespace
}  // namespace stepcast
