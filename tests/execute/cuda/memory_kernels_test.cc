// The kernels that move memory, emulated on the host thread by thread, against those of
// execute/cpu in double: fp32 within its rounding, bf16 within one rounding of the result (2^-8
// relative) and of what it is made of.
#include <vector>

#include <gtest/gtest.h>

#include "support/emulated_op.h"

namespace stepcast::cuda {
namespace {

double tolerance(Dtype dtype) { return dtype == Dtype::kBf16 ? 5e-3 : 4e-6; }

// Columns that a warp takes by eights, by ones, and that a block takes.
constexpr std::int64_t kColumns[] = {64, 13, 1032};
constexpr Dtype kDtypes[] = {Dtype::kFp32, Dtype::kBf16};

class MemoryKernels : public testing::Test, public EmulatedOp {
 protected:
  MemoryKernels() : EmulatedOp({{3, 2, 1, 5}, 0, 1, 6}) {}  // 3 positions of 2 sequences
};

TEST_F(MemoryKernels, NormaliseAsTheCpuDoes) {
  for (const NormKind kind : {NormKind::kLayer, NormKind::kRms}) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t columns : kColumns) {
        const bool layer = kind == NormKind::kLayer;
        TwoFold x = random({19, columns}, dtype), w = weight({columns}, dtype);
        TwoFold b = weight({columns}, dtype), y = empty({19, columns}, dtype);
        TwoFold statistics = empty({19, layer ? 2 : 1}, Dtype::kFp32);
        std::vector<TwoFold*> reads = {&x, &w};
        if (layer) reads.push_back(&b);
        run(Norm{Pass::kForward, kind, 19, columns, dtype}, reads, {&y, &statistics});
        EXPECT_EQ(far_off(y, tolerance(dtype)), "");
        EXPECT_EQ(far_off(statistics, 1e-6), "");
        // Gradients in fp32, onto what is there; then anew.
        TwoFold dy = random({19, columns}, dtype), dx = empty({19, columns}, dtype);
        TwoFold dw = weight({columns}, Dtype::kFp32), db = weight({columns}, Dtype::kFp32);
        std::vector<TwoFold*> back = {&dy, &x, &w, &statistics}, writes = {&dx, &dw};
        if (layer) writes.push_back(&db);
        for (const bool accumulate : {true, false}) {
          if (accumulate) back.insert(back.end(), writes.begin() + 1, writes.end());
          if (!accumulate) back.resize(4);
          run(Norm{Pass::kBackward, kind, 19, columns, dtype}, back, writes, WarpOrder::kDown);
          EXPECT_EQ(far_off(dx, tolerance(dtype)), "");
          EXPECT_EQ(far_off(dw, 1e-5), "");
          if (layer) {
            EXPECT_EQ(far_off(db, 1e-5), "");
          }
        }
      }
    }
  }
}

// 2 query heads and 1 key head of 64 in a qkv of 4; the gradient in place.
TEST_F(MemoryKernels, NormaliseQueriesAndKeysInPlace) {
  for (const Dtype dtype : kDtypes) {
    TwoFold qkv = random({6, 256}, dtype), w = weight({2, 64}, dtype), qk = empty({6, 192}, dtype);
    TwoFold statistics = empty({18}, Dtype::kFp32);
    run(Norm{Pass::kForward, NormKind::kRms, 18, 64, dtype}, {&qkv, &w}, {&qk, &statistics});
    EXPECT_EQ(far_off(qk, tolerance(dtype)), "");
    TwoFold d = random({6, 256}, dtype), dw = weight({2, 64}, Dtype::kFp32);
    run(Norm{Pass::kBackward, NormKind::kRms, 18, 64, dtype}, {&d, &qkv, &w, &statistics, &dw},
        {&d, &dw});
    EXPECT_EQ(far_off(d, tolerance(dtype)), "");
    EXPECT_EQ(far_off(dw, 1e-5), "");
  }
}

TEST_F(MemoryKernels, ActivateAsTheCpuDoes) {
  using Kind = PointwiseKind;
  struct Pair {
    Kind forward, backward;
    std::int64_t width;  // of the input, in outputs
  };
  for (const Pair pair :
       {Pair{Kind::kGelu, Kind::kGeluBackward, 1}, Pair{Kind::kSwiglu, Kind::kSwigluBackward, 2},
        Pair{Kind::kGeglu, Kind::kGegluBackward, 2}}) {
    for (const Dtype dtype : kDtypes) {
      for (const std::int64_t columns : kColumns) {
        TwoFold x = random({6, columns * pair.width}, dtype), y = empty({6, columns}, dtype);
        TwoFold dx = empty({6, columns * pair.width}, dtype), dy = random({6, columns}, dtype);
        run(Pointwise{pair.forward, 6, columns, dtype, dtype}, {&x}, {&y});
        run(Pointwise{pair.backward, 6, columns * pair.width, dtype, dtype}, {&dy, &x}, {&dx});
        EXPECT_EQ(far_off(y, tolerance(dtype)), "");
        EXPECT_EQ(far_off(dx, tolerance(dtype)), "");
      }
    }
  }
}

TEST_F(MemoryKernels, AddWithAndWithoutABiasAndInPlace) {
  for (const Dtype dtype : kDtypes) {
    TwoFold a = random({6, 40}, dtype), b = random({6, 40}, dtype), bias = weight({40}, dtype);
    TwoFold y = empty({6, 40}, dtype);
    run(Pointwise{PointwiseKind::kAdd, 6, 40, dtype, dtype}, {&a, &b, &bias}, {&y});
    EXPECT_EQ(far_off(y, tolerance(dtype)), "");
    run(Pointwise{PointwiseKind::kAdd, 6, 40, dtype, dtype}, {&a, &b}, {&a});
    EXPECT_EQ(far_off(a, tolerance(dtype)), "");
  }
}

// A table of 4 for 3 positions of 2 sequences; then as the second of two tensor ranks that share
// the rows: its 3 rows are tokens 3, 4, 5. A table of one row is a bias.
TEST_F(MemoryKernels, AddPositionsAndBiases) {
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : kColumns) {
      for (const std::int64_t ranks : {1, 2}) {
        for (const std::int64_t table_rows : {4, 1}) {
          place_.tensor_ranks = ranks;
          place_.tensor_rank = ranks - 1;
          const std::int64_t rows = 6 / ranks;
          TwoFold x = random({rows, columns}, dtype), table = weight({table_rows, columns}, dtype);
          TwoFold y = empty({rows, columns}, dtype);
          TwoFold d_table = weight({table_rows, columns}, Dtype::kFp32);
          run(Pointwise{PointwiseKind::kAddRows, rows, columns, dtype, dtype}, {&x, &table}, {&y});
          EXPECT_EQ(far_off(y, tolerance(dtype)), "");
          const Pointwise back{PointwiseKind::kAddRowsBackward, rows, columns, dtype, dtype};
          run(back, {&x, &d_table}, {&d_table});
          EXPECT_EQ(far_off(d_table, 1e-5), "");
          run(back, {&x}, {&d_table});
          EXPECT_EQ(far_off(d_table, 1e-5), "");
        }
      }
    }
  }
}

// 2 heads of the dimension in rows of 3; two positions far out besides.
TEST_F(MemoryKernels, RotateThereAndBack) {
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t dim : {64, 12}) {
      TwoFold x = random({6, 3 * dim}, dtype);
      run(Pointwise{PointwiseKind::kRotary, 6, 2 * dim, dtype, dtype, false, dim}, {&x}, {&x});
      EXPECT_EQ(far_off(x, tolerance(dtype)), "");
      run(Pointwise{PointwiseKind::kRotaryBackward, 6, 2 * dim, dtype, dtype, false, dim}, {&x},
          {&x});
      EXPECT_EQ(far_off(x, 2 * tolerance(dtype)), "");
    }
  }
  place_.batch.sequence_length = 131072;
  place_.batch.micro_batch = 1;
  place_.tensor_ranks = 65536;
  place_.tensor_rank = 65535;
  TwoFold x = random({2, 64}, Dtype::kFp32);
  const Dtype fp32 = Dtype::kFp32;
  run(Pointwise{PointwiseKind::kRotary, 2, 64, fp32, fp32, false, 64}, {&x}, {&x});
  EXPECT_EQ(far_off(x, 1e-6), "");
}

TEST_F(MemoryKernels, TakeSoftmaxOfMaskedRows) {
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : kColumns) {
      for (const bool causal : {false, true}) {
        TwoFold scores = random({21, columns}, dtype), p = empty({21, columns}, dtype);
        TwoFold dp = random({21, columns}, dtype), ds = empty({21, columns}, dtype);
        const Pointwise op{PointwiseKind::kSoftmax, 21, columns, dtype, dtype, causal};
        run(op, {&scores}, {&p});
        EXPECT_EQ(far_off(p, tolerance(dtype)), "");
        run(Pointwise{PointwiseKind::kSoftmaxBackward, 21, columns, dtype, dtype, causal},
            {&dp, &p}, {&ds});
        EXPECT_EQ(far_off(ds, tolerance(dtype)), "");
      }
    }
  }
}

// The second half of a vocabulary of 2 x 1040, whose last 30 columns are padding.
TEST_F(MemoryKernels, TakeTheLossOverASliceOfTheVocabulary) {
  for (const Dtype dtype : kDtypes) {
    place_.tensor_ranks = 2;
    place_.tensor_rank = 1;
    place_.batch.vocabulary = 2050;
    TwoFold logits = random({6, 1040}, dtype), id = ids({1040, 3, 2049, 1500, 7, 1999});
    TwoFold most = empty({6}, Dtype::kFp32), sums = empty({6, 2}, Dtype::kFp32);
    TwoFold each = empty({6}, Dtype::kFp32), p = empty({6, 1040}, dtype), d = p;
    const auto part = [&](LossPart of) { return Loss{of, 6, 1040, dtype, dtype}; };
    for (std::size_t row = 0; row < 6; ++row) set(logits, row * 1040 + 1035, 1e3);  // padding
    run(part(LossPart::kMaximum), {&logits}, {&most});
    EXPECT_EQ(far_off(most, 0), "");
    EXPECT_LT(most.value(0), 10);
    run(part(LossPart::kSums), {&logits, &id, &most}, {&sums});
    EXPECT_EQ(far_off(sums, 1e-5), "");
    run(part(LossPart::kFinish), {&logits, &most, &sums, &id}, {&each, &p});
    EXPECT_EQ(far_off(each, 1e-5), "");
    EXPECT_EQ(far_off(p, tolerance(dtype)), "");
    run(part(LossPart::kBackward), {&p, &id}, {&d});
    EXPECT_EQ(far_off(d, tolerance(dtype)), "");
  }
}

// 1,100 rows, so that equal ids lie further apart than one look; a slice of 3 of 6.
TEST_F(MemoryKernels, LookUpAndAddUpEqualIds) {
  for (const Dtype dtype : kDtypes) {
    for (const std::int64_t columns : {dtype == Dtype::kBf16 ? 16 : 5}) {
      place_.tensor_ranks = 2;
      place_.tensor_rank = 1;
      std::vector<std::int64_t> values(1100, 0);
      values[0] = values[1] = values[1099] = 4;
      values[700] = 5;
      values[701] = 2;
      TwoFold id = ids(values), table = weight({3, columns}, dtype);
      TwoFold y = empty({1100, columns}, dtype), d = random({1100, columns}, dtype);
      run(Gather{Pass::kForward, 1100, columns, 3, dtype, dtype}, {&id, &table}, {&y});
      EXPECT_EQ(far_off(y, 0), "");
      TwoFold dt = weight({3, columns}, Dtype::kFp32);
      const Gather back{Pass::kBackward, 1100, columns, 3, dtype, Dtype::kFp32};
      run(back, {&id, &d, &dt}, {&dt});
      EXPECT_EQ(far_off(dt, 1e-6), "");
      run(back, {&id, &d}, {&dt}, WarpOrder::kDown);
      EXPECT_EQ(far_off(dt, 1e-6), "");
    }
  }
}

TEST_F(MemoryKernels, CastJoinAndTakeAShare) {
  const Dtype fp32 = Dtype::kFp32, bf16 = Dtype::kBf16;
  TwoFold a = random({3, 5}, fp32), b = random({7}, fp32), joined = empty({22}, bf16);
  run(Pointwise{PointwiseKind::kCast, 1, 22, fp32, bf16}, {&a, &b}, {&joined});
  EXPECT_EQ(far_off(joined, 4e-3), "");
  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(joined.value(i),
              static_cast<double>(widen(round_bf16(static_cast<float>(a.value(i))))));
  }
  place_.tensor_ranks = 2;
  place_.tensor_rank = 1;
  TwoFold share = empty({11}, fp32);
  run(Pointwise{PointwiseKind::kCast, 1, 11, bf16, fp32}, {&joined}, {&share});
  for (std::size_t i = 0; i < 11; ++i) EXPECT_EQ(share.value(i), joined.value(11 + i));
  run(Pointwise{PointwiseKind::kFill, 1, 11, fp32, fp32}, {}, {&share, &joined});
  EXPECT_EQ(share.value(10), 0);
  EXPECT_EQ(joined.value(21), 0);
}

}  // namespace
}  // namespace stepcast::cuda
