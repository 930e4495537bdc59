// Flash attention, backward, on tensor cores, without atomics: two runs give the same bits.
//
//   P = 2^(c S - c' lse),  dP = dO V^T,  dS = P (dP - D),  D = rowsum(dO O)
//   dV = P^T dO,  dK = dS^T Q / sqrt(d),  dQ = dS K / sqrt(d)
//
// With dropout (kDrops), of factors M on the probabilities:  dP = M dO V^T,  dV = (P M)^T dO.
//
// FlashAttention-2 makes all three in one pass over blocks of keys and adds dQ up with atomics.
// Here dQ has a pass of its own over blocks of queries, which makes S and dP again: seven products
// for its five, and no order of additions left to chance. Three kernels:
//   FlashDots     D (sequences, heads, positions) fp32 in scratch
//   FlashQueries  dQ: 128 queries a block stay, tiles of 64 keys and values pass
//   FlashKeys     dK, dV: 128 keys a block stay, tiles of 64 queries pass, of all heads of the
//                 group. It makes S^T and dP^T, whose accumulators are P^T's and dS^T's operands
// Eight warps of 16 rows. Two tiles of what passes are in shared memory: one is used, one is on its
// way.
#pragma once

#include "execute/cuda/flash_forward.h"

STEPCAST_ELEMENT_COUNTS_BEGIN

namespace stepcast::cuda {

// A warp takes 32 / (kDim / 8) rows at a time, eight elements a lane.
template <int kDim>
struct FlashDots {
  static constexpr int kThreads = 256, kBlocksMin = 4;
  static constexpr int kLanes = kDim / 8, kRows = kThreads / kLanes;
  AttentionShape shape;
  HeadRows<const Bf16> o, d_o;
  float* dots = nullptr;

  Geometry geometry() const {
    return {ceil_divide(shape.positions, kRows), shape.heads, shape.sequences, kThreads, 0};
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const int position = t.block * kRows + t.thread / kLanes, c = t.thread % kLanes * 8;
    const int head = t.block_y, sequence = t.block_z;
    const bool here = position < shape.positions;
    float dot = 0;
    if (here) {
      float a[8], b[8];
      load_bundle<8>(o.at(sequence, head) + position * o.row + c, a);
      load_bundle<8>(d_o.at(sequence, head) + position * d_o.row + c, b);
      STEPCAST_UNROLL for (int i = 0; i < 8; ++i) dot += a[i] * b[i];
    }
    STEPCAST_UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      dot += shuffle_xor(t, dot, mask);
    }
    if (here && c == 0) dots[shape.statistic(sequence, head) + position] = dot;
  }
};

template <int kDim, bool kDrops = false>
struct FlashQueries {
  static constexpr int kThreads = 256, kBlocksMin = 1;
  static constexpr int kQueries = 128, kKeys = 64, kColumns = kKeys / 8;
  AttentionShape shape;
  HeadRows<const Bf16> q, k, v, d_o;
  const float* lse = nullptr;
  const float* dots = nullptr;
  HeadRows<Bf16> d_q;
  AttentionDropout dropout = {};

  Geometry geometry() const {
    return {ceil_divide(shape.positions, kQueries), shape.heads, shape.sequences, kThreads,
            (2 * kQueries + 4 * kKeys) * kDim * static_cast<int>(sizeof(Bf16))};
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const int tile = t.blocks - 1 - t.block;  // causal: the longest first
    const int head = t.block_y, sequence = t.block_z, kv = shape.kv_head(head);
    const int first = tile * kQueries, warp_row = t.warp() * 16, positions = shape.positions;
    const int seen = shape.causal ? lesser(positions, first + kQueries) : positions;
    const SharedTile<kDim> queries{reinterpret_cast<Bf16*>(t.shared)};
    const SharedTile<kDim> d_outs{queries.data + kQueries * kDim};
    const auto keys = [&](int parity) {
      return SharedTile<kDim>{d_outs.data + (kQueries + 2 * kKeys * parity) * kDim};
    };
    const auto values = [&](int parity) {
      return SharedTile<kDim>{keys(parity).data + kKeys * kDim};
    };
    const auto fetch = [&](int at) {
      copy_rows<kKeys, kThreads>(t, keys(at % 2), k.at(sequence, kv), k.row, at * kKeys, positions);
      copy_rows<kKeys, kThreads>(t, values(at % 2), v.at(sequence, kv), v.row, at * kKeys,
                                 positions);
    };
    copy_rows<kQueries, kThreads>(t, queries, q.at(sequence, head), q.row, first, positions);
    copy_rows<kQueries, kThreads>(t, d_outs, d_o.at(sequence, head), d_o.row, first, positions);
    fetch(0);
    commit_copies();

    float row_lse[2], row_dot[2];
    STEPCAST_UNROLL for (int half = 0; half < 2; ++half) {
      const int query = first + warp_row + cell_of_c(t.lane(), 2 * half).row;
      const std::int64_t at = shape.statistic(sequence, head) + query;
      row_lse[half] = query < positions ? lse[at] * kLog2E : INFINITY;  // beyond the end: P = 0
      row_dot[half] = query < positions ? dots[at] : 0.0f;
    }
    FragmentC out[1][kDim / 8] = {};
    const int tiles = ceil_divide(seen, kKeys);
    for (int at = 0; at < tiles; ++at) {
      wait_copies<0>();
      sync();  // this tile is there, and all are done with the one before
      if (at + 1 < tiles) fetch(at + 1);
      commit_copies();
      FragmentC p[1][kColumns] = {}, d_p[1][kColumns] = {};
      multiply_rows(
          t, p, [&](int, int step) { return load_a(t, queries, warp_row, step); }, keys(at % 2));
      multiply_rows(
          t, d_p, [&](int, int step) { return load_a(t, d_outs, warp_row, step); }, values(at % 2));
      if constexpr (kDrops) {
        const std::int64_t row = dropout_row(dropout, shape, sequence, head) + first + warp_row;
        drop_keys(t, d_p, dropout.rule.now(), row, at * kKeys);
      }
      differentiate(t, p[0], d_p[0], row_lse, row_dot, first + warp_row, at * kKeys);
      multiply_columns(t, out, d_p, keys(at % 2));
    }
    sync();  // all are done with Q
    const float scale[1][2] = {{shape.scale, shape.scale}};
    store_rows(t, out, scale, queries, d_q.at(sequence, head), d_q.row, first, positions);
  }

  // d_p becomes dS.
  STEPCAST_HD void differentiate(const Thread& t, FragmentC (&p)[kColumns],
                                 FragmentC (&d_p)[kColumns], const float (&row_lse)[2],
                                 const float (&row_dot)[2], int first_query, int first_key) const {
    const float exponent = shape.scale * kLog2E;
    const int last_key = first_key + kKeys - 1;
    if (last_key >= shape.positions || (shape.causal && last_key > first_query)) {
      STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
        STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
          const Cell cell = cell_of_c(t.lane(), e);
          const int key = first_key + 8 * n + cell.column, query = first_query + cell.row;
          const bool hidden = key >= shape.positions || (shape.causal && key > query);
          if (hidden) p[n].elements[e] = -INFINITY;
        }
      }
    }
    STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
      STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
        const float value = exp2_fast(p[n].elements[e] * exponent - row_lse[e / 2]);
        d_p[n].elements[e] = value * (d_p[n].elements[e] - row_dot[e / 2]);
      }
    }
  }
};

template <int kDim, bool kDrops = false>
struct FlashKeys {
  static constexpr int kThreads = 256, kBlocksMin = 1;
  static constexpr int kKeys = 128, kQueries = 64, kColumns = kQueries / 8;
  AttentionShape shape;
  HeadRows<const Bf16> q, k, v, d_o;
  const float* lse = nullptr;
  const float* dots = nullptr;
  HeadRows<Bf16> d_k, d_v;
  AttentionDropout dropout = {};

  Geometry geometry() const {
    return {ceil_divide(shape.positions, kKeys), shape.kv_heads, shape.sequences, kThreads,
            (2 * kKeys + 4 * kQueries) * kDim * static_cast<int>(sizeof(Bf16)) +
                4 * kQueries * static_cast<int>(sizeof(float))};
  }

  // What stays: keys, values. What passes, twice: queries, d_outs, and per query (lse, dot).
  struct Shared {
    SharedTile<kDim> keys, values;
    float* statistics;  // (2, 2, kQueries)
    STEPCAST_HD SharedTile<kDim> queries(int parity) const {
      return {values.data + (kKeys + 2 * kQueries * parity) * kDim};
    }
    STEPCAST_HD SharedTile<kDim> d_outs(int parity) const {
      return {queries(parity).data + kQueries * kDim};
    }
    STEPCAST_HD float* lse(int parity) const { return statistics + 2 * kQueries * parity; }
    STEPCAST_HD float* dots(int parity) const { return lse(parity) + kQueries; }
  };

  STEPCAST_HD void operator()(const Thread& t) const {
    const int kv = t.block_y, sequence = t.block_z, positions = shape.positions;
    const int first = t.block * kKeys, warp_row = t.warp() * 16;
    const int group = shape.heads / shape.kv_heads;
    auto* const data = reinterpret_cast<Bf16*>(t.shared);
    const Shared shared{{data},
                        {data + kKeys * kDim},
                        reinterpret_cast<float*>(data + (2 * kKeys + 4 * kQueries) * kDim)};
    // Tiles of queries that see these keys, of each head of the group in turn.
    const int first_tile = shape.causal ? first / kQueries : 0;
    const int tiles = ceil_divide(positions, kQueries) - first_tile;
    copy_rows<kKeys, kThreads>(t, shared.keys, k.at(sequence, kv), k.row, first, positions);
    copy_rows<kKeys, kThreads>(t, shared.values, v.at(sequence, kv), v.row, first, positions);
    const auto fetch = [&](int item) {
      fetch_queries(t, shared, item % 2, sequence, kv * group + item / tiles,
                    (first_tile + item % tiles) * kQueries);
    };
    fetch(0);
    commit_copies();

    FragmentC key_out[1][kDim / 8] = {}, value_out[1][kDim / 8] = {};
    for (int item = 0; item < tiles * group; ++item) {
      const int parity = item % 2;
      wait_copies<0>();
      sync();  // this tile is there, and all are done with the one before
      if (item + 1 < tiles * group) fetch(item + 1);
      commit_copies();
      FragmentC p[1][kColumns] = {}, d_p[1][kColumns] = {};
      multiply_rows(
          t, p, [&](int, int step) { return load_a(t, shared.keys, warp_row, step); },
          shared.queries(parity));
      const int first_query = (first_tile + item % tiles) * kQueries;
      probabilities(t, p[0], shared.lse(parity), first + warp_row, first_query);
      FragmentC dropped[1][kColumns];  // P M
      STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) dropped[0][n] = p[0][n];
      if constexpr (kDrops) {
        const std::int64_t row = dropout_row(dropout, shape, sequence, kv * group + item / tiles);
        drop_queries(t, dropped[0], dropout.rule.now(), row + first_query, first + warp_row);
      }
      multiply_columns(t, value_out, dropped, shared.d_outs(parity));
      multiply_rows(
          t, d_p, [&](int, int step) { return load_a(t, shared.values, warp_row, step); },
          shared.d_outs(parity));
      STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
        STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
          const float dot = shared.dots(parity)[8 * n + cell_of_c(t.lane(), e).column];
          const float one = p[0][n].elements[e];
          float& d = d_p[0][n].elements[e];
          d = kDrops ? dropped[0][n].elements[e] * d - one * dot : one * (d - dot);
        }
      }
      multiply_columns(t, key_out, d_p, shared.queries(parity));
    }
    sync();  // all are done with K and V
    const float scale[1][2] = {{shape.scale, shape.scale}}, one[1][2] = {{1, 1}};
    store_rows(t, key_out, scale, shared.keys, d_k.at(sequence, kv), d_k.row, first, positions);
    store_rows(t, value_out, one, shared.values, d_v.at(sequence, kv), d_v.row, first, positions);
  }

  STEPCAST_HD void fetch_queries(const Thread& t, const Shared& shared, int parity, int sequence,
                                 int head, int first) const {
    copy_rows<kQueries, kThreads>(t, shared.queries(parity), q.at(sequence, head), q.row, first,
                                  shape.positions);
    copy_rows<kQueries, kThreads>(t, shared.d_outs(parity), d_o.at(sequence, head), d_o.row, first,
                                  shape.positions);
    if (t.thread >= kQueries) return;
    const std::int64_t at = shape.statistic(sequence, head) + first + t.thread;
    const bool here = first + t.thread < shape.positions;
    shared.lse(parity)[t.thread] = here ? lse[at] * kLog2E : INFINITY;  // beyond the end: P = 0
    shared.dots(parity)[t.thread] = here ? dots[at] : 0.0f;
  }

  // S^T becomes P^T.
  STEPCAST_HD void probabilities(const Thread& t, FragmentC (&p)[kColumns], const float* column_lse,
                                 int first_key, int first_query) const {
    const float exponent = shape.scale * kLog2E;
    if (shape.causal && first_query < first_key + 16) {
      STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
        STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
          const Cell cell = cell_of_c(t.lane(), e);
          const bool hidden = first_key + cell.row > first_query + 8 * n + cell.column;
          if (hidden) p[n].elements[e] = -INFINITY;
        }
      }
    }
    STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
      STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
        const int column = 8 * n + cell_of_c(t.lane(), e).column;
        p[n].elements[e] = exp2_fast(p[n].elements[e] * exponent - column_lse[column]);
      }
    }
  }
};

}  // namespace stepcast::cuda

STEPCAST_ELEMENT_COUNTS_END
