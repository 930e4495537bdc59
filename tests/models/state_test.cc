// What the training state costs: the published formulas against the tensors that a Job holds.
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/program.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

Plan sharded(int zero, std::int64_t devices) {
  Plan plan = small_plan(1, 1, 1);
  plan.zero = zero;
  plan.data = devices;
  plan.global_batch = devices;
  return plan;
}

double state_of(std::int64_t parameters, const Plan& plan) {
  const Job job = lower(state_network(parameters, plan), plan);
  EXPECT_EQ(verify(job), "");
  return static_cast<double>(resident_bytes(job, 0).count);
}

// Of what the update allocates: the gradients' copies.
Bytes copies_of(std::int64_t parameters, const Plan& plan) {
  const Job job = lower(state_network(parameters, plan), plan);
  Bytes bytes;
  for (const Body& body : job.bodies) {
    if (body.phase != Phase::kOptimizer) continue;
    for (const Instruction& instruction : body.code) {
      const auto* alloc = std::get_if<Alloc>(&instruction);
      if (alloc != nullptr) bytes += job.tensors[static_cast<std::size_t>(alloc->tensor)].bytes();
    }
  }
  return bytes;
}

constexpr std::int64_t kBillion = 1'000'000'000;

// 2 bf16 weights + 2 gradients + 4 master + 8 moments.
TEST(State, IsSixteenBytesAParameter) {
  EXPECT_EQ(state_of(70 * kBillion, sharded(0, 1)), 1.12e12);
  EXPECT_EQ(state_of(70 * kBillion, sharded(0, 8)),
            1.12e12);  // plain data parallel keeps all of it
}

// 16 P / N: 17.5 GB on 64 devices; of 80 GB devices, 14 are the first count that holds 70e9.
TEST(State, Zero3DividesAllOfItByTheDevices) {
  EXPECT_EQ(state_of(70 * kBillion, sharded(3, 64)), 17.5e9);
  EXPECT_EQ(state_of(70 * kBillion, sharded(3, 8)), 140e9);
  std::int64_t devices = 1;
  while (state_of(70 * kBillion, sharded(3, devices)) > 80e9) ++devices;
  EXPECT_EQ(devices, 14);
}

// 4 P + 12 P / N = 28 + 10.5 GB.
TEST(State, Zero1DividesTheOptimizer) {
  EXPECT_EQ(state_of(7 * kBillion, sharded(1, 8)), 38.5e9);
}

// Rajbhandari et al. 2020, figure 1: 7.5e9 parameters, 64 devices: 120, 31.4, 16.6, 1.88 GB.
TEST(State, MatchesTheZeroPaper) {
  const double published[] = {120e9, 31.4e9, 16.6e9, 1.88e9};
  for (int zero = 0; zero <= 3; ++zero) {
    EXPECT_NEAR(state_of(75 * kBillion / 10, sharded(zero, 64)), published[zero],
                0.004 * published[zero]);
  }
}

// Megatron-LM (docs, distributed optimizer): 18, sharded 6 + 12/d with fp32 gradients; 20 and
// 4 + 16/d in fp16 with an fp32 copy of the gradients, which is there for the update only; 16 and
// 8 + 8/d in fp32.
TEST(State, MatchesMegatronsTable) {
  const std::int64_t p = 8 * kBillion;
  for (std::int64_t d : {1, 8, 64}) {
    const double share = 1.0 / static_cast<double>(d);
    Plan bf16 = sharded(1, d);
    bf16.gradients = Dtype::kFp32;
    EXPECT_DOUBLE_EQ(state_of(p, bf16), 8e9 * (6 + 12 * share));
    Plan fp16 = sharded(1, d);
    fp16.compute = fp16.gradients = Dtype::kFp16;
    fp16.gradient_copy = true;
    EXPECT_DOUBLE_EQ(state_of(p, fp16), 8e9 * (4 + 12 * share));
    const Bytes copies = copies_of(p, fp16);
    EXPECT_DOUBLE_EQ(state_of(p, fp16) + static_cast<double>(copies.count), 8e9 * (4 + 16 * share));
    Plan fp32 = sharded(1, d);
    fp32.compute = fp32.gradients = Dtype::kFp32;
    fp32.master = false;
    EXPECT_DOUBLE_EQ(state_of(p, fp32), 8e9 * (8 + 8 * share));
  }
}

// Hybrid sharding holds 1 / shard_group, however many replicas there are.
TEST(State, HybridShardingDividesByTheShardGroup) {
  Plan plan = sharded(3, 64);
  plan.shard_group = 8;
  EXPECT_EQ(state_of(8 * kBillion, plan), 16e9);
}

// What does not divide is padded to equal shards: 7000 elements on 3 ranks are 2334 each.
TEST(State, PadsShardsToEqualSize) {
  EXPECT_EQ(state_of(7000, sharded(3, 3)), 16 * 2334);
}

}  // namespace
}  // namespace stepcast
