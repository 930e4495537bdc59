// Steps that really ran, composed again by the simulator of what their own instructions took.
//
// The machine's moods are in both sides of a comparison and cancel. What can disturb a step of
// several ranks is a thread that loses its core within a collective: it ends it late, and composed
// all members do. So of several ranks the best of many steps is judged, and nothing where they
// would have to take turns.
#include "tools/run/composition.h"

#include <cmath>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "execute/cpu/cpu_backend.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

constexpr double kBound = 0.02;

Composition composed(const Plan& plan) {
  const Job job = lowered(gpt_model(4, 64, 4, 128, 64), plan);
  ExecuteOptions options = train_options(21);
  options.poison = false;
  options.record = 20;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const auto runs = run_threads(job, options, *corpus, [] { return make_cpu_backend(1); });
  const Composition composition = compose(job, runs).value();
  EXPECT_EQ(composition.errors.size(), 20u);
  return composition;
}

// Of twenty steps; where something else had the cores all the while, of twenty more, five times.
double best(const Plan& plan) {
  double least = 1;
  for (int runs = 0; runs < 5 && least > kBound; ++runs) {
    for (const double error : composed(plan).errors) least = std::min(least, std::abs(error));
  }
  return least;
}

// Why the times of two ranks would say nothing here; else null.
const char* untimed() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "a sanitizer takes longer between instructions than these steps have to spare";
#else
  cpu_set_t mine;
  const bool two = sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) >= 2;
  return two ? nullptr : "two ranks would take turns on one core";
#endif
}

Plan plan_of(std::int64_t tensor, std::int64_t data, std::int64_t pipeline, int zero = 0) {
  Plan plan = executable_plan(32, 8);
  plan.tensor = tensor;
  plan.data = data;
  plan.pipeline = pipeline;
  plan.zero = zero;
  return plan;
}

// One rank waits for nobody: its step is the sum of its instructions, to the picosecond.
TEST(Composition, IsExactOnOneRank) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
    Plan plan = plan_of(1, 1, 1);
    plan.recompute = recompute;
    EXPECT_EQ(composed(plan).largest, 0) << static_cast<int>(recompute);
  }
}

TEST(Composition, IsWithinTwoPercentOfRanksThatExchange) {
  if (const char* why = untimed()) GTEST_SKIP() << why;
  for (const Plan& plan : {plan_of(2, 1, 1), plan_of(1, 2, 1), plan_of(1, 2, 1, 1),
                           plan_of(1, 2, 1, 2), plan_of(1, 2, 1, 3), plan_of(1, 1, 2)}) {
    EXPECT_LE(best(plan), kBound)
        << plan.tensor << " x " << plan.data << " x " << plan.pipeline << ", zero " << plan.zero;
  }
}

TEST(Composition, IsWithinTwoPercentForEachSchedule) {
  if (const char* why = untimed()) GTEST_SKIP() << why;
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved}) {
    Plan plan = plan_of(1, 1, 2);
    plan.schedule = schedule;
    plan.virtual_stages = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
    EXPECT_LE(best(plan), kBound) << static_cast<int>(schedule);
  }
}

// A kernel of the first stage that is said to have taken as long as the whole step again: all that
// waits for it is later.
TEST(Composition, FollowsWhatIsRecorded) {
  const Job job = lowered(gpt_model(4, 64, 4, 128, 64), plan_of(1, 1, 2));
  ExecuteOptions options = train_options(2);
  options.record = 1;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const auto runs = run_threads(job, options, *corpus, [] { return make_cpu_backend(1); });
  Recording recording = record(job, std::vector{runs[0].marks[0], runs[1].marks[0]});
  const Duration before = simulate(job, recording).step;
  recording.durations[0][0] += recording.step;
  EXPECT_GE(simulate(job, recording).step - before, recording.step);
}

}  // namespace
}  // namespace stepcast
