// Dispatch of an Op to its kernel, and what is no Op's: norms, updates.
#include "execute/cpu/cpu_backend.h"

#include <cmath>

#include "execute/cpu/gemm.h"
#include "execute/cpu/kernels.h"
#include "execute/cpu/loops.h"
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
      [&](const Update&) { STEPCAST_CHECK(false, "the interpreter takes Updates apart"); },
      [&](const Route& op) { run<Real>(op, work, scratch); },
      [&](const Permute& op) { run<Real>(op, work, scratch); },
      [&](const Regroup& op) { run<Real>(op, work); },
      [&](const OwnSlots& op) { run(op, work); },
      [&](const ShareHeads& op) { run<Real>(op, work); },
      [&](const LatentKeys& op) { run<Real>(op, work, scratch); });
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
    return cpu::loops().squares(values, elements);
  }

  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    const auto n = static_cast<double>(step);
    const auto real = [](double value) { return static_cast<float>(value); };
    cpu::Loops::Adam numbers;
    numbers.beta1 = real(options.beta1);
    numbers.beta2 = real(options.beta2);
    numbers.correction1 = real(1 / (1 - std::pow(options.beta1, n)));
    numbers.correction2 = real(1 / (1 - std::pow(options.beta2, n)));
    numbers.rate = real(options.rate);
    numbers.decay = real(options.decay);
    numbers.epsilon = real(options.epsilon);
    numbers.clip = real(scale);
    cpu::loops().adam(range.weight, range.gradient, range.moment1, range.moment2, numbers,
                      range.elements);
  }

  bool has_nan(const Operand& operand) override {
    if (operand.tensor->dtype != Dtype::kFp32) return Backend::has_nan(operand);
    return cpu::loops().any_nan(cpu::values<float>(operand), operand.tensor->shape.elements());
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
