// Softmax of rows, for attention without a fused kernel, and the parts of cross-entropy over a
// vocabulary that may be split over ranks (Megatron-LM's; execute/cpu/tokens.cc). A row by a warp
// or a block. The maximum and the sum of exponentials are found in one pass: each thread rescales
// its sum when its maximum grows (Milakov & Gimelshein 2018).
#pragma once

#include <cfloat>

#include "execute/cuda/storage.h"
#include "execute/cuda/team.h"

namespace stepcast::cuda {

// The running maximum of some numbers, and the sum of exp(x - maximum).
struct OnlineSum {
  float most = -INFINITY, sum = 0;

  STEPCAST_HD void add(float x) {
    if (x > most) {
      sum *= std::exp(most - x);
      most = x;
    }
    if (x > -INFINITY) sum += std::exp(x - most);
  }
  // Every member of the team gets the team's.
  STEPCAST_HD OnlineSum join(const Thread& t, const Team& team) const {
    OnlineSum all;
    all.most = team.join(t, most, Most());
    const float mine = most > -INFINITY ? sum * std::exp(most - all.most) : 0.0f;
    all.sum = team.join(t, mine, Sum());
    return all;
  }
};

// Row i sees its first columns: all, or i % columns + 1 where `causal`.
struct SoftmaxForward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  std::int64_t rows = 0, columns = 0;
  bool causal = false;
  ConstView scores;
  View p;

  Geometry geometry() const { return team_geometry(rows, columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, columns > kShortRowMax);
    const bool wide = columns % kWide == 0 && all_aligned(scores, p);
    for (std::int64_t i = team.row; i < rows; i += team.rows) {
      const std::int64_t seen = causal ? i % columns + 1 : columns, row = i * columns;
      OnlineSum mine;
      for_stretches(team.rank, team.size, seen, wide, [&](std::int64_t j, auto count) {
        float x[decltype(count)::value];
        scores.load(row + j, x);
        STEPCAST_UNROLL for (const float one : x) mine.add(one);
      });
      const OnlineSum all = mine.join(t, team);
      const float share = 1 / all.sum;
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        constexpr unsigned kCount = decltype(count)::value;
        float x[kCount] = {};
        if (j < seen) scores.load(row + j, x);
        STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
          x[k] = j + k < seen ? std::exp(x[k] - all.most) * share : 0.0f;
        }
        p.store(row + j, x);
      });
    }
  }
};

// d_scores = p (d_p - sum(d_p p)); masked entries have p = 0.
struct SoftmaxBackward {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  std::int64_t rows = 0, columns = 0;
  ConstView d_p, p;
  View d_scores;

  Geometry geometry() const { return team_geometry(rows, columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, columns > kShortRowMax);
    const bool wide = columns % kWide == 0 && all_aligned(d_p, p, d_scores);
    for (std::int64_t i = team.row; i < rows; i += team.rows) {
      const std::int64_t row = i * columns;
      float dot = 0;
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        constexpr unsigned kCount = decltype(count)::value;
        float d[kCount], value[kCount];
        d_p.load(row + j, d);
        p.load(row + j, value);
        STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) dot += d[k] * value[k];
      });
      dot = team.join(t, dot, Sum());
      for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
        constexpr unsigned kCount = decltype(count)::value;
        float d[kCount], value[kCount];
        d_p.load(row + j, d);
        p.load(row + j, value);
        STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) d[k] = value[k] * (d[k] - dot);
        d_scores.store(row + j, d);
      });
    }
  }
};

enum class LossStage : std::uint8_t { kMaximum, kSums, kFinish, kBackward };

// Operands as Loss in op.h orders them. `first` is where this rank's slice begins; of its
// `vocabulary` columns the first `columns` are real, the rest is padding. `mean` is 1 / the tokens
// that the loss is a mean over.
struct LossKernel {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  LossStage stage = LossStage::kMaximum;
  std::int64_t rows = 0, vocabulary = 0, columns = 0, first = 0;
  float mean = 1;
  ConstView logits;  // kBackward: the probabilities
  const std::int64_t* ids = nullptr;
  float* maximum = nullptr;  // (rows): written by kMaximum
  float* sums = nullptr;     // (rows, 2): written by kSums
  float* loss = nullptr;     // (rows)
  View out;                  // probabilities; d_logits

  Geometry geometry() const { return team_geometry(rows, vocabulary); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const Team team(t, vocabulary > kShortRowMax);
    const bool wide = vocabulary % kWide == 0 && all_aligned(logits, out);
    for (std::int64_t i = team.row; i < rows; i += team.rows) {
      const std::int64_t target = stage == LossStage::kMaximum ? -1 : ids[i] - first;
      switch (stage) {
        case LossStage::kMaximum: find_maximum(t, team, i, wide); break;
        case LossStage::kSums: add_up(t, team, i, target, wide); break;
        case LossStage::kFinish: finish(team, i, wide); break;
        case LossStage::kBackward: backward(team, i, target, wide); break;
      }
    }
  }

  STEPCAST_HD void find_maximum(const Thread& t, const Team& team, std::int64_t i,
                                bool wide) const {
    float most = -FLT_MAX;  // of a slice that is all padding, as on the CPU
    for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
      float x[decltype(count)::value];
      logits.load(i * vocabulary + j, x);
      STEPCAST_UNROLL for (const float one : x) most = greater(most, one);
    });
    most = team.join(t, most, Most());
    if (team.rank == 0) maximum[i] = most;
  }

  STEPCAST_HD void add_up(const Thread& t, const Team& team, std::int64_t i, std::int64_t target,
                          bool wide) const {
    const float most = maximum[i];
    float sum = 0;
    for_stretches(team.rank, team.size, columns, wide, [&](std::int64_t j, auto count) {
      float x[decltype(count)::value];
      logits.load(i * vocabulary + j, x);
      STEPCAST_UNROLL for (const float one : x) sum += std::exp(one - most);
    });
    sum = team.join(t, sum, Sum());
    if (team.rank != 0) return;
    sums[2 * i] = sum;
    const bool here = target >= 0 && target < vocabulary;
    sums[2 * i + 1] = here ? logits[i * vocabulary + target] - most : 0.0f;
  }

  STEPCAST_HD void finish(const Team& team, std::int64_t i, bool wide) const {
    const float most = maximum[i], share = 1 / sums[2 * i];
    if (team.rank == 0) loss[i] = std::log(sums[2 * i]) - sums[2 * i + 1];
    for_stretches(team.rank, team.size, vocabulary, wide, [&](std::int64_t j, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float x[kCount];
      logits.load(i * vocabulary + j, x);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        x[k] = j + k < columns ? std::exp(x[k] - most) * share : 0.0f;
      }
      out.store(i * vocabulary + j, x);
    });
  }

  STEPCAST_HD void backward(const Team& team, std::int64_t i, std::int64_t target,
                            bool wide) const {
    for_stretches(team.rank, team.size, vocabulary, wide, [&](std::int64_t j, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float p[kCount];
      logits.load(i * vocabulary + j, p);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        p[k] = (j + k == target ? p[k] - 1 : p[k]) * mean;
      }
      out.store(i * vocabulary + j, p);
    });
  }
};

}  // namespace stepcast::cuda
