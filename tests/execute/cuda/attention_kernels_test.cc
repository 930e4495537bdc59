// Attention kernels, emulated on the host lane by lane, against execute/cpu in double. bf16: O is
// a mean of values, P rounded to 2^-8 before it is multiplied and O after, so errors stay near
// 2^-8 of the values' size; gradients are sums of s terms of which each is rounded once or twice.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/mma.h"
#include "support/emulated_op.h"

namespace stepcast::cuda {
namespace {

TEST(Fragments, HoldEveryCellOnce) {
  std::set<std::tuple<int, int>> a, b, c;
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r)
        a.insert({cell_of_a(lane, r, half).row, cell_of_a(lane, r, half).column});
      for (int r = 0; r < 2; ++r)
        b.insert({cell_of_b(lane, r, half).row, cell_of_b(lane, r, half).column});
    }
    for (int i = 0; i < 4; ++i) c.insert({cell_of_c(lane, i).row, cell_of_c(lane, i).column});
  }
  EXPECT_EQ(a.size(), 256u);
  EXPECT_EQ(b.size(), 128u);
  EXPECT_EQ(c.size(), 128u);
  EXPECT_EQ(*a.rbegin(), std::tuple(15, 15));
  EXPECT_EQ(*b.rbegin(), std::tuple(15, 7));
  EXPECT_EQ(*c.rbegin(), std::tuple(15, 7));
}

// Small whole numbers: products and sums are exact, so equal means equal.
TEST(Fragments, MultiplyAsMatricesDo) {
  int a[16][16], b[16][8];
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) a[i][j] = (7 * i + 3 * j) % 11 - 5;
    for (int j = 0; j < 8; ++j) b[i][j] = (5 * i + 2 * j) % 13 - 6;
  }
  float c[16][8];
  const auto body = [&](const Thread& t) {
    FragmentA left{};
    FragmentB right{};
    FragmentC sum = {{1, 1, 1, 1}};
    const auto bits = [](int value) {
      return std::uint32_t{round_bf16(static_cast<float>(value)).bits};
    };
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) {
        const Cell cell = cell_of_a(t.lane(), r, half);
        left.registers[r] |= bits(a[cell.row][cell.column]) << (16 * half);
      }
      for (int r = 0; r < 2; ++r) {
        const Cell cell = cell_of_b(t.lane(), r, half);
        right.registers[r] |= bits(b[cell.row][cell.column]) << (16 * half);
      }
    }
    multiply(t, sum, left, right);
    for (int i = 0; i < 4; ++i) {
      const Cell cell = cell_of_c(t.lane(), i);
      c[cell.row][cell.column] = sum.elements[i];
    }
  };
  emulate(Geometry{}, body);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int sum = 1;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      EXPECT_EQ(c[i][j], static_cast<float>(sum)) << i << ", " << j;
    }
  }
}

// (32, 128) x (16, 128)^T and then that x (16, 128), out of shared memory.
TEST(Fragments, MultiplyTilesOfSharedMemoryWithoutBankConflicts) {
  constexpr int kDim = 128, kRows = 32, kKeys = 16;
  const auto value = [](int i, int c, int m) {
    return static_cast<float>((i * m + 3 * c) % 5 - 2);
  };
  std::vector<float> out(kRows * kDim), scores(kRows * kKeys);
  const auto body = [&](const Thread& t) {
    const SharedTile<kDim> a{reinterpret_cast<Bf16*>(t.shared)};
    const SharedTile<kDim> b{a.data + kRows * kDim};
    for (int i = t.lane(); i < kRows * kDim; i += kWarp) {
      a.chunk(i / kDim, i % kDim / 8)[i % 8] = round_bf16(value(i / kDim, i % kDim, 7));
    }
    for (int i = t.lane(); i < kKeys * kDim; i += kWarp) {
      b.chunk(i / kDim, i % kDim / 8)[i % 8] = round_bf16(value(i / kDim, i % kDim, 2));
    }
    sync();
    FragmentC s[2][kKeys / 8] = {}, o[2][kDim / 8] = {};
    multiply_rows(
        t, s, [&](int i, int k) { return load_a(t, a, 16 * i, k); }, b);
    for (int i = 0; i < 2; ++i) {
      for (int n = 0; n < kKeys / 8; ++n) {
        for (int e = 0; e < 4; ++e) {
          const Cell cell = cell_of_c(t.lane(), e);
          const int row = 16 * i + cell.row, column = 8 * n + cell.column;
          scores[static_cast<std::size_t>(row * kKeys + column)] = s[i][n].elements[e];
          s[i][n].elements[e] = std::fmod(s[i][n].elements[e], 16.0f);  // exact in bf16
        }
      }
    }
    multiply_columns(t, o, s, b);
    for (int i = 0; i < 2; ++i) {
      for (int n = 0; n < kDim / 8; ++n) {
        for (int e = 0; e < 4; ++e) {
          const Cell cell = cell_of_c(t.lane(), e);
          const int row = 16 * i + cell.row, column = 8 * n + cell.column;
          out[static_cast<std::size_t>(row * kDim + column)] = o[i][n].elements[e];
        }
      }
    }
  };
  Geometry geometry;
  geometry.shared_bytes = (kRows + kKeys) * kDim * 2;
  const EmulatedRun run = emulate(geometry, body);
  EXPECT_EQ(run.bank_conflicts, 0);
  for (int i = 0; i < kRows; ++i) {
    std::vector<float> row(kKeys);
    for (int j = 0; j < kKeys; ++j) {
      float sum = 0;
      for (int c = 0; c < kDim; ++c) sum += value(i, c, 7) * value(j, c, 2);
      EXPECT_EQ(scores[static_cast<std::size_t>(i * kKeys + j)], sum);
      row[static_cast<std::size_t>(j)] = std::fmod(sum, 16.0f);
    }
    for (int c = 0; c < kDim; ++c) {
      float sum = 0;
      for (int j = 0; j < kKeys; ++j) sum += row[static_cast<std::size_t>(j)] * value(j, c, 2);
      EXPECT_EQ(out[static_cast<std::size_t>(i * kDim + c)], sum);
    }
  }
}

struct Case {
  std::int64_t positions, sequences, heads, kv_heads, dim;
  bool causal;
  Dtype dtype = Dtype::kBf16;
  bool split = false;  // queries and keys from a tensor of their own
};

class AttentionKernels : public testing::Test, public EmulatedOp {
 protected:
  AttentionKernels() : EmulatedOp({}) {}

  void check(const Case& c) {
    const bool bf16 = c.dtype == Dtype::kBf16;
    const std::int64_t rows = c.positions * c.sequences;
    const std::int64_t width = (c.heads + 2 * c.kv_heads) * c.dim;
    place_.batch.micro_batch = c.sequences;
    place_.batch.sequence_length = c.positions;
    TwoFold qkv = random({rows, width}, c.dtype);
    TwoFold qk = random({rows, (c.heads + c.kv_heads) * c.dim}, c.dtype);
    TwoFold o = empty({rows, c.heads * c.dim}, c.dtype);
    TwoFold lse = empty({c.sequences, c.heads, c.positions}, Dtype::kFp32);
    Attention op{Pass::kForward, c.sequences, c.heads,  c.kv_heads, c.positions,
                 c.positions,    c.dim,       c.causal, false,      c.dtype};
    std::vector<TwoFold*> reads = {&qkv};
    if (c.split) reads.insert(reads.begin(), &qk);
    run(op, reads, {&o, &lse});
    EXPECT_EQ(far_off(lse, 1e-5), "") << "lse";
    EXPECT_EQ(far_off(o, bf16 ? 1e-2 : 1e-5), "") << "o";
    const std::vector<std::uint64_t> once = o.stored;
    run(op, reads, {&o, &lse}, WarpOrder::kDown);  // the order of warps makes no difference
    EXPECT_EQ(o.stored, once);

    for (std::size_t i = 0; i < o.size(); ++i) o.exact[i] = o.value(i);
    for (std::size_t i = 0; i < lse.size(); ++i) lse.exact[i] = lse.value(i);
    TwoFold d_o = random({rows, c.heads * c.dim}, c.dtype), d_qkv = empty({rows, width}, c.dtype);
    op.pass = Pass::kBackward;
    reads.insert(reads.end(), {&o, &lse, &d_o});
    run(op, reads, {&d_qkv});
    EXPECT_EQ(far_off(d_qkv, bf16 ? 4e-2 : 2e-5), "") << "d_qkv";
    const std::vector<std::uint64_t> gradients = d_qkv.stored;
    run(op, reads, {&d_qkv}, WarpOrder::kDown);
    EXPECT_EQ(d_qkv.stored, gradients);
    EXPECT_EQ(bank_conflicts(), 0);
  }

  // Columns begin .. end - 1 within three half-units of bf16.
  static void expect_relative(const TwoFold& fold, std::size_t begin, std::size_t end,
                              std::int64_t positions) {
    const auto width = static_cast<std::size_t>(fold.tensor.shape.sizes[1]);
    for (std::size_t i = 0; i < fold.size(); ++i) {
      if (i % width < begin || i % width >= end) continue;
      ASSERT_NEAR(fold.value(i), fold.exact[i], fold.exact[i] * 3 / 512 + 1e-7)
          << positions << " positions, element " << i;
    }
  }
};

// Queries and keys of zeros see all keys alike: p = 1 / seen, lse = ln(seen). With values and
// gradients that are 1 in the column of their row's number (mod 64) and else 0, an element of o
// counts the keys of that number, one of dV adds up 1 / seen over the queries of that number: a
// pair left out or taken twice changes it by more than its rounding, two bf16 and a few fp32.
TEST_F(AttentionKernels, FlashMeetsEveryVisiblePairOnce) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t positions : {1, 63, 65, 128, 193}) {
      place_.batch.micro_batch = 1;
      place_.batch.sequence_length = positions;
      TwoFold qkv = random({positions, 3 * 64}, Dtype::kBf16),
              o = empty({positions, 64}, Dtype::kBf16);
      TwoFold d_o = random({positions, 64}, Dtype::kBf16),
              d_qkv = empty({positions, 192}, Dtype::kBf16);
      TwoFold lse = empty({1, 1, positions}, Dtype::kFp32);
      for (std::size_t i = 0; i < d_o.size(); ++i) set(d_o, i, i % 64 == i / 64 % 64 ? 1 : 0);
      for (std::size_t i = 0; i < qkv.size(); ++i) {
        set(qkv, i, i % 192 == 128 + i / 192 % 64 ? 1 : 0);
      }
      Attention op{Pass::kForward, 1, 1, 1, positions, positions, 64, causal};
      run(op, {&qkv}, {&o, &lse});
      for (std::size_t i = 0; i < lse.size(); ++i) {
        const double seen = causal ? static_cast<double>(i + 1) : static_cast<double>(positions);
        ASSERT_NEAR(lse.value(i), std::log(seen), 2e-6) << positions;
      }
      expect_relative(o, 0, 64, positions);
      for (std::size_t i = 0; i < lse.size(); ++i) lse.exact[i] = lse.value(i);
      op.pass = Pass::kBackward;
      run(op, {&qkv, &o, &lse, &d_o}, {&d_qkv});
      expect_relative(d_qkv, 128, 192, positions);
    }
  }
}

TEST_F(AttentionKernels, FlashOverTilesThatTheSequenceDoesNotFill) {
  check({200, 1, 1, 1, 64, true});
  check({33, 2, 2, 1, 64, true});
  check({150, 1, 1, 1, 64, false});
}

TEST_F(AttentionKernels, FlashOverWholeTilesAndGroupedQueries) {
  check({128, 1, 2, 1, 128, true});
  check({64, 2, 4, 2, 64, false});
}

TEST_F(AttentionKernels, FlashOfHeadDimension128) { check({140, 1, 1, 1, 128, false}); }

TEST_F(AttentionKernels, FlashOfNormalisedQueriesAndKeys) {
  check({40, 2, 2, 1, 64, true, Dtype::kBf16, true});
}

TEST_F(AttentionKernels, PlainForTheRest) {
  check({20, 2, 2, 1, 16, true, Dtype::kFp32});
  check({9, 2, 2, 2, 80, false, Dtype::kFp32, true});
  check({12, 1, 2, 1, 32, true, Dtype::kBf16});
}

}  // namespace
}  // namespace stepcast::cuda
