// Attention as the formula says, a warp a row: right for every head dimension up to 256 and every
// dtype, slow (no tensor cores, keys and values read once a query). For shapes that have no flash
// kernel. The maximum runs along (Milakov & Gimelshein 2018); backward makes the probabilities
// again from the log-sum-exp, as execute/cpu/attention.cc does.
#pragma once

#include "execute/cuda/flash_forward.h"
#include "execute/cuda/team.h"

namespace stepcast::cuda {

inline constexpr int kPlainDimMax = 256;
inline constexpr int kPlainParts = kPlainDimMax / kWarp;  // elements of a row that a lane holds

// Element c of head h of sequence b at position i: as HeadRows, of a dtype known at run time.
struct HeadNumbers {
  View data;
  std::int64_t sequence = 0, row = 0, head = 0;
  STEPCAST_HD std::int64_t at(int b, int h, int i) const {
    return b * sequence + h * head + i * row;
  }
};

struct PlainRow {
  float x[kPlainParts] = {};

  STEPCAST_HD static PlainRow load(const Thread& t, const HeadNumbers& from, int dim, int b, int h,
                                   int i) {
    PlainRow out;
    const std::int64_t at = from.at(b, h, i);
    STEPCAST_UNROLL for (int part = 0; part < kPlainParts; ++part) {
      const int c = part * kWarp + t.lane();
      if (c < dim) out.x[part] = from.data[at + c];
    }
    return out;
  }
  STEPCAST_HD void store(const Thread& t, const HeadNumbers& to, float scale, int dim, int b, int h,
                         int i) const {
    const std::int64_t at = to.at(b, h, i);
    STEPCAST_UNROLL for (int part = 0; part < kPlainParts; ++part) {
      const int c = part * kWarp + t.lane();
      if (c < dim) to.data.set(at + c, x[part] * scale);
    }
  }
  STEPCAST_HD float dot(const Thread& t, const PlainRow& other) const {
    float sum = 0;
    STEPCAST_UNROLL for (int part = 0; part < kPlainParts; ++part) sum += x[part] * other.x[part];
    return join_warp(t, sum, Sum());
  }
  // x = fall x + factor other
  STEPCAST_HD void follow(float fall, float factor, const PlainRow& other) {
    STEPCAST_UNROLL for (int part = 0; part < kPlainParts; ++part) {
      x[part] = x[part] * fall + factor * other.x[part];
    }
  }
};

enum class PlainPass : std::uint8_t {
  kForward,  // o, lse
  kQueries,  // dQ
  kKeys,     // dK, dV
};

struct PlainAttention {
  static constexpr int kThreads = 128, kBlocksMin = 2;
  PlainPass pass = PlainPass::kForward;
  AttentionShape shape;
  int dim = 0;
  HeadNumbers q, k, v, o, d_o;
  HeadNumbers d_q, d_k, d_v;
  float* lse = nullptr;
  bool drops = false;
  AttentionDropout dropout = {};

  // What multiplies the probability of a pair.
  STEPCAST_HD float factor(const DropoutMask& drop, int b, int h, int i, int j) const {
    return drops && !drop.keeps(dropout_row(dropout, shape, b, h) + i, j) ? 0.0f : drop.scale;
  }

  Geometry geometry() const {
    const int heads = pass == PlainPass::kKeys ? shape.kv_heads : shape.heads;
    return {ceil_divide(shape.positions, kThreads / kWarp), heads, shape.sequences, kThreads, 0};
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const int i = t.block * t.warps() + t.warp();
    if (i >= shape.positions) return;
    switch (pass) {
      case PlainPass::kForward: return forward(t, t.block_z, t.block_y, i);
      case PlainPass::kQueries: return queries(t, t.block_z, t.block_y, i);
      case PlainPass::kKeys: return keys(t, t.block_z, t.block_y, i);
    }
  }

  STEPCAST_HD void forward(const Thread& t, int b, int h, int i) const {
    const int kv = shape.kv_head(h), seen = shape.causal ? i + 1 : shape.positions;
    const PlainRow query = PlainRow::load(t, q, dim, b, h, i);
    PlainRow out;
    const DropoutMask drop = drops ? dropout.rule.now() : DropoutMask();
    float most = -INFINITY, sum = 0;
    for (int j = 0; j < seen; ++j) {
      const float score = query.dot(t, PlainRow::load(t, k, dim, b, kv, j)) * shape.scale;
      const float above = greater(most, score);
      const float fall = std::exp(most - above), p = std::exp(score - above);
      sum = sum * fall + p;
      out.follow(fall, p * factor(drop, b, h, i, j), PlainRow::load(t, v, dim, b, kv, j));
      most = above;
    }
    out.store(t, o, 1 / sum, dim, b, h, i);
    if (t.lane() == 0) lse[shape.statistic(b, h) + i] = most + std::log(sum);
  }

  // P, dropped, and dS of a query and a key, their rows given.
  struct Pair {
    float p, d_s;
  };
  STEPCAST_HD Pair pair(const Thread& t, const PlainRow& query, const PlainRow& key,
                        const PlainRow& value, const PlainRow& d_out, float dot, float row_lse,
                        float kept) const {
    const float p = std::exp(query.dot(t, key) * shape.scale - row_lse);
    return {p * kept, p * (d_out.dot(t, value) * kept - dot)};
  }

  STEPCAST_HD void queries(const Thread& t, int b, int h, int i) const {
    const int kv = shape.kv_head(h), seen = shape.causal ? i + 1 : shape.positions;
    const PlainRow query = PlainRow::load(t, q, dim, b, h, i);
    const PlainRow d_out = PlainRow::load(t, d_o, dim, b, h, i);
    const float dot = d_out.dot(t, PlainRow::load(t, o, dim, b, h, i));
    const DropoutMask drop = drops ? dropout.rule.now() : DropoutMask();
    PlainRow sum;
    for (int j = 0; j < seen; ++j) {
      const PlainRow key = PlainRow::load(t, k, dim, b, kv, j);
      const Pair both = pair(t, query, key, PlainRow::load(t, v, dim, b, kv, j), d_out, dot,
                             lse[shape.statistic(b, h) + i], factor(drop, b, h, i, j));
      sum.follow(1, both.d_s, key);
    }
    sum.store(t, d_q, shape.scale, dim, b, h, i);
  }

  STEPCAST_HD void keys(const Thread& t, int b, int kv, int j) const {
    const int group = shape.heads / shape.kv_heads;
    const PlainRow key = PlainRow::load(t, k, dim, b, kv, j);
    const PlainRow value = PlainRow::load(t, v, dim, b, kv, j);
    const DropoutMask drop = drops ? dropout.rule.now() : DropoutMask();
    PlainRow key_sum, value_sum;
    for (int h = kv * group; h < (kv + 1) * group; ++h) {
      for (int i = shape.causal ? j : 0; i < shape.positions; ++i) {
        const PlainRow query = PlainRow::load(t, q, dim, b, h, i);
        const PlainRow d_out = PlainRow::load(t, d_o, dim, b, h, i);
        const float dot = d_out.dot(t, PlainRow::load(t, o, dim, b, h, i));
        const Pair both = pair(t, query, key, value, d_out, dot, lse[shape.statistic(b, h) + i],
                               factor(drop, b, h, i, j));
        key_sum.follow(1, both.d_s, query);
        value_sum.follow(1, both.p, d_out);
      }
    }
    key_sum.store(t, d_k, shape.scale, dim, b, kv, j);
    value_sum.store(t, d_v, 1, dim, b, kv, j);
  }
};

}  // namespace stepcast::cuda
