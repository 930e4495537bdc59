// The distinct work of Jobs: all of it, and none twice.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "calibrate/catalog.h"
#include "sim/result/recording.h"
#include "tests/support/random_job.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

// Instance by instance, as a rank issues them.
std::map<std::string, std::int64_t> count(const Job& job) {
  std::map<std::string, std::int64_t> counts;
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const Program& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(job, program,
                   [&](const Call& call, std::size_t, const Instruction& instruction, std::size_t) {
                     ++counts[to_text(work_key(job, call, instruction))];
                   });
  }
  return counts;
}

TEST(Catalog, HoldsEveryInstanceOfRandomJobsOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Job job = random_job(seed);
    Catalog catalog;
    catalog.add(job);
    std::map<std::string, std::int64_t> listed;
    for (std::size_t i = 0; i < catalog.keys().size(); ++i) {
      const auto [at, fresh] = listed.emplace(to_text(catalog.keys()[i]), catalog.instances(i));
      EXPECT_TRUE(fresh) << at->first << " twice, seed " << seed;
      EXPECT_EQ(catalog.find(catalog.keys()[i]), i);
    }
    EXPECT_EQ(listed, count(job)) << seed;
  }
}

TEST(Catalog, TellsTheFirstMicroBatchFromLaterOnes) {
  const Job job = lowered(llama_model(2, 16, 4, 2, 24, 61), executable_plan(8, 4));
  Catalog catalog;
  catalog.add(job);
  std::map<bool, std::int64_t> rotations;
  for (std::size_t i = 0; i < catalog.keys().size(); ++i) {
    const auto* kernel = std::get_if<KernelKey>(&catalog.keys()[i]);
    const auto* op = kernel == nullptr ? nullptr : std::get_if<Pointwise>(&kernel->op);
    if (op == nullptr || op->kind != PointwiseKind::kRotary) continue;
    rotations[kernel->first] += catalog.instances(i);
  }
  EXPECT_EQ(rotations[true], 2);   // layers
  EXPECT_EQ(rotations[false], 6);  // layers x further micro-batches
}

TEST(Catalog, OfSeveralJobsHoldsWhatTheyShareOnce) {
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), executable_plan(8, 4));
  Catalog once, twice;
  once.add(job);
  twice.add(job);
  twice.add(job);
  EXPECT_EQ(once.keys().size(), twice.keys().size());
  EXPECT_EQ(2 * once.instances(0), twice.instances(0));
}

// Keys and values of 4 tokens, 32 columns of fp32: as many bytes as a message, over as many ranks.
TEST(Catalog, TellsAShiftFromAMessage) {
  Plan plan = executable_plan(8, 4);
  plan.pipeline = plan.context = 2;
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), plan);
  EXPECT_TRUE(count(job).contains("shift of 512 bytes over 2 ranks"));
  EXPECT_TRUE(count(job).contains("send of 256 bytes over 2 ranks"));
}

TEST(Catalog, TellsTheTwoEndsOfAMessage) {
  Plan plan = executable_plan(8, 4);
  plan.pipeline = 2;
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), plan);
  EXPECT_TRUE(count(job).contains("send of 512 bytes over 2 ranks"));
  EXPECT_TRUE(count(job).contains("receive of 512 bytes over 2 ranks"));
}

}  // namespace
}  // namespace stepcast
