// Kernels: the arithmetic of each kind of Op on the CPU. Every one is a template on the type of its
// numbers: float is what training runs, double what tests differentiate numerically. Operands are
// as op.h orders them; token ids are int64 whatever the type.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/backend.h"

namespace stepcast::cpu {

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRotaryBase = 10000;  // RoPE (Su et al. 2021)

// What kernels keep from call to call; grows to the largest call, then stays.
template <class Real>
struct Scratch {
  std::vector<Real> scores, gradients;  // of one head
  std::vector<Real> gathered;           // keys, values and their gradients, of one head
  std::vector<float> factors;           // of dropout, of one row of scores
  std::vector<Real> rotary;             // (positions, head_dim / 2, 2): cos, sin
  std::int64_t rotary_head_dim = 0;
  std::vector<Real> activated;  // one row of a weighted activation, or of keys that heads share
  std::vector<std::int64_t> experts, taken;  // of a router; what takes each slot of a permutation
};

template <class Real>
void compute(const Work& work, Scratch<Real>& scratch);

template <class Real>
void run(const Gemm& op, const Work& work);
template <class Real>
void run(const Attention& op, const Work& work, Scratch<Real>& scratch);
template <class Real>
void run(const Norm& op, const Work& work);
template <class Real>
void run(const Pointwise& op, const Work& work, Scratch<Real>& scratch);
template <class Real>
void run(const Gather& op, const Work& work);
template <class Real>
void run(const Loss& op, const Work& work);
template <class Real>
void run(const Route& op, const Work& work, Scratch<Real>& scratch);
template <class Real>
void run(const Permute& op, const Work& work, Scratch<Real>& scratch);
template <class Real>
void run(const Regroup& op, const Work& work);
void run(const OwnSlots& op, const Work& work);
template <class Real>
void run(const ShareHeads& op, const Work& work);
template <class Real>
void run(const LatentKeys& op, const Work& work, Scratch<Real>& scratch);
template <class Real>
void add_expert_bias(const Pointwise& op, const Work& work);
template <class Real>
void add_expert_bias_backward(const Pointwise& op, const Work& work);
// REQUIRES: op.weighted.
template <class Real>
void run_weighted(const Pointwise& op, const Work& work, Scratch<Real>& scratch);

template <class Real>
Real* values(const Operand& operand) {
  return static_cast<Real*>(operand.data);
}

// Whether what is written there is also among the reads from `first` on: it is added to.
inline bool accumulates(const Work& work, std::size_t write, std::size_t first) {
  for (std::size_t i = first; i < work.reads.size(); ++i) {
    if (work.reads[i].data == work.writes[write].data) return true;
  }
  return false;
}

}  // namespace stepcast::cpu
