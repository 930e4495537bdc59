// Norms over columns, forward and backward (the formulas stand in execute/cpu/norm.cc), a row by a
// warp or a block. Each row is read from memory once, later passes find it in the cache.
//
// A weight gradient is a sum over rows. Every block adds up those of its own rows, in shared memory
// where each thread keeps its own columns, and writes one partial sum a column; FoldPartials adds
// the partial sums in the order of the blocks. No atomics: two runs give the same bits.
#pragma once

#include "execute/cuda/storage.h"
#include "execute/cuda/team.h"

namespace stepcast::cuda {

inline constexpr float kEpsilon = 1e-5f;       // as execute/cpu/kernels.h has it
inline constexpr int kPartialBlocksMax = 256;  // partial sums a column: two blocks a processor

// Where row i begins in what is normalised and in the result, and in the weight. A norm of queries
// and keys walks the first heads of a packed qkv: rows of the op lie a token's width apart, and
// keys take the weight's second row.
struct NormLayout {
  std::int64_t rows = 0, columns = 0;
  std::int64_t heads = 1, queries = 1;  // rows of the op in one row of the tensors; of them queries
  std::int64_t in_width = 0, out_width = 0;

  STEPCAST_HD std::int64_t in(std::int64_t i) const {
    return i / heads * in_width + i % heads * columns;
  }
  STEPCAST_HD std::int64_t out(std::int64_t i) const {
    return i / heads * out_width + i % heads * columns;
  }
  STEPCAST_HD int weight_row(std::int64_t i) const { return i % heads < queries ? 0 : 1; }
  STEPCAST_HD bool wide() const {
    return columns % kWide == 0 && in_width % kWide == 0 && out_width % kWide == 0;
  }
};

struct NormForward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  NormLayout layout;
  bool layer = true;          // LayerNorm, else RMSNorm
  ConstView x, weight, bias;  // bias: may be absent
  View y;
  float* statistics = nullptr;  // (rows, 2): mean and 1 / deviation; or (rows, 1) without a mean

  Geometry geometry() const { return team_geometry(layout.rows, layout.columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, layout.columns > kShortRowMax);
    const bool wide = layout.wide() && all_aligned(x, weight, bias, y);
    const auto n = static_cast<float>(layout.columns);
    for (std::int64_t i = team.row; i < layout.rows; i += team.rows) {
      const std::int64_t in = layout.in(i), out = layout.out(i);
      const std::int64_t at_weight = layout.weight_row(i) * layout.columns;
      float mean = 0;
      if (layer) {
        float sum = 0;
        each(team, wide, [&](std::int64_t j, auto count) {
          float value[count.value];
          x.load(in + j, value);
          STEPCAST_UNROLL for (unsigned k = 0; k < count.value; ++k) sum += value[k];
        });
        mean = team.join(t, sum, Sum()) / n;
      }
      float squares = 0;
      each(team, wide, [&](std::int64_t j, auto count) {
        float value[count.value];
        x.load(in + j, value);
        STEPCAST_UNROLL for (unsigned k = 0; k < count.value; ++k) {
          squares += (value[k] - mean) * (value[k] - mean);
        }
      });
      const float scale = 1 / std::sqrt(team.join(t, squares, Sum()) / n + kEpsilon);
      each(team, wide, [&](std::int64_t j, auto count) {
        float value[count.value], w[count.value], b[count.value] = {};
        x.load(in + j, value);
        weight.load(at_weight + j, w);
        if (bias) bias.load(j, b);
        STEPCAST_UNROLL for (unsigned k = 0; k < count.value; ++k) {
          value[k] = (value[k] - mean) * scale * w[k] + b[k];
        }
        y.store(out + j, value);
      });
      if (team.rank != 0) continue;
      if (layer) statistics[2 * i] = mean;
      statistics[layer ? 2 * i + 1 : i] = scale;
    }
  }

  template <class Body>
  STEPCAST_HD void each(const Team& team, bool wide, Body body) const {
    for_stretches(team.rank, team.size, layout.columns, wide, body);
  }
};

// d_x may be d_y (in place). Partial sums (blocks, parts, columns): of the rows of the weight's
// gradient, then of the bias's.
struct NormBackward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 1;
  NormLayout layout;
  bool layer = true, with_bias = false;
  int weight_rows = 1;
  ConstView d_y, x, weight;
  const float* statistics = nullptr;
  View d_x;
  float* partials = nullptr;

  int parts() const { return weight_rows + (with_bias ? 1 : 0); }
  Geometry geometry() const {
    Geometry geometry = team_geometry(layout.rows, layout.columns, kPartialBlocksMax);
    const int teams = layout.columns > kShortRowMax ? 1 : kTeamThreads / kWarp;
    geometry.shared_bytes += teams * parts() * static_cast<int>(layout.columns * 4);
    return geometry;
  }
  std::int64_t partial_floats() const { return geometry().blocks * parts() * layout.columns; }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, layout.columns > kShortRowMax);
    const bool wide = layout.wide() && all_aligned(d_y, x, weight, d_x);
    const auto n = static_cast<float>(layout.columns);
    const int all = weight_rows + (with_bias ? 1 : 0);
    const std::int64_t size = all * layout.columns;
    float* sums = reinterpret_cast<float*>(t.shared + kTeamScratchBytes);
    float* mine = sums + (team.block ? 0 : t.warp()) * size;
    each(team, wide, [&](std::int64_t j, auto count) {
      for (int part = 0; part < all; ++part) {
        for (unsigned k = 0; k < count.value; ++k) mine[part * layout.columns + j + k] = 0;
      }
    });
    for (std::int64_t i = team.row; i < layout.rows; i += team.rows) {
      const std::int64_t out = layout.out(i), in = layout.in(i);
      const std::int64_t at_weight = layout.weight_row(i) * layout.columns;
      const float mean = layer ? statistics[2 * i] : 0.0f;
      const float scale = layer ? statistics[2 * i + 1] : statistics[i];
      float sum = 0, product = 0;
      each(team, wide, [&](std::int64_t j, auto count) {
        float d[count.value], value[count.value], w[count.value];
        d_y.load(out + j, d);
        x.load(in + j, value);
        weight.load(at_weight + j, w);
        STEPCAST_UNROLL for (unsigned k = 0; k < count.value; ++k) {
          value[k] = (value[k] - mean) * scale * d[k];
          sum += d[k] * w[k];
          product += value[k] * w[k];
        }
        add_to(mine + at_weight + j, value);
        if (with_bias) add_to(mine + weight_rows * layout.columns + j, d);
      });
      const float average = layer ? team.join(t, sum, Sum()) / n : 0.0f;
      const float along = team.join(t, product, Sum()) / n;
      each(team, wide, [&](std::int64_t j, auto count) {
        float d[count.value], value[count.value], w[count.value];
        d_y.load(out + j, d);
        x.load(in + j, value);
        weight.load(at_weight + j, w);
        STEPCAST_UNROLL for (unsigned k = 0; k < count.value; ++k) {
          d[k] = scale * (d[k] * w[k] - average - (value[k] - mean) * scale * along);
        }
        d_x.store(out + j, d);
      });
    }
    sync();
    const int teams = team.block ? 1 : t.warps();
    for (std::int64_t j = t.thread; j < size; j += t.threads) {
      float sum = 0;
      for (int one = 0; one < teams; ++one) sum += sums[one * size + j];
      partials[t.block * size + j] = sum;
    }
  }

  // Sums in shared memory, 16 bytes an access where there are eight.
  template <unsigned kCount>
  STEPCAST_HD static void add_to(float* sums, const float (&x)[kCount]) {
    float all[kCount];
    load_bundle(sums, all);
    STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) all[k] += x[k];
    store_bundle(sums, all);
  }
  template <class Body>
  STEPCAST_HD void each(const Team& team, bool wide, Body body) const {
    for_stretches(team.rank, team.size, layout.columns, wide, body);
  }
};

// sums (columns) [+]= over `count` rows of partials, each `stride` floats after the one before: a
// warp takes every eighth row of 32 columns, then the first warp adds up the eight.
struct FoldPartials {
  static constexpr int kThreads = 8 * kWarp, kBlocksMin = 4;
  const float* partials = nullptr;
  std::int64_t stride = 0, columns = 0;
  int count = 0;
  bool accumulate = false;
  View sums;

  Geometry geometry() const {
    Geometry geometry;
    geometry.blocks = static_cast<int>(ceil_divide<std::int64_t>(columns, kWarp));
    geometry.threads = kThreads;
    geometry.shared_bytes = kThreads * 4;
    return geometry;
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const std::int64_t j = static_cast<std::int64_t>(t.block) * kWarp + t.lane();
    float* parts = reinterpret_cast<float*>(t.shared);
    float sum = 0;
    for (int row = t.warp(); row < count && j < columns; row += t.warps()) {
      sum += partials[row * stride + j];
    }
    parts[t.thread] = sum;
    sync();
    if (t.warp() != 0 || j >= columns) return;
    sum = accumulate ? sums[j] : 0.0f;
    for (int warp = 0; warp < t.warps(); ++warp) sum += parts[warp * kWarp + t.lane()];
    sums.set(j, sum);
  }
};

// Column sums of x (rows, columns), as partial sums (blocks_y, columns): a thread has eight columns
// and every blocks_y-th row.
struct ColumnPartials {
  static constexpr int kThreads = 128, kBlocksMin = 4;
  ConstView x;
  std::int64_t rows = 0, columns = 0;
  float* partials = nullptr;

  Geometry geometry() const {
    Geometry geometry;
    geometry.threads = kThreads;
    geometry.blocks = static_cast<int>(ceil_divide<std::int64_t>(columns, kThreads * kWide));
    geometry.blocks_y = static_cast<int>(lesser<std::int64_t>(rows, kPartialBlocksMax));
    return geometry;
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const std::int64_t first = t.first() * kWide;
    if (first >= columns) return;
    const std::int64_t slices = lesser<std::int64_t>(rows, kPartialBlocksMax);
    const std::int64_t here = lesser<std::int64_t>(kWide, columns - first);
    const bool wide = x.aligned() && columns % kWide == 0;
    float sum[kWide] = {};
    for (std::int64_t i = t.block_y; i < rows; i += slices) {
      float value[kWide];
      if (wide) x.load(i * columns + first, value);
      STEPCAST_UNROLL for (int k = 0; k < kWide; ++k) {
        if (!wide) value[k] = k < here ? x[i * columns + first + k] : 0.0f;
        sum[k] += value[k];
      }
    }
    STEPCAST_UNROLL for (int k = 0; k < kWide; ++k) {
      if (k < here) partials[t.block_y * columns + first + k] = sum[k];
    }
  }
};

}  // namespace stepcast::cuda
