// Prices are sim/cost's and sim/network's times, rounded once.
#include <gtest/gtest.h>

#include "sim/cost/cost.h"
#include "sim/engine/simulate.h"
#include "sim/network/network.h"
#include "sim/program/pieces.h"
#include "tests/support/clusters.h"
#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

struct PriceExample {
  Job job;
  Cluster cluster;

  PriceExample() {
    cluster.device = example_device();
    cluster.device.cache = mebibytes(40);
    cluster.device.launch = microseconds(4);
    cluster.nodes = 1;
    cluster.devices_per_node = 8;
    cluster.node_bandwidth = gigabytes_per_second(200);
    cluster.node_latency = microseconds(3);
    cluster.nic_bandwidth = gigabytes_per_second(20);
    cluster.nic_latency = microseconds(10);
    Gemm gemm;
    gemm.m = gemm.n = gemm.k = 1024;
    job.mesh.degree(Axis::kTensor) = 4;
    job.ops = {gemm,
               Pointwise{PointwiseKind::kFill, 1024, 1024, Dtype::kBf16, Dtype::kBf16, false}};
    job.transfers = {{TransferKind::kAllReduce, Axis::kTensor, false, Bytes(1 << 20)},
                     {TransferKind::kAllReduce, Axis::kData, false, Bytes(1 << 20)}};
  }
};

TEST(Price, RoundsEveryTimeOnce) {
  const PriceExample e;
  const Prices prices = price(e.job, e.cluster);
  ASSERT_EQ(prices.ops.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Cost cost = op_cost(e.job.ops[i], e.cluster.device);
    EXPECT_EQ(prices.ops[i], to_duration(cost.time));
    EXPECT_EQ(prices.basis[i], cost.basis);
    EXPECT_GT(prices.ops[i], Duration());
    EXPECT_EQ(prices.transfers[i],
              to_duration(transfer_time(e.job.transfers[i], e.job.mesh, e.cluster)));
  }
  EXPECT_EQ(prices.transfers[1], Duration());  // a group of one
  EXPECT_EQ(prices.issue, Duration(4'000'000));
  EXPECT_TRUE(prices.slow.empty());
}

TEST(Price, KnowsTheSlowDevicesThatRanksUse) {
  PriceExample e;
  e.cluster.slow_devices = {{6, 1.5}};
  EXPECT_TRUE(price(e.job, e.cluster).slow.empty());  // 4 ranks use devices 0 to 3
  e.cluster.slow_devices = {{2, 1.0}};
  EXPECT_TRUE(price(e.job, e.cluster).slow.empty());  // not slow
  e.cluster.slow_devices = {{2, 1.25}, {6, 1.5}};
  EXPECT_EQ(price(e.job, e.cluster).slow, (std::vector<double>{1, 1, 1.25, 1}));
}

// Four ranks wait for the slowest of them.
TEST(Price, GoesAtThePaceOfTheSlowestDevice) {
  PriceExample e;
  const Prices equal = price(e.job, e.cluster);
  e.cluster.device.spread = 0.1;
  const Prices prices = price(e.job, e.cluster);
  const Cost slowest = op_cost(e.job.ops[0], slower_by(e.cluster.device, highest_of(4)));
  EXPECT_EQ(prices.ops[0], to_duration(slowest.time));
  EXPECT_GT(prices.ops[0], equal.ops[0]);
  EXPECT_EQ(prices.ops[1], equal.ops[1]);  // a fill
  EXPECT_EQ(prices.transfers, equal.transfers);
}

// The tensor stream's all-reduce of 1 MiB takes memory (2.5 bytes a byte) and blocks; the fill
// beside it is bound by memory. Two transfers in one node share its links; a group of one sends
// nothing.
TEST(Price, KnowsWhatRunsBesideTransfers) {
  PriceExample e;
  Body body;
  body.code.push_back(Collective{0, {}, {}, Stream::kTensor, Phase::kForward});
  e.job.bodies = {body};
  const Prices prices = price(e.job, e.cluster);
  ASSERT_EQ(prices.beside.size(), 1u);
  const Beside& beside = prices.beside.front();
  EXPECT_EQ(beside.stream, Stream::kTensor);
  const Transfer& transfer = e.job.transfers[0];
  const double rate = static_cast<double>(sent_bytes(transfer, e.job.mesh).count) /
                      transfer_time(transfer, e.job.mesh, e.cluster).value;
  const double left = 1 - 2.5 * rate / (0.8 * 2000e9);
  const double start = 2e-6;
  const double alone = op_cost(e.job.ops[1], e.cluster.device).time.value;
  EXPECT_NEAR(beside.ops[1], (start + (alone - start) / left) / alone, 1e-9);
  EXPECT_GE(beside.ops[0], 1);
  EXPECT_EQ(beside.transfers, (std::vector<double>{2, 1}));
}

// 1,024 rows are gathered in four pieces, and whole elsewhere: copies either way. Alone, a part of
// 256 rows leaves most of the multiprocessors idle; four of them share the waves.
TEST(Price, KnowsWhatIsMovedInPieces) {
  const PriceExample e;
  JobBuilder b;
  b.job.mesh = e.job.mesh;
  const Transfer gather{TransferKind::kAllGather, Axis::kTensor, false, Bytes(1024 * 4096 * 2)};
  const Transfer other{TransferKind::kAllGather, Axis::kTensor, false, Bytes(1 << 30)};
  const Gemm product{1024, 4096, 4096};
  const TensorId x = b.resident("x", {256, 4096}), w = b.resident("w", {4096, 4096});
  const TensorId all = b.tensor("all", {1024, 4096}), y = b.tensor("y", {1024, 4096});
  b.call(0, b.body("forward", Phase::kForward), 0);
  b.collective(gather, Stream::kTensor, {x}, {all});
  std::get<Collective>(b.job.bodies.back().code.back()).pieces = 4;
  b.compute(product, {all, w}, {y});
  b.collective(gather, Stream::kTensor, {x}, {all});
  b.collective(other, Stream::kTensor, {x}, {all});

  const Prices prices = price(b.job, e.cluster);
  const auto copies = [&](const Transfer& t) {
    return to_duration(choose_copies(t, b.job.mesh, e.cluster).time);
  };
  ASSERT_EQ(prices.pieces.size(), 1u);
  EXPECT_EQ(prices.pieces[0].piece, copies(piece_of(gather, 4)));
  EXPECT_EQ(prices.transfers[0], copies(gather));
  EXPECT_EQ(prices.transfers[1], to_duration(transfer_time(other, b.job.mesh, e.cluster)));
  const double part = to_seconds(prices.pieces[0].part).value;
  EXPECT_LT(part, op_cost(part_of(product, 4), e.cluster.device).time.value);
  EXPECT_GT(4 * part, op_cost(product, e.cluster.device).time.value);
}

// A device of one stream: nothing runs beside anything, and who receives copies.
TEST(Price, KnowsDevicesThatDoEverythingInOrder) {
  PriceExample e;
  Body body;
  body.code.push_back(Collective{0, {}, {}, Stream::kTensor, Phase::kForward});
  e.job.bodies = {body};
  EXPECT_FALSE(price(e.job, e.cluster).one_stream);
  e.cluster.device.one_stream = true;
  const Prices prices = price(e.job, e.cluster);
  EXPECT_TRUE(prices.one_stream);
  EXPECT_TRUE(prices.beside.empty());
  EXPECT_EQ(prices.receives, prices.transfers);
}

// Four ranks on three cores take turns, on four they do not. Other devices have no cores.
TEST(Price, LetsRanksBeyondTheCoresTakeTurns) {
  PriceExample e;
  const Prices alone = price(e.job, e.cluster);
  e.cluster.box.cores = 4;
  EXPECT_EQ(price(e.job, e.cluster).ops, alone.ops);
  e.cluster.box.cores = 3;
  const Prices shared = price(e.job, e.cluster);
  for (std::size_t i = 0; i < alone.ops.size(); ++i) {
    EXPECT_NEAR(to_seconds(shared.ops[i]).value, to_seconds(alone.ops[i]).value * 4 / 3, 1e-12);
    EXPECT_NEAR(to_seconds(shared.transfers[i]).value, to_seconds(alone.transfers[i]).value * 4 / 3,
                1e-12);
  }
}

}  // namespace
}  // namespace stepcast
