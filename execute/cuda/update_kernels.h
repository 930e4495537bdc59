// The optimizer's kernels: AdamW with an fp32 master copy (the formula stands in
// execute/backend.h) and the global norm of the gradients, both one pass over memory.
#pragma once

#include "execute/backend.h"
#include "execute/cuda/storage.h"
#include "execute/cuda/team.h"

namespace stepcast::cuda {

inline constexpr float kNormEpsilonOfClip = 1e-6f;

struct AdamWKernel {
  static constexpr int kThreads = 256, kBlocksMin = 3;
  std::int64_t size = 0;
  View weight;  // written; read too where there is no master
  View master;  // fp32; may be absent
  ConstView gradient;
  View moment1, moment2;
  float rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, decay = 0, clip = 0;
  // (2) on the device: 1 / (1 - beta1^n), 1 / (1 - beta2^n) in step n = 1, 2, ...
  const float* corrections = nullptr;
  // (1) on the device: the sum of the squared gradients; absent: no clipping.
  const float* squared_norm = nullptr;

  Geometry geometry() const {
    constexpr std::int64_t kBlocksMax = 8192;
    Geometry geometry;
    geometry.threads = kThreads;
    const auto blocks = ceil_divide<std::int64_t>(size, kThreads * kWide);
    geometry.blocks = static_cast<int>(greater<std::int64_t>(1, lesser(blocks, kBlocksMax)));
    return geometry;
  }

  void options(const AdamW& adam) {
    rate = static_cast<float>(adam.rate);
    beta1 = static_cast<float>(adam.beta1);
    beta2 = static_cast<float>(adam.beta2);
    epsilon = static_cast<float>(adam.epsilon);
    decay = static_cast<float>(adam.decay);
    clip = static_cast<float>(adam.clip);
  }

  STEPCAST_HD float gradient_scale() const {
    if (squared_norm == nullptr) return 1;
    return lesser(1.0f, clip / (std::sqrt(*squared_norm) + kNormEpsilonOfClip));
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    const float scale = gradient_scale();
    const float correction1 = corrections[0], correction2 = corrections[1];
    const bool wide = all_aligned(weight, master, gradient, moment1, moment2);
    const View held = master ? master : weight;
    for_stretches(t.first(), t.stride(), size, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float w[kCount], g[kCount], m[kCount], v[kCount];
      held.load(at, w);
      gradient.load(at, g);
      moment1.load(at, m);
      moment2.load(at, v);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        g[k] *= scale;
        m[k] = beta1 * m[k] + (1 - beta1) * g[k];
        v[k] = beta2 * v[k] + (1 - beta2) * g[k] * g[k];
        const float direction = m[k] * correction1 / (std::sqrt(v[k] * correction2) + epsilon);
        w[k] -= rate * (direction + decay * w[k]);
      }
      moment1.store(at, m);
      moment2.store(at, v);
      weight.store(at, w);
      if (master) master.store(at, w);
    });
  }
};

// partials (blocks) [+]= sums of squares. A thread adds up in double: a stretch may have 10^9
// elements, and the few of it cost nothing beside the memory. The first of several stretches takes
// as many blocks as the largest of them, and writes all partials that are read.
struct SquaredNormPartials {
  static constexpr int kThreads = kTeamThreads, kBlocksMin = 4;
  static constexpr int kBlocks = 256;
  std::int64_t size = 0;
  ConstView x;
  bool accumulate = false;
  float* partials = nullptr;
  int blocks = kBlocks;

  static int blocks_of(std::int64_t size) {
    const auto whole = ceil_divide<std::int64_t>(size, kThreads * kWide);
    return static_cast<int>(greater<std::int64_t>(1, lesser<std::int64_t>(whole, kBlocks)));
  }
  Geometry geometry() const { return {blocks, 1, 1, kThreads, kTeamScratchBytes}; }

  STEPCAST_HD void operator()(const Thread& t) const {
    double sum = 0;
    for_stretches(t.first(), t.stride(), size, x.aligned(), [&](std::int64_t at, auto count) {
      float value[decltype(count)::value];
      x.load(at, value);
      STEPCAST_UNROLL for (const float one : value) sum += static_cast<double>(one) * one;
    });
    const float all =
        join_block(t, static_cast<float>(sum), reinterpret_cast<float*>(t.shared), Sum());
    if (t.thread == 0) partials[t.block] = (accumulate ? partials[t.block] : 0.0f) + all;
  }
};

// *sum += partials, by one block.
struct SquaredNormTotal {
  static constexpr int kThreads = SquaredNormPartials::kBlocks, kBlocksMin = 1;
  const float* partials = nullptr;
  float* sum = nullptr;
  int blocks = SquaredNormPartials::kBlocks;

  Geometry geometry() const { return {1, 1, 1, kThreads, kTeamScratchBytes}; }

  STEPCAST_HD void operator()(const Thread& t) const {
    const float part = t.thread < blocks ? partials[t.thread] : 0.0f;
    const float all = join_block(t, part, reinterpret_cast<float*>(t.shared), Sum());
    if (t.thread == 0) *sum += all;
  }
};

// *sum += values, in double: the loss of a micro-batch's rows. One block: the rows are few, and a
// fixed order gives the same bits every time.
struct AddUp {
  static constexpr int kThreads = 256, kBlocksMin = 1;
  const float* values = nullptr;
  std::int64_t size = 0;
  double* sum = nullptr;

  Geometry geometry() const {
    return {1, 1, 1, kThreads, kThreads * static_cast<int>(sizeof(double))};
  }

  STEPCAST_HD void operator()(const Thread& t) const {
    auto* parts = reinterpret_cast<double*>(t.shared);
    double mine = 0;
    for (std::int64_t i = t.thread; i < size; i += t.threads) mine += values[i];
    parts[t.thread] = mine;
    sync();
    for (int half = t.threads / 2; half > 0; half /= 2) {
      if (t.thread < half) parts[t.thread] += parts[t.thread + half];
      sync();
    }
    if (t.thread == 0) *sum += parts[0];
  }
};

inline constexpr std::int64_t kSquaredNormFloats = SquaredNormPartials::kBlocks;

}  // namespace stepcast::cuda
