// Dispatch of an Op to its kernel, and the optimizer's loop: 16 operations an element, one pass
// over four arrays.
#include "execute/cpu/cpu_backend.h"

#include <cmath>

#include "execute/cpu/gemm.h"
#include "execute/cpu/kernels.h"
#include "execute/cpu/widen.h"
#include "sim/base/error.h"

namespace stepcast {

namespace cpu {

template <class Real>
void compute(const Work& work, Scratch<Real>& scratch) {
  match(
      work.op, [&](const Gemm& op) { run<Real>(op, work); },
      [&](const Attention& op) { run<Real>(op, work, scratch); },
      [&](const Norm& op) { run<Real>(op, work); },
      [&](const Pointwise& op) { run<Real>(op, work, scratch); },
      [&](const Gather& op) { run<Real>(op, work); }, [&](const Loss& op) { run<Real>(op, work); },
      [&](const Update&) { STEPCAST_CHECK(false, "the interpreter takes Updates apart"); });
}

template void compute<float>(const Work&, Scratch<float>&);
template void compute<double>(const Work&, Scratch<double>&);

}  // namespace cpu

namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : threads_(threads) {}

  void compute(const Work& work) override {
    if (!bound_) cpu::set_gemm_threads(threads_);
    bound_ = true;
    widener_.run(work, [&](const Work& wide) { cpu::compute<float>(wide, scratch_); });
  }

  double squared_norm(const float* values, std::int64_t elements) override {
    double sum = 0;
    for (std::int64_t i = 0; i < elements; ++i) sum += static_cast<double>(values[i]) * values[i];
    return sum;
  }

  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    const auto n = static_cast<double>(step);
    const auto real = [](double value) { return static_cast<float>(value); };
    const float beta1 = real(options.beta1), beta2 = real(options.beta2);
    const float correction1 = real(1 / (1 - std::pow(options.beta1, n)));
    const float correction2 = real(1 / (1 - std::pow(options.beta2, n)));
    const float rate = real(options.rate), decay = real(options.decay);
    const float epsilon = real(options.epsilon), clip = real(scale);
    for (std::int64_t i = 0; i < range.elements; ++i) {
      const float g = range.gradient[i] * clip;
      const float m = range.moment1[i] = beta1 * range.moment1[i] + (1 - beta1) * g;
      const float v = range.moment2[i] = beta2 * range.moment2[i] + (1 - beta2) * g * g;
      const float direction = m * correction1 / (std::sqrt(v * correction2) + epsilon);
      range.weight[i] -= rate * (direction + decay * range.weight[i]);
    }
  }

 private:
  int threads_;
  bool bound_ = false;
  cpu::Scratch<float> scratch_;
  cpu::Widener widener_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace stepcast
