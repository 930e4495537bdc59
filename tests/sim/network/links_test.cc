// What the topology does to the times: place(), bus_bandwidth(), send_time() and collectives on
// clusters that are not the plain one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sim/base/error.h"
#include "sim/network/network.h"
#include "tests/support/clusters.h"

namespace stepcast {
namespace {

Cluster with_pcie(int nodes, int devices_per_node) {
  Cluster cluster = plain_cluster(nodes, devices_per_node);
  cluster.box.pcie_bandwidth = gigabytes_per_second(20);
  return cluster;
}

Cluster on_pcie(int devices) {
  Cluster cluster = with_pcie(1, devices);
  cluster.box.links = BoxLinks::kPcie;
  cluster.box.host_bandwidth = gigabytes_per_second(40);
  return cluster;
}

double bus(const Mesh& mesh, AxisSet axes, const Cluster& cluster) {
  return bus_bandwidth(place(mesh, axes, false, cluster), cluster).value * 1e-9;
}

double time_of(TransferKind kind, Axis axis, std::int64_t bytes, const Mesh& mesh,
               const Cluster& cluster) {
  Transfer t;
  t.kind = kind;
  t.axes = axis;
  t.bytes = Bytes(bytes);
  return transfer_time(t, mesh, cluster).value;
}

// ------------------------------------------------------------------------------------- in a box

// A ring's edge loads a slot once each way: 20 GB/s, whatever the switch.
TEST(Pcie, BoundsARingByItsSlots) {
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 4}}), Axis::kTensor, on_pcie(4)), 20);
}

// Four edges, each written to the one memory and read from it: 40 / 4. With two devices 40 / 2,
// which the slots allow, too.
TEST(Pcie, BoundsARingByTheHostsMemoryWithoutPeerToPeer) {
  Cluster cluster = on_pcie(4);
  cluster.box.peer_to_peer = false;
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 4}}), Axis::kTensor, cluster), 10);
  // Two groups of two load the memory as much as one of four.
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 2}, {Axis::kData, 2}}), Axis::kTensor, cluster),
                   10);
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 2}}), Axis::kTensor, cluster), 20);
}

// Two switches of two devices, two sockets at 5 GB/s. Ring 0 1 2 3 crosses once each way: 5. Groups
// {0, 1} and {2, 3} never cross: 20; {0, 2} and {1, 3} both do, each way: 2.5.
TEST(Pcie, SlowsTheGroupsThatCrossSockets) {
  Cluster cluster = on_pcie(4);
  cluster.box.sockets = cluster.box.pcie_switches = 2;
  cluster.box.socket_bandwidth = gigabytes_per_second(5);
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 4}}), Axis::kTensor, cluster), 5);
  const Mesh mesh = mesh_of({{Axis::kTensor, 2}, {Axis::kData, 2}});
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kTensor, cluster), 20);
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 2.5);
}

// All-to-all of S bytes over four: from each socket 2 x 2 messages of S/4 cross, S bytes at 5 GB/s.
TEST(Pcie, BoundsAllToAllByTheWorstCut) {
  Cluster cluster = on_pcie(4);
  cluster.box.sockets = cluster.box.pcie_switches = 2;
  cluster.box.socket_bandwidth = gigabytes_per_second(5);
  EXPECT_DOUBLE_EQ(time_of(TransferKind::kAllToAll, Axis::kTensor, 1'000'000'000,
                           mesh_of({{Axis::kTensor, 4}}), cluster), 0.2 + 1e-6);
}

// NVIDIA/nccl-tests#178: eight A100 with bridges in pairs, four to a socket, PCIe 4.0. Two devices
// reach 208 GB/s, three 20 GB/s. NCCL counts 240 and 24; what is achieved is less of both.
TEST(Pairs, FallToPcieWithTheThirdDevice) {
  Cluster cluster = on_pcie(8);
  cluster.box.links = BoxLinks::kPairs;
  cluster.box.sockets = 2;
  cluster.box.host_bandwidth = Bandwidth();
  cluster.node_bandwidth = gigabytes_per_second(240);
  cluster.box.pcie_bandwidth = gigabytes_per_second(24);
  EXPECT_NEAR(bus(mesh_of({{Axis::kTensor, 2}}), Axis::kTensor, cluster), 208, 0.2 * 208);
  EXPECT_NEAR(bus(mesh_of({{Axis::kTensor, 3}}), Axis::kTensor, cluster), 20, 0.2 * 20);
}

// rocm.blogs.amd.com, "Understanding RCCL Bandwidth and xGMI Performance on AMD Instinct MI300X":
// 48 GB/s of each of seven links, 336 in all.
TEST(DirectLinks, GiveASmallGroupOnlyItsOwnLinks) {
  Cluster cluster = with_pcie(1, 8);
  cluster.box.links = BoxLinks::kDirect;
  cluster.node_bandwidth = gigabytes_per_second(336);
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 8}}), Axis::kTensor, cluster), 336);
  const Mesh fours = mesh_of({{Axis::kTensor, 4}, {Axis::kData, 2}});
  EXPECT_DOUBLE_EQ(bus(fours, Axis::kTensor, cluster), 144);
  EXPECT_DOUBLE_EQ(bus(fours, Axis::kData, cluster), 48);
  EXPECT_DOUBLE_EQ(time_of(TransferKind::kAllToAll, Axis::kTensor, 1'000'000'000,
                           mesh_of({{Axis::kTensor, 8}}), cluster), 1.0 / 8 / 48 + 1e-6);
  cluster.slow_links = {{"node0/device0", "node0/device1", 0}};
  EXPECT_DOUBLE_EQ(bus(fours, Axis::kTensor, cluster), 96);
}

// ------------------------------------------------------------------------------------ slow links

TEST(SlowLink, OfADeviceSlowsItsGroupsInTheBox) {
  Cluster cluster = with_pcie(2, 8);
  cluster.slow_links = {{"node1/device3", "node1/switch", 0.25}};
  const Mesh tensor = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 2}});
  EXPECT_DOUBLE_EQ(bus(tensor, Axis::kTensor, cluster), 25);
  EXPECT_DOUBLE_EQ(bus(tensor, Axis::kData, cluster), 10);  // by NIC, as ever
  // A job that does not reach the second node does not notice.
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 8}}), Axis::kTensor, cluster), 100);
}

TEST(SlowLink, OfANicSlowsTheGroupsThatCrossNodes) {
  Cluster cluster = with_pcie(4, 8);
  cluster.slow_links = {{"node2/nic5", "leaf0", 0.5}};
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}});
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 5);
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kTensor, cluster), 100);
  // A group of all takes an eighth of its bytes through each NIC: the slowest has 8 x 5.
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kData, 32}}), Axis::kData, cluster), 40);
}

// Device 5 takes NIC 4 or 6 besides its owner: half the bandwidth for both.
TEST(SlowLink, ThatIsDeadLeavesItsLoadToAnother) {
  Cluster cluster = with_pcie(4, 8);
  cluster.slow_links = {{"node2/nic5", "leaf0", 0}};
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}});
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 5);
  // A device without its link to the switch goes by PCIe.
  cluster.slow_links = {{"node0/device1", "node0/switch", 0}};
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kTensor, cluster), 20);
}

// ------------------------------------------------------------------------------ leaves and spines

// Leaves of two nodes, 160 GB/s below each and 40 above. Eight data groups in each leaf: those of
// degree 2 stay inside, those of degree 4 cross: 40 / 8.
TEST(Oversubscription, SlowsGroupsThatCrossLeavesAndNoOthers) {
  Cluster cluster = with_pcie(4, 8);
  cluster.nodes_per_leaf = 2;
  cluster.oversubscription = 4;
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 2}, {Axis::kPipeline, 2}});
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kTensor, cluster), 100);
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 10);
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}}), Axis::kData, cluster), 5);
  // Stages are a leaf apart: 16 senders below 40 GB/s.
  EXPECT_DOUBLE_EQ(time_of(TransferKind::kSendReceive, Axis::kPipeline, 1'000'000'000, mesh,
                           cluster), 1 / 2.5 + 5e-6);
  cluster.oversubscription = 1;
  EXPECT_DOUBLE_EQ(bus(mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}}), Axis::kData, cluster), 10);
}

// A rail's leaf has 2 x 10 GB/s below and 5 above, which one group crosses: as without rails. But a
// group on one rail alone has that rail's uplinks alone.
TEST(Oversubscription, IsOfEachRailByItself) {
  Cluster cluster = with_pcie(4, 8);
  cluster.nodes_per_leaf = 2;
  cluster.oversubscription = 4;
  cluster.rails = true;
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}});
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 5);
  // One uplink of rail 3 at half: the group of that rail, and all wait for it.
  cluster.slow_links = {{"leaf3", "spine0", 0.5}};
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 2.5);
}

// All-to-all over 32: of a rank's S bytes half leave the leaf, 16 ranks x S/2 through 40 GB/s.
TEST(Oversubscription, BoundsAllToAllByTheCutBetweenLeaves) {
  Cluster cluster = with_pcie(4, 8);
  cluster.nodes_per_leaf = 2;
  cluster.oversubscription = 4;
  EXPECT_DOUBLE_EQ(time_of(TransferKind::kAllToAll, Axis::kExpert, 1'000'000'000,
                           mesh_of({{Axis::kExpert, 32}}), cluster), 0.2 + 5e-6);
}

TEST(Oversubscription, LeavesAloneWhatItDoesNotConcern) {
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kData, 4}});
  Cluster cluster = with_pcie(4, 8);
  cluster.nodes_per_leaf = 4;
  cluster.oversubscription = 8;
  EXPECT_DOUBLE_EQ(bus(mesh, Axis::kData, cluster), 10);  // one leaf holds them all
  EXPECT_EQ(place(mesh, Axis::kData, false, cluster).limits.across.value, INFINITY);
}

// ----------------------------------------------------------------------------------- pipeline hops

// Stages of four ranks: 0 and 1 in the first node, 2 and 3 in the second. Inside S/100 GB/s + 1 us;
// between, four of eight devices send, each by its own NIC: S/10 GB/s + 5 us. The last sends to the
// first.
TEST(SendTime, TellsHopsInsideANodeFromThoseBetween) {
  const Cluster cluster = with_pcie(2, 8);
  const Mesh mesh = mesh_of({{Axis::kTensor, 4}, {Axis::kPipeline, 4}});
  const auto hop = [&](int stage) {
    return send_time(mesh, Axis::kPipeline, stage, Bytes(1'000'000), cluster).value;
  };
  EXPECT_DOUBLE_EQ(hop(0), 1e-5 + 1e-6);
  EXPECT_DOUBLE_EQ(hop(1), 1e-4 + 5e-6);
  EXPECT_DOUBLE_EQ(hop(2), 1e-5 + 1e-6);
  EXPECT_DOUBLE_EQ(hop(3), 1e-4 + 5e-6);
}

// Eight senders share two NICs.
TEST(SendTime, SharesTheNicsAmongThoseThatCross) {
  Cluster cluster = with_pcie(2, 8);
  cluster.nics_per_node = 2;
  const Mesh mesh = mesh_of({{Axis::kData, 8}, {Axis::kPipeline, 2}});
  EXPECT_DOUBLE_EQ(send_time(mesh, Axis::kPipeline, 0, Bytes(1'000'000), cluster).value,
                   4e-4 + 5e-6);
}

// Four NICs a device: a message goes by all of them, also where a link elsewhere is slow.
TEST(SendTime, UsesAllNicsOfADevice) {
  Cluster cluster = with_pcie(2, 2);
  cluster.nics_per_node = 8;
  cluster.box.pcie_bandwidth = Bandwidth();
  const Mesh mesh = mesh_of({{Axis::kData, 2}, {Axis::kPipeline, 2}});
  const auto hop = [&] {
    return send_time(mesh, Axis::kPipeline, 0, Bytes(1'000'000), cluster).value;
  };
  EXPECT_DOUBLE_EQ(hop(), 2.5e-5 + 5e-6);
  cluster.slow_links = {{"node0/device0", "node0/switch", 0.5}};
  EXPECT_DOUBLE_EQ(hop(), 2.5e-5 + 5e-6);
  cluster.slow_links = {{"node0/nic1", "leaf0", 0.5}};
  EXPECT_DOUBLE_EQ(hop(), 5e-5 + 5e-6);
}

TEST(SendTime, IsTheAxisTransfersTimeWhereAllHopsAreAlike) {
  const Mesh mesh = mesh_of({{Axis::kTensor, 8}, {Axis::kPipeline, 4}});
  const Cluster cluster = with_pcie(4, 8);
  const double whole =
      time_of(TransferKind::kSendReceive, Axis::kPipeline, 1'000'000, mesh, cluster);
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_DOUBLE_EQ(send_time(mesh, Axis::kPipeline, stage, Bytes(1'000'000), cluster).value,
                     whole);
  }
  EXPECT_EQ(send_time(mesh, Axis::kData, 0, Bytes(1'000'000), cluster).value, 0);
  EXPECT_THROW(send_time(mesh, Axis::kPipeline, 0, Bytes(1), with_pcie(2, 8)), Error);
}

// Random meshes and clusters: a topology that is worse anywhere is never faster.
TEST(Topology, WorseIsNeverFaster) {
  const Mesh mesh = mesh_of({{Axis::kTensor, 4}, {Axis::kData, 4}, {Axis::kPipeline, 2}});
  Cluster even = with_pcie(4, 8);
  even.nodes_per_leaf = 2;
  std::vector<Cluster> worse(6, even);
  worse[0].oversubscription = 3;
  worse[1].slow_links = {{"node0/nic0", "leaf0", 0.1}};
  worse[2].slow_links = {{"node3/device7", "node3/switch", 0}};
  worse[3].box.links = BoxLinks::kPcie;
  worse[4].box.links = BoxLinks::kPairs;
  worse[5].box.peer_to_peer = false;
  worse[5].box.host_bandwidth = gigabytes_per_second(30);
  for (const TransferKind kind :
       {TransferKind::kAllReduce, TransferKind::kAllGather, TransferKind::kAllToAll,
        TransferKind::kSendReceive, TransferKind::kBroadcast}) {
    for (const Axis axis : {Axis::kTensor, Axis::kData, Axis::kPipeline}) {
      const double base = time_of(kind, axis, 1 << 28, mesh, even);
      for (std::size_t i = 0; i < worse.size(); ++i) {
        EXPECT_GE(time_of(kind, axis, 1 << 28, mesh, worse[i]), base * (1 - 1e-12))
            << i << " " << static_cast<int>(kind) << " " << static_cast<int>(axis);
      }
    }
  }
}

}  // namespace
}  // namespace stepcast
