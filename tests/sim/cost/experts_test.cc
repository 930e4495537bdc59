// What experts cost: their products, and the kernels that take tokens to them and back.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/kernel_costs.h"

namespace stepcast {
namespace {

// Five products of 512 x 1280: in one kernel they are 100 of the largest tiles, which fill 100
// multiprocessors; a kernel of 20 such tiles would leave most of them idle, so the library cuts
// each of them smaller. The host takes 9 us for each but the first.
TEST(Gemm, TilesEachOfTheExpertsProductsAsIfAloneWhereItIsAKernelOfItsOwn) {
  Device device = plain_device();
  Gemm grouped = matrix_product(512, 1280, 4096);
  const GemmFill alone = gemm_fill(grouped, device);
  grouped.batch = 5;
  grouped.grouped = true;
  const double joint = kernel_seconds(grouped, device);
  EXPECT_GT(gemm_fill(grouped, device).tile_rows * gemm_fill(grouped, device).tile_columns,
            alone.tile_rows * alone.tile_columns);
  EXPECT_EQ(issue_time(grouped, device), Seconds(0));

  device.kernels.fusion.groups = false;
  EXPECT_GT(kernel_seconds(grouped, device), joint);
  EXPECT_EQ(gemm_fill(grouped, device).tile_rows, alone.tile_rows);
  EXPECT_EQ(gemm_fill(grouped, device).tile_columns, alone.tile_columns);
  EXPECT_DOUBLE_EQ(issue_time(grouped, device).value, 4 * 9e-6);
  Device later = device;
  later.kernel_start += microseconds(1);
  EXPECT_NEAR(kernel_seconds(grouped, later) - kernel_seconds(grouped, device), 5e-6, 1e-12);
  grouped.grouped = false;  // unfused attention's are one batched kernel
  EXPECT_EQ(kernel_seconds(grouped, device), joint);
  EXPECT_EQ(issue_time(grouped, device), Seconds(0));
}

// MooreThreads/SimuMax configs/system/b200_bf16_ceperm.json, group_matmul, forward and gradients:
// of each number of experts the first published one. TransformerEngine issues a product each.
TEST(Gemm, AgreesWithExpertsProductsMeasuredOnAB200) {
  Device device = fitted_device("b200");
  device.kernels.fusion.groups = false;
  struct Row {
    std::int64_t experts, m, n, k;
    double share;  // of 2250 TFLOP/s
  };
  double error = 0, bias = 0, count = 0;
  for (const Row& row : {Row{160, 154, 3072, 5120, 0.200}, Row{256, 128, 4096, 7168, 0.208},
                         Row{128, 256, 7168, 4096, 0.333}, Row{40, 616, 3072, 5120, 0.462},
                         Row{80, 308, 3072, 5120, 0.361}, Row{64, 512, 2048, 7168, 0.294},
                         Row{20, 1232, 3072, 5120, 0.513}, Row{32, 1024, 7168, 4096, 0.435}}) {
    Gemm gemm = matrix_product(row.m, row.n, row.k);
    gemm.batch = row.experts;
    gemm.grouped = true;
    const Seconds time =
        std::max(op_cost(gemm, device, {.rested = true}).time, issue_time(gemm, device));
    const double off = time.value * row.share * 2250e12 / flops(Op(gemm)).value - 1;
    EXPECT_LT(std::abs(off), 0.4) << row.experts << " of " << row.m;
    error += std::abs(off);
    bias += off;
    ++count;
  }
  EXPECT_LT(error / count, 0.17);
  EXPECT_LT(std::abs(bias / count), 0.12);
}

// 4,096 tokens of 1,024 columns, each in 2 of 8,192 slots. Unfused, a row is read once a slot; to
// add the slots up, they are zeroed and each added to in memory, what it holds read before. Sorting
// is nine kernels. The router's map of 16 experts costs 3 x 2 + 10 bytes of each.
TEST(Fusion, ChargesTheKernelsOfAPermuteAndARouterWrittenInPyTorch) {
  Device device = plain_device();
  device.kernel_start = microseconds(2);
  const auto more = [&](const Op& op, bool Fusion::*member) {
    return left_apart(op, member, device);
  };
  Permute permute{PermutePart::kPermute, 4096, 2, 8192, 1024, Dtype::kBf16, true};
  const double row = 2.0 * 1024;
  EXPECT_NEAR(more(permute, &Fusion::permutes), 4096 * row / 1e12 + 9 * 2e-6, 1e-9);
  permute.weighted = false;  // the gradient of the way back: nothing is sorted
  EXPECT_NEAR(more(permute, &Fusion::permutes), 4096 * row / 1e12, 1e-9);
  permute.part = PermutePart::kUnpermute;
  EXPECT_NEAR(more(permute, &Fusion::permutes), 2 * 8192 * row / 1e12 + 2e-6, 1e-9);
  Route route{Pass::kForward, 4096, 16, 2, 512};
  EXPECT_NEAR(more(route, &Fusion::routers), 16.0 * 4096 * 16 / 1e12 + 11 * 2e-6, 1e-9);
  route.pass = Pass::kBackward;
  EXPECT_NEAR(more(route, &Fusion::routers), 3 * 2e-6, 1e-9);
}

// 8,192 rows of 1,024 columns of 4 experts in bf16. Where operands lie unlike, a byte takes as long
// as 2.24. Forward writes 4 bytes of fp32 so, and moves 20 more an element, in nine kernels more
// than the one; backward 16 and 16 + 6, in 21. Limits: 4 so and 4 for an output's byte forward, 9.5
// so and 5.5 backward, where the columns are those of both gradients.
TEST(Fusion, ChargesWhatMegatronDoesForGptOss) {
  Device device = plain_device();
  device.kernel_start = microseconds(2);
  const auto more = [&](const Op& op, bool Fusion::*member) {
    return left_apart(op, member, device);
  };
  const double elements = 8192.0 * 1024;
  Pointwise bias{PointwiseKind::kAddExpertBias, 8192, 1024};
  bias.experts = 4;
  const double unlike = 1.39 / 0.62;
  EXPECT_NEAR(more(bias, &Fusion::expert_biases),
              (4 * unlike + 20) * elements / 1e12 + 9 * 2e-6, 1e-9);
  bias.kind = PointwiseKind::kAddExpertBiasBackward;
  EXPECT_NEAR(more(bias, &Fusion::expert_biases),
              (16 * unlike + 22) * elements / 1e12 + 21 * 2e-6, 1e-9);
  Pointwise gate{PointwiseKind::kSwigluOai, 8192, 1024};
  EXPECT_NEAR(more(gate, &Fusion::limits), 2 * (4 * unlike + 4) * elements / 1e12 + 3 * 2e-6,
              1e-9);
  EXPECT_NEAR(more(gate, &Fusion::gates), 4 * elements / 1e12 + 2e-6, 1e-9);
  gate.kind = PointwiseKind::kSwigluOaiBackward;
  gate.columns = 2048;
  EXPECT_NEAR(more(gate, &Fusion::limits), 2 * (9.5 * unlike + 5.5) * elements / 1e12 + 7 * 2e-6,
              1e-9);
}

}  // namespace
}  // namespace stepcast
