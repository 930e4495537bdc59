// Divisors by trial up to the square root: O(sqrt n), for n of a few millions at most.
#include "models/choices.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stepcast {

namespace {

constexpr std::size_t kDivisorsShown = 12;

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    found.push_back(d);
    if (d != number / d) found.push_back(number / d);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below < unit ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

std::string nearest_divisors(std::int64_t value, std::int64_t number) {
  const std::vector<std::int64_t> all = divisors(number);
  const auto above = std::upper_bound(all.begin(), all.end(), value);
  if (above == all.end()) return fmt::format("{}", all.back());
  if (above == all.begin()) return fmt::format("{}", all.front());
  return fmt::format("{} or {}", *(above - 1), *above);
}

std::string divisors_text(std::int64_t number, std::int64_t unit) {
  std::vector<std::int64_t> all = divisors(number);
  for (std::int64_t& divisor : all) divisor *= unit;
  if (all.size() == 1) return fmt::format("{}", unit);
  if (all.size() > kDivisorsShown) {
    const std::string of = unit == 1 ? "" : fmt::format("{} times ", unit);
    return fmt::format("{}a divisor of {}: {}, ... or {}", of, number,
                       fmt::join(all.begin(), all.begin() + kDivisorsShown - 1, ", "), all.back());
  }
  return fmt::format("{} or {}", fmt::join(all.begin(), all.end() - 1, ", "), all.back());
}

}  // namespace stepcast
