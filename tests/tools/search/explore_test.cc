#include "tools/search/explore.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/tools/small_whatif.h"
#include "tools/forecast/forecast.h"
#include "tools/search/space.h"

namespace stepcast {
namespace {

using Sets = std::vector<std::string>;

// A long sequence, and scores that are kept: of the small plans some fit and some do not.
const Sets kLong = {"model.positions=16384", "batch.sequence_length=16384", "batch.micro=1",
                    "attention=unfused"};

std::vector<ClusterPlans> clusters(const Sets& changes, const std::vector<std::int64_t>& nodes,
                                   const std::vector<Choice>& given = {}) {
  const WhatIfFile question = WhatIfFile(parse_json(kSmallWhatIf, "plan.json")).changed(changes);
  std::vector<ClusterPlans> all;
  for (const std::int64_t n : nodes) {
    const Sets sets = {"cluster.nodes=" + std::to_string(n)};
    const WhatIfFile resized = question.changed(sets);
    all.push_back({8 * n, resized, sets, candidates(resized, 64, given)});
  }
  return all;
}

struct Brute {
  std::int64_t devices = 0;
  Sets sets;
  Duration step;
  Bytes peak;
};

// Every legal candidate, forecast as `simulate` does.
std::vector<Brute> brute_force(const Sets& changes, const std::vector<ClusterPlans>& all) {
  std::vector<Brute> found;
  for (const ClusterPlans& cluster : all) {
    for (const Sets& candidate : cluster.candidates) {
      Brute one;
      one.devices = cluster.devices;
      one.sets = cluster.sets;
      one.sets.insert(one.sets.end(), candidate.begin(), candidate.end());
      Sets words = changes;
      words.insert(words.end(), one.sets.begin(), one.sets.end());
      try {
        const Report report = forecast(small_what_if(words)).report;
        one.step = report.timeline.step;
        one.peak = device_peak(report.footprint);
        found.push_back(std::move(one));
      } catch (const Error&) {
        continue;
      }
    }
  }
  return found;
}

double device_time(const Brute& plan) {
  return to_seconds(plan.step).value * static_cast<double>(plan.devices);
}

// As the definition has it: nothing as good in everything is better in something.
bool on_front(const Brute& plan, const std::vector<Brute>& fit) {
  return std::none_of(fit.begin(), fit.end(), [&](const Brute& other) {
    const bool as_good = other.step <= plan.step && other.peak <= plan.peak &&
                         device_time(other) <= device_time(plan);
    const bool better =
        other.step < plan.step || other.peak < plan.peak || device_time(other) < device_time(plan);
    return as_good && better;
  });
}

// The two agree on how many are legal and fit, on the steps of the first `top`, and on the front.
void expect_as_brute_force(const Sets& changes, const std::vector<std::int64_t>& nodes,
                           std::size_t top, const std::vector<Choice>& given = {}) {
  const std::vector<ClusterPlans> all = clusters(changes, nodes, given);
  ExploreOptions options;
  options.top = top;
  const Findings found = explore(all, options);
  const std::vector<Brute> legal = brute_force(changes, all);
  ASSERT_EQ(found.candidates - found.refused, std::ssize(legal));
  std::vector<Brute> fit;
  std::copy_if(legal.begin(), legal.end(), std::back_inserter(fit),
               [&](const Brute& plan) { return plan.peak <= found.limit; });
  EXPECT_LE(found.fit, std::ssize(fit));
  EXPECT_GE(found.fit + found.not_needed, std::ssize(fit));

  for (const ClusterPlans& cluster : all) {
    std::vector<Duration> best, ranked;
    for (const Brute& plan : fit) {
      if (plan.devices == cluster.devices) best.push_back(plan.step);
    }
    std::sort(best.begin(), best.end());
    best.resize(std::min(best.size(), top));
    for (const RankedPlan& plan : found.plans) {
      if (plan.devices != cluster.devices || plan.rank == 0) continue;
      ranked.push_back(plan.step);
      EXPECT_EQ(plan.rank, std::ssize(ranked));
    }
    EXPECT_EQ(ranked, best) << cluster.devices;
  }
  // Of plans that are equal in everything, one stands for all.
  using Point = std::tuple<std::int64_t, Duration, Bytes>;
  std::set<Point> front, marked;
  for (const Brute& plan : fit) {
    if (on_front(plan, fit)) front.emplace(plan.devices, plan.step, plan.peak);
  }
  for (const RankedPlan& plan : found.plans) {
    if (plan.pareto) marked.emplace(plan.devices, plan.step, plan.peak);
  }
  EXPECT_EQ(marked, front);
  EXPECT_FALSE(front.empty());
}

const std::vector<Choice> kFewer = {{"parallel.tensor", {"1", "2", "4"}},
                                    {"parallel.sequence_parallel", {"true"}},
                                    {"sharding.zero", {"0", "3"}},
                                    {"batch.micro", {"1", "4"}}};
const std::vector<Choice> kFewest = {{"parallel.tensor", {"1", "2"}},
                                     {"parallel.sequence_parallel", {"true"}},
                                     {"sharding.zero", {"0", "3"}},
                                     {"batch.micro", {"1"}}};

TEST(Explore, FindsWhatBruteForceFinds) { expect_as_brute_force({}, {1}, 5, kFewer); }

TEST(Explore, FindsWhatBruteForceFindsWhereSomePlansDoNotFit) {
  const Findings found = explore(clusters(kLong, {1}, kFewest), {});
  EXPECT_GT(found.too_large, 0);
  EXPECT_GT(found.simulated, 0);
  expect_as_brute_force(kLong, {1}, 5, kFewest);
}

TEST(Explore, FindsWhatBruteForceFindsOnSeveralClusters) {
  expect_as_brute_force({}, {1, 2}, 2, kFewest);
}

// The front is whole even where nothing is ranked beyond the best.
TEST(Explore, FindsTheWholeFrontWhateverIsRanked) { expect_as_brute_force({}, {1}, 1, kFewer); }

// What is live of a plan fits, what its allocator caches besides does not: only the replay tells.
TEST(Explore, FindsWhatBruteForceFindsWhereOnlyTheAllocatorSaysNo) {
  const std::vector<ClusterPlans> all = clusters({}, {1}, kFewest);
  const Findings free = explore(all, {});
  ASSERT_FALSE(free.plans.empty());
  const std::int64_t least = free.plans.front().peak.count - 1;
  const Sets changes = {"expect.peak_memory=<= " + std::to_string(least) + " B"};
  EXPECT_GT(explore(clusters(changes, {1}, kFewest), {}).too_fragmented, 0);
  expect_as_brute_force(changes, {1}, 5, kFewest);
}

TEST(Explore, SaysTheSameOnAnyNumberOfThreads) {
  const std::vector<ClusterPlans> all = clusters(kLong, {1}, kFewest);
  const auto told = [&](std::size_t threads) {
    ExploreOptions options;
    options.threads = threads;
    const Findings found = explore(all, options);
    std::vector<std::tuple<Sets, Duration, Bytes, bool>> plans;
    for (const RankedPlan& plan : found.plans) {
      plans.emplace_back(plan.sets, plan.step, plan.peak, plan.pareto);
    }
    std::vector<std::string> refusals;
    for (const Refusal& refusal : found.refusals) {
      refusals.push_back(refusal.key + std::to_string(refusal.count) + refusal.example);
    }
    return std::tuple(plans, refusals, found.fit, found.too_fragmented, found.not_needed);
  };
  EXPECT_EQ(told(1), told(3));
}

TEST(Explore, CountsEveryCandidateOnce) {
  const Findings found = explore(clusters(kLong, {1}, kFewer), {});
  EXPECT_EQ(found.candidates, found.refused + found.too_large + found.simulated);
  EXPECT_EQ(found.simulated, found.fit + found.too_fragmented + found.not_needed);
  std::int64_t refused = 0;
  for (const Refusal& refusal : found.refusals) refused += refusal.count;
  EXPECT_EQ(refused, found.refused);
}

// What the file expects of the peak is the limit, not the device.
TEST(Explore, HoldsTheMemoryThatTheFileExpects) {
  const Sets changes = {"expect.peak_memory=<= 3 GB"};
  const Findings found = explore(clusters(changes, {1}, kFewer), {});
  ASSERT_EQ(found.limit, Bytes(3'000'000'000));
  EXPECT_GT(found.capacity, found.limit);
  for (const RankedPlan& plan : found.plans) EXPECT_LE(plan.peak, found.limit);
}

TEST(Explore, NamesWhatComesNearestWhereNothingFits) {
  const Sets changes = {"expect.peak_memory=<= 100 MB"};
  const std::vector<ClusterPlans> all = clusters(changes, {1}, kFewer);
  const Findings found = explore(all, {});
  EXPECT_TRUE(found.plans.empty());
  ASSERT_EQ(found.nearest.size(), 3u);
  Bytes least = found.nearest.front().peak;
  for (const Brute& plan : brute_force(changes, all)) least = std::min(least, plan.peak);
  EXPECT_EQ(found.nearest.front().peak, least);
}

TEST(Explore, CallsOverlappingRangesATie) {
  ExploreOptions options;
  ErrorClass error;  // a step may have been a fiftieth longer or shorter
  error.kind = kLaunchBound;
  error.runs = 9;
  error.low = -0.02;
  error.high = 0.02;
  options.errors = {error};
  const Findings found = explore(clusters({}, {1}, kFewest), options);
  ASSERT_FALSE(found.plans.empty());
  const RankedPlan& first = found.plans.front();
  ASSERT_LT(first.low, first.high);
  std::ptrdiff_t ties = 0;
  for (const RankedPlan& plan : found.plans) {
    EXPECT_EQ(plan.tie, plan.low <= first.high);
    ties += plan.tie;
  }
  EXPECT_GE(ties, 1);
  EXPECT_LT(ties, std::ssize(found.plans));
}

}  // namespace
}  // namespace stepcast
