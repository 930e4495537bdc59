// Loops against double precision, and the instruction sets against each other.
#include "execute/cpu/loops.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "execute/hash.h"

namespace stepcast::cpu {
namespace {

// Numbers in [low, high), from a seed.
std::vector<float> numbers(std::size_t n, double low, double high, std::uint64_t seed) {
  std::vector<float> result;
  for (std::size_t i = 0; i < n; ++i) {
    result.push_back(static_cast<float>(low + (high - low) * unit(hash(seed, i, 0))));
  }
  return result;
}

TEST(Loops, ExponentialsAreExactToTwoUnitsInTheLastPlace) {
  for (const Loops* loops : supported_loops()) {
    const std::vector<float> x = numbers(100'000, -87, 88, 1);
    std::vector<float> y(x.size());
    loops->exponentials(x.data(), 0, y.data(), std::ssize(x));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(static_cast<double>(x[i]));
      EXPECT_NEAR(y[i] / expected, 1, 2.5e-7) << loops->name << " exp(" << x[i] << ")";
    }
  }
}

TEST(Loops, ExponentialsOfWhatIsNoNumberAreNone) {
  const std::vector<float> x = {-1e30f, -std::numeric_limits<float>::infinity(), 0, 1e30f,
                                std::numeric_limits<float>::quiet_NaN()};
  for (const Loops* loops : supported_loops()) {
    std::vector<float> y(x.size());
    loops->exponentials(x.data(), 0, y.data(), std::ssize(x));
    EXPECT_LE(y[0], 1e-37f);
    EXPECT_LE(y[1], 1e-37f);
    EXPECT_EQ(y[2], 1);
    EXPECT_GT(y[3], 1e38f);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_TRUE(loops->any_nan(y.data(), std::ssize(y)));
    EXPECT_FALSE(loops->any_nan(y.data(), std::ssize(y) - 1));
  }
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }
template <class F>
double slope(F f, double x) {
  return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

TEST(Loops, ActivationsAndTheirSlopesAreThoseOfTheFormulae) {
  const std::vector<float> x = numbers(1000, -8, 8, 2), up = numbers(1000, -2, 2, 3);
  const std::vector<float> d = numbers(1000, -2, 2, 4);
  const std::int64_t n = std::ssize(x);
  std::vector<float> y(x.size()), dx(x.size()), gated(x.size()), dg(x.size()), du(x.size());
  for (const Loops* loops : supported_loops()) {
    loops->gelu(x.data(), y.data(), n);
    loops->gelu_backward(d.data(), x.data(), dx.data(), n);
    loops->silu_gate(x.data(), up.data(), gated.data(), n);
    loops->silu_gate_backward(d.data(), x.data(), up.data(), dg.data(), du.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(y[i], gelu(x[i]), 2e-6);
      EXPECT_NEAR(dx[i], d[i] * slope(gelu, x[i]), 1e-5);
      EXPECT_NEAR(gated[i], silu(x[i]) * up[i], 4e-6);
      EXPECT_NEAR(dg[i], d[i] * up[i] * slope(silu, x[i]), 1e-5);
      EXPECT_NEAR(du[i], d[i] * silu(x[i]), 4e-6);
    }
    loops->gelu_gate(x.data(), up.data(), gated.data(), n);
    loops->gelu_gate_backward(d.data(), x.data(), up.data(), dg.data(), du.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(gated[i], gelu(x[i]) * up[i], 4e-6);
      EXPECT_NEAR(dg[i], d[i] * up[i] * slope(gelu, x[i]), 2e-5);
      EXPECT_NEAR(du[i], d[i] * gelu(x[i]), 4e-6);
    }
  }
}

TEST(Loops, SumsAreOfAllNumbersHoweverMany) {
  for (const Loops* loops : supported_loops()) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 31, 1000}) {
      const std::vector<float> a = numbers(1000, -1, 1, 5), b = numbers(1000, -1, 1, 6);
      double dot = 0, squares = 0, most = std::numeric_limits<float>::lowest();
      for (std::int64_t i = 0; i < n; ++i) {
        const double x = a[static_cast<std::size_t>(i)];
        dot += x * b[static_cast<std::size_t>(i)];
        squares += x * x;
        most = std::max(most, x);
      }
      EXPECT_NEAR(loops->dot(a.data(), b.data(), n), dot, 1e-4);
      EXPECT_NEAR(loops->squares(a.data(), n), squares, 1e-9);
      EXPECT_EQ(loops->maximum(a.data(), n), static_cast<float>(most));
    }
  }
}

// Bytes of everything that the loops make of some numbers.
std::vector<float> everything(const Loops& loops, std::int64_t n) {
  const auto size = static_cast<std::size_t>(n);
  const std::vector<float> a = numbers(size, -4, 4, 7), b = numbers(size, -4, 4, 8);
  std::vector<float> all, out(size), more(size), m1(size), m2(size, 1e-3f);
  const auto keep = [&](const std::vector<float>& v) { all.insert(all.end(), v.begin(), v.end()); };
  all.push_back(loops.exponentials(a.data(), 1, out.data(), n));
  keep(out);
  loops.gelu_gate_backward(a.data(), b.data(), a.data(), out.data(), more.data(), n);
  keep(out);
  keep(more);
  float statistics[2] = {};
  loops.norm(a.data(), b.data(), a.data(), out.data(), true, 1e-5f, statistics, n);
  keep(out);
  loops.norm_backward(a.data(), b.data(), b.data(), statistics[0], statistics[1], true, out.data(),
                      more.data(), m1.data(), n);
  keep(out);
  keep(more);
  loops.adam(out.data(), a.data(), m1.data(), m2.data(),
             {0.9f, 0.95f, 2, 3, 1e-3f, 0.01f, 1e-8f, 1}, n);
  keep(out);
  keep(m2);
  all.push_back(loops.dot(a.data(), b.data(), n));
  return all;
}

TEST(Loops, GiveTheSameBitsOnEveryInstructionSet) {
  for (const std::int64_t n : {1, 15, 16, 100, 1023}) {
    const std::vector<float> expected = everything(*supported_loops().front(), n);
    for (const Loops* loops : supported_loops()) {
      const std::vector<float> found = everything(*loops, n);
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
          << loops->name << " with " << n;
    }
  }
}

}  // namespace
}  // namespace stepcast::cpu
