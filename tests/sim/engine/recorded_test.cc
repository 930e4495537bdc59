// A step composed again of what its instances took, and devices of one stream.
#include <gtest/gtest.h>

#include "sim/engine/simulate.h"
#include "tests/support/random_job.h"

namespace stepcast {
namespace {

Prices on_one_stream(const Job& job, std::uint64_t seed) {
  Prices prices = random_prices(job, seed);
  prices.slow.clear();
  prices.beside.clear();
  prices.issue = Duration();
  prices.one_stream = true;
  prices.receives = prices.transfers;
  return prices;
}

// The marks that the ranks of a simulated step would have left.
std::vector<Marks> marks_of(const Timeline& timeline) {
  std::vector<Marks> marks(timeline.ranks.size());
  for (std::size_t r = 0; r < marks.size(); ++r) marks[r].rank = static_cast<std::int32_t>(r);
  for (const Span& span : timeline.trace.spans) {
    marks[static_cast<std::size_t>(span.rank)].ends.push_back(span.end);
  }
  return marks;
}

Timeline all_ranks(const Job& job, const Prices& prices, bool trace) {
  SimulateOptions options;
  options.ranks = Ranks::kAll;
  options.trace = trace;
  return simulate(job, prices, options);
}

// What a simulation says, recorded as if it had been a run, and simulated again, is the same step:
// to the picosecond, rank by rank.
TEST(Recorded, ComposesASimulatedStepAgain) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Job job = random_job(seed);
    const Timeline step = all_ranks(job, on_one_stream(job, seed), true);
    const std::vector<Marks> marks = marks_of(step);
    const Recording recording = record(job, marks);
    EXPECT_EQ(recording.step, step.step) << seed;
    const Timeline again = simulate(job, recording);
    EXPECT_EQ(again.step, step.step) << seed;
    for (std::size_t r = 0; r < again.ranks.size(); ++r) {
      EXPECT_EQ(again.ranks[r].end, step.ranks[r].end) << seed;
    }
  }
}

// On one stream nothing overlaps: a rank takes at least all that it issues, one after the other.
TEST(OneStream, TakesAtLeastTheSumOfARanksOwnWork) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Job job = random_job(seed);
    const Prices prices = on_one_stream(job, seed);
    const Timeline step = all_ranks(job, prices, false);
    for (const RankTime& rank : step.ranks) {
      Duration own;
      const auto& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank.rank))];
      for_each_timed(
          job, program, [&](const Call&, std::size_t, const Instruction& what, std::size_t) {
            own += match(
                what, [&](const Compute& c) { return prices.ops[static_cast<std::size_t>(c.op)]; },
                [&](const Collective& c) {
                  return prices.transfers[static_cast<std::size_t>(c.transfer)];
                },
                [&](const Send& s) {
                  return prices.transfers[static_cast<std::size_t>(s.transfer)];
                },
                [&](const Receive& r) {
                  return prices.receives[static_cast<std::size_t>(r.transfer)];
                },
                [](const auto&) { return Duration(); });
          });
      EXPECT_GE(rank.end - Instant(), own) << seed;
      Duration parts;
      for (const Duration part : rank.breakdown) parts += part;
      EXPECT_EQ(parts, step.step) << seed;
    }
  }
}

TEST(OneStream, FoldsToTheSameStep) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Job job = random_job(seed);
    const Prices prices = on_one_stream(job, seed);
    EXPECT_EQ(simulate(job, prices).step, all_ranks(job, prices, false).step) << seed;
  }
}

}  // namespace
}  // namespace stepcast
