// The kernels of a layer, as its forward pass names them and its backward pass derives them.
#include "models/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/backward.h"
#include "models/lower.h"
#include "sim/program/text.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

using testing::ElementsAre;

// The pointwise work on the scores (rows, columns), in order.
std::vector<std::string> work_on(const std::vector<Node>& nodes, std::int64_t columns) {
  std::vector<std::string> names;
  for (const Node& node : nodes) {
    const Op* op = std::get_if<Op>(&node.work);
    const auto* work = op == nullptr ? nullptr : std::get_if<Pointwise>(op);
    if (work != nullptr && work->columns == columns) {
      names.push_back(to_text(*op));
    }
  }
  return names;
}

// 3 heads of 32 positions. forward_torch_softmax of Megatron-LM: float(), * scale, masked_fill_,
// Softmax, half(); autograd of each in turn, where masked_fill is a copy and a fill.
TEST(Transformer, GivesEveryKernelOfMegatronsSoftmaxWhereNoneIsFused) {
  Plan plan = small_plan(32, 1, 1);
  plan.fused_attention = plan.dropout = false;
  plan.softmax = SoftmaxKernels::kMegatron;
  const Network network = transformer(gpt_model(2, 12, 3, 512, 32), plan);
  const Differentiated layer = differentiate(network.kinds[1], {}, {});
  EXPECT_THAT(work_on(layer.block.nodes, 32),
              ElementsAre("pointwise cast 96x32 bf16 output=fp32", "pointwise scale 96x32 fp32",
                          "pointwise mask 96x32 fp32", "pointwise softmax 96x32 fp32",
                          "pointwise cast 96x32 fp32 output=bf16"));
  EXPECT_THAT(
      work_on(layer.backward, 32),
      ElementsAre("pointwise cast 96x32 bf16 output=fp32", "pointwise softmax_backward 96x32 fp32",
                  "pointwise cast 96x32 fp32", "pointwise mask_backward 96x32 fp32",
                  "pointwise scale 96x32 fp32", "pointwise cast 96x32 fp32 output=bf16"));
}

// 8 heads are a block of the fused kernel's; of 3, Core works in the compute type without a scale.
TEST(Transformer, GivesOneKernelWhereMegatronsSoftmaxIsFused) {
  Plan plan = small_plan(32, 1, 1);
  plan.fused_attention = plan.dropout = false;
  plan.softmax = SoftmaxKernels::kMegatron;
  const Network fused = transformer(gpt_model(2, 16, 8, 512, 32), plan);
  EXPECT_THAT(work_on(fused.kinds[1].nodes, 32),
              ElementsAre("pointwise softmax 256x32 bf16 causal"));
  plan.softmax = SoftmaxKernels::kMegatronCore;
  const Network core = transformer(gpt_model(2, 12, 3, 512, 32), plan);
  EXPECT_THAT(work_on(core.kinds[1].nodes, 32),
              ElementsAre("pointwise mask 96x32 bf16", "pointwise softmax 96x32 bf16"));
}

// Of s = 64 tokens with a window of 16 each sees 16, but for the first ones: 16 (64 - 8) of the
// triangle's 64 * 32 scores; in every third layer all.
TEST(Window, LeavesOutTheScoresThatAreOutOfSight) {
  Model model = llama_model(6, 64, 8, 4, 128, 256);
  const Plan plan = small_plan(64, 1, 1);
  const auto scores = [&] {
    const Job job = lower(transformer(model, plan), plan);
    EXPECT_EQ(verify(job), "");
    EXPECT_EQ(parse_job(print_job(job), "x"), job);
    return flops_of<Attention>(job);
  };
  const double all = scores();
  const double products = model_flops_per_token(model, 64, true).value;
  model.window = 16;
  EXPECT_DOUBLE_EQ(scores(), all * 16 * (64 - 8) / (64 * 32));
  model.full_every = 3;
  const double some = (2.0 * 16 * (64 - 8) / (64 * 32) + 1) / 3;
  EXPECT_DOUBLE_EQ(scores(), all * some);
  // The model's count: 3 of forward where the kernels have 2 + 5 products.
  EXPECT_NEAR(products - model_flops_per_token(model, 64, true).value,
              all / 64 * 6 / 7 * (1 - some), 1e-6);
  model.window = 64;
  EXPECT_DOUBLE_EQ(scores(), all);
}

// A weight of each head, cut as they are; what nothing is written for yet is refused.
TEST(Sinks, AreAWeightOfEachHead) {
  Model model = llama_model(2, 64, 8, 4, 128, 256);
  Plan plan = small_plan(64, 1, 1);
  const auto elements = [&] { return lower(transformer(model, plan), plan); };
  const std::int64_t without = parameters(model);
  const std::size_t tensors = elements().tensors.size();
  model.attention_sinks = true;
  EXPECT_EQ(parameters(model), without + 2 * 8);
  const Job job = elements();
  EXPECT_EQ(verify(job), "");
  EXPECT_EQ(parse_job(print_job(job), "x"), job);
  EXPECT_EQ(job.tensors.size(), tensors + 2 * 2);  // weight and gradient in two layers
  plan.context = 2;
  EXPECT_THAT(trouble_with(plan, model)->what, testing::HasSubstr("sinks"));
  plan.context = 1, plan.fused_attention = false;
  EXPECT_THAT(trouble_with(plan, model)->what, testing::HasSubstr("fused"));
}

// A window that the sequence, or a document, fits in changes nothing: neither the Job nor what
// plans are legal.
TEST(Window, IsNoneWhereAllOfTheSequenceFitsInIt) {
  const Model model = llama_model(6, 64, 8, 4, 128, 256);
  Model sliding = model;
  sliding.window = 64, sliding.full_every = 3;
  const Plan plan = small_plan(64, 1, 1);
  Plan documents = small_plan(128, 1, 1);
  documents.document_length = 64;
  for (const Plan& one : {plan, documents}) {
    EXPECT_EQ(lower(transformer(sliding, one), one), lower(transformer(model, one), one));
  }
  for (const auto change : {+[](Plan& p) { p.context = 2; }, +[](Plan& p) { p.scan_layers = true; },
                            +[](Plan& p) { p.fused_attention = false; }}) {
    Plan other = plan;
    change(other);
    EXPECT_FALSE(trouble_with(other, sliding)) << trouble_with(other, sliding)->what;
    EXPECT_EQ(lower(transformer(sliding, other), other), lower(transformer(model, other), other));
    sliding.window = 63;
    EXPECT_TRUE(trouble_with(other, sliding));
    sliding.window = 64;
  }
}

}  // namespace
}  // namespace stepcast
