// Collectives played message by message, against their closed forms, and folded against unfolded.
#include "sim/network/collective_flows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/network/network.h"

namespace stepcast {
namespace {

constexpr Duration kNode(2'000'000);  // latencies: 2 us in a node,
constexpr Duration kNic(7'000'000);   // 7 us to another

// 100 GB/s in a node, a NIC of 10 GB/s for each device: 10 ps and 100 ps a byte.
TwoLevel shape(std::int32_t nodes, std::int32_t per_node) {
  TwoLevel s;
  s.nodes = nodes;
  s.devices_per_node = s.nics_per_node = per_node;
  s.node_bandwidth = gigabytes_per_second(100);
  s.node_latency = kNode;
  s.nic_bandwidth = gigabytes_per_second(10);
  s.nic_latency = kNic;
  return s;
}

RankList devices(std::int32_t count, std::int32_t first = 0, std::int32_t stride = 1) {
  RankList group;
  for (std::int32_t r = 0; r < count; ++r) group.push_back(first + r * stride);
  return group;
}

constexpr Folding kBoth[] = {Folding::kEveryMessage, Folding::kEqualMessages};

std::int64_t picoseconds(const FlowExchange& exchange, const TwoLevel& s, Folding folding) {
  return play(std::span(&exchange, 1), two_level_network(s), folding).times[0].picoseconds;
}

std::int64_t flows(const FlowExchange& exchange, const TwoLevel& s, Folding folding) {
  return play(std::span(&exchange, 1), two_level_network(s), folding).flows;
}

// ---------------------------------------------------------------------- closed forms, one node

// 8 ranks, S = 8 MB: chunks of 1 MB take 10 us at 100 GB/s, so a step is 12 us. All-reduce has
// 2 (n-1) = 14 of them, the other two n-1 = 7.
TEST(CollectiveFlows, RingsTakeTheirClosedForms) {
  const RankList group = devices(8);
  const std::span<const RankList> one(&group, 1);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(ring_all_reduce(one, Bytes(8'000'000)), shape(1, 8), folding),
              14 * 12'000'000);
    EXPECT_EQ(picoseconds(ring_all_gather(one, Bytes(8'000'000)), shape(1, 8), folding),
              7 * 12'000'000);
    EXPECT_EQ(picoseconds(ring_reduce_scatter(one, Bytes(8'000'000)), shape(1, 8), folding),
              7 * 12'000'000);
  }
}

// 7 ranks are a full tree of depth 2. At each of its 2 levels up, two children send to one parent,
// through whose link in each gets half: a + 2 S/B. Down, the parent's link out is shared alike.
// S = 1 MB: 4 (2 + 20) us.
TEST(CollectiveFlows, ATreeTakesItsClosedForm) {
  const RankList group = devices(7);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(tree_all_reduce(std::span(&group, 1), Bytes(1'000'000)), shape(1, 7),
                          folding),
              4 * 22'000'000);
  }
}

// Two ranks, m chunks of S/m: up and down use different links, so down is one chunk behind up:
// 2 a + (m + 1) S/(m B). S = 1 MB, m = 4: 4 + 5 x 2.5 us.
TEST(CollectiveFlows, ChunksOfATreeFollowEachOther) {
  const RankList group = devices(2);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(tree_all_reduce(std::span(&group, 1), Bytes(1'000'000), 4), shape(1, 2),
                          folding),
              16'500'000);
  }
}

// Each rank's link out carries (n-1)/n S: a + (n-1)/n S/B. n = 5, S = 5 MB: 2 + 40 us.
TEST(CollectiveFlows, AllToAllInANodeFillsItsLinks) {
  const RankList group = devices(5);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(all_to_all(std::span(&group, 1), Bytes(5'000'000)), shape(1, 5), folding),
              42'000'000);
  }
}

TEST(CollectiveFlows, ASendTakesLatencyAndBytes) {
  const Connection near[] = {{0, 1}}, far[] = {{0, 2}};
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(send_receive(near, Bytes(1'000'000)), shape(2, 2), folding), 12'000'000);
    EXPECT_EQ(picoseconds(send_receive(far, Bytes(1'000'000)), shape(2, 2), folding), 107'000'000);
  }
}

TEST(CollectiveFlows, AGroupOfOneSendsNothing) {
  const RankList group = devices(1);
  const std::span<const RankList> one(&group, 1);
  for (const Folding folding : kBoth) {
    for (const FlowExchange& exchange :
         {ring_all_reduce(one, Bytes(1000)), tree_all_reduce(one, Bytes(1000)),
          all_to_all(one, Bytes(1000))}) {
      EXPECT_EQ(exchange.messages(), 0);
      EXPECT_EQ(picoseconds(exchange, shape(1, 1), folding), 0);
    }
  }
}

// ----------------------------------------------------------------------------- two levels

// Connections of a ring share no link here, so message k of rank r ends at
//   end(r, k) = max(end(r-1, k-1) + a_r, end(r, k-1)) + s/B_r,   end(r, -1) = 0.
std::int64_t ring_recurrence(const TwoLevel& s, std::int32_t n, std::int64_t chunk,
                             std::int32_t steps) {
  std::vector<std::int64_t> end(static_cast<std::size_t>(n), 0), before;
  for (std::int32_t k = 0; k < steps; ++k) {
    before = end;
    for (std::int32_t r = 0; r < n; ++r) {
      const bool crosses = (r + 1) % s.devices_per_node == 0;
      const std::int64_t came = before[static_cast<std::size_t>((r + n - 1) % n)];
      std::int64_t& own = end[static_cast<std::size_t>(r)];
      own = std::max(came + (crosses ? kNic : kNode).picoseconds, own) +
            chunk * (crosses ? 100 : 10);
    }
  }
  return *std::max_element(end.begin(), end.end());
}

TEST(CollectiveFlows, ARingOverNodesObeysItsRecurrence) {
  for (const std::int64_t chunk : {1'000, 20'000, 100'000, 1'000'000}) {
    const TwoLevel s = shape(4, 8);
    const RankList group = devices(32);
    for (const Folding folding : kBoth) {
      EXPECT_EQ(picoseconds(ring_all_reduce(std::span(&group, 1), Bytes(32 * chunk)), s, folding),
                ring_recurrence(s, 32, chunk, 62))
          << chunk;
    }
  }
}

// network.h: (n-1)/n S/B + (n - N) a + (N - 1) A. Played, the latency of a chunk overlaps with the
// bytes of others: never less than either term, nor more than their sum and one latency (a chunk
// that starts at a NIC crosses all N).
TEST(CollectiveFlows, ARingLiesBetweenTheTermsOfTheAlphaBetaModelAndTheirSum) {
  TwoLevel s = shape(4, 8);
  s.nics_per_node = 1;
  Cluster cluster;
  cluster.nodes = 4;
  cluster.devices_per_node = 8;
  cluster.nics_per_node = 1;
  cluster.node_bandwidth = s.node_bandwidth;
  cluster.node_latency = to_seconds(kNode);
  cluster.nic_bandwidth = s.nic_bandwidth;
  cluster.nic_latency = to_seconds(kNic);
  const auto alpha_beta = [&](std::int64_t bytes) {
    const Placement placement{32, 4, 8, 1};
    return choose_transfer(TransferKind::kAllGather, Bytes(bytes), placement, cluster).time.value;
  };
  const double latency = alpha_beta(0);
  EXPECT_NEAR(latency, 28 * 2e-6 + 3 * 7e-6, 1e-12);
  const RankList group = devices(32);
  for (const std::int64_t bytes : {32'000, 3'200'000, 320'000'000}) {
    const double played = 1e-12 * static_cast<double>(picoseconds(
                                      ring_all_gather(std::span(&group, 1), Bytes(bytes)), s,
                                      Folding::kEqualMessages));
    EXPECT_GE(played, std::max(latency, alpha_beta(bytes) - latency) - 1e-9);
    EXPECT_LE(played, alpha_beta(bytes) + to_seconds(kNic).value + 1e-9);
  }
}

// q = 4 in a node, n = 8. In the node: a + (q-1)/n S/B = 2 + 3/8 x 80 us; through each rank's NIC
// A + (n-q)/n S/NIC = 7 + 4/8 x 800 us, the longer. S = 8 MB.
TEST(CollectiveFlows, AllToAllOverNodesIsBoundByTheNics) {
  const RankList group = devices(8);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(all_to_all(std::span(&group, 1), Bytes(8'000'000)), shape(2, 4), folding),
              407'000'000);
  }
}

// 2 leaves of 2 nodes with 2 devices, one spine with a link of 10 GB/s a leaf: all that 4 devices
// send to the other 4, 4 x 4 x S/8, has to pass it. S = 8 MB: 7 + 1,600 us.
TEST(CollectiveFlows, AllToAllIsBoundByAnOversubscribedSpine) {
  TwoLevel s = shape(4, 2);
  s.nodes_per_leaf = 2;
  s.uplink = gigabytes_per_second(10);
  const RankList group = devices(8);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(all_to_all(std::span(&group, 1), Bytes(8'000'000)), s, folding),
              1'607'000'000);
  }
  s.spines = 4;  // 40 GB/s a leaf: no longer a bound; each NIC's 6/8 S is: 7 + 600 us
  EXPECT_EQ(picoseconds(all_to_all(std::span(&group, 1), Bytes(8'000'000)), s,
                        Folding::kEveryMessage),
            607'000'000);
}

// 2 nodes of 4 devices with one NIC; 4 groups of two ranks, one in each node. A NIC carries 4
// messages of S/2 at a time, each at a quarter: 2 steps of a + 4 S/(2 NIC). S = 2 MB: 2 (7 + 400)
// us. Alone, a group takes 2 (7 + 100) us.
TEST(CollectiveFlows, GroupsThatShareANicGetTheirShares) {
  TwoLevel s = shape(2, 4);
  s.nics_per_node = 1;
  std::vector<RankList> groups;
  for (std::int32_t g = 0; g < 4; ++g) groups.push_back(devices(2, g, 4));
  const std::span<const RankList> all(groups);
  for (const Folding folding : kBoth) {
    EXPECT_EQ(picoseconds(ring_all_reduce(all, Bytes(2'000'000)), s, folding), 814'000'000);
    EXPECT_EQ(picoseconds(ring_all_reduce(all.first(1), Bytes(2'000'000)), s, folding),
              214'000'000);
  }
}

// The same with groups that do different things: a send of 1 MB beside a ring of two ranks with
// chunks of 1 MB, which share the NIC of node 0 out. 7 us, then half the NIC each: both have sent 1
// MB at 207 us. The ring's second step then is alone: 7 + 100 us.
TEST(CollectiveFlows, ExchangesOfDifferentKindsShareLinks) {
  TwoLevel s = shape(3, 2);
  s.nics_per_node = 1;
  const RankList group = {0, 2};
  const Connection pair[] = {{1, 4}};
  const std::vector<FlowExchange> both = {ring_all_reduce(std::span(&group, 1), Bytes(2'000'000)),
                                      send_receive(pair, Bytes(1'000'000))};
  for (const Folding folding : kBoth) {
    const ExchangeTimes times = play(both, two_level_network(s), folding);
    EXPECT_THAT(times.times, testing::ElementsAre(Duration(314'000'000), Duration(207'000'000)));
  }
}

// A device's NICs are one link where it has several: 4 NICs for 2 devices, 20 GB/s each.
TEST(CollectiveFlows, ADeviceUsesAllItsNics) {
  TwoLevel s = shape(2, 2);
  s.nics_per_node = 4;
  const Connection pair[] = {{0, 2}};
  EXPECT_EQ(picoseconds(send_receive(pair, Bytes(1'000'000)), s, Folding::kEveryMessage),
            57'000'000);
}

// ---------------------------------------------------------------------------------- folding

// One node: all connections of a ring are equal. d devices a node: one class for each place in the
// node. All-to-all: in the node or not.
TEST(CollectiveFlows, FoldsToOneFlowAClass) {
  const RankList group = devices(64);
  const std::span<const RankList> one(&group, 1);
  const FlowExchange ring = ring_all_reduce(one, Bytes(1 << 20));
  EXPECT_EQ(flows(ring, shape(1, 64), Folding::kEveryMessage), 64 * 126);
  EXPECT_EQ(flows(ring, shape(1, 64), Folding::kEqualMessages), 126);
  EXPECT_EQ(flows(ring, shape(8, 8), Folding::kEqualMessages), 8 * 126);
  const FlowExchange all = all_to_all(one, Bytes(1 << 20));
  EXPECT_EQ(flows(all, shape(8, 8), Folding::kEveryMessage), 64 * 63);
  EXPECT_EQ(flows(all, shape(8, 8), Folding::kEqualMessages), 2);
}

TEST(CollectiveFlows, FoldsNothingThatDiffers) {
  FlowNetwork network = two_level_network(shape(8, 8));
  network.capacities[5] *= 0.5;  // one slow device
  const RankList group = devices(64);
  const FlowExchange ring = ring_all_reduce(std::span(&group, 1), Bytes(1 << 20));
  EXPECT_EQ(play(std::span(&ring, 1), network, Folding::kEqualMessages).flows, 64 * 126);
}

// Random shapes, groups, kinds, several at once, now and then with a slow link: folded and unfolded
// agree to the picosecond.
TEST(CollectiveFlows, FoldedAndUnfoldedAgree) {
  std::mt19937 random(9);
  const auto below = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
  std::int64_t folded = 0, unfolded = 0;
  for (int i = 0; i < 150; ++i) {
    TwoLevel s = shape(1 + below(6), 1 + below(6));
    s.nics_per_node = 1 + below(6);
    s.nodes_per_leaf = below(3);
    s.spines = 1 + below(3);
    s.uplink = gigabytes_per_second(5 + below(20));
    FlowNetwork network = two_level_network(s);
    if (below(4) == 0) network.capacities[random() % network.capacities.size()] *= 0.7;
    const std::int32_t all = s.nodes * s.devices_per_node;
    std::vector<FlowExchange> exchanges;
    for (int e = 1 + below(2); e > 0; --e) {
      // Groups of neighbours, or of every so-many-th device, as a mesh has them.
      std::int32_t size = 1 + below(static_cast<unsigned>(all));
      while (all % size != 0) --size;
      const std::int32_t count = all / size;
      const bool near = below(2) == 0;
      std::vector<RankList> groups;
      for (std::int32_t g = 0; g < count; ++g) {
        groups.push_back(near ? devices(size, g * size) : devices(size, g, count));
      }
      const Bytes bytes(1'000 * (1 + below(3'000)));
      switch (below(4)) {
        case 0: exchanges.push_back(ring_all_reduce(groups, bytes)); break;
        case 1: exchanges.push_back(ring_all_gather(groups, bytes)); break;
        case 2: exchanges.push_back(tree_all_reduce(groups, bytes, 1 + below(4))); break;
        default: exchanges.push_back(all_to_all(groups, bytes)); break;
      }
    }
    const ExchangeTimes one = play(exchanges, network, Folding::kEqualMessages);
    const ExchangeTimes each = play(exchanges, network, Folding::kEveryMessage);
    ASSERT_EQ(one.times, each.times) << "case " << i;
    folded += one.flows;
    unfolded += each.flows;
  }
  EXPECT_LT(folded, unfolded / 2);  // else this would have tested little
}

TEST(CollectiveFlows, RefusesWhatIsNoNetworkOrGroup) {
  const auto refuses = [](const FlowExchange& exchange) {
    const FlowNetwork network = two_level_network(shape(1, 2));
    EXPECT_THROW(play(std::span(&exchange, 1), network, Folding::kEveryMessage), Error);
  };
  const Connection beyond[] = {{0, 2}}, negative[] = {{-1, 0}}, self[] = {{1, 1}};
  refuses(send_receive(beyond, Bytes(1)));
  refuses(send_receive(negative, Bytes(1)));
  refuses(send_receive(self, Bytes(1)));
  const std::vector<RankList> uneven = {{0, 1}, {2, 3, 4}};
  EXPECT_THROW(ring_all_reduce(uneven, Bytes(1)), Error);
  EXPECT_THROW(all_to_all(uneven, Bytes(1)), Error);
  EXPECT_THROW(tree_all_reduce(uneven, Bytes(1), 0), Error);
  EXPECT_THROW(two_level_network(shape(0, 2)), Error);

  FlowNetwork network = two_level_network(shape(1, 2));
  network.route = [link = 99](std::int32_t, std::int32_t) { return std::span(&link, 1); };
  const Connection pair[] = {{0, 1}};
  const FlowExchange exchange = send_receive(pair, Bytes(1));
  EXPECT_THROW(play(std::span(&exchange, 1), network, Folding::kEveryMessage), Error);
}

}  // namespace
}  // namespace stepcast
