// Balanced: layers are equal, so the least possible slowest part comes from giving one layer after
// the other to the part that has the least work so far, embedding and head counted (longest
// processing time first is optimal for equal jobs). Cost: layers x parts.
#include "models/stages.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace stepcast {

namespace {

std::vector<std::int64_t> balanced(std::int64_t layers, std::size_t parts, Flops layer,
                                   Flops before, Flops after) {
  std::vector<Flops> work(parts);
  std::vector<std::int64_t> counts(parts, 0);
  work.front() += before;
  work.back() += after;
  for (std::int64_t i = 0; i < layers; ++i) {
    std::size_t least = 0;
    for (std::size_t p = 1; p < parts; ++p) {
      // A part in the middle must not stay empty, whatever the ends cost.
      const bool needs = counts[p] == 0 && p + 1 < parts && counts[least] > 0;
      if (needs || work[p] < work[least]) least = p;
    }
    ++counts[least];
    work[least] += layer;
  }
  return counts;
}

std::vector<std::int64_t> even(std::int64_t layers, std::size_t parts) {
  const auto n = static_cast<std::int64_t>(parts);
  std::vector<std::int64_t> counts(parts, layers / n);
  for (std::int64_t i = 0; i < layers % n; ++i) ++counts[static_cast<std::size_t>(i)];
  return counts;
}

}  // namespace

std::vector<BlockRange> lay_out(const Network& network, const Plan& plan) {
  const auto numbered = [&](std::int32_t kind) {
    return network.kinds[static_cast<std::size_t>(kind)].numbered;
  };
  const auto begin = network.chain.begin(), end = network.chain.end();
  const auto first = std::find_if(begin, end, numbered);
  const auto last = std::find_if_not(first, end, numbered);
  const auto work = [&](auto from, auto to) {
    Flops sum;
    for (auto it = from; it != to; ++it) {
      sum += forward_flops(network.kinds[static_cast<std::size_t>(*it)]);
    }
    return sum;
  };
  const std::int64_t layers = last - first;
  const auto parts = static_cast<std::size_t>(plan.pipeline * plan.virtual_stages);
  std::vector<std::int64_t> counts;
  switch (plan.layout) {
    case StageLayout::kEven: counts = even(layers, parts); break;
    case StageLayout::kGiven: counts = plan.stages; break;
    case StageLayout::kBalanced:
      counts = balanced(layers, parts, layers > 0 ? work(first, first + 1) : Flops(),
                        work(begin, first), work(last, end));
      break;
  }
  STEPCAST_CHECK(counts.size() == parts, "one count a part");
  STEPCAST_CHECK(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == layers,
                 "every layer is laid on one part");
  std::vector<BlockRange> result;
  std::int32_t at = 0;
  for (std::size_t p = 0; p < parts; ++p) {
    BlockRange part{at, at + static_cast<std::int32_t>(counts[p])};
    if (p == 0) part.last += static_cast<std::int32_t>(first - begin);
    if (p + 1 == parts) part.last += static_cast<std::int32_t>(end - last);
    if (part.size() == 0) {
      throw Error("plan: parallel.stages",
                  fmt::format("part {} of {} has no layers; use fewer pipeline or virtual stages",
                              p, parts));
    }
    result.push_back(part);
    at = part.last;
  }
  return result;
}

}  // namespace stepcast
