// Spans of a step, without what ran beside them.
#include "calibrate/alone.h"

#include <gtest/gtest.h>

#include "tests/support/job_builder.h"

namespace stepcast {
namespace {

// A product, an all-reduce on the data stream, a fill.
Job three() {
  JobBuilder b;
  b.job.mesh.degree(Axis::kData) = 2;
  const TensorId x = b.resident("x", {16, 16});
  b.body("backward", Phase::kBackward);
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 16;
  b.compute(gemm, {x, x}, {x});
  b.collective({TransferKind::kAllReduce, Axis::kData, false, Bytes(512)}, Stream::kData, {x}, {x});
  b.compute(Pointwise{PointwiseKind::kFill, 16, 16, Dtype::kBf16, Dtype::kBf16, false}, {}, {x});
  return b.job;
}

Span span(std::int32_t instruction, Stream stream, std::int64_t begin, std::int64_t end) {
  return {0, 0, instruction, 0, 0, stream, Instant(begin), Instant(end)};
}

BesidePoint costs(double kernel, double collective) {
  BesidePoint point;
  point.kernel_factor = kernel;
  point.collective_factor = collective;
  return point;
}

std::vector<std::int64_t> lengths(const std::vector<Span>& spans) {
  std::vector<std::int64_t> out;
  for (const Span& one : spans) out.push_back((one.end - one.begin).picoseconds);
  return out;
}

// Half of the product's 1000 and all of the fill's 300 lie beside the all-reduce's 800:
//   product     1000 / (1 + 0.5 x 0.5) = 800
//   fill        300 / (1 + 1.0)        = 150
//   all-reduce  800 / (1 + (0.2 x 500 + 0.4 x 300) / 800) = 800 / 1.275 = 627
TEST(SpansAlone, AreShorterByWhatRanBesideThem) {
  const Job job = three();
  const std::vector<Span> spans = {span(0, Stream::kCompute, 0, 1000),
                                   span(1, Stream::kData, 500, 1300),
                                   span(2, Stream::kCompute, 1000, 1300)};
  const BesidePoint product = costs(1.5, 1.2), memory = costs(2, 1.4);
  const FindBeside find = [&](std::string_view kernel, const Transfer& transfer) {
    EXPECT_EQ(transfer.bytes, Bytes(512));
    return kernel == "product" ? &product : &memory;
  };
  EXPECT_EQ(lengths(spans_alone(job, spans, find)), (std::vector<std::int64_t>{800, 627, 150}));
}

TEST(SpansAlone, AreAsTheyWereWhereNothingWasMeasuredOrNothingRanBeside) {
  const Job job = three();
  const std::vector<Span> apart = {span(0, Stream::kCompute, 0, 1000),
                                   span(1, Stream::kData, 1000, 1300),
                                   span(2, Stream::kCompute, 1300, 1600)};
  const BesidePoint point = costs(3, 3), faster = costs(0.5, 0.5);
  const FindBeside known = [&](std::string_view, const Transfer&) { return &point; };
  EXPECT_EQ(lengths(spans_alone(job, apart, known)), lengths(apart));
  std::vector<Span> together = apart;
  together[1].begin = Instant(0);
  const FindBeside unknown = [](std::string_view, const Transfer&) -> const BesidePoint* {
    return nullptr;
  };
  const FindBeside noise = [&](std::string_view, const Transfer&) { return &faster; };
  EXPECT_EQ(lengths(spans_alone(job, together, unknown)), lengths(together));
  EXPECT_EQ(lengths(spans_alone(job, together, noise)), lengths(together));
}

}  // namespace
}  // namespace stepcast
