// NCCL's buffers against what was published of them, and which communicators a Job makes.
#include "sim/network/communicators.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "sim/base/json.h"
#include "tests/support/clusters.h"
#include "tests/support/job_builder.h"
#include "tests/support/shipped_device.h"

namespace stepcast {
namespace {

CommunicatorUse rings_and_trees() {
  CommunicatorUse use;
  use.ring = use.tree = true;
  return use;
}

CommunicatorUse all_to_all(int ranks) {
  CommunicatorUse use;
  use.send_peers = use.receive_peers = ranks - 1;
  return use;
}

constexpr NcclVersion k218{false, false};  // connects at once, cudaMalloc
constexpr NcclVersion k221{false, true};   // connects at once, cuMem

double mebi(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }
double giga(Bytes bytes) { return static_cast<double>(bytes.count) * 1e-9; }

// NVIDIA/nccl#1685, NCCL_DEBUG_SUBSYS=ALLOC on H100: allocations of 10,485,760 and 2,097,152 B.
TEST(Communicators, AllocateWhatNcclLogs) {
  const ConnectionBytes hopper = connection_bytes_in_node(NcclGeneration::kHopper);
  EXPECT_EQ(hopper.receive, Bytes(10'485'760));
  EXPECT_EQ(hopper.send, Bytes(2'097'152));
}

// A100's peers read: 4,096 + 524,288 + 4,915,200 B and 4,096 + 4,194,304 B, both 6 MiB in pages.
TEST(Communicators, KeepAnA100sSimpleBufferWithTheSender) {
  const ConnectionBytes ampere = connection_bytes_in_node(NcclGeneration::kAmpere);
  EXPECT_EQ(ampere.receive, mebibytes(6));
  EXPECT_EQ(ampere.send, mebibytes(6));
}

// Across nodes: LL128 and Simple, 9,109,504 B; with LL 9,633,792 B.
TEST(Communicators, HoldTenMebibytesAtBothEndsAcrossNodes) {
  EXPECT_EQ(connection_bytes_across_nodes().send, mebibytes(10));
  EXPECT_EQ(connection_bytes_across_nodes().receive, mebibytes(10));
}

// NVIDIA/nccl#964: 4 A100 with NVLink, an all-reduce in each possible group (August 2023: NCCL
// 2.18), on rank 0: 544 MB a group of two, 688 MB a larger one. 24 channels:
//   ring        24 x (6 + 6)             288 MiB
//   pool        32 x 16 x 512 KiB        256 MiB, for sends, made with the communicator
//   tree        rank 0 begins the chain: one receive, from a rank that it only sends to in the ring
//               24 x 6                   144 MiB; of two ranks both directions are the ring's
// Exact but for the tables of ranks, some ten kilobytes.
TEST(Communicators, OfFourA100HoldWhatWasMeasured) {
  const Cluster cluster = standard_box("a100-80gb", 1, 4);
  CommunicatorUse use = rings_and_trees();
  use.at_chain_end = true;
  EXPECT_NEAR(mebi(communicator_bytes({2, 1, 2, 2}, use, cluster, k218)), 544, 1);
  EXPECT_NEAR(mebi(communicator_bytes({3, 1, 3, 1}, use, cluster, k218)), 688, 1);
  EXPECT_NEAR(mebi(communicator_bytes({4, 1, 4, 1}, use, cluster, k218)), 688, 1);
  // A rank inside the chain has two tree neighbours: 24 x (6 + 6).
  use.at_chain_end = false;
  EXPECT_NEAR(mebi(communicator_bytes({4, 1, 4, 1}, use, cluster, k218)), 832, 1);
}

// stas00/ml-engineering training/performance/README.md, 2 ranks of one box: 2.00 GiB with a
// communicator, 1.28 GiB when it is destroyed. The 544 MiB of above, and with cuMem 2 MiB for each
// of three tables of 32 channels, 192 MiB.
TEST(Communicators, OfTwoRanksGiveBackWhatWasMeasured) {
  const Bytes bytes =
      communicator_bytes({2, 1, 2, 4}, rings_and_trees(), standard_box("h100-sxm"), k221);
  EXPECT_NEAR(mebi(bytes) / 1024, 2.00 - 1.28, 0.01);
}

// NVIDIA/nccl#1685: the first all-to-all of 8 H100 takes a device from 1.06 to 4.34 GB. 7 peers x
// 32 channels x (10 + 2) MiB are 2,688 MiB, tables 196 MiB; the context and NCCL's code come from
// another report (configs/devices). The sum is 1.4 % above what was measured, the increase, which
// depends on what was loaded before, 8 % below.
TEST(Communicators, OfEightH100GrowWithTheFirstAllToAllAsMeasured) {
  const Cluster cluster = standard_box("h100-sxm");
  const Bytes bytes = communicator_bytes(whole_cluster(1, 8), all_to_all(8), cluster);
  EXPECT_EQ(bytes, mebibytes(2688 + 196));
  EXPECT_NEAR(giga(bytes), 4.34 - 1.06, 0.10 * (4.34 - 1.06));
  const Bytes total = bytes + *cluster.device.context_memory + cluster.device.nccl->code;
  EXPECT_NEAR(giga(total), 4.34, 0.02 * 4.34);
}

// NVIDIA/nccl#864: about 1.6 GB once a communicator has done an all-reduce (2.18; the GPU is not
// named, 8 of them). 832 MiB, and NCCL's code.
TEST(Communicators, OfOneBoxTakeWithNcclsCodeAboutWhatWasReported) {
  const Cluster cluster = standard_box("a100-80gb");
  const Bytes bytes = communicator_bytes(whole_cluster(1, 8), rings_and_trees(), cluster, k218);
  EXPECT_NEAR(giga(bytes + cluster.device.nccl->code), 1.6, 0.1);
}

// From 2.22 on a ring alone is connected where only rings run.
TEST(Communicators, ConnectOnlyWhatIsUsedInLaterVersions) {
  const Cluster cluster = standard_box("h100-sxm");
  CommunicatorUse ring;
  ring.ring = true;
  // 24 x 12 MiB, and tables of 32 channels.
  EXPECT_EQ(communicator_bytes(whole_cluster(1, 8), ring, cluster), mebibytes(24 * 12 + 196));
  EXPECT_EQ(communicator_bytes(whole_cluster(1, 8), {}, cluster), mebibytes(196));
  EXPECT_GT(communicator_bytes(whole_cluster(1, 8), ring, cluster, k221),
            communicator_bytes(whole_cluster(1, 8), ring, cluster));
  // NVLS: 16 channels x 2 x 1 MiB x 8 devices, and a page of credits.
  CommunicatorUse nvls;
  nvls.nvls = true;
  EXPECT_EQ(communicator_bytes(whole_cluster(1, 8), nvls, cluster), mebibytes(256 + 2 + 196));
}

// NVIDIA/nccl#818: with eight NICs a node in use instead of two, NCCL takes more memory.
TEST(Communicators, TakeMoreWithMoreNics) {
  Cluster cluster = standard_box("a100-80gb", 8);
  const auto bytes = [&](int nics) {
    cluster.nics_per_node = nics;
    return communicator_bytes(whole_cluster(8, 8), rings_and_trees(), cluster);
  };
  EXPECT_LT(bytes(2), bytes(4));
  EXPECT_LT(bytes(4), bytes(8));
}

// NVIDIA/nccl#986: beyond two nodes, memory should no longer increase with their number.
TEST(Communicators, DoNotGrowWithTheNodesBeyondTwo) {
  const auto bytes = [](int nodes) {
    return communicator_bytes(whole_cluster(nodes, 8), rings_and_trees(),
                              standard_box("a100-80gb", nodes));
  };
  EXPECT_LT(bytes(2), bytes(4));
  EXPECT_EQ(bytes(4), bytes(16));
  // But for the tables of ranks: 608 B each, at 16,384 ranks 10 MiB a channel instead of 2.
  EXPECT_GT(bytes(2048), bytes(16));
}

// Tensor 8 in a box, pipeline 4, data 2. All stages gather over tensor; the ends send one way, the
// inner ones both; the last alone reduces over data.
TEST(Communicators, AreThoseOfTheTransfersThatAStageIssues) {
  JobBuilder b(4);
  b.job.mesh.degree(Axis::kTensor) = 8;
  b.job.mesh.degree(Axis::kData) = 2;
  const TensorId x = b.tensor("x", {1 << 20});
  const Transfer gather{TransferKind::kAllGather, Axis::kTensor, false, Bytes(1 << 21)};
  const Transfer reduce{TransferKind::kReduceScatter, Axis::kData, false, Bytes(1 << 28)};
  const Transfer alone{TransferKind::kAllReduce, Axis::kReplica, false, Bytes(4)};
  const BodyId first = b.body("first", Phase::kForward);
  b.collective(gather, Stream::kTensor, {x}, {x}).send(x).collective(alone, Stream::kReplica, {x},
                                                                     {x});
  const BodyId inner = b.body("inner", Phase::kForward);
  b.receive(x).collective(gather, Stream::kTensor, {x}, {x}).send(x);
  const BodyId last = b.body("last", Phase::kForward);
  b.receive(x).collective(gather, Stream::kTensor, {x}, {x});
  b.collective(reduce, Stream::kData, {x}, {x});
  b.call(0, first, 0).call(1, inner, 0).call(2, inner, 0).call(3, last, 0);

  const auto stages = communicators(b.job, standard_box("h100-sxm", 8));
  const auto find = [&](std::size_t stage, AxisSet axes) -> const Communicator* {
    for (const Communicator& c : stages[stage]) {
      if (c.axes == axes) return &c;
    }
    return nullptr;
  };
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(stages[0].size(), 2u);  // a group of one rank is none
  EXPECT_EQ(stages[3].size(), 3u);
  EXPECT_EQ(find(0, Axis::kData), nullptr);
  ASSERT_NE(find(3, Axis::kData), nullptr);
  EXPECT_EQ(find(3, Axis::kData)->placement.nodes, 2);
  ASSERT_NE(find(1, Axis::kTensor), nullptr);
  EXPECT_TRUE(find(1, Axis::kTensor)->use.ring);
  EXPECT_FALSE(find(1, Axis::kTensor)->use.tree);
  EXPECT_TRUE(find(1, Axis::kPipeline)->use.sends_across);
  for (const auto& stage : stages) {
    for (std::size_t i = 1; i < stage.size(); ++i) EXPECT_GE(stage[i - 1].bytes, stage[i].bytes);
  }
}

// Four stages in one box: the first sends to one, an inner one sends to one and receives from one.
TEST(Communicators, OfPipelinesHoldBuffersForTheirNeighbours) {
  JobBuilder b(4);
  const TensorId x = b.tensor("x", {1 << 20});
  const BodyId first = b.body("first", Phase::kForward);
  b.send(x);
  const BodyId inner = b.body("inner", Phase::kForward);
  b.receive(x).send(x);
  const BodyId last = b.body("last", Phase::kForward);
  b.receive(x);
  b.call(0, first, 0).call(1, inner, 0).call(2, inner, 0).call(3, last, 0);
  const auto stages = communicators(b.job, standard_box("h100-sxm"));
  const auto more = [&](std::size_t stage) {
    const Communicator& c = stages[stage].at(0);
    return c.bytes - communicator_bytes(c.placement, {}, standard_box("h100-sxm"));
  };
  EXPECT_EQ(more(0), mebibytes(32 * 2));         // 32 channels, the sender's ends
  EXPECT_EQ(more(1), mebibytes(32 * (2 + 10)));
  EXPECT_EQ(more(3), mebibytes(32 * 10));
}

TEST(Communicators, AreNotModelledWhereNcclIsNot) {
  JobBuilder b(2);
  const TensorId x = b.tensor("x", {1 << 20});
  const BodyId first = b.body("first", Phase::kForward);
  b.send(x);
  const BodyId last = b.body("last", Phase::kForward);
  b.receive(x);
  b.call(0, first, 0).call(1, last, 0);
  for (const auto& stage : communicators(b.job, standard_box("mi300x"))) EXPECT_TRUE(stage.empty());
}

}  // namespace
}  // namespace stepcast
