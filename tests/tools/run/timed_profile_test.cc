// A forecast from a profile of timed work: on one rank, exactly the sum of the means.
#include <map>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibrate/measure.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"
#include "tools/base/files.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

Cluster cpu(int devices) {
  const std::string file = find_config("devices", "cpu", "test");
  return standard_cluster(load_device(file, nullptr), 1, devices);
}

// Every key its own time, in whole nanoseconds, so that sums are exact.
TimedWork made_up(const Job& job) {
  Catalog catalog;
  catalog.add(job);
  TimedWork work;
  work.ranks = job.mesh.ranks();
  std::int64_t time = 1000;
  for (const WorkKey& key : catalog.keys()) {
    const Timing timing{Seconds(static_cast<double>(time) * 1e-9), 0, 1};
    time += 37;
    match(
        key,
        [&](const KernelKey& kernel) {
          work.kernels.push_back(
              {kernel.op, std::string(phase_name(kernel.phase)), kernel.first, timing});
        },
        [&](const TransferKey& transfer) {
          work.transfers.push_back(
              {transfer_key_name(transfer), transfer.ranks, transfer.bytes, timing});
        });
  }
  return work;
}

// Instance by instance, as a rank would issue them.
Duration sum_of(const Job& job, const TimedWork& work) {
  Measurements measurements;
  measurements.add(work);
  Duration sum;
  for_each_timed(
      job, job.programs[0],
      [&](const Call& call, std::size_t, const Instruction& instruction, std::size_t) {
        sum += to_duration(Seconds(measurements.find(work_key(job, call, instruction))->mean()));
      });
  return sum;
}

Cluster with_work(Cluster cluster, const TimedWork& work, Basis basis = Basis::kMeasured) {
  Profile profile;
  profile.device = cluster.device.name;
  profile.basis = basis;
  profile.work = {work};
  use_profile(cluster, std::make_shared<const Profile>(profile), "test");
  return cluster;
}

TEST(TimedProfile, GivesOneRankExactlyTheSumOfItsInstances) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
    for (const std::int64_t global : {1, 2, 5}) {
      Plan plan = executable_plan(8, global);
      plan.recompute = recompute;
      const Job job = lowered(llama_model(3, 16, 4, 2, 24, 61), plan);
      const TimedWork work = made_up(job);
      const Prices prices = price(job, with_work(cpu(1), work));
      for (const bool memoise : {false, true}) {
        SimulateOptions options;
        options.memoise = memoise;
        const Timeline timeline = simulate(job, prices, options);
        EXPECT_EQ(timeline.step, sum_of(job, work)) << global;
        const RankTime& rank = timeline.ranks[0];
        EXPECT_EQ(rank.basis[static_cast<std::size_t>(Basis::kMeasured)], timeline.step);
      }
    }
  }
}

// Every kernel of the measured basis; were one key not found, it would be another's.
TEST(TimedProfile, MeasuresEveryKernelOfSeveralRanks) {
  Plan plan = executable_plan(8, 8);
  plan.data = 2;
  plan.zero = 2;
  plan.pipeline = 2;
  plan.recompute = Recompute::kFull;
  const Job job = lowered(gpt_model(4, 16, 4, 61, 12), plan);
  const Timeline timeline = simulate(job, price(job, with_work(cpu(4), made_up(job))));
  for (const RankTime& rank : timeline.ranks) {
    Duration kernels;
    for (const Part part : {Part::kCompute, Part::kRecompute, Part::kOptimizer}) {
      kernels += rank.breakdown[static_cast<std::size_t>(part)];
    }
    EXPECT_EQ(rank.basis[static_cast<std::size_t>(Basis::kMeasured)], kernels);
  }
}

TEST(TimedProfile, OfOtherPlansIsInterpolated) {
  const Job small = lowered(llama_model(3, 16, 4, 2, 24, 61), executable_plan(8, 2));
  const Job large = lowered(llama_model(3, 32, 4, 2, 48, 61), executable_plan(8, 2));
  const Cluster cluster = with_work(cpu(1), made_up(small));
  const RankTime rank = simulate(large, price(large, cluster)).ranks[0];
  const auto share = [&](Basis basis) { return rank.basis[static_cast<std::size_t>(basis)]; };
  EXPECT_GT(share(Basis::kInterpolated), share(Basis::kMeasured));
  EXPECT_GT(share(Basis::kInterpolated), Duration());
}

TEST(TimedProfile, TakenForThisMachineIsNeverMeasured) {
  const Job job = lowered(llama_model(3, 16, 4, 2, 24, 61), executable_plan(8, 2));
  const Cluster cluster = with_work(cpu(1), made_up(job), Basis::kInterpolated);
  const Timeline timeline = simulate(job, price(job, cluster));
  EXPECT_EQ(timeline.step, sum_of(job, made_up(job)));
  const RankTime& rank = timeline.ranks[0];
  EXPECT_EQ(rank.basis[static_cast<std::size_t>(Basis::kInterpolated)], timeline.step);
}

}  // namespace
}  // namespace stepcast
