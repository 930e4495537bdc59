// Fragments of the tensor cores' products, and tiles in shared memory.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/mma.h"
#include "tests/support/emulated_block.h"

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

}  // namespace
}  // namespace stepcast::cuda
