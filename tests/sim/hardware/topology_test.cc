#include "sim/hardware/topology.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

// Boxes of eight: switch 300 GB/s, PCIe 24 GB/s, four PCIe switches, two sockets at 20 GB/s, a NIC
// of 10 GB/s a device; latencies of 4 and 12 us.
Cluster boxes(int nodes) {
  Cluster c;
  c.name = "boxes";
  c.nodes = nodes;
  c.node_bandwidth = gigabytes_per_second(300);
  c.node_latency = microseconds(4);
  c.nic_bandwidth = gigabytes_per_second(10);
  c.nic_latency = microseconds(12);
  c.box.sockets = 2;
  c.box.pcie_switches = 4;
  c.box.pcie_bandwidth = gigabytes_per_second(24);
  c.box.socket_bandwidth = gigabytes_per_second(20);
  c.box.host_bandwidth = gigabytes_per_second(90);
  return c;
}

std::string way(const Topology& topology, int from, int to) {
  std::vector<std::int32_t> route;
  topology.append_route(from, to, route);
  std::string text;
  for (const std::int32_t number : route) {
    const Link link = topology.link(number);
    if (text.empty()) text = vertex_name(link.from);
    text += " " + vertex_name(link.to);
  }
  return text;
}

std::string topology_error(const Cluster& cluster) {
  try {
    check_slow_links(cluster, "here");
  } catch (const Error& error) {
    return error.where() + ": " + error.message();
  }
  return "";
}

TEST(Vertex, ReadsTheNamesThatItWrites) {
  for (const char* name : {"node3/nic2", "node0/switch", "node12/device7", "node1/pcie0",
                           "node1/cpu1", "node0/memory1", "leaf4", "spine0"}) {
    Vertex vertex;
    ASSERT_TRUE(parse_vertex(name, vertex)) << name;
    EXPECT_EQ(vertex_name(vertex), name);
  }
  Vertex vertex;
  for (const char* name : {"", "node3", "node/nic2", "node3/nic", "node3/nic2x", "nic2", "leaf",
                           "node3/leaf2", "leaf-1", "node3/switch1", "node99999999999/nic0"}) {
    EXPECT_FALSE(parse_vertex(name, vertex)) << name;
  }
}

TEST(Topology, PrefersDeviceLinksThenPcieThenTheOtherSocket) {
  Cluster c = boxes(1);
  EXPECT_EQ(way(Topology(c), 0, 7), "node0/device0 node0/switch node0/device7");
  c.box.links = BoxLinks::kDirect;
  EXPECT_EQ(way(Topology(c), 0, 7), "node0/device0 node0/device7");
  c.box.links = BoxLinks::kPairs;
  EXPECT_EQ(way(Topology(c), 0, 1), "node0/device0 node0/device1");
  EXPECT_EQ(way(Topology(c), 0, 2),
            "node0/device0 node0/pcie0 node0/cpu0 node0/pcie1 node0/device2");
  // Not over a bridge between sockets, from 2 to 3 and on.
  c.devices_per_node = 6;
  c.box.pcie_switches = 0;
  EXPECT_EQ(way(Topology(c), 1, 4), "node0/device1 node0/cpu0 node0/cpu1 node0/device4");
  EXPECT_EQ(way(Topology(c), 2, 5), "node0/device2 node0/cpu0 node0/cpu1 node0/device5");
  c = boxes(1);
  c.box.links = BoxLinks::kPcie;
  EXPECT_EQ(way(Topology(c), 0, 1), "node0/device0 node0/pcie0 node0/device1");
  EXPECT_EQ(way(Topology(c), 0, 7),
            "node0/device0 node0/pcie0 node0/cpu0 node0/cpu1 node0/pcie3 node0/device7");
}

TEST(Topology, StagesInTheSendersMemoryWithoutPeerToPeer) {
  Cluster c = boxes(2);
  c.box.peer_to_peer = false;
  // Not what goes over the switch, but what goes to a NIC.
  EXPECT_EQ(way(Topology(c), 0, 1), "node0/device0 node0/switch node0/device1");
  EXPECT_EQ(way(Topology(c), 6, 14),
            "node0/device6 node0/pcie3 node0/cpu1 node0/memory1 node0/cpu1 node0/pcie3 node0/nic6 "
            "leaf0 node1/nic6 node1/pcie3 node1/cpu1 node1/memory1 node1/cpu1 node1/pcie3 "
            "node1/device6");
  c.box.links = BoxLinks::kPcie;
  EXPECT_EQ(way(Topology(c), 0, 1),
            "node0/device0 node0/pcie0 node0/cpu0 node0/memory0 node0/cpu0 node0/pcie0 "
            "node0/device1");
}

// Two nodes a leaf, two spines. D-mod-K: node 2's NIC 0 is the cluster's NIC 16, NIC 1 the 17th.
TEST(Topology, CrossesBySpinesThatTheTargetChooses) {
  Cluster c = boxes(4);
  c.nodes_per_leaf = 2;
  c.spines = 2;
  const Topology topology(c);
  EXPECT_THAT(way(topology, 0, 8), HasSubstr("node0/nic0 leaf0 node1/nic0"));
  EXPECT_THAT(way(topology, 0, 16), HasSubstr("leaf0 spine0 leaf1 node2/nic0"));
  EXPECT_THAT(way(topology, 0, 17), HasSubstr("leaf0 spine1 leaf1 node2/nic1"));
  c.slow_links = {{"leaf1", "spine1", 0}};
  EXPECT_THAT(way(Topology(c), 0, 17), HasSubstr("leaf0 spine0 leaf1 node2/nic1"));
}

TEST(Topology, StaysOnTheTargetsRail) {
  Cluster c = boxes(4);
  c.rails = true;
  EXPECT_EQ(leaves(c), 8);
  // No spine: device 0 hands over to the NIC of the target's rail, over the switch if need be.
  EXPECT_THAT(way(Topology(c), 0, 13), HasSubstr("node0/nic5 leaf5 node1/nic5"));
  EXPECT_THAT(way(Topology(c), 0, 13), HasSubstr("node0/device0 node0/switch"));
  c.box.links = BoxLinks::kPcie;  // no way there but PCIe: by its own NIC and a spine
  EXPECT_THAT(way(Topology(c), 0, 13), HasSubstr("node0/nic0 leaf0 spine0 leaf5 node1/nic5"));
}

// Where the ends meet, no vertex is met twice, the latencies are those that the cluster has.
TEST(Topology, RoutesAreConnectedAndNumberedBothWaysOnRandomClusters) {
  std::mt19937 random(11);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    Cluster c = boxes(pick(1, 7));
    c.devices_per_node = pick(1, 9);
    c.nics_per_node = pick(1, 9);
    c.box.links = static_cast<BoxLinks>(pick(0, 3));
    c.box.pcie_switches = pick(0, 4);
    c.rails = pick(0, 1) == 1;
    c.nodes_per_leaf = pick(0, 3);
    c.spines = pick(1, 3);
    const Topology topology(c);
    const std::vector<double> capacities = topology.capacities();
    ASSERT_EQ(capacities.size(), static_cast<std::size_t>(topology.links()));
    for (std::int32_t n = 0; n < topology.links(); ++n) {
      const Link link = topology.link(n), back = topology.link(n ^ 1);
      EXPECT_EQ(link.from, back.to);
      EXPECT_EQ(link.to, back.from);
      EXPECT_EQ(link.capacity.value, capacities[static_cast<std::size_t>(n)]);
    }
    for (int k = 0; k < 20; ++k) {
      const int from = pick(0, c.devices() - 1), to = pick(0, c.devices() - 1);
      std::vector<std::int32_t> route;
      topology.append_route(from, to, route);
      EXPECT_EQ(route.empty(), from == to);
      Vertex at{VertexKind::kDevice, from / c.devices_per_node, from % c.devices_per_node};
      std::set<std::string> met = {vertex_name(at)};
      Seconds latency;
      for (const std::int32_t number : route) {
        const Link link = topology.link(number);
        EXPECT_EQ(link.from, at);
        at = link.to;
        EXPECT_TRUE(met.insert(vertex_name(at)).second) << vertex_name(at);
        latency += link.latency;
      }
      EXPECT_EQ(at, (Vertex{VertexKind::kDevice, to / c.devices_per_node,
                            to % c.devices_per_node}));
      const bool across = from / c.devices_per_node != to / c.devices_per_node;
      if (across) {
        EXPECT_GE(latency.value, 12e-6);
      } else if (from != to) {
        EXPECT_NEAR(latency.value, 4e-6, 1e-12);
      }
    }
  }
}

TEST(Topology, FlattensRoutesOneAfterAnother) {
  const Topology topology(boxes(2));
  const std::vector<std::pair<int, int>> pairs = {{0, 1}, {3, 3}, {0, 8}};
  const Routes routes = topology.routes(pairs);
  ASSERT_EQ(routes.size(), 3u);
  EXPECT_EQ(routes[0].size(), 2u);
  EXPECT_TRUE(routes[1].empty());
  EXPECT_EQ(topology.link(routes[2].back()).to, (Vertex{VertexKind::kDevice, 1, 0}));
}

// 2,048 boxes are numbered, not laid out: what is searched is one box.
TEST(Topology, NumbersSixteenThousandDevices) {
  Cluster c = boxes(2048);
  c.rails = true;
  c.nodes_per_leaf = 32;
  c.spines = 16;
  const Topology topology(c);
  EXPECT_EQ(leaves(c), 512);
  EXPECT_THAT(way(topology, 0, 16383), HasSubstr("leaf7 spine15 leaf511 node2047/nic7"));
  EXPECT_EQ(topology.capacities().size(), static_cast<std::size_t>(topology.links()));
}

// 4 nodes x 8 NICs x 10 GB/s below a leaf of 4 nodes.
TEST(Fabric, DividesUplinksByOversubscription) {
  Cluster c = boxes(8);
  c.nodes_per_leaf = 4;
  EXPECT_DOUBLE_EQ(uplink(c, 0).value, 320e9);
  c.oversubscription = 4;
  c.spines = 2;
  EXPECT_DOUBLE_EQ(uplink(c, 0).value, 80e9);
  EXPECT_DOUBLE_EQ(uplink(c, 0, 1).value, 40e9);
  c.rails = true;  // eight leaves share the same NICs
  EXPECT_DOUBLE_EQ(uplink(c, 3).value, 10e9);
  c.slow_links = {{"spine0", "leaf3", 0}};
  EXPECT_DOUBLE_EQ(uplink(c, 3).value, 5e9);
  EXPECT_DOUBLE_EQ(uplink(c, 4).value, 10e9);
}

TEST(SlowLinks, DeadOnesAreGoneRound) {
  Cluster c = boxes(2);
  c.slow_links = {{"node0/device5", "node0/switch", 0}, {"leaf0", "node1/nic2", 0}};
  EXPECT_EQ(topology_error(c), "");
  const Topology topology(c);
  EXPECT_EQ(way(topology, 5, 4), "node0/device5 node0/pcie2 node0/device4");
  EXPECT_EQ(way(topology, 0, 4), "node0/device0 node0/switch node0/device4");
  EXPECT_THAT(way(topology, 2, 10), HasSubstr("leaf0 node1/nic3"));  // the same PCIe switch's
  EXPECT_EQ(topology.box(1).nics[2], std::vector<int>{3});
  EXPECT_EQ(topology.box(0).nics[2], std::vector<int>{2});
}

TEST(SlowLinks, AreRefusedWhereTheyCutOffADevice) {
  Cluster c = boxes(1);
  c.slow_links = {{"node0/device5", "node0/switch", 0}, {"node0/device5", "node0/pcie2", 0}};
  EXPECT_THAT(topology_error(c), HasSubstr("here: node0/device0 reaches node0/device5 no more"));

  c = boxes(2);
  c.nics_per_node = 1;
  c.slow_links = {{"node1/nic0", "leaf0", 0}};
  EXPECT_THAT(topology_error(c), HasSubstr("node1/device0 reaches no network"));

  c = boxes(4);
  c.nodes_per_leaf = 2;
  c.slow_links = {{"leaf1", "spine0", 0}};
  EXPECT_THAT(topology_error(c), HasSubstr("leaf1 and leaf0 reach no spine in common"));
}

TEST(SlowLinks, AreRefusedWhereTheClusterHasNone) {
  const auto error_with = [](const char* from, const char* to) {
    Cluster c = boxes(2);
    c.slow_links = {{from, to, 0.5}};
    return topology_error(c);
  };
  EXPECT_EQ(error_with("node1/nic7", "leaf0"), "");
  EXPECT_THAT(error_with("node1/nic8", "leaf0"), HasSubstr("no link node1/nic8 to leaf0"));
  EXPECT_THAT(error_with("node2/nic0", "leaf0"), HasSubstr("no link"));
  EXPECT_THAT(error_with("node0/device0", "node1/device0"), HasSubstr("no link"));
  EXPECT_THAT(error_with("node0/device0", "node0/device1"), HasSubstr("no link"));
  EXPECT_THAT(error_with("leaf0", "spine0"), HasSubstr("no link"));  // one leaf needs no spine
  EXPECT_THAT(error_with("gpu0", "leaf0"), HasSubstr("\"gpu0\" names no end of a link"));
}

}  // namespace
}  // namespace stepcast
