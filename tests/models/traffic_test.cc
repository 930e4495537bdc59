// What a device sends in a step: the closed forms of the ZeRO and Megatron papers.
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

std::int64_t data_bytes(const Plan& plan, std::int64_t parameters) {
  const Job job = lower(state_network(parameters, plan), plan);
  EXPECT_EQ(verify(job), "");
  return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kData)].count;
}

Plan data_parallel(int zero, std::int64_t devices) {
  Plan plan = small_plan(1, 1, 1);
  plan.zero = zero;
  plan.data = devices;
  plan.global_batch = devices;
  plan.clip_gradients = false;  // its four bytes are not the subject
  return plan;
}

// All-reduce of the gradients: 2 (N - 1) / N of their bytes. Stages 1 and 2 replace it by a reduce-
// scatter and a gather of the weights, the same; stage 3 gathers twice: 1.5 times that.
TEST(Traffic, OfDataParallelismIsTwiceTheGradientsAndOfZero3ThreeTimes) {
  constexpr std::int64_t kParameters = 64'000'000;
  constexpr std::int64_t kBytes = 2 * kParameters;
  for (std::int64_t n : {2, 8, 64}) {
    const std::int64_t plain = 2 * (n - 1) * kBytes / n;
    EXPECT_EQ(data_bytes(data_parallel(0, n), kParameters), plain);
    EXPECT_EQ(data_bytes(data_parallel(1, n), kParameters), plain);
    Plan whole = data_parallel(1, n);  // all gradients everywhere, then the weights
    whole.all_reduce = true;
    EXPECT_EQ(data_bytes(whole, kParameters), 3 * plain / 2);
    EXPECT_EQ(data_bytes(data_parallel(2, n), kParameters), plain);
    EXPECT_EQ(data_bytes(data_parallel(3, n), kParameters), 3 * plain / 2);
  }
}

// Stages 2 and 3 reduce every micro-batch; stage 3 also gathers twice in each.
TEST(Traffic, OfHigherStagesGrowsWithTheMicroBatches) {
  constexpr std::int64_t kBytes = 2 * 64'000'000;
  const std::int64_t n = 8, m = 5;
  const std::int64_t once = (n - 1) * kBytes / n;
  for (int zero : {1, 2, 3}) {
    Plan plan = data_parallel(zero, n);
    plan.global_batch = n * m;
    const std::int64_t expected[] = {0, 2 * once, once + m * once, 3 * m * once};
    EXPECT_EQ(data_bytes(plan, 64'000'000), expected[zero]) << zero;
  }
}

// Buckets split the messages, not the bytes.
TEST(Traffic, OfGradientsDoesNotDependOnTheBucket) {
  Plan plan = data_parallel(0, 4);
  plan.sequence_length = 256;
  const auto bytes = [&](std::int64_t bucket) {
    plan.bucket = Bytes(bucket);
    const Job job = lower(chain_network(12, 256, 64, plan), plan);
    EXPECT_EQ(verify(job), "");
    return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kData)];
  };
  EXPECT_EQ(bytes(1), bytes(20'000));
  EXPECT_EQ(bytes(1), bytes(1'000'000'000));
}

struct Counted {
  std::int64_t bytes = 0;
  std::int64_t collectives = 0;
};

// Tensor-axis collectives of a phase, in a step, whose label has `part` in its name.
Counted tensor_traffic(const Job& job, Phase phase, TransferKind kind) {
  Counted sum;
  for (const Call& call : job.programs[0].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      const auto* c = std::get_if<Collective>(&i);
      if (c == nullptr || c->stream != Stream::kTensor || c->phase != phase) continue;
      const Transfer& transfer = job.transfers[static_cast<std::size_t>(c->transfer)];
      if (transfer.kind != kind) continue;
      sum.bytes += sent_bytes(transfer, job.mesh).count;
      ++sum.collectives;
    }
  }
  return sum;
}

// The difference between L + 1 and L layers is one layer's: two all-reduces of 2 sbh bytes in each
// pass (Shoeybi et al. 2019), each 2 (t - 1) / t of that sent.
TEST(Traffic, OfATensorParallelLayerIsTwoAllReducesInEachPass) {
  const std::int64_t s = 128, b = 2, h = 64, t = 4;
  Plan plan = small_plan(s, b, 1);
  plan.tensor = t;
  const auto layers = [&](std::int64_t n) {
    return lower(transformer(llama_model(n, h, 4, 4, 256, 512), plan), plan);
  };
  const Job three = layers(3), two = layers(2);
  ASSERT_EQ(verify(three), "");
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    const Counted more = tensor_traffic(three, phase, TransferKind::kAllReduce);
    const Counted less = tensor_traffic(two, phase, TransferKind::kAllReduce);
    EXPECT_EQ(more.collectives - less.collectives, 2);
    EXPECT_EQ(more.bytes - less.bytes, 2 * (2 * (t - 1) * 2 * s * b * h / t));
  }
}

// Sequence parallel: a gather and a scatter in place of each all-reduce, the same bytes
// (Korthikanti et al. 2022); and two gathers again in backward, for the weight gradients.
TEST(Traffic, OfASequenceParallelLayerIsTheSameAsGatherAndScatter) {
  const std::int64_t s = 128, b = 2, h = 64, t = 4;
  Plan plan = small_plan(s, b, 1);
  plan.tensor = t;
  plan.sequence_parallel = true;
  const auto layers = [&](std::int64_t n) {
    return lower(transformer(llama_model(n, h, 4, 4, 256, 512), plan), plan);
  };
  const Job three = layers(3), two = layers(2);
  ASSERT_EQ(verify(three), "");
  const auto of_layer = [&](Phase phase, TransferKind kind) {
    return tensor_traffic(three, phase, kind).bytes - tensor_traffic(two, phase, kind).bytes;
  };
  const std::int64_t all_reduce = 2 * (t - 1) * 2 * s * b * h / t;
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    EXPECT_EQ(of_layer(phase, TransferKind::kAllGather) +
                  of_layer(phase, TransferKind::kReduceScatter),
              2 * all_reduce);
  }
  EXPECT_EQ(of_layer(Phase::kRecompute, TransferKind::kAllGather), all_reduce);
}

// A stage sends 2 sbh for each micro-batch and boundary, and gets as much back.
TEST(Traffic, OfAPipelineIsActivationsAtBoundaries) {
  const std::int64_t s = 128, b = 1, h = 64, m = 6;
  Plan plan = small_plan(s, b, m);
  plan.pipeline = 4;
  plan.clip_gradients = false;
  const Job job = lower(transformer(llama_model(8, h, 4, 4, 256, 512), plan), plan);
  ASSERT_EQ(verify(job), "");
  const Traffic traffic = count_traffic(job);
  const std::int64_t expected[] = {1, 2, 2, 1};
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(traffic.stages[stage][static_cast<std::size_t>(Axis::kPipeline)].count,
              expected[stage] * m * 2 * s * b * h);
  }
}

// With tensor ranks that all hold the whole activation each sends 1 / t of it, and the receivers
// gather (Narayanan et al. 2021, section 4.1); split by tokens, it is 1 / t as it is.
TEST(Traffic, OfAPipelineIsDividedByTheTensorRanks) {
  const std::int64_t s = 128, b = 1, h = 64, m = 6, t = 4;
  Plan plan = small_plan(s, b, m);
  plan.pipeline = 2;
  plan.tensor = t;
  plan.clip_gradients = false;
  const auto sent = [&] {
    const Job job = lower(transformer(llama_model(8, h, 4, 4, 256, 512), plan), plan);
    EXPECT_EQ(verify(job), "");
    return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kPipeline)].count;
  };
  EXPECT_EQ(sent(), m * 2 * s * b * h / t);
  plan.scatter_gather = false;
  EXPECT_EQ(sent(), m * 2 * s * b * h);
  plan.sequence_parallel = true;
  EXPECT_EQ(sent(), m * 2 * s * b * h / t);
}

}  // namespace
}  // namespace stepcast
