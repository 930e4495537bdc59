// Team: the threads that share a row in row-wise kernels: a warp for short rows, the whole block
// for long ones. Sums and maxima are trees over the lanes (xor shuffles), then over the warps, in
// an order that depends on the geometry alone: same input, same bits.
#pragma once

#include "execute/cuda/lanes.h"

namespace stepcast::cuda {

inline constexpr int kTeamThreads = 256;   // of a block
inline constexpr int kShortRowMax = 1024;  // columns that a warp takes alone
inline constexpr int kTeamScratchBytes = kTeamThreads / kWarp * static_cast<int>(sizeof(float));

struct Sum {
  STEPCAST_HD float operator()(float a, float b) const { return a + b; }
  static constexpr float kNothing = 0;
};
struct Most {
  STEPCAST_HD float operator()(float a, float b) const { return greater(a, b); }
  static constexpr float kNothing = -INFINITY;
};

template <class Join>
STEPCAST_HD float join_warp(const Thread& t, float value, Join join) {
  STEPCAST_UNROLL for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value = join(value, shuffle_xor(t, value, mask));
  }
  return value;
}

// Every thread of the block gets the result. `scratch` (warps) in shared memory may be used again
// at once.
template <class Join>
STEPCAST_HD float join_block(const Thread& t, float value, float* scratch, Join join) {
  value = join_warp(t, value, join);
  if (t.lane() == 0) scratch[t.warp()] = value;
  sync();
  const float part = Join::kNothing;
  value = t.lane() < t.warps() ? scratch[t.lane()] : part;
  value = join_warp(t, value, join);
  sync();
  return value;
}

struct Team {
  bool block = false;    // the whole block, not a warp
  std::int64_t row = 0;  // the first row; on by `rows`
  std::int64_t rows = 1;
  int rank = 0, size = kWarp;  // of this thread in its team
  float* scratch = nullptr;

  // The block's shared memory begins with the team's scratch.
  STEPCAST_HD Team(const Thread& t, bool whole_block)
      : block(whole_block),
        row(block ? t.block : static_cast<std::int64_t>(t.block) * t.warps() + t.warp()),
        rows(block ? t.blocks : static_cast<std::int64_t>(t.blocks) * t.warps()),
        rank(block ? t.thread : t.lane()),
        size(block ? t.threads : kWarp),
        scratch(reinterpret_cast<float*>(t.shared)) {}

  template <class Join>
  STEPCAST_HD float join(const Thread& t, float value, Join how) const {
    return block ? join_block(t, value, scratch, how) : join_warp(t, value, how);
  }
};

// Blocks for `rows` rows of `columns`; at most `most` (0: no limit).
STEPCAST_HD Geometry team_geometry(std::int64_t rows, std::int64_t columns, int most = 0) {
  Geometry geometry;
  geometry.threads = kTeamThreads;
  geometry.shared_bytes = kTeamScratchBytes;
  const std::int64_t teams = columns > kShortRowMax ? 1 : kTeamThreads / kWarp;
  std::int64_t blocks = ceil_divide(rows, teams);
  if (most > 0) blocks = lesser<std::int64_t>(blocks, most);
  geometry.blocks = static_cast<int>(greater<std::int64_t>(blocks, 1));
  return geometry;
}

}  // namespace stepcast::cuda
