// Who watches what, and what is made of a rank that hangs, or computes what is no number.
#include "execute/progress.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/execute.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

Job two_stages() {
  Plan plan = executable_plan(8, 4);
  plan.pipeline = 2;
  return lowered(gpt_model(2, 16, 4, 61, 12), plan);
}

// The first call's first instruction of a kind.
template <class Kind>
std::int32_t first(const Job& job, std::size_t stage) {
  const Call& call = job.programs[stage].schedule.front();
  const auto& code = job.bodies[static_cast<std::size_t>(call.body)].code;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (std::holds_alternative<Kind>(code[i])) return static_cast<std::int32_t>(i);
  }
  ADD_FAILURE() << "no such instruction";
  return 0;
}

void stand(Progress& progress, int rank, std::int32_t instruction, std::int64_t since) {
  progress.rank = rank;
  progress.step = 3;
  progress.turn_to(instruction, since);
}

TEST(Stuck, IsAKernelThatTakesLongerThanTheSlowestMachineWould) {
  const Job job = two_stages();
  std::vector<Progress> ranks(2);
  stand(ranks[0], 0, first<Compute>(job, 0), 10 * kSecond);
  stand(ranks[1], 1, first<Receive>(job, 1), 10 * kSecond);
  EXPECT_FALSE(find_stuck(job, ranks, 14 * kSecond));
  const auto stuck = find_stuck(job, ranks, 16 * kSecond);
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->where(), "rank 0");  // not the one that waits for it
  EXPECT_THAT(stuck->message(), HasSubstr("step 3, forward"));
  EXPECT_THAT(stuck->message(), HasSubstr("micro-batch 0, instruction "));
  EXPECT_THAT(stuck->message(), HasSubstr("has not come to an end for 6 seconds"));
}

TEST(Stuck, IsAWaitThatNobodyEnds) {
  const Job job = two_stages();
  std::vector<Progress> ranks(2);
  stand(ranks[1], 1, first<Receive>(job, 1), 10 * kSecond);
  EXPECT_FALSE(find_stuck(job, ranks, 15 * kSecond));
  EXPECT_TRUE(find_stuck(job, ranks, 19 * kSecond));
}

TEST(Stuck, IsNobodyWhileTheWatcherWasAsleep) {
  const Job job = two_stages();
  std::vector<Progress> ranks(1);
  stand(ranks[0], 0, first<Compute>(job, 0), 10 * kSecond);
  EXPECT_TRUE(find_stuck(job, ranks, 1000 * kSecond));
  EXPECT_FALSE(find_stuck(job, ranks, 1000 * kSecond, 996 * kSecond));
  EXPECT_TRUE(find_stuck(job, ranks, 1000 * kSecond, 994 * kSecond));
}

TEST(Stuck, IsNobodyBetweenSteps) {
  const Job job = two_stages();
  std::vector<Progress> ranks(2);
  stand(ranks[0], 0, first<Compute>(job, 0), kSecond);
  ranks[0].rest();
  EXPECT_FALSE(find_stuck(job, ranks, 1000 * kSecond));
}

TEST(Stuck, GivesMoreTimeToMoreWork) {
  const Job small = two_stages();
  Plan plan = executable_plan(1024, 64);
  plan.micro_batch = 64;
  const Job large = lowered(gpt_model(1, 4096, 32, 50304, 1024), plan);
  double most = 0;
  for (const Body& body : large.bodies) {
    for (const Instruction& i : body.code) most = std::max(most, patience(large, i));
  }
  EXPECT_GT(most, 1000);  // 2 x 65,536 x 4,096 x 50,304 FLOP at a GFLOP/s are 27,000 s
  for (const Instruction& i : small.bodies[0].code) EXPECT_LT(patience(small, i), 10);
}

// The first rank that asks for a backend gets a faulty one.
std::vector<RankRun> run_with(const Job& job, Fault fault, const ExecuteOptions& options) {
  std::atomic<int> made = 0;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  return run_threads(job, options, *corpus, [&] {
    return make_faulty_backend(make_cpu_backend(1), made++ == 0 ? fault : Fault::kNone, 40);
  });
}

ExecuteOptions checked() {
  ExecuteOptions options = train_options(5);
  options.poison = false;
  options.check_numbers = true;
  return options;
}

TEST(Faults, WithoutOneARunIsWhatItWas) {
  const Job job = two_stages();
  const auto losses = run_with(job, Fault::kNone, checked())[0].losses;
  ExecuteOptions unchecked = checked();
  unchecked.check_numbers = false;
  EXPECT_EQ(losses, run_with(job, Fault::kNone, unchecked)[0].losses);
}

TEST(Faults, ANanNamesTheRankAndTheInstructionThatWroteIt) {
  const Job job = two_stages();
  try {
    run_with(job, Fault::kNan, checked());
    FAIL() << "nobody saw it";
  } catch (const Error& error) {
    EXPECT_THAT(error.where(), ::testing::MatchesRegex("rank [01]"));
    EXPECT_THAT(error.message(), HasSubstr("step 1, "));
    EXPECT_THAT(error.message(), HasSubstr(", instruction "));
    EXPECT_THAT(error.message(), HasSubstr(" wrote NaN"));
  }
}

// A thread cannot be ended, so the process is.
TEST(Faults, ARankThatHangsEndsTheRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    const Job job = two_stages();
    ExecuteOptions options = checked();
    options.stuck = [](const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(2);
    };
    run_with(job, Fault::kHang, options);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(2),
              "rank [01]: step 1, .*instruction .*has not come to an end for 5 seconds");
}

TEST(ThreadRanks, StepByStepLearnWhatOneRunLearns) {
  const Job job = two_stages();
  const ExecuteOptions options = checked();
  const auto corpus = make_language(job.batch.vocabulary, 7);
  ThreadRanks ranks(job, options, *corpus, [] { return make_cpu_backend(1); });
  ranks.step(2);
  ranks.step();
  ranks.step(2);
  EXPECT_EQ(ranks.finish()[0].losses, run_with(job, Fault::kNone, options)[0].losses);
}

TEST(ThreadRanks, EndWithoutAStep) {
  const Job job = two_stages();
  const ExecuteOptions options = checked();
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const ThreadRanks ranks(job, options, *corpus, [] { return make_cpu_backend(1); });
}

TEST(ThreadRanks, GoOnThrowingTheFirstError) {
  const Job job = two_stages();
  const ExecuteOptions options = checked();
  const auto corpus = make_language(job.batch.vocabulary, 7);
  ThreadRanks ranks(job, options, *corpus,
                    [] { return make_faulty_backend(make_cpu_backend(1), Fault::kNan, 3); });
  EXPECT_THROW(ranks.step(), Error);
  EXPECT_THROW(ranks.step(), Error);
  EXPECT_THROW(ranks.finish(), Error);
}

}  // namespace
}  // namespace stepcast
