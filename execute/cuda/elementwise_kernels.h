// Elementwise kernels, bound by memory: one grid-stride loop over stretches of eight elements. The
// formulas are those of execute/cpu/pointwise.cc; GELU is its tanh form.
#pragma once

#include "execute/cuda/storage.h"
#include "execute/dropout.h"

namespace stepcast::cuda {

inline constexpr int kElementThreads = 256;

STEPCAST_HD float gelu_inner(float x) {
  constexpr float kRoot = 0.7978845608028654f, kCubic = 0.044715f;  // sqrt(2 / pi)
  return kRoot * (x + kCubic * x * x * x);
}

STEPCAST_HD float gelu(float x) { return 0.5f * x * (1 + std::tanh(gelu_inner(x))); }

STEPCAST_HD float gelu_slope(float x) {
  constexpr float kRoot = 0.7978845608028654f, kCubic = 0.044715f;
  const float t = std::tanh(gelu_inner(x));
  const float inner = kRoot * (1 + 3 * kCubic * x * x);
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner;
}

STEPCAST_HD float silu(float x) { return x / (1 + std::exp(-x)); }

STEPCAST_HD float silu_slope(float x) {
  const float s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// Blocks for `size` elements, eight a thread; what more there is the loop takes.
STEPCAST_HD Geometry element_geometry(std::int64_t size) {
  constexpr std::int64_t kBlocksMax = 65536;
  Geometry geometry;
  geometry.threads = kElementThreads;
  const std::int64_t blocks = ceil_divide<std::int64_t>(size, kElementThreads * kWide);
  geometry.blocks = static_cast<int>(greater<std::int64_t>(1, lesser(blocks, kBlocksMax)));
  return geometry;
}

enum class Elementwise : std::uint8_t {
  kFill,          // -> 0
  kCopy,          // a -> a, from one dtype to another
  kScale,         // a -> factor a
  kAdd,           // a, b, bias? -> a + b + bias
  kGelu,          // a -> gelu(a)
  kGeluBackward,  // a = d_y, b = x -> d_x
};

struct ElementwiseKernel {
  static constexpr int kThreads = kElementThreads, kBlocksMin = 4;
  Elementwise kind = Elementwise::kCopy;
  std::int64_t size = 0;
  std::int64_t columns = 1;  // with a bias
  ConstView a, b, bias;
  View out;
  float factor = 1;

  Geometry geometry() const { return element_geometry(size); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const bool wide = all_aligned(a, b, bias, out) && (!bias || columns % kWide == 0);
    for_stretches(t.first(), t.stride(), size, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float x[kCount] = {}, y[kCount] = {}, z[kCount] = {};
      if (a) a.load(at, x);
      if (b) b.load(at, y);
      if (bias) bias.load(at % columns, z);
      switch (kind) {
        case Elementwise::kFill: break;
        case Elementwise::kCopy: break;
        case Elementwise::kScale:
          STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) x[k] *= factor;
          break;
        case Elementwise::kAdd:
          STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) x[k] = x[k] + y[k] + z[k];
          break;
        case Elementwise::kGelu:
          STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) x[k] = gelu(x[k]);
          break;
        case Elementwise::kGeluBackward:
          STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) x[k] *= gelu_slope(y[k]);
          break;
      }
      out.store(at, x);
    });
  }
};

// gate, up (rows, columns) -> act(gate) * up; with d_y their gradients, written to `out` and
// `d_up`. Gate and up, and their gradients, lie side by side in one tensor (rows of 2 columns), or
// each in its own: `stride` is the width of a row.
struct GateKernel {
  static constexpr int kThreads = kElementThreads, kBlocksMin = 3;
  bool with_gelu = false;  // GEGLU, else SwiGLU
  std::int64_t rows = 0, columns = 0, stride = 0;
  ConstView gate, up, d_y;
  View out, d_up;

  Geometry geometry() const { return element_geometry(rows * columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const bool wide = all_aligned(gate, up, d_y, out, d_up) && columns % kWide == 0;
    for_stretches(t.first(), t.stride(), rows * columns, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      const std::int64_t in_row = at + at / columns * (stride - columns);
      float g[kCount], u[kCount], d[kCount] = {};
      gate.load(in_row, g);
      up.load(in_row, u);
      if (d_y) d_y.load(at, d);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        const float activated = with_gelu ? gelu(g[k]) : silu(g[k]);
        if (!d_y) {
          u[k] *= activated;
        } else {
          g[k] = d[k] * u[k] * (with_gelu ? gelu_slope(g[k]) : silu_slope(g[k]));
          u[k] = d[k] * activated;
        }
      }
      if (!d_y) {
        out.store(at, u);
      } else {
        out.store(in_row, g);
        d_up.store(in_row, u);
      }
    });
  }
};

// y = dropout(x + bias) + residual, mask (one byte an element); bias and residual may be absent.
struct DropoutForward {
  static constexpr int kThreads = kElementThreads, kBlocksMin = 4;
  DropoutRule rule;
  DropoutRows rows;
  std::int64_t size = 0, columns = 1;
  ConstView x, bias, residual;
  View y;
  std::uint8_t* mask = nullptr;

  Geometry geometry() const { return element_geometry(size); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const bool wide = all_aligned(x, bias, residual, y) && columns % kWide == 0 &&
                      reinterpret_cast<std::uintptr_t>(mask) % kWide == 0;
    const DropoutMask drop = rule.now();
    for_stretches(t.first(), t.stride(), size, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float value[kCount], b[kCount] = {}, beside[kCount] = {};
      x.load(at, value);
      const std::int64_t column = at % columns, row = rows.of(at / columns);
      if (bias) bias.load(column, b);
      if (residual) residual.load(at, beside);
      Bundle<std::uint8_t, kCount> kept;
      PhiloxWords words{};
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        if (k % 4 == 0) words = drop.words(row, (column + k) / 4);
        const unsigned word = kCount == 1 ? static_cast<unsigned>(column % 4) : k % 4;
        const float factor = drop.factor(words.words[word]);
        kept.values[k] = factor != 0 ? 1 : 0;
        value[k] = (value[k] + b[k]) * factor + beside[k];
      }
      *reinterpret_cast<Bundle<std::uint8_t, kCount>*>(mask + at) = kept;
      y.store(at, value);
    });
  }
};

struct DropoutBackward {
  static constexpr int kThreads = kElementThreads, kBlocksMin = 4;
  float scale = 1;  // of what is kept
  std::int64_t size = 0;
  ConstView d_y;
  const std::uint8_t* mask = nullptr;
  View d_x;

  Geometry geometry() const { return element_geometry(size); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const bool wide = all_aligned(d_y, d_x) && reinterpret_cast<std::uintptr_t>(mask) % kWide == 0;
    for_stretches(t.first(), t.stride(), size, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      float d[kCount];
      d_y.load(at, d);
      const auto kept = *reinterpret_cast<const Bundle<std::uint8_t, kCount>*>(mask + at);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        d[k] = kept.values[k] != 0 ? d[k] * scale : 0.0f;
      }
      d_x.store(at, d);
    });
  }
};

// In place: what lies right of the diagonal, where row i's query stands at i % columns.
struct MaskScores {
  static constexpr int kThreads = kElementThreads, kBlocksMin = 4;
  std::int64_t rows = 0, columns = 0;
  float masked = 0;
  View scores;

  Geometry geometry() const { return element_geometry(rows * columns); }

  STEPCAST_HD void operator()(const Thread& t) const {
    const bool wide = columns % kWide == 0 && all_aligned(scores);
    for_stretches(t.first(), t.stride(), rows * columns, wide, [&](std::int64_t at, auto count) {
      constexpr unsigned kCount = decltype(count)::value;
      const std::int64_t query = at / columns % columns, column = at % columns;
      float x[kCount];
      scores.load(at, x);
      STEPCAST_UNROLL for (unsigned k = 0; k < kCount; ++k) {
        if (column + k > query) x[k] = masked;
      }
      scores.store(at, x);
    });
  }
};

}  // namespace stepcast::cuda
