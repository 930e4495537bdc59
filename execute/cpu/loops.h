// Loops: the inner loops of the float kernels, written so that a compiler makes vectors of them,
// and built once for each instruction set that a processor may have. They have no branches, and
// sums run in a fixed number of lanes, so that every instruction set gives the same bits.
//
// exp() here is Cephes' single precision one (Moshier 1989): reduced by multiples of log 2, a
// polynomial of degree 6, within 2 units in the last place; below -87 it is 1e-38, not 0.
#pragma once

#include <cstdint>
#include <span>

namespace stepcast::cpu {

// All arrays of `n` numbers but where said; n >= 0.
struct Loops {
  const char* name;                                   // "avx512", "avx2", "base"
  float (*maximum)(const float* in, std::int64_t n);  // lowest() of none
  // out = exp(in - shift), of which the sum is returned. In place or apart.
  float (*exponentials)(const float* in, float shift, float* out, std::int64_t n);
  float (*dot)(const float* a, const float* b, std::int64_t n);
  double (*squares)(const float* in, std::int64_t n);
  void (*scale)(float* in_place, float factor, std::int64_t n);
  // Of softmax: out = p (d - dot).
  void (*softmax_backward)(const float* d, const float* p, float dot, float* out, std::int64_t n);
  void (*gelu)(const float* x, float* out, std::int64_t n);  // its tanh form
  void (*gelu_backward)(const float* d, const float* x, float* out, std::int64_t n);
  // out = f(gate) up, and both gradients; f is silu or gelu.
  void (*silu_gate)(const float* gate, const float* up, float* out, std::int64_t n);
  void (*silu_gate_backward)(const float* d, const float* gate, const float* up, float* d_gate,
                             float* d_up, std::int64_t n);
  void (*gelu_gate)(const float* gate, const float* up, float* out, std::int64_t n);
  void (*gelu_gate_backward)(const float* d, const float* gate, const float* up, float* d_gate,
                             float* d_up, std::int64_t n);
  void (*add)(const float* a, const float* b, float* out, std::int64_t n);
  void (*add_to)(float* sum, const float* in, std::int64_t n);
  // One row of a norm. Forward: the mean (0 if not centred) and 1 / deviation into statistics.
  void (*norm)(const float* x, const float* weight, const float* bias, float* y, bool centred,
               float epsilon, float* statistics, std::int64_t n);
  // dx, and what the row adds to dw and (if there is one) db.
  void (*norm_backward)(const float* dy, const float* x, const float* weight, float mean,
                        float scale, bool centred, float* dx, float* dw, float* db, std::int64_t n);
  // AdamW (execute/backend.h); `numbers` are those that a step makes of its options.
  struct Adam {
    float beta1, beta2, correction1, correction2, rate, decay, epsilon, clip;
  };
  void (*adam)(float* weight, const float* gradient, float* moment1, float* moment2,
               const Adam& numbers, std::int64_t n);
  bool (*any_nan)(const float* in, std::int64_t n);
};

// Those of the best instruction set that this processor has; those of all that it has, best first.
const Loops& loops();
std::span<const Loops* const> supported_loops();

}  // namespace stepcast::cpu
