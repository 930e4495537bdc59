// How much of a transfer has compute beside it, and what measured interference makes of prices.
#include "sim/engine/overlap.h"

#include <memory>

#include <gtest/gtest.h>

#include "sim/hardware/profile.h"
#include "tests/support/clusters.h"
#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

const Gemm kProduct = [] {
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 1024;
  return gemm;
}();
const Pointwise kWideFill{PointwiseKind::kFill, 1024, 1024, Dtype::kBf16, Dtype::kBf16, false};
const Transfer kReduce{TransferKind::kAllReduce, Axis::kData, false, mebibytes(64)};

// product (100); all-reduce (400) on the data stream, beside it `products` products and one fill
// (50) until the compute stream waits for it; another product.
Job one_transfer(int products) {
  JobBuilder b;
  b.job.mesh.degree(Axis::kData) = 8;
  const TensorId x = b.resident("x", {1024, 1024});
  b.call(0, b.body("backward", Phase::kBackward), 0);
  b.compute(kProduct, {x, x}, {x}).order(Stream::kCompute, Stream::kData, 0);
  b.collective(kReduce, Stream::kData, {x}, {x}).record(Stream::kData, 1);
  for (int i = 0; i < products; ++i) b.compute(kProduct, {x, x}, {x});
  b.compute(kWideFill, {}, {x}).wait(Stream::kCompute, 1).compute(kProduct, {x, x}, {x});
  return b.job;
}

Prices prices_of(const Job& job) {
  Prices prices;
  for (const Op& op : job.ops) {
    prices.ops.emplace_back(std::holds_alternative<Gemm>(op) ? 100 : 50);
  }
  prices.transfers.assign(job.transfers.size(), Duration(400));
  return prices;
}

TEST(Overlap, IsWhatStandsBetweenATransferAndTheWaitForIt) {
  const Job job = one_transfer(1);
  const ComputeBeside beside = compute_beside(job, prices_of(job)).at(0);
  EXPECT_DOUBLE_EQ(beside.share, 150.0 / 400);
  EXPECT_DOUBLE_EQ(beside.products, 100.0 / 150);
}

TEST(Overlap, OfATransferIsAllOfItAtMost) {
  const Job job = one_transfer(6);
  EXPECT_EQ(compute_beside(job, prices_of(job)).at(0).share, 1);
}

// Record behind the transfer, wait at once.
TEST(Overlap, OfATransferThatIsWaitedForIsNone) {
  JobBuilder b;
  b.job.mesh.degree(Axis::kTensor) = 8;
  const TensorId x = b.resident("x", {1024, 1024});
  b.call(0, b.body("forward", Phase::kForward), 0);
  b.collective({TransferKind::kAllReduce, Axis::kTensor, false, mebibytes(64)}, Stream::kTensor,
               {x}, {x});
  b.order(Stream::kTensor, Stream::kCompute, 0).compute(kProduct, {x, x}, {x});
  EXPECT_EQ(compute_beside(b.job, prices_of(b.job)).at(0).share, 0);
}

Cluster cluster(std::vector<BesidePoint> beside) {
  Cluster cluster;
  cluster.device = example_device();
  cluster.devices_per_node = 8;
  cluster.node_bandwidth = gigabytes_per_second(200);
  cluster.node_latency = microseconds(3);
  Profile profile;
  profile.device = cluster.device.name;
  profile.probes.beside = std::move(beside);
  use_profile(cluster, std::make_shared<const Profile>(profile), "test");
  return cluster;
}

BesidePoint point(const char* kernel, double kernel_factor, double collective_factor) {
  return {kernel, "all-reduce", 8, 1, 1, mebibytes(64), kernel_factor, collective_factor, 10};
}

TEST(MeasuredBeside, GoesBeforeTheModelForTheGroupThatItWasMeasuredWith) {
  const Job job = one_transfer(200);  // more than the transfer takes
  const Prices modelled = price(job, cluster({}));
  const Prices measured =
      price(job, cluster({point("product", 1.7, 1.25), point("memory", 2.5, 1.25)}));
  ASSERT_EQ(measured.beside.size(), 1u);
  EXPECT_EQ(measured.beside[0].ops, (std::vector<double>{1.7, 2.5}));
  EXPECT_LT(modelled.beside[0].ops[0], 1.7);
  const double longer = to_seconds(measured.transfers[0]) / to_seconds(modelled.transfers[0]);
  EXPECT_NEAR(longer, 1.25, 1e-6);
  BesidePoint other = point("product", 1.7, 1.25);
  other.ranks = 4;
  const Prices unknown = price(job, cluster({other}));
  EXPECT_EQ(unknown.beside[0].ops, modelled.beside[0].ops);
  EXPECT_EQ(unknown.transfers, modelled.transfers);
}

// Noise may measure a factor below one; nothing runs faster for company.
TEST(MeasuredBeside, NeverMakesAnythingFaster) {
  const Job job = one_transfer(200);
  const Prices measured =
      price(job, cluster({point("product", 0.98, 0.97), point("memory", 0.99, 0.97)}));
  EXPECT_EQ(measured.beside[0].ops, (std::vector<double>{1, 1}));
  EXPECT_EQ(measured.transfers, price(job, cluster({})).transfers);
}

}  // namespace
}  // namespace stepcast
