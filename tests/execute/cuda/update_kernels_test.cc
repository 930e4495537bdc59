// AdamW and the gradients' norm, emulated, against the CPU's and against double.
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/cuda/update_kernels.h"
#include "tests/support/emulated_block.h"

namespace stepcast::cuda {
namespace {

constexpr std::size_t kSize = 1001;

std::vector<float> random(std::uint32_t seed, bool squared = false) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(kSize);
  for (float& x : out) {
    x = normal(generator);
    if (squared) x *= x;
  }
  return out;
}

std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> out;
  for (const float x : values) out.push_back(round_bf16(x));
  return out;
}

struct Step {
  AdamW options;
  std::int64_t number = 3;
  float squared_norm = 25;  // clipped to a fifth
  float corrections[2];

  Step() {
    const auto n = static_cast<double>(number);
    corrections[0] = static_cast<float>(1 / (1 - std::pow(options.beta1, n)));
    corrections[1] = static_cast<float>(1 / (1 - std::pow(options.beta2, n)));
  }
  AdamWKernel kernel() const {
    AdamWKernel kernel;
    kernel.options(options);
    kernel.corrections = corrections;
    kernel.squared_norm = &squared_norm;
    return kernel;
  }
  double scale() const { return options.clip / (std::sqrt(squared_norm) + 1e-6); }
};

// From element 1 on: no stretch of eight is aligned, and the result is the same.
TEST(AdamWKernel, StepsAsTheCpuDoes) {
  const Step step;
  for (const std::int64_t from : {0, 1}) {
    std::vector<float> w = random(1), g = random(2), m = random(3), v = random(4, true);
    std::vector<float> cpu_w = w, cpu_m = m, cpu_v = v;
    AdamWKernel kernel = step.kernel();
    kernel.size = static_cast<std::int64_t>(kSize) - from;
    kernel.weight = View{w.data(), Storage::kFp32}.from(from);
    kernel.gradient = ConstView{g.data(), Storage::kFp32}.from(from);
    kernel.moment1 = View{m.data(), Storage::kFp32}.from(from);
    kernel.moment2 = View{v.data(), Storage::kFp32}.from(from);
    emulate(kernel);
    make_cpu_backend(1)->update({cpu_w.data() + from, g.data() + from, cpu_m.data() + from,
                                 cpu_v.data() + from, kernel.size},
                                step.options, step.number, step.scale());
    for (std::size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(w[i], cpu_w[i], 1e-6);
      EXPECT_NEAR(m[i], cpu_m[i], 1e-6);
      EXPECT_NEAR(v[i], cpu_v[i], 1e-6);
    }
  }
}

// bf16 weights follow an fp32 master, which moves by less than bf16 can hold; moments in bf16.
TEST(AdamWKernel, KeepsAMasterCopyBesideBf16Weights) {
  const Step step;
  const std::vector<float> start = random(1);
  std::vector<float> master = start;
  std::vector<Bf16> w = rounded(start), g = rounded(random(2));
  std::vector<Bf16> m = rounded(random(3)), v = rounded(random(4, true));
  const std::vector<Bf16> old_m = m, old_v = v;
  AdamWKernel kernel = step.kernel();
  kernel.size = static_cast<std::int64_t>(kSize);
  kernel.weight = {w.data(), Storage::kBf16};
  kernel.master = {master.data(), Storage::kFp32};
  kernel.gradient = {g.data(), Storage::kBf16};
  kernel.moment1 = {m.data(), Storage::kBf16};
  kernel.moment2 = {v.data(), Storage::kBf16};
  emulate(kernel);
  const AdamW& o = step.options;
  for (std::size_t i = 0; i < kSize; ++i) {
    const double gradient = static_cast<double>(widen(g[i])) * step.scale();
    const double first = o.beta1 * static_cast<double>(widen(old_m[i])) + (1 - o.beta1) * gradient;
    const double second =
        o.beta2 * static_cast<double>(widen(old_v[i])) + (1 - o.beta2) * gradient * gradient;
    const double root = std::sqrt(second * static_cast<double>(step.corrections[1]));
    const double direction = first * static_cast<double>(step.corrections[0]) / (root + o.epsilon);
    const auto before = static_cast<double>(start[i]);
    const double expected = before - o.rate * (direction + o.decay * before);
    EXPECT_NEAR(static_cast<double>(master[i]), expected, 1e-6);
    EXPECT_EQ(w[i].bits, round_bf16(master[i]).bits);
    EXPECT_EQ(m[i].bits, round_bf16(widen(m[i])).bits);
    EXPECT_NEAR(static_cast<double>(widen(m[i])), first, 4e-3 * (1e-3 + std::abs(first)));
    EXPECT_NEAR(static_cast<double>(widen(v[i])), second, 4e-3 * (1e-3 + second));
  }
}

TEST(SquaredNorm, AddsUpStretchesOfBothDtypes) {
  const std::vector<float> a = random(1);
  const std::vector<Bf16> b = rounded(random(2));
  double expected = 10;
  for (std::size_t i = 0; i < kSize; ++i) {
    expected += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    expected += static_cast<double>(widen(b[i])) * static_cast<double>(widen(b[i]));
  }
  std::vector<float> partials(kSquaredNormFloats, std::nanf(""));
  float sum = 10;
  const auto size = static_cast<std::int64_t>(kSize);
  emulate(SquaredNormPartials{size, {a.data(), Storage::kFp32}, false, partials.data()});
  emulate(SquaredNormPartials{size, {b.data(), Storage::kBf16}, true, partials.data()});
  emulate(SquaredNormTotal{partials.data(), &sum}, WarpOrder::kDown);
  EXPECT_NEAR(static_cast<double>(sum), expected, 1e-6 * expected);
}

}  // namespace
}  // namespace stepcast::cuda
