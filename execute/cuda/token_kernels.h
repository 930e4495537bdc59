// Kernels whose rows are tokens: positions added and rotated, tables looked up and their gradients.
// Row i of a tensor stands for token `first_token` + i of the micro-batch, whose position is
// token / sequences (tokens are ordered sequence first).
#pragma once

#include "execute/cuda/storage.h"
#include "execute/cuda/team.h"

namespace stepcast::cuda {

struct TokenRows {
  std::int64_t rows = 0;
  std::int64_t first_token = 0;
  std::int64_t sequences = 1;  // micro-batch
  STEPCAST_HD std::int64_t position(std::int64_t i) const { return (first_token + i) / sequences; }
};

// x + table: row 0 of it for all rows (a bias), or the position's.
struct AddRowsForward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  TokenRows tokens;
  std::int64_t columns = 0;
  bool one_row = false;
  ConstView x, table;
  View y;

  Geometry geometry() const { return team_geometry(tokens.rows, columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, columns > kShortRowMax);
    const bool wide = columns % kWide == 0 && all_aligned(x, table, y);
    for (std::int64_t i = team.row; i < tokens.rows; i += team.rows) {
      const std::int64_t from = one_row ? 0 : tokens.position(i) * columns;
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        constexpr unsigned kCount = decltype(count)::value;
        float value[kCount], row[kCount];
        x.load(i * columns + j, value);
        table.load(from + j, row);
        STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) value[k] += row[k];
        y.store(i * columns + j, value);
      });
    }
  }
};

// d_table (table_rows, columns) [+]= the rows of d_y at each position. Of a bias: ColumnPartials.
struct AddPositionsBackward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 3;
  TokenRows tokens;
  std::int64_t columns = 0, table_rows = 0;
  bool accumulate = false;
  ConstView d_y;
  View d_table;

  Geometry geometry() const { return team_geometry(table_rows, columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, columns > kShortRowMax);
    const bool wide = columns % kWide == 0 && all_aligned(d_y, d_table);
    for (std::int64_t p = team.row; p < table_rows; p += team.rows) {
      const std::int64_t begin =
          greater<std::int64_t>(0, p * tokens.sequences - tokens.first_token);
      const std::int64_t end = lesser(tokens.rows, (p + 1) * tokens.sequences - tokens.first_token);
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        constexpr unsigned kCount = decltype(count)::value;
        float sum[kCount] = {};
        if (accumulate) d_table.load(p * columns + j, sum);
        for (std::int64_t i = begin; i < end; ++i) {
          float d[kCount];
          d_y.load(i * columns + j, d);
          STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) sum[k] += d[k];
        }
        d_table.store(p * columns + j, sum);
      });
    }
  }
};

// In place: of each row the first `columns` are heads of head_dim, of which the elements j and j +
// head_dim / 2 turn by position / base^(2 j / head_dim), times `scale`. The angle is made in
// double, as it reaches 10^5 turns; once a row for all heads.
struct RotaryKernel {
  static constexpr int kThreads = 128, kBlocksMin = 8;
  TokenRows tokens;
  std::int64_t columns = 0, width = 0;
  int head_dim = 0;
  float direction = 1;  // -1: back
  float scale = 1;
  double base = 10000;
  ConstView x;
  View y;  // may be x

  Geometry geometry() const {
    Geometry geometry;
    geometry.blocks = static_cast<int>(tokens.rows);
    geometry.threads = kThreads;
    geometry.shared_bytes = head_dim * static_cast<int>(sizeof(float));
    return geometry;
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const int half = head_dim / 2;
    float* cosines = reinterpret_cast<float*>(t.shared);
    float* sines = cosines + half;
    const std::int64_t i = t.block;
    for (int j = t.thread; j < half; j += t.threads) {
      const double exponent = 2.0 * j / head_dim;
      const double angle = static_cast<double>(tokens.position(i)) / std::pow(base, exponent);
      cosines[j] = static_cast<float>(std::cos(angle)) * scale;
      sines[j] = static_cast<float>(std::sin(angle)) * direction * scale;
    }
    sync();
    const bool wide = half % kWide == 0 && width % kWide == 0 && all_aligned(x, y);
    for_stretches(t.thread, t.threads, columns / 2, wide, [&](std::int64_t pair, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      const auto j = static_cast<unsigned>(pair % half);
      const std::int64_t at = i * width + pair / half * head_dim + j;
      float low[kCount], high[kCount], cosine[kCount], sine[kCount];
      load_bundle(cosines + j, cosine);
      load_bundle(sines + j, sine);
      x.load(at, low);
      x.load(at + half, high);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        const float before = low[k];
        low[k] = before * cosine[k] - high[k] * sine[k];
        high[k] = high[k] * cosine[k] + before * sine[k];
      }
      y.store(at, low);
      y.store(at + half, high);
    });
  }
};

// y = table[id], or zeros where the id lies outside of this rank's slice, which begins at `first`.
struct GatherForward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  std::int64_t rows = 0, columns = 0, vocabulary = 0, first = 0;
  const std::int64_t* ids = nullptr;
  ConstView table;
  View y;

  Geometry geometry() const { return team_geometry(rows, columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, columns > kShortRowMax);
    const bool wide = columns % kWide == 0 && all_aligned(table, y);
    for (std::int64_t i = team.row; i < rows; i += team.rows) {
      const std::int64_t local = ids[i] - first;
      const bool here = local >= 0 && local < vocabulary;
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        float value[decltype(count)::value] = {};
        if (here) table.load(local * columns + j, value);
        y.store(i * columns + j, value);
      });
    }
  }
};

// d_table[id] += the rows of d_y with that id, in their order and in fp32; other rows stay. The
// block of the first row with an id does the work of all; the others find an earlier one and end,
// frequent ids soon, since they look backwards. Reads ids O(rows) times a block: of no weight
// beside the logits' gradient up to some 10^4 rows.
struct GatherBackward {
  static constexpr int kThreads = 256, kBlocksMin = 4;
  static constexpr int kChunk = 4 * kThreads;                 // ids looked at between two barriers
  static constexpr std::int64_t kColumns = kThreads * kWide;  // of a block
  std::int64_t rows = 0, columns = 0, vocabulary = 0, first = 0;
  const std::int64_t* ids = nullptr;
  ConstView d_y;
  View d_table;

  Geometry geometry() const {
    Geometry geometry;
    geometry.blocks = static_cast<int>(rows);
    geometry.blocks_y = static_cast<int>(ceil_divide(columns, kColumns));
    geometry.threads = kThreads;
    geometry.shared_bytes = kTeamScratchBytes + kChunk;
    return geometry;
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    float* scratch = reinterpret_cast<float*>(t.shared);
    unsigned char* equal = t.shared + kTeamScratchBytes;
    const std::int64_t mine = t.block, id = ids[mine], local = id - first;
    if (local < 0 || local >= vocabulary) return;
    for (std::int64_t end = mine; end > 0; end -= kChunk) {
      if (find(t, greater<std::int64_t>(0, end - kChunk), end, id, equal, scratch)) return;
    }
    const std::int64_t column = t.block_y * kColumns + t.thread * kWide;
    const std::int64_t here = lesser<std::int64_t>(kWide, columns - column);
    const bool wide = columns % kWide == 0 && d_y.aligned();
    float sum[kWide] = {};
    for (std::int64_t begin = mine; begin < rows; begin += kChunk) {
      const std::int64_t end = lesser(rows, begin + kChunk);
      if (find(t, begin, end, id, equal, scratch)) {
        for (std::int64_t i = begin; i < end && here > 0; ++i) {
          if (equal[i - begin] != 0) add(i * columns + column, here, wide, sum);
        }
      }
      sync();  // before `equal` is written again
    }
    STEPCAST_UNROLL for (int k = 0; k < kWide; ++k) {
      if (k >= here) break;
      const std::int64_t at = local * columns + column + k;
      d_table.set(at, d_table[at] + sum[k]);
    }
  }

  // Whether a row of begin .. end - 1 has this id; which ones goes to `equal`.
  STEPCAST_HD bool find(const Thread& t, std::int64_t begin, std::int64_t end, std::int64_t id,
                        unsigned char* equal, float* scratch) const {
    float any = 0;
    for (std::int64_t i = begin + t.thread; i < end; i += t.threads) {
      equal[i - begin] = ids[i] == id ? 1 : 0;
      if (ids[i] == id) any = 1;
    }
    return join_block(t, any, scratch, Most()) > 0;
  }

  STEPCAST_HD void add(std::int64_t at, std::int64_t here, bool wide, float (&sum)[kWide]) const {
    float d[kWide];
    if (wide) d_y.load(at, d);
    STEPCAST_UNROLL for (int k = 0; k < kWide; ++k) {
      if (!wide) d[k] = k < here ? d_y[at + k] : 0.0f;
      sum[k] += d[k];
    }
  }
};

}  // namespace stepcast::cuda
