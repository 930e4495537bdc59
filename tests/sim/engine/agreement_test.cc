// The readers of a Job against each other, on many small random Jobs.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "sim/engine/compile.h"
#include "sim/engine/simulate.h"
#include "sim/engine/walk.h"
#include "tests/support/longest_path.h"
#include "tests/support/random_job.h"

namespace stepcast {
namespace {

constexpr std::uint64_t kSeeds = 300;

void expect_equal(const Timeline& a, const Timeline& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.slowest, b.slowest);
  EXPECT_EQ(a.bubble_fraction, b.bubble_fraction);
  EXPECT_EQ(a.instructions, b.instructions);
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t r = 0; r < a.ranks.size(); ++r) {
    EXPECT_EQ(a.ranks[r].rank, b.ranks[r].rank);
    EXPECT_EQ(a.ranks[r].end, b.ranks[r].end) << "rank " << r;
    EXPECT_EQ(a.ranks[r].pipeline_end, b.ranks[r].pipeline_end) << "rank " << r;
    EXPECT_EQ(a.ranks[r].breakdown, b.ranks[r].breakdown) << "rank " << r;
    EXPECT_EQ(a.ranks[r].basis, b.ranks[r].basis) << "rank " << r;
  }
}

Prices slowed(Prices prices, const Job& job, std::uint64_t seed) {
  for (int r = 0; r < job.mesh.ranks(); ++r) {
    prices.slow.push_back((static_cast<std::uint64_t>(r) + seed) % 3 == 0 ? 1.37 : 1.0);
  }
  return prices;
}

// Every stream slows the others by a factor of its own, some by nothing.
Prices with_beside(Prices prices, const Job& job, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto factor = [&] {
    return random() % 3 == 0 ? 1.0 : 1 + 0.01 * static_cast<double>(random() % 150);
  };
  for (const Stream stream : {Stream::kTensor, Stream::kData, Stream::kReplica, Stream::kGlobal,
                              Stream::kSendForward, Stream::kSendBackward}) {
    Beside beside;
    beside.stream = stream;
    for (std::size_t i = 0; i < job.ops.size(); ++i) beside.ops.push_back(factor());
    for (std::size_t i = 0; i < job.transfers.size(); ++i) beside.transfers.push_back(factor());
    prices.beside.push_back(std::move(beside));
  }
  return prices;
}

TEST(RandomJob, Verifies) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    ASSERT_EQ(verify(random_job(seed)), "") << "seed " << seed;
  }
}

// Every end of every piece of work, with and without slow ranks.
TEST(Simulate, AgreesWithTheLongestPath) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    Prices prices = random_prices(job, seed);
    if (seed % 2 == 1) prices = slowed(prices, job, seed);
    const Timeline timeline = simulate(job, prices, {Ranks::kAll, true});
    const PathTimes paths = longest_path(job, prices);
    ASSERT_EQ(Instant() + timeline.step, paths.end);
    std::vector<std::size_t> next(paths.ends.size(), 0);
    for (const Span& span : timeline.trace.spans) {
      const auto r = static_cast<std::size_t>(span.rank);
      ASSERT_LT(next[r], paths.ends[r].size());
      ASSERT_EQ(span.end, paths.ends[r][next[r]]) << "rank " << r << ", work " << next[r];
      ASSERT_LE(span.begin, span.end);
      ++next[r];
    }
    for (std::size_t r = 0; r < next.size(); ++r) {
      EXPECT_EQ(next[r], paths.ends[r].size());
      EXPECT_EQ(timeline.ranks[r].end, paths.rank_end[r]);
    }
  }
}

TEST(Simulate, FoldedAgreesWithAllRanksToThePicosecond) {
  for (std::uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    Prices prices = random_prices(job, seed);
    if (seed % 2 == 1) prices = with_beside(std::move(prices), job, seed);
    const Timeline folded = simulate(job, prices);
    const Timeline all = simulate(job, prices, {Ranks::kAll});
    ASSERT_EQ(folded.step, all.step);
    EXPECT_NEAR(folded.bubble_fraction, all.bubble_fraction, 1e-12);
    ASSERT_EQ(folded.ranks.size(), job.programs.size());
    for (const RankTime& all_rank : all.ranks) {
      const RankTime& one = folded.ranks[static_cast<std::size_t>(job.mesh.stage(all_rank.rank))];
      ASSERT_EQ(job.mesh.stage(one.rank), job.mesh.stage(all_rank.rank));
      ASSERT_EQ(one.end, all_rank.end);
      ASSERT_EQ(one.pipeline_end, all_rank.pipeline_end);
      ASSERT_EQ(one.breakdown, all_rank.breakdown);
      ASSERT_EQ(one.basis, all_rank.basis);
    }
  }
}

TEST(Simulate, RemembersWithoutChangingAnything) {
  for (std::uint64_t seed = 0; seed < 3 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    Prices prices = random_prices(job, seed);
    if (seed % 2 == 1) prices = with_beside(std::move(prices), job, seed);
    SimulateOptions plain;
    plain.memoise = false;
    expect_equal(simulate(job, prices), simulate(job, prices, plain));
    plain.trace = true;
    expect_equal(simulate(job, prices), simulate(job, prices, plain));
  }
}

TEST(Simulate, DoesNotDependOnTheOrderOfTheWorklist) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    const Prices prices = with_beside(slowed(random_prices(job, seed), job, seed), job, seed);
    const Code code = compile(job, prices, job.mesh, false);
    const Timeline first = walk(job, code, job.mesh, prices.slow, {true, 0});
    const Timeline other = walk(job, code, job.mesh, prices.slow, {true, seed + 1});
    expect_equal(first, other);
    ASSERT_EQ(first.trace.spans.size(), other.trace.spans.size());
    for (std::size_t i = 0; i < first.trace.spans.size(); ++i) {
      ASSERT_EQ(first.trace.spans[i].begin, other.trace.spans[i].begin);
      ASSERT_EQ(first.trace.spans[i].end, other.trace.spans[i].end);
      ASSERT_EQ(first.trace.spans[i].instruction, other.trace.spans[i].instruction);
    }
  }
}

TEST(Simulate, BreaksEveryRanksTimeDownToTheWholeStep) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    const Prices prices = slowed(random_prices(job, seed), job, seed);
    const Timeline timeline = simulate(job, prices, {Ranks::kAll});
    for (const RankTime& rank : timeline.ranks) {
      Duration sum;
      for (const Duration part : rank.breakdown) {
        EXPECT_GE(part, Duration());
        sum += part;
      }
      EXPECT_EQ(sum, timeline.step);
    }
    EXPECT_GE(timeline.bubble_fraction, 0);
    EXPECT_LE(timeline.bubble_fraction, 1);
  }
}

TEST(Simulate, IsNeverFasterWithASlowDevice) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    const Prices prices = random_prices(job, seed);
    EXPECT_LE(simulate(job, prices).step,
              simulate(job, slowed(prices, job, 0), {Ranks::kAll}).step);
  }
}

// Instruction by instruction, call by call.
StageMemory replay(const Job& job, const Program& program) {
  std::array<Bytes, kCategories> live = {};
  const auto sum = [&] {
    return std::accumulate(live.begin(), live.end(), Bytes());
  };
  const auto change = [&](TensorId id, std::int64_t sign) {
    const Tensor& tensor = job.tensors[static_cast<std::size_t>(id)];
    live[static_cast<std::size_t>(tensor.category)] += tensor.bytes() * sign;
  };
  for (const Resident& resident : program.residents) {
    for (const TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      change(id, 1);
    }
  }
  StageMemory memory;
  memory.resident = memory.peak = sum();
  memory.at_peak = live;
  for (std::size_t c = 0; c < program.schedule.size(); ++c) {
    const Body& body = job.bodies[static_cast<std::size_t>(program.schedule[c].body)];
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      if (const auto* alloc = std::get_if<Alloc>(&body.code[i])) change(alloc->tensor, 1);
      if (const auto* free = std::get_if<Free>(&body.code[i])) change(free->tensor, -1);
      if (sum() <= memory.peak) continue;
      memory.peak = sum();
      memory.at_peak = live;
      memory.peak_call = static_cast<std::int32_t>(c);
      memory.peak_instruction = static_cast<std::int32_t>(i);
    }
  }
  return memory;
}

TEST(Account, AgreesWithAReplayOfEveryInstruction) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Job job = random_job(seed);
    const Footprint footprint = account(job);
    ASSERT_EQ(footprint.stages.size(), job.programs.size());
    for (std::size_t s = 0; s < job.programs.size(); ++s) {
      const StageMemory slow = replay(job, job.programs[s]);
      const StageMemory& fast = footprint.stages[s];
      EXPECT_EQ(fast.peak, slow.peak);
      EXPECT_EQ(fast.at_peak, slow.at_peak);
      EXPECT_EQ(fast.resident, slow.resident);
      EXPECT_EQ(fast.peak_call, slow.peak_call);
      EXPECT_EQ(fast.peak_instruction, slow.peak_instruction);
    }
  }
}

}  // namespace
}  // namespace stepcast
