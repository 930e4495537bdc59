// The loops themselves, in the namespace STEPCAST_LOOPS. Each of the loops_*.cc includes this once,
// and is built for one instruction set; so nothing here may come from a header that others include,
// or the linker might give others a function that their processor does not have.
#pragma once

#include "execute/cpu/loops.h"

namespace stepcast::cpu::STEPCAST_LOOPS {

namespace {

constexpr std::int64_t kLanes = 16;

inline float bits_to_float(std::int32_t bits) { return __builtin_bit_cast(float, bits); }
inline std::int32_t float_to_bits(float value) { return __builtin_bit_cast(std::int32_t, value); }

inline float exponential(float x) {
  constexpr float kMost = 88.0f, kLeast = -87.0f, kLog2E = 1.44269504f;
  constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: added, it leaves no fraction
  x = x < kLeast ? kLeast : x;
  x = x > kMost ? kMost : x;
  const float shifted = x * kLog2E + kRound;
  const float whole = shifted - kRound;
  const float r = (x - whole * kLog2High) - whole * kLog2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t exponent = float_to_bits(shifted) - float_to_bits(kRound);
  return p * bits_to_float((exponent + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form, as
// (1 + tanh u) / 2 = sigmoid(2 u).
constexpr float kGeluTwice = 1.5957691216f, kGeluCube = 0.044715f;
inline float gelu_one(float x) { return x * sigmoid(kGeluTwice * (x + kGeluCube * x * x * x)); }
inline float gelu_slope_one(float x) {
  const float s = sigmoid(kGeluTwice * (x + kGeluCube * x * x * x));
  return s + x * s * (1.0f - s) * kGeluTwice * (1.0f + 3.0f * kGeluCube * x * x);
}
inline float silu_one(float x) { return x * sigmoid(x); }
inline float silu_slope_one(float x) {
  const float s = sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

// Sums term(i) in lanes, which are added up in their order.
template <class Sum, class Term>
inline Sum sum_of(std::int64_t n, Term term) {
  Sum lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  Sum sum = 0;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

float maximum(const float* in, std::int64_t n) {
  constexpr float kLowest = -3.402823466e38f;
  float lanes[kLanes];
  for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = kLowest;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = in[i + lane] > lanes[lane] ? in[i + lane] : lanes[lane];
    }
  }
  float most = kLowest;
  for (; i < n; ++i) most = in[i] > most ? in[i] : most;
  for (const float lane : lanes) most = lane > most ? lane : most;
  return most;
}

float exponentials(const float* in, float shift, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = exponential(in[i] - shift);
  return sum_of<float>(n, [=](std::int64_t i) { return out[i]; });
}

float dot(const float* a, const float* b, std::int64_t n) {
  return sum_of<float>(n, [=](std::int64_t i) { return a[i] * b[i]; });
}

double squares(const float* in, std::int64_t n) {
  return sum_of<double>(
      n, [=](std::int64_t i) { return static_cast<double>(in[i]) * static_cast<double>(in[i]); });
}

void scale(float* in_place, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) in_place[i] *= factor;
}

void softmax_backward(const float* d, const float* p, float dot_product, float* out,
                      std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = p[i] * (d[i] - dot_product);
}

void gelu(const float* x, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = gelu_one(x[i]);
}

void gelu_backward(const float* d, const float* x, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = d[i] * gelu_slope_one(x[i]);
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = silu_one(gate[i]) * up[i];
}

void silu_gate_backward(const float* d, const float* gate, const float* up, float* d_gate,
                        float* d_up, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i], dy = d[i];
    d_gate[i] = dy * up[i] * silu_slope_one(g);
    d_up[i] = dy * silu_one(g);
  }
}

void gelu_gate(const float* gate, const float* up, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = gelu_one(gate[i]) * up[i];
}

void gelu_gate_backward(const float* d, const float* gate, const float* up, float* d_gate,
                        float* d_up, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i], dy = d[i];
    d_gate[i] = dy * up[i] * gelu_slope_one(g);
    d_up[i] = dy * gelu_one(g);
  }
}

void add(const float* a, const float* b, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void add_to(float* sum, const float* in, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] += in[i];
}

void norm(const float* x, const float* weight, const float* bias, float* y, bool centred,
          float epsilon, float* statistics, std::int64_t n) {
  const float count = static_cast<float>(n);
  const float mean =
      centred ? sum_of<float>(n, [=](std::int64_t i) { return x[i]; }) / count : 0.0f;
  const float variance =
      sum_of<float>(n, [=](std::int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  if (bias != nullptr) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * weight[i];
  }
  if (centred) *statistics++ = mean;
  *statistics = factor;
}

void norm_backward(const float* dy, const float* x, const float* weight, float mean, float factor,
                   bool centred, float* dx, float* dw, float* db, std::int64_t n) {
  const float count = static_cast<float>(n);
  const float sum =
      centred ? sum_of<float>(n, [=](std::int64_t i) { return dy[i] * weight[i]; }) : 0.0f;
  const float product = sum_of<float>(
      n, [=](std::int64_t i) { return dy[i] * weight[i] * ((x[i] - mean) * factor); });
  const float average = sum / count, along = product / count;
  for (std::int64_t i = 0; i < n; ++i) dw[i] += dy[i] * ((x[i] - mean) * factor);
  if (db != nullptr) add_to(db, dy, n);
  for (std::int64_t i = 0; i < n; ++i) {
    dx[i] = factor * (dy[i] * weight[i] - average - (x[i] - mean) * factor * along);
  }
}

void adam(float* weight, const float* gradient, float* moment1, float* moment2,
          const Loops::Adam& a, std::int64_t n) {
  const Loops::Adam numbers = a;  // not to be read again behind each store
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * numbers.clip;
    const float m = numbers.beta1 * moment1[i] + (1.0f - numbers.beta1) * g;
    const float v = numbers.beta2 * moment2[i] + (1.0f - numbers.beta2) * g * g;
    const float direction =
        m * numbers.correction1 / (__builtin_sqrtf(v * numbers.correction2) + numbers.epsilon);
    moment1[i] = m;
    moment2[i] = v;
    weight[i] -= numbers.rate * (direction + numbers.decay * weight[i]);
  }
}

// Of magnitudes as integers, all above infinity's are NaN.
bool any_nan(const float* in, std::int64_t n) {
  std::int32_t any = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    any |= (float_to_bits(in[i]) & 0x7fffffff) > 0x7f800000 ? 1 : 0;
  }
  return any != 0;
}

}  // namespace

extern const Loops kLoops;
const Loops kLoops = {STEPCAST_LOOPS_NAME,
                      maximum,
                      exponentials,
                      dot,
                      squares,
                      scale,
                      softmax_backward,
                      gelu,
                      gelu_backward,
                      silu_gate,
                      silu_gate_backward,
                      gelu_gate,
                      gelu_gate_backward,
                      add,
                      add_to,
                      norm,
                      norm_backward,
                      adam,
                      any_nan};

}  // namespace stepcast::cpu::STEPCAST_LOOPS
