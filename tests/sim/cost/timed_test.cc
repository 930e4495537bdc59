// Kernels by the timed work of a profile: exactly as timed, or scaled from the nearest.
#include "sim/cost/timed.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

Device device() {
  Device device;
  device.name = "cpu";
  device.memory_bandwidth = gigabytes_per_second(10);
  device.matrix_rate[Dtype::kFp32] = teraflops_per_second(0.1);
  device.vector_rate = teraflops_per_second(0.1);
  device.multiprocessors = 1;
  device.one_stream = true;
  device.kernels.memory = 0.8;
  device.kernels.matrix.efficiency = 0.8;
  return device;
}

Gemm gemm(std::int64_t m) {
  return {m, 256, 256, 1, GemmRole::kForward, Dtype::kFp32, Dtype::kFp32, false, false};
}
Pointwise gelu(std::int64_t rows, PointwiseKind kind = PointwiseKind::kGelu) {
  return {kind, rows, 1024, Dtype::kFp32, Dtype::kFp32, false, 0};
}

Profile profile() {
  Profile profile;
  profile.device = "cpu";
  TimedWork work;
  work.ranks = 2;
  work.kernels = {{gemm(512), "forward", true, {Seconds(5e-3), 0, 3}},
                  {gemm(512), "forward", false, {Seconds(4e-3), 0, 6}},
                  {gemm(512), "recompute", false, {Seconds(3e-3), 0, 6}},
                  {gelu(512), "forward", true, {Seconds(1e-3), 0, 3}}};
  profile.work = {work};
  return profile;
}

TEST(TimedCost, IsTheMeanOfTheExactWork) {
  const Profile timed = profile();
  const auto cost = [&](const char* phase, bool first) {
    return timed_cost(gemm(512), {phase, first, 2}, timed, device()).value();
  };
  EXPECT_EQ(cost("forward", true).time, Seconds(5e-3));
  EXPECT_EQ(cost("forward", false).time, Seconds(4e-3));
  EXPECT_EQ(cost("recompute", false).time, Seconds(3e-3));
  EXPECT_EQ(cost("recompute", false).basis, Basis::kMeasured);
}

TEST(TimedCost, OfAnotherPlaceIsInterpolated) {
  const Profile timed = profile();
  const auto phase = timed_cost(gemm(512), {"recompute", true, 2}, timed, device());
  EXPECT_EQ(phase->basis, Basis::kInterpolated);
  EXPECT_EQ(phase->time, Seconds(3e-3));  // the phase tells more than the micro-batch
  const auto ranks = timed_cost(gemm(512), {"forward", true, 1}, timed, device());
  EXPECT_EQ(ranks->basis, Basis::kInterpolated);
  EXPECT_EQ(ranks->time, Seconds(5e-3));
}

TEST(TimedCost, OfAnotherSizeIsScaledAsTheModelHasIt) {
  const Profile timed = profile();
  const auto cost = timed_cost(gelu(1024), {"forward", true, 2}, timed, device());
  ASSERT_TRUE(cost);
  const double ratio = op_cost(gelu(1024), device()).time / op_cost(gelu(512), device()).time;
  EXPECT_DOUBLE_EQ(cost->time.value, 1e-3 * ratio);
  EXPECT_EQ(cost->basis, Basis::kInterpolated);
}

TEST(TimedCost, LeavesToTheModelWhatIsOfNoKindOrFarAway) {
  const Profile timed = profile();
  EXPECT_FALSE(timed_cost(gelu(512, PointwiseKind::kAdd), {"forward", true, 2}, timed, device()));
  EXPECT_FALSE(timed_cost(gelu(512 * 64), {"forward", true, 2}, timed, device()));
  EXPECT_FALSE(timed_cost(gemm(512), {"forward", true, 2}, Profile(), device()));
}

TEST(TimedCost, OfAnotherMachineIsNeverMeasured) {
  Profile timed = profile();
  timed.basis = Basis::kInterpolated;
  const auto cost = timed_cost(gemm(512), {"forward", true, 2}, timed, device());
  EXPECT_EQ(cost->basis, Basis::kInterpolated);
  EXPECT_EQ(cost->time, Seconds(5e-3));
}

// Two ranks that share cores are in each other's way, two GPUs are not.
TEST(TimedCost, OfADeviceOfItsOwnIsMeasuredWhateverTheNumberOfRanks) {
  Profile timed = profile();
  Device shared = device(), own = device();
  own.one_stream = false;
  const auto basis = [&](const Device& device) {
    return timed_cost(gemm(512), {"forward", true, 8}, timed, device)->basis;
  };
  EXPECT_EQ(basis(shared), Basis::kInterpolated);
  EXPECT_EQ(basis(own), Basis::kMeasured);
  // Work of other ranks is looked through as well.
  TimedWork more;
  more.ranks = 8;
  more.kernels = {{gemm(64), "forward", true, {Seconds(1e-3), 0, 3}}};
  timed.work.push_back(more);
  EXPECT_EQ(basis(own), Basis::kMeasured);
  EXPECT_EQ(timed_cost(gemm(64), {"forward", true, 2}, timed, own)->time, Seconds(1e-3));
}

}  // namespace
}  // namespace stepcast
