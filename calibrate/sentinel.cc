// Sixteen chains of dependent multiplications and additions, always as many: no memory, no branch
// that depends on data, nothing that a compiler may leave out.
#include "calibrate/sentinel.h"

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr int kRounds = 2'500'000;
constexpr std::size_t kChains = 16;

double spend() {
  const auto begin = std::chrono::steady_clock::now();
  std::array<float, kChains> x;
  for (std::size_t i = 0; i < kChains; ++i) x[i] = 1 + static_cast<float>(i);
  for (int round = 0; round < kRounds; ++round) {
    for (float& value : x) value = value * 0.5f + 1.0f;
  }
  float sum = 0;
  for (const float value : x) sum += value;
  // Every chain tends to 2.
  STEPCAST_CHECK(sum > 31.9f && sum < 32.1f, "arithmetic works");
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return time.count();
}

}  // namespace

Seconds run_sentinel(int threads) {
  STEPCAST_CHECK(threads >= 1, "a thread at least");
  std::vector<double> times(static_cast<std::size_t>(threads), 0.0);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < times.size(); ++i) {
    others.emplace_back([&times, i] { times[i] = spend(); });
  }
  times[0] = spend();
  for (std::thread& other : others) other.join();
  double sum = 0;
  for (const double time : times) sum += time;
  return Seconds(sum / static_cast<double>(times.size()));
}

}  // namespace stepcast
