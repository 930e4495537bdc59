// Flash attention, forward, on tensor cores: FlashAttention-2 (Dao 2023) with mma.sync.
//
// A block of four warps takes 128 queries of one head; each warp has 32 of them and its part of O
// in registers, while tiles of 64 keys and values pass through shared memory. While Q K^T of a tile
// runs its V is on the way, and while P V runs the next K is. P goes from the accumulators of one
// product straight into the operand of the other. Scores are scaled inside the exponent:
//   p = 2^(c s - c m), c = log2(e) / sqrt(d), m the running maximum of s; O and the sum l are
//   rescaled by 2^(c m_old - c m_new); at the end O / l and lse = m / sqrt(d) + ln l.
// 64 KiB of shared memory at d = 128: two blocks a processor from compute capability 8.0 on.
#pragma once

#include "execute/cuda/attention_dropout.h"
#include "execute/cuda/mma.h"

STEPCAST_ELEMENT_COUNTS_BEGIN

namespace stepcast::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// Rows of one kind (queries, keys ...) in a packed tensor: element c of head h of sequence b at
// position i lies at data[b sequence + i row + h head + c].
template <class Real>
struct HeadRows {
  Real* data = nullptr;
  std::int64_t sequence = 0, row = 0, head = 0;
  STEPCAST_HD Real* at(int b, int h) const { return data + b * sequence + h * head; }
};

struct AttentionShape {
  int sequences = 0, heads = 0, kv_heads = 0, positions = 0;
  bool causal = true;
  float scale = 1;  // 1 / sqrt(d)

  STEPCAST_HD int kv_head(int head) const { return head / (heads / kv_heads); }
  STEPCAST_HD std::int64_t statistic(int b, int h) const {
    return (static_cast<std::int64_t>(b) * heads + h) * positions;
  }
};

// Starts copies of rows first .. first + kRows - 1 into a tile; rows from `limit` on become zeros.
template <int kRows, int kThreads, int kDim>
STEPCAST_HD void copy_rows(const Thread& t, SharedTile<kDim> tile, const Bf16* from,
                           std::int64_t stride, int first, int limit) {
  constexpr int kChunks = SharedTile<kDim>::kChunks;
  static_assert(kRows * kChunks % kThreads == 0);
  STEPCAST_UNROLL for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int row = (t.thread + i * kThreads) / kChunks, chunk = t.thread % kChunks;
    const bool valid = first + row < limit;
    const Bf16* source = from + (valid ? (first + row) * stride + chunk * 8 : 0);
    copy_async(tile.chunk(row, chunk), source, valid);
  }
}

// A warp's 16 kTiles rows of C, scaled, through its own rows of a tile into memory, 16 bytes a
// store.
template <int kTiles, int kDim>
STEPCAST_HD void store_rows(const Thread& t, const FragmentC (&c)[kTiles][kDim / 8],
                            const float (&scale)[kTiles][2], SharedTile<kDim> tile, Bf16* to,
                            std::int64_t stride, int first, int limit) {
  const int warp_row = t.warp() * 16 * kTiles;
  STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
    STEPCAST_UNROLL for (int n = 0; n < kDim / 8; ++n) {
      STEPCAST_UNROLL for (int half = 0; half < 2; ++half) {
        const Cell cell = cell_of_c(t.lane(), 2 * half);
        const float* two = c[i][n].elements + 2 * half;
        *reinterpret_cast<std::uint32_t*>(tile.chunk(warp_row + 16 * i + cell.row, n) +
                                          cell.column) =
            round_pair(two[0] * scale[i][half], two[1] * scale[i][half]);
      }
    }
  }
  sync();
  constexpr int kChunks = SharedTile<kDim>::kChunks;
  STEPCAST_UNROLL for (int at = t.lane(); at < 16 * kTiles * kChunks; at += kWarp) {
    const int row = warp_row + at / kChunks, chunk = at % kChunks;
    if (first + row >= limit) continue;
    *reinterpret_cast<Bundle<Bf16, 8>*>(to + (first + row) * stride + chunk * 8) =
        *reinterpret_cast<const Bundle<Bf16, 8>*>(tile.chunk(row, chunk));
  }
}

// The model's row, of dropout, of query 0.
STEPCAST_HD std::int64_t dropout_row(const AttentionDropout& dropout, const AttentionShape& shape,
                                     int sequence, int head) {
  return dropout.rows.of(shape.statistic(sequence, head));
}

// kDrops: probabilities are dropped once their sum is known; lse is of all of them.
template <int kDim, bool kDrops = false>
struct FlashForward {
  static constexpr int kThreads = 128, kBlocksMin = 2;
  static constexpr int kQueries = 128, kKeys = 64, kTiles = 2;  // kTiles x 16 queries a warp
  static constexpr int kColumns = kKeys / 8;
  static constexpr bool kHeld = kDim == 64;  // Q stays in registers; at 128 they hold no more
  AttentionShape shape;
  HeadRows<const Bf16> q, k, v;
  HeadRows<Bf16> o;
  float* lse = nullptr;  // (sequences, heads, positions), natural logarithm
  AttentionDropout dropout = {};

  Geometry geometry() const {
    return {ceil_divide(shape.positions, kQueries), shape.heads, shape.sequences, kThreads,
            (kQueries + 2 * kKeys) * kDim * static_cast<int>(sizeof(Bf16))};
  }

  // Of the rows g and g + 8 of each tile of a warp: the running maximum, and this lane's part of
  // the sum.
  struct RowState {
    float most[kTiles][2], sum[kTiles][2];
  };

  STEPCAST_HD void operator()(const Thread& t) const {
    const int tile = t.blocks - 1 - t.block;  // causal: the longest first
    const int head = t.block_y, sequence = t.block_z, kv = shape.kv_head(head);
    const int first = tile * kQueries, positions = shape.positions;
    const int seen = shape.causal ? lesser(positions, first + kQueries) : positions;
    const SharedTile<kDim> queries{reinterpret_cast<Bf16*>(t.shared)};
    const SharedTile<kDim> keys{queries.data + kQueries * kDim};
    const SharedTile<kDim> values{keys.data + kKeys * kDim};
    const Bf16 *key_rows = k.at(sequence, kv), *value_rows = v.at(sequence, kv);

    int at = (seen - 1) / kKeys;  // from the last tile down: the masked ones come first
    copy_rows<kQueries, kThreads>(t, queries, q.at(sequence, head), q.row, first, positions);
    copy_rows<kKeys, kThreads>(t, keys, key_rows, k.row, at * kKeys, positions);
    commit_copies();

    const int warp_row = t.warp() * 16 * kTiles;
    FragmentA held[kTiles][kDim / 16];
    if constexpr (kHeld) {
      wait_copies<0>();
      sync();  // Q is there
      STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
        STEPCAST_UNROLL for (int step = 0; step < kDim / 16; ++step) {
          held[i][step] = load_a(t, queries, warp_row + 16 * i, step);
        }
      }
    }
    const auto query_fragment = [&](int i, int step) {
      if constexpr (kHeld) return held[i][step];
      return load_a(t, queries, warp_row + 16 * i, step);
    };
    FragmentC out[kTiles][kDim / 8] = {};
    RowState state;
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
      STEPCAST_UNROLL for (int half = 0; half < 2; ++half) {
        state.most[i][half] = -INFINITY;
        state.sum[i][half] = 0;
      }
    }
    for (; at >= 0; --at) {
      wait_copies<0>();
      sync();  // this K is there, and all are done with the V before
      copy_rows<kKeys, kThreads>(t, values, value_rows, v.row, at * kKeys, positions);
      commit_copies();
      FragmentC scores[kTiles][kColumns] = {};
      multiply_rows(t, scores, query_fragment, keys);
      const int last_key = at * kKeys + kKeys - 1;
      if (last_key >= positions || (shape.causal && last_key > first + warp_row)) {
        mask(t, scores, first + warp_row, at * kKeys);
      }
      wait_copies<0>();
      sync();  // V is there, and all are done with K
      if (at > 0) {
        copy_rows<kKeys, kThreads>(t, keys, key_rows, k.row, (at - 1) * kKeys, positions);
      }
      commit_copies();
      rescale(t, scores, out, state);
      if constexpr (kDrops) {
        const std::int64_t row = dropout_row(dropout, shape, sequence, head) + first + warp_row;
        drop_keys(t, scores, dropout.rule.now(), row, at * kKeys);
      }
      multiply_columns(t, out, scores, values);
    }
    finish(t, out, state, queries, first, head, sequence);
  }

  STEPCAST_HD void mask(const Thread& t, FragmentC (&scores)[kTiles][kColumns], int first_query,
                        int first_key) const {
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
      STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
        STEPCAST_UNROLL for (int e = 0; e < 4; ++e) {
          const Cell cell = cell_of_c(t.lane(), e);
          const int key = first_key + 8 * n + cell.column;
          const int query = first_query + 16 * i + cell.row;
          const bool hidden = key >= shape.positions || (shape.causal && key > query);
          if (hidden) scores[i][n].elements[e] = -INFINITY;
        }
      }
    }
  }

  // Scores become probabilities under the new maximum; what was added up before follows it.
  STEPCAST_HD void rescale(const Thread& t, FragmentC (&scores)[kTiles][kColumns],
                           FragmentC (&out)[kTiles][kDim / 8], RowState& state) const {
    const float exponent = shape.scale * kLog2E;
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
      STEPCAST_UNROLL for (int half = 0; half < 2; ++half) {
        float most = state.most[i][half];
        STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
          const float* two = scores[i][n].elements + 2 * half;
          most = greater(most, greater(two[0], two[1]));
        }
        most = greater(most, shuffle_xor(t, most, 1));  // the four lanes that share a row
        most = greater(most, shuffle_xor(t, most, 2));
        // A row that has seen no key yet: all its exponents are -infinity, none a NaN.
        const float base = most == -INFINITY ? 0.0f : most * exponent;
        const float fall = exp2_fast(state.most[i][half] * exponent - base);
        float sum = state.sum[i][half] * fall;
        STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
          float* two = scores[i][n].elements + 2 * half;
          two[0] = exp2_fast(two[0] * exponent - base);
          two[1] = exp2_fast(two[1] * exponent - base);
          sum += two[0] + two[1];
        }
        STEPCAST_UNROLL for (int n = 0; n < kDim / 8; ++n) {
          out[i][n].elements[2 * half] *= fall;
          out[i][n].elements[2 * half + 1] *= fall;
        }
        state.most[i][half] = most;
        state.sum[i][half] = sum;
      }
    }
  }

  STEPCAST_HD void finish(const Thread& t, const FragmentC (&out)[kTiles][kDim / 8],
                          const RowState& state, SharedTile<kDim> buffer, int first, int head,
                          int sequence) const {
    const int warp_row = t.warp() * 16 * kTiles;
    float share[kTiles][2];
    STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
      STEPCAST_UNROLL for (int half = 0; half < 2; ++half) {
        float sum = state.sum[i][half];
        sum += shuffle_xor(t, sum, 1);
        sum += shuffle_xor(t, sum, 2);
        share[i][half] = 1 / sum;
        const int query = first + warp_row + 16 * i + cell_of_c(t.lane(), 2 * half).row;
        if (t.lane() % 4 == 0 && query < shape.positions) {
          lse[shape.statistic(sequence, head) + query] =
              state.most[i][half] * shape.scale + std::log(sum);
        }
      }
    }
    // Each warp read only its own rows of Q, and writes only those.
    store_rows(t, out, share, buffer, o.at(sequence, head), o.row, first, shape.positions);
  }
};

}  // namespace stepcast::cuda

STEPCAST_ELEMENT_COUNTS_END
