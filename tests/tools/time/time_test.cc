#include "tools/time/time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/network/network.h"
#include "tests/support/shipped_device.h"
#include "tools/base/files.h"

namespace stepcast {
namespace {

TEST(Time, ReadsTheOpFromItsArguments) {
  TimeArguments gemm;
  gemm.what = "gemm";
  gemm.m = 4096;
  gemm.n = 8192;
  gemm.k = 1024;
  gemm.role = "weight-gradient";
  gemm.accumulate = true;
  EXPECT_EQ(op_of(gemm), Op(Gemm{4096, 8192, 1024, 1, GemmRole::kWeightGradient, Dtype::kBf16,
                                 Dtype::kBf16, true, false}));
  gemm.k.reset();
  EXPECT_THROW(op_of(gemm), Error);
  TimeArguments attention;
  attention.what = "attention";
  attention.heads = 32;
  attention.sequence = 8192;
  attention.head_dim = 128;
  attention.causal = attention.backward = true;
  EXPECT_EQ(op_of(attention), Op(Attention{Pass::kBackward, 1, 32, 32, 8192, 8192, 128, true, false,
                                           Dtype::kBf16}));
  attention.value_dim = 64;
  EXPECT_EQ(std::get<Attention>(op_of(attention)).value_dim, 64);
  attention.value_dim = 128;  // as wide as the keys: not a width of its own
  EXPECT_EQ(std::get<Attention>(op_of(attention)).value_dim, 0);
}

// What it prints is what the simulator charges: the same functions.
TEST(Time, GivesWhatTheForecastUses) {
  const Device device = shipped_device("h100-sxm");
  const Op op = Gemm{8192, 8192, 8192, 1, GemmRole::kForward, Dtype::kBf16, Dtype::kBf16, false,
                     false};
  const KernelTime kernel = time_kernel(op, device);
  EXPECT_EQ(kernel.cost.time, op_cost(op, device).time);
  EXPECT_EQ(kernel.flops.value, 2.0 * 8192 * 8192 * 8192);

  const Cluster cluster = standard_cluster(device, 2, 8);
  const CollectiveTime one =
      time_collective(TransferKind::kAllReduce, mebibytes(256), 16, cluster);
  Mesh mesh;
  mesh.degree(Axis::kData) = 16;
  EXPECT_EQ(one.time, transfer_time({TransferKind::kAllReduce, Axis::kData, false, mebibytes(256)},
                                    mesh, cluster));
  // busbw = S / t * 2 (n - 1) / n.
  EXPECT_DOUBLE_EQ(one.bus_bandwidth.value, 256.0 * 1048576 / one.time.value * 30 / 16);
  EXPECT_FALSE(one.algorithm.empty());
}

TEST(Time, KnowsTheNamesThatLibrariesUse) {
  EXPECT_EQ(transfer_kind("all-reduce"), TransferKind::kAllReduce);
  EXPECT_EQ(transfer_kind("AllGather"), TransferKind::kAllGather);
  EXPECT_EQ(transfer_kind("alltoall"), TransferKind::kAllToAll);
  EXPECT_EQ(transfer_kind("scan"), std::nullopt);
}

}  // namespace
}  // namespace stepcast
