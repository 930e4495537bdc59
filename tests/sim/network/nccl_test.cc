// Collectives as NCCL's tuner runs them, against its formulas and against published measurements.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "sim/base/json.h"
#include "sim/network/network.h"
#include "tests/support/clusters.h"
#include "tests/support/shipped_device.h"

namespace stepcast {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// 100 GB/s inside a node, a NIC of 10 GB/s a device, NCCL's own hops; Ampere's constants.
Cluster plain(int nodes) {
  Cluster cluster;
  cluster.name = "plain";
  cluster.nodes = nodes;
  cluster.device.node_bandwidth = gigabytes_per_second(100);
  cluster.device.nccl = NcclDevice{NcclGeneration::kAmpere, gigabytes_per_second(100), false,
                                   HostCpu::kIntel};
  cluster.node_bandwidth = gigabytes_per_second(100);
  cluster.node_latency = microseconds(3.4);
  cluster.nic_bandwidth = gigabytes_per_second(10);
  cluster.nic_latency = microseconds(14);
  return cluster;
}

TransferChoice all_reduce(const Cluster& cluster, const Placement& placement, std::int64_t bytes) {
  return choose_transfer(TransferKind::kAllReduce, Bytes(bytes), placement, cluster);
}

// What nccl-tests would print, in GB/s.
double bus(TransferKind kind, std::int64_t bytes, const Placement& p, const Cluster& cluster) {
  const double n = p.ranks;
  const double factor = (kind == TransferKind::kAllReduce ? 2 : 1) * (n - 1) / n;
  const Seconds time = choose_transfer(kind, Bytes(bytes), p, cluster).time;
  return factor * static_cast<double>(bytes) / time.value * 1e-9;
}

// Ring, Simple, in a node: 8.4 us + 2 (n-1) x 3.4 us + 2 (n-1)/n S/B.
TEST(Nccl, ALargeRingInANodeIsItsClosedForm) {
  const TransferChoice choice = all_reduce(plain(1), whole_cluster(1), 1'000'000'000);
  EXPECT_EQ(choice.algorithm, "ring");
  EXPECT_EQ(choice.protocol, "simple");
  EXPECT_NEAR(choice.time.value, 8.4e-6 + 14 * 3.4e-6 + 1.75 * 0.01, 1e-12);
  EXPECT_DOUBLE_EQ(choice.bus_bandwidth.value, 100e9);
}

// Four nodes of 8, B = 8 NICs x 10 GB/s. Of 62 steps 6 cross nodes at 14 us; the others take 3.4
// us, more than the 3 us of posting a message. "Plateau effect": the latency 1.4 times, on Volta
// 1.9 times.
TEST(Nccl, ALargeRingAcrossNodesIsItsClosedForm) {
  const TransferChoice choice = all_reduce(plain(4), whole_cluster(4), 1'000'000'000);
  EXPECT_EQ(choice.algorithm, "ring");
  EXPECT_EQ(choice.protocol, "simple");
  EXPECT_NEAR(choice.time.value,
              1.4 * (8.4e-6 + 56 * 3.4e-6 + 6 * 14e-6) + 2 * 31.0 / 32 / 80, 1e-12);
  EXPECT_DOUBLE_EQ(choice.bus_bandwidth.value, 80e9);
  Cluster volta = plain(4);
  volta.device.nccl->generation = NcclGeneration::kVolta;
  EXPECT_NEAR(all_reduce(volta, whole_cluster(4), 1'000'000'000).time.value,
              1.9 * (8.4e-6 + 56 * 3.4e-6 + 6 * 14e-6) + 2 * 31.0 / 32 / 80, 1e-12);
}

// Ring and LL: 6.6 us + 14 x 0.6 us for an all-reduce, 7 x 0.6 us for an all-gather; a broadcast
// adds one hop to the base, for its chunks follow each other.
TEST(Nccl, ASmallTransferCostsTheLatencyOfLl) {
  const Cluster cluster = plain(1);
  const auto time = [&](TransferKind kind) {
    const TransferChoice choice = choose_transfer(kind, Bytes(0), whole_cluster(1), cluster);
    EXPECT_EQ(choice.protocol, "ll");
    return choice.time.value;
  };
  EXPECT_NEAR(time(TransferKind::kAllReduce), 6.6e-6 + 14 * 0.6e-6, 1e-15);
  EXPECT_NEAR(time(TransferKind::kAllGather), 6.6e-6 + 7 * 0.6e-6, 1e-15);
  EXPECT_NEAR(time(TransferKind::kBroadcast), 6.6e-6 + 0.6e-6, 1e-15);
}

// Tree, LL, 64 nodes: 6.8 us + 2 (7 x 0.6 us + log2 64 x 5 us) = 75.2 us.
TEST(Nccl, ASmallAllReduceOverManyNodesGoesByTree) {
  const TransferChoice choice = all_reduce(plain(64), whole_cluster(64), 0);
  EXPECT_EQ(choice.algorithm, "tree");
  EXPECT_NEAR(choice.time.value, 75.2e-6, 1e-12);
}

// One rank a node, 64 nodes: PAT takes 8 + 6 x 14 / 3.5 + 64 x 2.8 us = 211.2 us, a ring (63 steps
// of at least 5 us) more. Its bandwidth is 0.75 of the NIC's 10 GB/s, no (n-1)/n.
TEST(Nccl, AnAllGatherOfOneRankANodeGoesByPat) {
  const Bytes bytes = kibibytes(64);
  const Placement p = whole_cluster(64, 1);
  const TransferChoice choice = choose_transfer(TransferKind::kAllGather, bytes, p, plain(64));
  EXPECT_EQ(choice.algorithm, "pat");
  EXPECT_NEAR(choice.time.value, 211.2e-6 + 65536 / 7.5e9, 1e-12);
  EXPECT_EQ(choose_transfer(TransferKind::kAllGather, bytes, whole_cluster(8), plain(8)).algorithm,
            "ring");
}

// What NCCL caps: L + S / B with
//   LL in a node, 8 H200       141 GB/s of bus x 8/14; L = 6.6 + 14 x 0.6 us
//   LL across, Intel, 2 nodes  39 GB/s / 2, trees at 128 KiB x 0.5; L = 6.8 + 2 (7 x 0.6 + 5) us
//   LL128, A100, 2 nodes       8 channels x 20 GB/s x 16/30; L = 14 + 28 x 2 (AMD posts) + 2 x 4 us
//   LL in a node, 16 V100      39 GB/s of bus x 16/30; L = 6.6 + 30 x 0.6 us
TEST(Nccl, LowLatencyProtocolsAreCapped) {
  const auto expect = [](const Cluster& cluster, std::int64_t bytes, const char* algorithm,
                         const char* protocol, double latency, double bandwidth) {
    const TransferChoice choice = all_reduce(
        cluster, whole_cluster(cluster.nodes, cluster.devices_per_node), bytes);
    EXPECT_EQ(choice.algorithm, algorithm);
    EXPECT_EQ(choice.protocol, protocol);
    const double us = latency + static_cast<double>(bytes) / (1000 * bandwidth);
    EXPECT_NEAR(choice.time.value * 1e6, us, 1e-6);
  };
  expect(standard_box("h200"), kMiB, "ring", "ll", 6.6 + 14 * 0.6, 141 * 8.0 / 14);
  expect(standard_box("h100-sxm", 2), kMiB / 8, "tree", "ll", 6.8 + 2 * (7 * 0.6 + 5),
         39.0 / 2 * 0.5);
  expect(standard_box("a100-80gb", 2), 64 * kMiB, "ring", "ll128", 14 + 28 * 2 + 2 * 4,
         160 * 16.0 / 30);
  expect(standard_box("v100-sxm3", 1, 16), kMiB / 16, "ring", "ll", 6.6 + 30 * 0.6, 39 * 16.0 / 30);
}

// 64 nodes of one rank: LL128 runs at 120/128 of 0.92 of the NIC's 10 GB/s, 0.85 of it for the
// plain tree, half of it for the algorithm, 0.6 of it at 1 MiB; L = 14 + 2 x 6 x 8.5 us.
TEST(Nccl, ATreeOfLoneRanksIsAPlainTree) {
  const TransferChoice choice = all_reduce(plain(64), whole_cluster(64, 1), kMiB);
  EXPECT_EQ(choice.algorithm, "tree");
  EXPECT_EQ(choice.protocol, "ll128");
  const double bandwidth = 10 * 0.92 * 120 / 128 * 0.85 / 2 * 0.6;
  EXPECT_NEAR(choice.time.value * 1e6, 116 + static_cast<double>(kMiB) / (1000 * bandwidth), 1e-6);
}

// A site's hops scale NCCL's: at no latency only the base is left.
TEST(Nccl, TheClustersHopsScaleItsLatencies) {
  Cluster cluster = plain(1);
  cluster.node_latency = microseconds(6.8);
  EXPECT_NEAR(all_reduce(cluster, whole_cluster(1), 0).time.value, 6.6e-6 + 14 * 1.2e-6, 1e-15);
  cluster.node_latency = Seconds(0);
  EXPECT_NEAR(all_reduce(cluster, whole_cluster(1), 0).time.value, 6.6e-6, 1e-15);
}

struct Measured {
  int devices;
  const char* algorithm;
  double bus;  // GB/s at 8 GiB
};

void expect_measured(const std::string& device, std::initializer_list<Measured> rows) {
  for (const Measured& row : rows) {
    SCOPED_TRACE(device + " x " + std::to_string(row.devices));
    const Placement p = whole_cluster(1, row.devices);
    EXPECT_EQ(all_reduce(standard_box(device), p, 8 * kGiB).algorithm, row.algorithm);
    EXPECT_NEAR(bus(TransferKind::kAllReduce, 8 * kGiB, p, standard_box(device)), row.bus,
                0.04 * row.bus);
  }
}

// stas00/ml-engineering network/README.md, NCCL 2.27.7: all-reduce on the devices of a box. NCCL
// changes to NVLS from 5 H200 and from 6 B200 up.
TEST(Nccl, NvlsBeginsWhereMeasuredAndRampsAsMeasured) {
  expect_measured("h200", {{4, "ring", 363.3}, {5, "nvls", 414.2}, {6, "nvls", 435.6},
                           {7, "nvls", 460.0}, {8, "nvls", 473.1}});
  expect_measured("b200", {{4, "ring", 673.2}, {5, "ring", 677.8}, {6, "nvls", 778.2},
                           {7, "nvls", 811.2}, {8, "nvls", 838.0}});
  // NVIDIA/nccl-tests#290: about 476 on 8 H100.
  EXPECT_NEAR(bus(TransferKind::kAllReduce, 8 * kGiB, whole_cluster(1), standard_box("h100-sxm")),
              476, 0.04 * 476);
}

// The same, with NVLS off: 365.6 on 8 H200, 682.2 on 8 B200; 234.9 on 8 A100 at 16 GiB.
TEST(Nccl, WithoutNvlsTheRingIsAsMeasured) {
  for (const auto& [device, measured] : {std::pair{"h200", 365.6}, {"b200", 682.2}}) {
    Cluster cluster = standard_box(device);
    cluster.device.nccl->nvls = false;
    EXPECT_EQ(all_reduce(cluster, whole_cluster(1), 8 * kGiB).algorithm, "ring");
    EXPECT_NEAR(bus(TransferKind::kAllReduce, 8 * kGiB, whole_cluster(1), cluster), measured,
                0.01 * measured);
  }
  EXPECT_NEAR(bus(TransferKind::kAllReduce, 16 * kGiB, whole_cluster(1), standard_box("a100-80gb")),
              234.9, 0.03 * 234.9);
}

// VIA-Research/vTrain trace/a100, all-reduce at 1 GiB: 197.3, 221.9 and 229.4 GB/s of bus bandwidth
// on 2, 4 and 8 A100. A ring's 2 (n-1) steps are followed by one that only copies, of 0.43 here: of
// one bandwidth B on the links 2 (n-1) / (2 (n-1) + 0.43) is left, 0.823, 0.933 and 0.970.
TEST(Nccl, TheLastStepOfARingCostsSmallGroupsMost) {
  Cluster cluster = standard_box("a100-80gb");
  cluster.device.kernels.collectives.ring_copy = 0.43;
  cluster.node_bandwidth = gigabytes_per_second(237);
  for (const auto& [ranks, measured] : {std::pair{2, 197.3}, {4, 221.9}, {8, 229.4}}) {
    const Placement p = whole_cluster(1, ranks);
    EXPECT_NEAR(bus(TransferKind::kAllReduce, kGiB, p, cluster), measured, 0.015 * measured);
  }
  cluster.device.kernels.collectives.ring_copy = 0;
  EXPECT_GT(bus(TransferKind::kAllReduce, kGiB, whole_cluster(1, 2), cluster), 1.15 * 197.3);
  // Slow links do not slow the copy: 0.43 of what half the message takes at the box's 240 GB/s.
  const auto alone = [&](double ring_copy) {
    cluster.node_bandwidth = gigabytes_per_second(24);
    cluster.device.kernels.collectives.ring_copy = ring_copy;
    return all_reduce(cluster, whole_cluster(1, 2), kGiB).time.value;
  };
  EXPECT_NEAR(alone(0.43) - alone(0), 0.43 * static_cast<double>(kGiB) / 2 / 240e9, 1e-9);
  // Across nodes the copy is hidden.
  Cluster two = standard_box("a100-80gb", 2);
  const Seconds before = all_reduce(two, whole_cluster(2), kGiB).time;
  two.device.kernels.collectives.ring_copy = 0.43;
  EXPECT_EQ(all_reduce(two, whole_cluster(2), kGiB).time.value, before.value);
}

// The same at 16 GiB on 8 H200: all-gather 361.4, reduce-scatter 362.9, both by ring.
TEST(Nccl, GathersAndScattersStayWithTheRing) {
  const Cluster cluster = standard_box("h200");
  for (const auto& [kind, measured] : {std::pair{TransferKind::kAllGather, 361.4},
                                       {TransferKind::kReduceScatter, 362.9}}) {
    EXPECT_NEAR(bus(kind, 16 * kGiB, whole_cluster(1), cluster), measured, 0.02 * measured);
    for (std::int64_t bytes = 1024; bytes <= 16 * kGiB; bytes *= 2) {
      EXPECT_EQ(choose_transfer(kind, Bytes(bytes), whole_cluster(1), cluster).algorithm, "ring");
    }
  }
}

// Ring and LL up to 1 MiB, NVLS and Simple from 2 MiB on 8 H200 (same README) and 8 H100
// (NVIDIA/nccl-tests#309). LL on a B200 is twice as fast in NCCL's table, so it lasts one doubling
// longer; nobody has published where it ends.
TEST(Nccl, LlGivesWayToNvlsWherePublished) {
  for (const char* device : {"h200", "h100-sxm"}) {
    const Cluster cluster = standard_box(device);
    for (std::int64_t bytes = 8; bytes <= kMiB; bytes *= 2) {
      EXPECT_EQ(all_reduce(cluster, whole_cluster(1), bytes).algorithm, "ring") << bytes;
      EXPECT_EQ(all_reduce(cluster, whole_cluster(1), bytes).protocol, "ll") << bytes;
    }
    for (std::int64_t bytes = 2 * kMiB; bytes <= 16 * kGiB; bytes *= 2) {
      EXPECT_EQ(all_reduce(cluster, whole_cluster(1), bytes).algorithm, "nvls") << bytes;
      EXPECT_EQ(all_reduce(cluster, whole_cluster(1), bytes).protocol, "simple") << bytes;
    }
  }
  EXPECT_EQ(all_reduce(standard_box("b200"), whole_cluster(1), kMiB).protocol, "ll");
  EXPECT_EQ(all_reduce(standard_box("b200"), whole_cluster(1), 4 * kMiB).algorithm, "nvls");
}

// NCCL_DEBUG=INFO on 8 H100 says "24 coll channels, 16 nvls channels". With 8 of 18 links the
// search finds 4 x 40 = 160 of 164.8 GB/s, which are split and doubled; over PCIe 4.0 2 x 12 =
// 24 GB/s, too slow to split.
TEST(Nccl, SaysHowManyChannelsThereAre) {
  EXPECT_EQ(all_reduce(standard_box("h800-sxm"), whole_cluster(1), 8).channels, 16);
  EXPECT_EQ(all_reduce(standard_box("a800-80gb"), whole_cluster(1), 8).channels, 16);
  EXPECT_EQ(all_reduce(standard_box("a100-80gb"), whole_cluster(1), 8).channels, 24);
  EXPECT_EQ(all_reduce(standard_box("v100-sxm3", 1, 16), whole_cluster(1, 16), 8).channels, 12);
  EXPECT_EQ(all_reduce(standard_box("b200"), whole_cluster(1), 8).channels, 32);
  EXPECT_EQ(all_reduce(standard_box("a100-pcie-80gb"), whole_cluster(1), 8).channels, 4);
  EXPECT_EQ(all_reduce(standard_box("h100-sxm"), whole_cluster(1), 8).channels, 24);
  EXPECT_EQ(all_reduce(standard_box("h100-sxm"), whole_cluster(1), kGiB).channels, 16);
  // Across nodes one for each NIC; four fast ones are split in two first.
  Cluster cluster = standard_box("h100-sxm", 4);
  EXPECT_EQ(all_reduce(cluster, whole_cluster(4), 8).channels, 16);
  cluster.nics_per_node = 4;
  EXPECT_EQ(all_reduce(cluster, whole_cluster(4), 8).channels, 16);
  cluster.nics_per_node = 2;
  EXPECT_EQ(all_reduce(cluster, whole_cluster(4), 8).channels, 8);
}

// NVIDIA/nccl-tests#290: a NIC of 400 Gb/s gives 46 to 48 GB/s. Eight groups of one rank a node
// share eight NICs; with one NIC in the node each has an eighth of it.
TEST(Nccl, AGroupHasItsShareOfTheNics) {
  Cluster cluster = standard_box("h100-sxm", 16);
  const Placement rail = {16, 16, 1, 8};
  const double share = bus(TransferKind::kAllGather, 8 * kGiB, rail, cluster);
  EXPECT_GT(share, 46);
  EXPECT_LT(share, 48);
  cluster.nics_per_node = 1;
  EXPECT_NEAR(bus(TransferKind::kAllGather, 8 * kGiB, rail, cluster), share / 8, 0.01 * share);
  EXPECT_NEAR(bus(TransferKind::kAllGather, 8 * kGiB, whole_cluster(16), cluster), share,
              0.01 * share);
}

// Two nodes of 8 H100 with 8 x 400 Gb/s InfiniBand (SkyPilot's Nebius example): 445, 458, 463 GB/s
// at 1, 2, 4 GiB, beyond the NICs' 400: each NIC carries half of what a ring would send.
TEST(Nccl, TwoNodesGoByNvlsTreeBeyondTheSpeedOfTheNics) {
  const Cluster cluster = standard_box("h100-sxm", 2);
  EXPECT_EQ(all_reduce(cluster, whole_cluster(2), kGiB).algorithm, "nvls-tree");
  for (const auto& [bytes, measured] :
       {std::pair{kGiB, 445.1}, {2 * kGiB, 458.3}, {4 * kGiB, 462.7}}) {
    EXPECT_NEAR(bus(TransferKind::kAllReduce, bytes, whole_cluster(2), cluster), measured,
                0.03 * measured);
  }
  // Four nodes of 8 H200: 364.9 at 4 GiB (stas00/ml-engineering network/README.md).
  EXPECT_NEAR(bus(TransferKind::kAllReduce, 4 * kGiB, whole_cluster(4), standard_box("h200", 4)),
              364.9, 0.02 * 364.9);
}

// Two nodes of 8 A100 with 4 x 100 Gb/s each (aws-samples/awsome-distributed-training,
// micro-benchmarks/nccl-tests/README.md): 76.8 and 78.3 GB/s at 1 and 2 GiB, of 50 on the wire.
TEST(Nccl, TwoNodesWithSlowNicsGoByTree) {
  Cluster cluster = standard_box("a100-80gb", 2);
  cluster.nics_per_node = 4;
  cluster.nic_bandwidth = gigabytes_per_second(12.5 * 0.94);
  EXPECT_EQ(all_reduce(cluster, whole_cluster(2), 2 * kGiB).algorithm, "tree");
  EXPECT_NEAR(bus(TransferKind::kAllReduce, kGiB, whole_cluster(2), cluster), 76.8, 0.06 * 76.8);
  EXPECT_NEAR(bus(TransferKind::kAllReduce, 2 * kGiB, whole_cluster(2), cluster), 78.3,
              0.06 * 78.3);
}

TEST(Nccl, DevicesOfOtherMakersKeepRingsOfOneLatency) {
  const Cluster cluster = standard_box("mi300x");
  ASSERT_FALSE(cluster.device.nccl);
  const TransferChoice choice = all_reduce(cluster, whole_cluster(1), 0);
  EXPECT_EQ(choice.algorithm, "ring");
  EXPECT_EQ(choice.channels, 0);
  EXPECT_DOUBLE_EQ(choice.time.value, 14 * cluster.node_latency.value);
}

TEST(Nccl, AGroupOfOneHasNothingToChoose) {
  const TransferChoice choice = all_reduce(standard_box("h100-sxm"), Placement{}, kGiB);
  EXPECT_EQ(choice.algorithm, "none");
  EXPECT_EQ(choice.time.value, 0);
}

// Random devices, places and sizes; from each size to a little more and to twice as many bytes.
TEST(Nccl, MoreBytesNeverTakeLessTime) {
  std::mt19937 random(11);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const std::vector<const char*> devices = {"a100-40gb", "a100-80gb", "h100-sxm",
                                            "h200", "b200", "mi300x"};
  std::vector<Device> read;
  for (const char* name : devices) read.push_back(shipped_device(name));
  for (int i = 0; i < 3000; ++i) {
    Cluster cluster = standard_cluster(read[static_cast<std::size_t>(pick(0, 5))], 64, 8);
    cluster.nics_per_node = pick(1, 16);
    const int nodes = pick(0, 2) == 0 ? 1 : pick(2, 64);
    const int local = nodes == 1 ? pick(2, 8) : pick(1, 8);
    const Placement p = {nodes * local, nodes, local, pick(1, 8 / local)};
    const TransferKind kind = std::vector{TransferKind::kAllReduce, TransferKind::kAllGather,
                                          TransferKind::kReduceScatter, TransferKind::kBroadcast,
                                          TransferKind::kAllToAll,
                                          TransferKind::kSendReceive}[static_cast<std::size_t>(
        pick(0, 5))];
    const std::int64_t small = std::int64_t{1} << pick(0, 36);
    double before = choose_transfer(kind, Bytes(0), p, cluster).time.value;
    for (const std::int64_t bytes : {small - 1, small, small + 1, small + 1 + small / 16,
                                     2 * small + 1}) {
      const TransferChoice choice = choose_transfer(kind, Bytes(bytes), p, cluster);
      ASSERT_TRUE(std::isfinite(choice.time.value));
      ASSERT_GE(choice.time.value, before * (1 - 1e-12))  // rounding
          << cluster.name << " " << nodes << " x " << local << " bytes " << bytes << " by "
          << choice.algorithm << " " << choice.protocol;
      ASSERT_GT(choice.bus_bandwidth.value, 0);
      before = choice.time.value;
    }
  }
}

TEST(Nccl, TransferTimeIsTheTimeOfTheChoice) {
  Mesh mesh;
  mesh.degree(Axis::kTensor) = 8;
  mesh.degree(Axis::kData) = 4;
  const Cluster cluster = standard_box("h100-sxm", 4);
  for (const Axis axis : {Axis::kTensor, Axis::kData}) {
    Transfer transfer;
    transfer.axes = axis;
    transfer.bytes = mebibytes(64);
    const TransferChoice choice = choose_transfer(transfer, mesh, cluster);
    EXPECT_EQ(transfer_time(transfer, mesh, cluster), choice.time);
    EXPECT_EQ(choice.algorithm, axis == Axis::kTensor ? "nvls" : "ring");
  }
}

// uccl-project/uccl experimental/ukernel/docs/b300_native_nccl_measurements.md (NCCL 2.29.7): GB/s
// of all that a rank holds, 2, 4 and 8 of a box's B300. They barely differ: 32 channels copy a
// rank's own part with the others, and are slower than its links. With the start of a collective
// that was fitted on B200, which has the same links.
TEST(Nccl, AllToAllIsAsFastAsItsChannelsCopy) {
  Cluster box = standard_box("b300");
  box.device.kernels.collectives.start = microseconds(21.6);
  box.node_latency = microseconds(7.99);
  struct Row {
    int ranks;
    std::int64_t mebibytes;
    double published;
  };
  for (const Row& row : {Row{2, 16, 385.8}, {2, 64, 533.7}, {2, 256, 652.5}, {4, 16, 331.4},
                         {4, 64, 528.5}, {4, 256, 635.3}, {8, 16, 306.7}, {8, 64, 488.6},
                         {8, 256, 620.3}}) {
    const Bytes bytes = mebibytes(row.mebibytes);
    const TransferChoice choice =
        choose_transfer(TransferKind::kAllToAll, bytes, whole_cluster(1, row.ranks), box);
    EXPECT_EQ(choice.channels, 32);
    EXPECT_NEAR(static_cast<double>(bytes.count) / choice.time.value / row.published / 1e9, 1, 0.21)
        << row.ranks << " ranks, " << row.mebibytes << " MiB";
  }
}

// NVIDIA/nccl#2169: 500 MiB among 4 H100 in 1,174 us. Their links are slower than the channels: 3/4
// of the bytes at 365 GB/s.
TEST(Nccl, AllToAllOnSlowerLinksIsAsFastAsThey) {
  Cluster box = standard_box("h100-sxm");
  box.device.kernels.collectives.start = microseconds(10.04);  // as fitted
  box.node_latency = microseconds(6.98);
  const TransferChoice choice =
      choose_transfer(TransferKind::kAllToAll, mebibytes(500), whole_cluster(1, 4), box);
  EXPECT_NEAR(choice.bus_bandwidth.value, 450e9 * 0.812, 1e6);
  EXPECT_NEAR(choice.time.value / 1174e-6, 1, 0.08);
}

}  // namespace
}  // namespace stepcast
