#include "sim/program/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

// Forward of a linear layer over two tensor ranks: 8 rows are gathered from 4 each, multiplied, and
// scattered again.
struct Linear {
  JobBuilder b;
  Gemm product{8, 6, 4};
  Transfer gather{TransferKind::kAllGather, Axis::kTensor, false, Bytes(8 * 4 * 2)};
  Transfer scatter{TransferKind::kReduceScatter, Axis::kTensor, false, Bytes(8 * 6 * 2)};

  explicit Linear(std::int16_t gather_pieces = 1, std::int16_t scatter_pieces = 1) {
    b.job.mesh.degree(Axis::kTensor) = 2;
    const TensorId x = b.resident("x", {4, 4}), w = b.resident("w", {6, 4});
    const TensorId all = b.tensor("all", {8, 4}), y = b.tensor("y", {8, 6});
    const TensorId mine = b.tensor("mine", {4, 6});
    b.call(0, b.body("forward", Phase::kForward), 0);
    b.alloc(all).order(Stream::kCompute, Stream::kTensor, 0);
    b.collective(gather, Stream::kTensor, {x}, {all});
    pieces(gather_pieces);
    b.order(Stream::kTensor, Stream::kCompute, 1).alloc(y).compute(product, {all, w}, {y});
    b.alloc(mine).order(Stream::kCompute, Stream::kTensor, 0);
    b.collective(scatter, Stream::kTensor, {y}, {mine});
    pieces(scatter_pieces);
    b.order(Stream::kTensor, Stream::kCompute, 1).free(all).free(y).free(mine);
  }
  void pieces(std::int16_t n) {
    std::get<Collective>(b.job.bodies.back().code.back()).pieces = n;
  }
  Instruction& at(std::size_t i) { return b.job.bodies[0].code[i]; }
};

TEST(Pieces, BelongToTheProductNextToTheExchange) {
  EXPECT_EQ(verify(Linear().b.job), "");
  EXPECT_EQ(verify(Linear(4, 1).b.job), "");
  EXPECT_EQ(verify(Linear(1, 2).b.job), "");
  const Linear linear(4, 1);
  const Body& body = linear.b.job.bodies[0];
  EXPECT_EQ(product_beside(linear.b.job, body, 3), 7);
  EXPECT_EQ(product_beside(linear.b.job, body, 11), 7);
}

TEST(Pieces, StandInTheText) {
  const Job job = Linear(4, 1).b.job;
  const std::string text = print_job(job);
  EXPECT_THAT(text, HasSubstr("tensor forward pieces=4 %0 -> %2"));
  EXPECT_EQ(parse_job(text, "job"), job);
}

TEST(Pieces, AreRefusedWhereNoProductGoesOnBesideThem) {
  EXPECT_THAT(verify(Linear(4, 2).b.job), HasSubstr("another one is beside"));
  EXPECT_THAT(verify(Linear(3, 1).b.job), HasSubstr("do not divide"));
  EXPECT_THAT(verify(Linear(65, 1).b.job), HasSubstr("65 pieces"));
  Linear other(4, 1);  // the product reads x, which nobody moves
  other.b.job.bodies[0].operands[2] = 0;
  EXPECT_THAT(verify(other.b.job), HasSubstr("of another tensor"));
  Linear reduced(1, 2);
  reduced.b.job.transfers[1].kind = TransferKind::kAllReduce;
  EXPECT_THAT(verify(reduced.b.job), HasSubstr("only an all-gather"));
  Linear gone(4, 1);
  gone.at(7) = Mark{};
  EXPECT_THAT(pieces_fault(gone.b.job, gone.b.job.bodies[0], 3), HasSubstr("no product stands"));
  Linear gelu(4, 1);
  gelu.b.job.ops[0] = Pointwise{PointwiseKind::kAddRows, 8, 4};
  EXPECT_THAT(verify(gelu.b.job), HasSubstr("no product of rows"));
}

// A gather's own rows are there: three pieces carry what four parts take.
TEST(Pieces, CarryAllThatIsMoved) {
  const Linear linear;
  EXPECT_EQ(part_of(linear.product, 4), (Gemm{2, 6, 4}));
  EXPECT_EQ(pieces_moved(linear.gather, 4), 3);
  EXPECT_EQ(piece_of(linear.gather, 4).bytes, Bytes(22));  // 64 / 3, rounded up
  EXPECT_EQ(pieces_moved(linear.scatter, 4), 4);
  EXPECT_EQ(piece_of(linear.scatter, 4).bytes, Bytes(24));
}

}  // namespace
}  // namespace stepcast
