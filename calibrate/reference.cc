// The reference of a product with a weight is the sum itself, of a few hundred elements, of some
// expert each; of all other ops it is the backend's template instantiated for double
// (execute/cpu/kernels.h), whose gradients are proven against finite differences in the tests. An
// optimizer's reference is written down here.
#include "calibrate/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "calibrate/trial.h"
#include "execute/cpu/kernels.h"
#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr double kTolerance = 1e-4;    // 1,000 roundings of a float
constexpr std::size_t kSamples = 256;  // elements of a product

// Compares as it goes; the scale is the root mean square of what was expected.
class Comparison {
 public:
  void add(std::size_t write, std::size_t element, double got, double expected) {
    pairs_.push_back({write, element, got, expected});
    squares_ += expected * expected;
  }

  // The largest error; throws where it is too large.
  double finish(const Op& op) const {
    const double scale =
        std::sqrt(squares_ / static_cast<double>(std::max<std::size_t>(1, pairs_.size())));
    double worst = 0;
    for (const Pair& pair : pairs_) {
      const double size = std::abs(pair.expected) + scale;
      const double error = std::abs(pair.got - pair.expected) / (size > 0 ? size : 1);
      if (error <= kTolerance) {
        worst = std::max(worst, error);
        continue;
      }
      throw Error(
          to_text(op),
          fmt::format("the kernel is wrong: element {} of what it writes {} is {:.7g}, in "
                      "double precision {:.7g}; nothing is timed",
                      pair.element, pair.write == 0 ? "first" : "next", pair.got, pair.expected));
    }
    return worst;
  }

 private:
  struct Pair {
    std::size_t write = 0, element = 0;
    double got = 0, expected = 0;
  };
  std::vector<Pair> pairs_;
  double squares_ = 0;
};

// The elements that are looked at: all, or some of them all over the place.
std::size_t sample(std::size_t i, std::size_t elements) {
  return static_cast<std::size_t>(hash(7, i, elements) % elements);
}

// C(m, n) = A B as Gemm (op.h) lays them out, one element, of one of its experts.
double product_element(const Gemm& g, const float* a, const float* b, std::int64_t expert,
                       std::int64_t row, std::int64_t column) {
  a += expert * g.m * g.k;
  b += expert * g.k * g.n;
  double sum = 0;
  for (std::int64_t l = 0; l < g.k; ++l) {
    const float left = g.role == GemmRole::kWeightGradient ? a[l * g.m + row] : a[row * g.k + l];
    const float right = g.role == GemmRole::kForward ? b[column * g.k + l] : b[l * g.n + column];
    sum += static_cast<double>(left) * right;
  }
  return sum;
}

double check_product(const Gemm& g, Trial& trial, Backend& backend) {
  const std::vector<float> before =
      g.accumulate ? trial.copy(trial.writes[0]) : std::vector<float>();
  const bool bias_gradient = g.bias && g.role == GemmRole::kWeightGradient;
  const std::vector<float> bias_before =
      bias_gradient && g.accumulate ? trial.copy(trial.writes[1]) : std::vector<float>();
  trial.run(backend);
  const float* a = trial.floats(trial.reads[0]);
  const float* b = trial.floats(trial.reads[1]);
  const float* c = trial.floats(trial.writes[0]);
  Comparison comparison;
  const auto elements = static_cast<std::size_t>(g.batch * g.m * g.n);
  for (std::size_t i = 0; i < std::min(kSamples, elements); ++i) {
    const std::size_t at = sample(i, elements);
    const auto row = static_cast<std::int64_t>(at) / g.n;
    const auto column = static_cast<std::int64_t>(at) % g.n;
    const std::int64_t expert = row / g.m;
    double expected = product_element(g, a, b, expert, row % g.m, column);
    if (g.accumulate) expected += before[at];
    if (g.bias && g.role == GemmRole::kForward) {
      expected += trial.floats(trial.reads[2])[expert * g.n + column];
    }
    comparison.add(0, at, c[at], expected);
  }
  if (!bias_gradient) return comparison.finish(g);
  const auto biases = static_cast<std::size_t>(g.batch * g.m);
  for (std::size_t i = 0; i < std::min(kSamples, biases); ++i) {
    const std::size_t at = sample(i, biases);
    const auto bias = static_cast<std::int64_t>(at);
    double expected = g.accumulate ? bias_before[at] : 0;
    for (std::int64_t l = 0; l < g.k; ++l) {
      expected += a[(bias / g.m * g.k + l) * g.m + bias % g.m];
    }
    comparison.add(1, at, trial.floats(trial.writes[1])[at], expected);
  }
  return comparison.finish(g);
}

double check_with_template(Trial& trial, Backend& backend) {
  std::vector<std::vector<double>> wide;
  std::vector<Operand> reads, writes;
  for (std::size_t i = 0; i < trial.tensors.size(); ++i) {
    wide.emplace_back();
    if (!trial.is_float(i)) continue;
    const std::vector<float> values = trial.copy(i);
    wide.back().assign(values.begin(), values.end());
  }
  const auto operand = [&](std::size_t i) {
    void* data = trial.is_float(i) ? static_cast<void*>(wide[i].data()) : trial.data(i);
    return Operand{data, &trial.tensors[i]};
  };
  for (const std::size_t i : trial.reads) reads.push_back(operand(i));
  for (const std::size_t i : trial.writes) writes.push_back(operand(i));
  cpu::Scratch<double> scratch;
  cpu::compute<double>({trial.op, reads, writes, trial.place, trial.dropout}, scratch);
  std::vector<std::vector<std::int32_t>> slots(trial.tensors.size());
  for (const std::size_t i : trial.writes) {
    if (trial.tensors[i].dtype != Dtype::kInt32) continue;
    slots[i].assign(trial.integers(i), trial.integers(i) + trial.tensors[i].shape.elements());
  }
  trial.run(backend);
  double worst = 0;
  for (std::size_t w = 0; w < trial.writes.size(); ++w) {
    const std::size_t i = trial.writes[w];
    Comparison comparison;
    for (std::size_t at = 0; at < wide[i].size(); ++at) {
      comparison.add(w, at, trial.floats(i)[at], wide[i][at]);
    }
    for (std::size_t at = 0; at < slots[i].size(); ++at) {
      comparison.add(w, at, trial.integers(i)[at], slots[i][at]);
    }
    worst = std::max(worst, comparison.finish(trial.op));
  }
  return worst;
}

// The optimizer on a stretch of odd length.
double check_update(const Update& op, Backend& backend) {
  constexpr std::size_t kElements = 1023;
  constexpr std::int64_t kStep = 3;
  constexpr double kScale = 0.7;
  std::array<std::vector<float>, 4> state;  // weight, gradient, moments
  for (std::size_t part = 0; part < state.size(); ++part) {
    for (std::size_t i = 0; i < kElements; ++i) {
      const double sign = part < 2 ? 1 : 0;
      state[part].push_back(static_cast<float>(2 * unit(hash(3, part, i)) - sign));
    }
  }
  Comparison comparison;
  if (op.part == UpdatePart::kSquaredNorm) {
    double sum = 0;
    for (const float g : state[1]) sum += static_cast<double>(g) * g;
    comparison.add(0, 0, backend.squared_norm(state[1].data(), kElements), sum);
    return comparison.finish(op);
  }
  const auto before = state;
  AdamW o;
  o.rate = 0.1;  // so that a weight's change is not lost in its own rounding
  backend.update({state[0].data(), state[1].data(), state[2].data(), state[3].data(), kElements}, o,
                 kStep, kScale);
  for (std::size_t i = 0; i < kElements; ++i) {
    const double w = before[0][i], g = before[1][i] * kScale;
    const double m = o.beta1 * before[2][i] + (1 - o.beta1) * g;
    const double v = o.beta2 * before[3][i] + (1 - o.beta2) * g * g;
    const double step1 = m / (1 - std::pow(o.beta1, kStep));
    const double step2 = std::sqrt(v / (1 - std::pow(o.beta2, kStep))) + o.epsilon;
    comparison.add(0, i, state[0][i] - w, -o.rate * (step1 / step2 + o.decay * w));
    comparison.add(1, i, state[2][i], m);
    comparison.add(1, i, state[3][i], v);
  }
  return comparison.finish(op);
}

}  // namespace

KernelCheck check_kernels(const Job& job, Backend& backend) {
  std::vector<bool> done(job.ops.size(), false);
  KernelCheck result;
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      const auto* compute = std::get_if<Compute>(&instruction);
      if (compute == nullptr || done[static_cast<std::size_t>(compute->op)]) continue;
      done[static_cast<std::size_t>(compute->op)] = true;
      ++result.kernels;
      const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
      double error = 0;
      if (const auto* update = std::get_if<Update>(&op)) {
        error = check_update(*update, backend);
      } else {
        Trial trial(job, body, *compute);
        const auto* gemm = std::get_if<Gemm>(&op);
        error = gemm != nullptr && trial.with_weight() ? check_product(*gemm, trial, backend)
                                                       : check_with_template(trial, backend);
      }
      result.worst = std::max(result.worst, error);
    }
  }
  return result;
}

}  // namespace stepcast
