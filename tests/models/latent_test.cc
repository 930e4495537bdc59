// Latent attention in the Job: what is made of latents, what tensor ranks divide, what is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kLatentTokens = 128, kLatentHeads = 8, kHeadColumns = 24, kTurned = 8;
constexpr std::int64_t kValueColumns = 16, kLatents = 32, kQueryLatents = 48, kStream = 64;

Model latent_model(std::int64_t layers) {
  Model model = llama_model(layers, kStream, kLatentHeads, kLatentHeads, 256, 512);
  model.head_dim = kHeadColumns;
  model.kv_rank = kLatents;
  model.q_rank = kQueryLatents;
  model.rotary_dim = kTurned;
  model.value_dim = kValueColumns;
  return model;
}

Job lowered_latents(const Model& model, const Plan& plan) {
  check_plan(plan, model);
  Job job = lower(transformer(model, plan), plan);
  EXPECT_EQ(verify(job), "");
  return job;
}

// The weights of a Job on one rank are the model's parameters; and those of published models are
// what their authors say.
TEST(LatentAttention, HasTheParametersThatItsMatricesHave) {
  const Model model = latent_model(2);
  const Plan plan = small_plan(kLatentTokens, 1, 1);
  const Job job = lowered_latents(model, plan);
  EXPECT_EQ(resident_bytes(job, 0, Category::kWeights).count, 2 * parameters(model));
}

// Six FLOPs a weight and token, but for tables that are looked up.
TEST(LatentAttention, WorksOnEveryMatrixThreeTimes) {
  const Model model = latent_model(1);
  const Job job = lowered_latents(model, small_plan(kLatentTokens, 1, 1));
  const double each = model_flops_per_token(model, kLatentTokens, false).value;
  const double scores = 3.0 * 2 * kLatentTokens * kLatentHeads * (kHeadColumns + kValueColumns);
  EXPECT_DOUBLE_EQ(flops_of<Gemm>(job), (each - scores) * kLatentTokens);
  // Half of the scores; forward d + v columns a score, backward 3 d + 2 v.
  const double backward = 3.0 * kHeadColumns + 2.0 * kValueColumns;
  EXPECT_DOUBLE_EQ(flops_of<Attention>(job), kLatentTokens * kLatentTokens * kLatentHeads *
                                                 (kHeadColumns + kValueColumns + backward));
}

// Of a token h + q_rank + kv_rank + rotated columns are sent between tensor ranks where otherwise h
// are: the latents are gathered, not the stream.
TEST(LatentAttention, GathersLatentsUnderSequenceParallelism) {
  Plan plan = small_plan(kLatentTokens, 1, 1);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  const Job job = lowered_latents(latent_model(2), plan);
  std::vector<std::int64_t> gathered;
  for (const Transfer& transfer : job.transfers) {
    if (transfer.kind == TransferKind::kAllGather) gathered.push_back(transfer.bytes.count);
  }
  EXPECT_THAT(gathered, testing::UnorderedElementsAre(
                            2 * kLatentTokens * kStream, 2 * kLatentTokens * kQueryLatents,
                            2 * kLatentTokens * kLatents, 2 * kLatentTokens * kTurned));
}

TEST(LatentAttention, VerifiesUnderEveryKindOfPlan) {
  for (int i = 0; i < 32; ++i) {
    Model model = latent_model(4);
    if ((i & 1) != 0) model.q_rank = 0;
    Plan plan = small_plan(kLatentTokens, 2, 2);
    plan.tensor = (i & 2) != 0 ? 2 : 1;
    plan.sequence_parallel = (i & 6) == 6;
    plan.zero = i % 4;
    plan.data = 2;
    plan.global_batch = 8;
    plan.recompute = static_cast<Recompute>(i % 3);
    plan.pipeline = (i & 8) != 0 ? 2 : 1;
    if ((i & 16) != 0) plan.eight_bit.scaling = i % 3 == 0 ? Scaling::kMx : Scaling::kTensor;
    if (plan.zero == 3) plan.eight_bit.weights = false;
    if (plan.eight_bit.on()) model.rotary_dim = 16, model.head_dim = 32;
    const Job job = lowered_latents(model, plan);
    EXPECT_EQ(parse_job(print_job(job), "x"), job);
    EXPECT_EQ(verify(lower_ring(transformer(model, plan), plan, 2)), "");
  }
}

TEST(LatentAttention, RefusesWhatIsNotCovered) {
  using testing::HasSubstr;
  const Model model = latent_model(2);
  Plan plan = small_plan(kLatentTokens, 1, 1);
  plan.context = 2;
  EXPECT_THAT(trouble_with(plan, model).value().what, HasSubstr("latent attention of a sequence"));
  plan.context = 1;
  plan.fused_attention = false;
  EXPECT_THAT(trouble_with(plan, model).value().what, HasSubstr("three tensors"));
}

}  // namespace
}  // namespace stepcast
