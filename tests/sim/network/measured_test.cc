#include "sim/network/measured.h"

#include <cmath>
#include <memory>

#include <gtest/gtest.h>

namespace stepcast {
namespace {

// 10 us at 1 KiB, 40 us at 16 KiB: t grows as S^(1/2).
WireCurve square_root() {
  return {"all-reduce", 8, 1, {{kibibytes(1), microseconds(10)}, {kibibytes(16), microseconds(40)}},
          1, 0};
}

Cluster cluster_with(const WireCurve& curve, Basis basis = Basis::kMeasured) {
  Cluster cluster;
  cluster.name = "plain";
  cluster.nodes = 2;
  cluster.devices_per_node = 8;
  cluster.node_bandwidth = gigabytes_per_second(100);
  cluster.node_latency = microseconds(1);
  cluster.nics_per_node = 8;
  cluster.nic_bandwidth = gigabytes_per_second(10);
  cluster.nic_latency = microseconds(5);
  Profile profile;
  profile.basis = basis;
  profile.wires = {curve};
  cluster.profile = std::make_shared<const Profile>(profile);
  return cluster;
}

TransferChoice choose(TransferKind kind, Bytes bytes, const Placement& placement,
                      const Cluster& cluster) {
  return choose_transfer(kind, bytes, placement, cluster);
}

TEST(Measured, GivesAPointItsOwnTimeToTheBit) {
  WireCurve curve = square_root();
  curve.points[1].time = Seconds(183.71e-6);
  EXPECT_EQ(time_on(curve, kibibytes(16)).time, Seconds(183.71e-6));
  EXPECT_EQ(time_on(curve, kibibytes(16)).basis, Basis::kMeasured);
  EXPECT_EQ(time_on(curve, kibibytes(1)).basis, Basis::kMeasured);
}

// Halfway in log S, from 1 to 16 KiB, is 4 KiB; halfway in log t, from 10 to 40 us, is 20 us.
TEST(Measured, InterpolatesInTheLogarithmOfBoth) {
  const MeasuredTime time = time_on(square_root(), kibibytes(4));
  EXPECT_NEAR(time.time.value, 20e-6, 1e-15);
  EXPECT_EQ(time.basis, Basis::kInterpolated);
}

TEST(Measured, ExtrapolatesByLatencyBelowAndByBandwidthAbove) {
  const MeasuredTime below = time_on(square_root(), Bytes(8));
  EXPECT_EQ(below.time, microseconds(10));
  EXPECT_EQ(below.basis, Basis::kFitted);
  const MeasuredTime above = time_on(square_root(), kibibytes(48));
  EXPECT_DOUBLE_EQ(above.time.value, 120e-6);
  EXPECT_EQ(above.basis, Basis::kFitted);
  EXPECT_EQ(time_on(square_root(), Bytes(0)).time, microseconds(10));
}

TEST(Measured, StaysBetweenItsNeighboursAndMeetsThem) {
  WireCurve curve = square_root();
  curve.points.push_back({kibibytes(64), microseconds(35)});  // noise: less for more
  for (std::int64_t bytes = 1024; bytes <= 65536; bytes += 61) {
    const double time = time_on(curve, Bytes(bytes)).time.value;
    EXPECT_GE(time, 10e-6 * (1 - 1e-12)) << bytes;
    EXPECT_LE(time, 40e-6 * (1 + 1e-12)) << bytes;
  }
  EXPECT_NEAR(time_on(curve, kibibytes(16) + Bytes(1)).time.value, 40e-6, 1e-8);
}

TEST(Measured, AProfileThatIsAFitIsFittedEverywhere) {
  EXPECT_EQ(time_on(square_root(), kibibytes(1), Basis::kFitted).basis, Basis::kFitted);
  EXPECT_EQ(time_on(square_root(), kibibytes(2), Basis::kFitted).basis, Basis::kFitted);
}

TEST(Measured, GoesBeforeTheModelForTheGroupThatWasMeasured) {
  const Cluster cluster = cluster_with(square_root());
  const Placement group = {8, 1, 8, 1};
  const TransferChoice choice =
      choose(TransferKind::kAllReduce, kibibytes(16), group, cluster);
  EXPECT_EQ(choice.time, microseconds(40));
  EXPECT_EQ(choice.basis, Basis::kMeasured);
  EXPECT_EQ(choice.algorithm, "unknown");
  // 16 KiB / 40 us x 2 * 7/8.
  EXPECT_DOUBLE_EQ(choice.bus_bandwidth.value, 16384 / 40e-6 * 1.75);
}

TEST(Measured, LeavesEverythingElseToTheModel) {
  const Cluster with = cluster_with(square_root());
  Cluster without = with;
  without.profile = nullptr;
  const auto expect_model = [&](TransferKind kind, const Placement& group) {
    const TransferChoice choice = choose(kind, kibibytes(16), group, with);
    EXPECT_EQ(choice.time, choose(kind, kibibytes(16), group, without).time);
    EXPECT_EQ(choice.basis, Basis::kDatasheet);
  };
  expect_model(TransferKind::kAllGather, {8, 1, 8, 1});       // another collective
  expect_model(TransferKind::kAllReduce, {4, 1, 4, 1});       // other ranks
  expect_model(TransferKind::kAllReduce, {8, 2, 4, 1});       // other nodes
  expect_model(TransferKind::kAllReduce, {8, 1, 8, 2});       // not alone in its node
  EXPECT_EQ(choose(TransferKind::kAllReduce, kibibytes(1), {1, 1, 1, 1}, with).time, Seconds(0));
}

// Every kind has its curve under the name that the profile gives it.
TEST(Measured, FindsEveryKindByItsName) {
  int found = 0;
  for (const std::string& name : collective_names()) {
    WireCurve curve = square_root();
    curve.collective = name;
    const Cluster cluster = cluster_with(curve);
    for (const TransferKind kind :
         {TransferKind::kAllReduce, TransferKind::kAllGather, TransferKind::kReduceScatter,
          TransferKind::kBroadcast, TransferKind::kAllToAll, TransferKind::kSendReceive}) {
      found += measured_choice(kind, Bytes(1), {8, 1, 8, 1}, *cluster.profile).has_value();
    }
  }
  EXPECT_EQ(found, 6);
}

// NVIDIA/nccl-tests doc/PERFORMANCE.md.
TEST(Measured, KnowsTheFactorsOfBusBandwidth) {
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kReduceScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kAllToAll, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kBroadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(TransferKind::kSendReceive, 8), 1);
}

// Work that was timed in a step of two ranks: a collective, and both ends of a message.
Cluster cluster_with_work() {
  Cluster cluster = cluster_with(square_root());
  cluster.devices_per_node = 4;
  Profile profile;
  TimedWork work;
  work.ranks = 2;
  work.transfers = {{"all-reduce", 2, kibibytes(4), {microseconds(30), 0, 5}},
                    {"all-reduce", 2, kibibytes(1), {microseconds(10), 0, 5}},
                    {"all-reduce", 4, kibibytes(1), {microseconds(99), 0, 5}},
                    {"send", 2, kibibytes(1), {microseconds(3), 0, 5}},
                    {"receive", 2, kibibytes(1), {microseconds(4), 0, 5}}};
  profile.work = {work};
  cluster.profile = std::make_shared<const Profile>(profile);
  return cluster;
}
Mesh one_axis_mesh(Axis axis, int ranks) {
  Mesh mesh;
  mesh.degree(axis) = ranks;
  return mesh;
}

TEST(TimedTransfers, GoBeforeEveryModel) {
  const Cluster cluster = cluster_with_work();
  const Transfer transfer{TransferKind::kAllReduce, Axis::kData, false, kibibytes(4)};
  const TransferChoice choice = choose_transfer(transfer, one_axis_mesh(Axis::kData, 2), cluster);
  EXPECT_EQ(choice.time, microseconds(30));
  EXPECT_EQ(choice.basis, Basis::kMeasured);
  const Transfer between{TransferKind::kAllReduce, Axis::kTensor, false, kibibytes(2)};
  const TransferChoice half = choose_transfer(between, one_axis_mesh(Axis::kTensor, 2), cluster);
  EXPECT_NEAR(half.time.value, std::sqrt(10e-6 * 30e-6), 1e-15);
  EXPECT_EQ(half.basis, Basis::kInterpolated);
}

TEST(TimedTransfers, TellTheTwoEndsOfAMessage) {
  const Cluster cluster = cluster_with_work();
  const Mesh mesh = one_axis_mesh(Axis::kPipeline, 2);
  const Transfer message{TransferKind::kSendReceive, Axis::kPipeline, false, kibibytes(1)};
  EXPECT_EQ(timed_choice(message, false, mesh, *cluster.profile)->time, microseconds(3));
  EXPECT_EQ(timed_choice(message, true, mesh, *cluster.profile)->time, microseconds(4));
}

TEST(TimedTransfers, WithOtherRanksAreInterpolatedAndOfOtherKindsUnknown) {
  const Cluster cluster = cluster_with_work();
  const Transfer transfer{TransferKind::kAllReduce, Axis::kData, false, kibibytes(1)};
  const auto more = timed_choice(transfer, false, one_axis_mesh(Axis::kData, 4), *cluster.profile);
  EXPECT_EQ(more->time, microseconds(99));
  EXPECT_EQ(more->basis, Basis::kInterpolated);  // two ranks were at work, not four
  const Transfer other{TransferKind::kAllGather, Axis::kData, false, kibibytes(1)};
  EXPECT_FALSE(timed_choice(other, false, one_axis_mesh(Axis::kData, 2), *cluster.profile));
  EXPECT_FALSE(timed_choice(transfer, false, one_axis_mesh(Axis::kData, 3), *cluster.profile));
  EXPECT_FALSE(timed_choice(transfer, false, one_axis_mesh(Axis::kData, 2), Profile()));
}

// Four groups of two that share a node's links are not one group that has them to itself.
TEST(Measured, CountsForAsManyGroupsANodeAsItWasMeasuredWith) {
  WireCurve curve = square_root();
  curve.ranks = 2;
  curve.groups_per_node = 4;
  const Cluster cluster = cluster_with(curve);
  Placement placement;
  placement.ranks = placement.ranks_per_node = 2;
  for (const int groups : {1, 2, 4}) {
    placement.groups_per_node = groups;
    const auto choice = measured_choice(TransferKind::kAllReduce, kibibytes(1), placement,
                                        *cluster.profile);
    EXPECT_EQ(choice.has_value(), groups == 4) << groups;
  }
}

// In the step there was 1 KiB, the curve has 64 KiB too.
TEST(TimedTransfers, LeaveToACurveWhatNoStepHad) {
  Cluster cluster = cluster_with_work();
  Profile profile = *cluster.profile;
  WireCurve curve{"all-reduce", 2, 1, {{kibibytes(1), microseconds(7)},
                                       {kibibytes(64), microseconds(50)}}, 1, 0};
  profile.wires = {curve};
  cluster.profile = std::make_shared<const Profile>(profile);
  const auto time = [&](Bytes bytes) {
    const Transfer transfer{TransferKind::kAllReduce, Axis::kData, false, bytes};
    return choose_transfer(transfer, one_axis_mesh(Axis::kData, 2), cluster).time;
  };
  EXPECT_EQ(time(kibibytes(1)), microseconds(10));  // as in the step
  EXPECT_EQ(time(kibibytes(64)), microseconds(50));
}

}  // namespace
}  // namespace stepcast
