#include "tools/time/flows.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

Device h100() { return load_device(find_config("devices", "h100-sxm", "test")); }

double seconds(TransferKind kind, std::int64_t bytes, int ranks, const Cluster& cluster) {
  return play_collective(kind, Bytes(bytes), ranks, cluster).value;
}

// 8 devices on one switch: 2 (n-1) steps of S/n at the device's bandwidth, and a hop each.
TEST(PlayCollective, ARingInABoxTakesItsClosedForm) {
  const Cluster box = standard_cluster(h100(), 1, 8);
  const double bytes = 1 << 30;
  const double expected = 14 * (box.node_latency.value + bytes / 8 / box.node_bandwidth.value);
  EXPECT_NEAR(seconds(TransferKind::kAllReduce, 1 << 30, 8, box) / expected, 1, 0.02);
}

// Eight rings leave each node by a NIC each: 2 (n-1)/n S over eight NICs, and no faster.
TEST(PlayCollective, RingsAcrossNodesShareAllNics) {
  const Cluster two = standard_cluster(h100(), 2, 8);
  const double bytes = 1 << 30;
  const double bound = 2.0 * 15 / 16 * bytes / (8 * two.nic_bandwidth.value);
  const double played = seconds(TransferKind::kAllReduce, 1 << 30, 16, two);
  EXPECT_GE(played, bound);
  EXPECT_LT(played, 1.2 * bound);
}

TEST(PlayCollective, AnOversubscribedFabricSlowsAllToAll) {
  Cluster cluster = standard_cluster(h100(), 8, 8);
  cluster.nodes_per_leaf = 2;
  const double full = seconds(TransferKind::kAllToAll, 1 << 26, 64, cluster);
  cluster.oversubscription = 4;
  EXPECT_GT(seconds(TransferKind::kAllToAll, 1 << 26, 64, cluster), 1.5 * full);
}

TEST(PlayCollective, SaysThatABroadcastIsNotPlayed) {
  const Cluster box = standard_cluster(h100(), 1, 8);
  EXPECT_THROW(seconds(TransferKind::kBroadcast, 1 << 20, 8, box), Error);
}

}  // namespace
}  // namespace stepcast
