// 8-bit products: which products they are, what copies they read, and what these cost in bytes, by
// hand.
#include "models/eight_bit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "models/backward.h"
#include "models/lower.h"
#include "models/recompute.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kTokens = 128, kHidden = 256, kHeads = 8, kKvHeads = 4, kFfn = 512;
constexpr std::int64_t kKv = kHidden / kHeads * kKvHeads;
// Weights of a layer's four products; and those of its two norms.
constexpr std::int64_t kWeights =
    kHidden * (kHidden + 2 * kKv) + kHidden * kHidden + 3 * kHidden * kFfn;
constexpr std::int64_t kNorms = 2 * kHidden;

Model model(std::int64_t layers) {
  return llama_model(layers, kHidden, kHeads, kKvHeads, kFfn, 1024);
}

Plan plan_with(Scaling scaling, std::int64_t micro_batches = 1) {
  Plan plan = small_plan(kTokens, 1, micro_batches);
  plan.eight_bit.scaling = scaling;
  return plan;
}

Job job_of(const Plan& plan, std::int64_t layers = 2) {
  check_plan(plan, model(layers));
  const Job job = lower(transformer(model(layers), plan), plan);
  EXPECT_EQ(verify(job), "");
  return job;
}

const std::string& name_of(const Job& job, Label label) {
  return job.names[static_cast<std::size_t>(label.name)];
}

// Every Compute of a step on the first stage.
template <class Function>
void each_compute(const Job& job, Function function) {
  for (const Call& call : job.programs[0].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (const auto* compute = std::get_if<Compute>(&i)) {
        function(*compute, job.ops[static_cast<std::size_t>(compute->op)]);
      }
    }
  }
}

// How often a kind of Pointwise runs in a step, where the label has `part` in it.
int runs(const Job& job, PointwiseKind kind, std::string_view part) {
  int count = 0;
  each_compute(job, [&](const Compute& compute, const Op& op) {
    const auto* pointwise = std::get_if<Pointwise>(&op);
    count += pointwise != nullptr && pointwise->kind == kind &&
             name_of(job, compute.label).find(part) != std::string::npos;
  });
  return count;
}

// ------------------------------------------------------------------------------- what runs in fp8

TEST(EightBit, RunsTheThreeProductsOfEachOfALayersFourMatricesAndNoOther) {
  for (Scaling scaling : {Scaling::kDelayed, Scaling::kTensor, Scaling::kBlock, Scaling::kMx}) {
    std::map<std::string, int> products;
    each_compute(job_of(plan_with(scaling), 3), [&](const Compute&, const Op& op) {
      if (const auto* gemm = std::get_if<Gemm>(&op)) {
        EXPECT_EQ(gemm->output, Dtype::kBf16);
        const bool blocks = scaling == Scaling::kBlock || scaling == Scaling::kMx;
        EXPECT_EQ(gemm->block_scales, blocks && gemm->dtype == Dtype::kFp8);
        ++products[std::string(dtype_name(gemm->dtype))];
      } else if (const auto* attention = std::get_if<Attention>(&op)) {
        EXPECT_EQ(attention->dtype, Dtype::kBf16);
      }
    });
    EXPECT_EQ(products, (std::map<std::string, int>{{"fp8", 3 * 3 * 4}, {"bf16", 3}}));
  }
}

TEST(EightBit, MultipliesAsOftenAsIn16Bits) {
  const auto multiplied = [](const Plan& plan) {
    Flops sum;
    each_compute(job_of(plan), [&](const Compute&, const Op& op) {
      if (std::holds_alternative<Gemm>(op)) sum += flops(op);
    });
    return sum.value;
  };
  EXPECT_EQ(multiplied(plan_with(Scaling::kTensor)), multiplied(plan_with(Scaling::kNone)));
}

// Of each linear layer: one pass for x, one for dy. With current scaling each is preceded by a
// search for the largest value; the copies of two micro-batches' weights are made once.
TEST(EightBit, QuantisesInputsAndGradientsInEachMicroBatchAndWeightsOnceAStep) {
  const Job delayed = job_of(plan_with(Scaling::kDelayed, 2), 1);
  EXPECT_EQ(runs(delayed, PointwiseKind::kQuantizeBoth, ".input.quantize"), 2 * 4);
  EXPECT_EQ(runs(delayed, PointwiseKind::kQuantizeBoth, ".gradient.quantize"), 2 * 4);
  EXPECT_EQ(runs(delayed, PointwiseKind::kQuantizeBoth, ".weight.quantize"), 4);
  EXPECT_EQ(runs(delayed, PointwiseKind::kAmax, ""), 0);
  const Job current = job_of(plan_with(Scaling::kTensor, 2), 1);
  EXPECT_EQ(runs(current, PointwiseKind::kAmax, ""), 2 * 4 + 2 * 4 + 4);
  // Blackwell's products read any layout, so one copy serves both.
  Plan any = plan_with(Scaling::kDelayed, 2);
  any.eight_bit.transposes = false;
  const Job single = job_of(any, 1);
  EXPECT_EQ(runs(single, PointwiseKind::kQuantizeBoth, ""), 0);
  EXPECT_EQ(runs(single, PointwiseKind::kQuantize, ""), 2 * 4 + 2 * 4 + 4);
}

// Sharded weights come and go, so do their copies: one for forward, the other for backward.
TEST(EightBit, QuantisesGatheredWeightsWhereverTheyAreUsed) {
  Plan plan = plan_with(Scaling::kMx);
  plan.data = 2;
  plan.zero = 3;
  plan.global_batch = 2 * 3;
  const Job job = job_of(plan, 1);
  EXPECT_EQ(runs(job, PointwiseKind::kQuantize, ".weight.quantize"), 3 * 4);
  EXPECT_EQ(runs(job, PointwiseKind::kQuantize, ".weight.columns.quantize"), 3 * 4);
  EXPECT_EQ(runs(job, PointwiseKind::kQuantizeBoth, ".weight"), 0);
}

// ---------------------------------------------------------------------------------------- memory

// Bytes that a layer keeps from forward to backward, without statistics and log-sum-exp.
std::int64_t saved_by_layer(const Plan& plan) {
  const Network network = transformer(model(2), plan);
  const Block& layer = network.kinds[1];
  BackwardOptions options;
  options.eight_bit = plan.eight_bit;
  const Differentiated d = differentiate(layer, recompute_slices(layer, plan), options);
  std::int64_t bytes = 0;
  for (std::size_t v = 0; v < d.saved.size(); ++v) {
    const Value& value = d.block.values[v];
    const bool statistics = value.name.find("statistics") != std::string::npos ||
                            value.name.find("lse") != std::string::npos;
    if (d.saved[v] && !statistics) bytes += value.bytes().count;
  }
  return bytes;
}

// In 16 bits: inputs of two norms 4 h, of qkv 2 h, q, k, v 2 (q + 2 kv), o 2 q, of fc1 2 h, gate
// and up 4 f, of fc2 2 f; a token. In 8 bits the four inputs of products take a byte; o stays, for
// attention, beside its copy for the projection. Under sequence parallelism all of it is divided.
TEST(EightBit, KeepsOneByteOfEachInputOfAProduct) {
  const std::int64_t q = kHidden, kv = kKv, h = kHidden, f = kFfn;
  EXPECT_EQ(saved_by_layer(plan_with(Scaling::kNone)),
            kTokens * (4 * h + 2 * h + 2 * (q + 2 * kv) + 2 * q + 2 * h + 4 * f + 2 * f));
  const std::int64_t wide = 4 * h + 2 * (q + 2 * kv) + 2 * q + 4 * f;
  const std::int64_t narrow = h + q + h + f;
  for (bool transposes : {false, true}) {
    for (Scaling scaling : {Scaling::kDelayed, Scaling::kTensor}) {
      Plan plan = plan_with(scaling);
      plan.eight_bit.transposes = transposes;
      EXPECT_EQ(saved_by_layer(plan), kTokens * (wide + narrow));
      plan.tensor = 2;
      plan.sequence_parallel = true;
      EXPECT_EQ(saved_by_layer(plan), kTokens * (wide + narrow) / 2);
    }
  }
  // A byte of scales for each 32 elements of MX; an fp32 for each 128.
  for (Scaling scaling : {Scaling::kMx, Scaling::kBlock}) {
    EXPECT_EQ(saved_by_layer(plan_with(scaling)), kTokens * (wide + narrow + narrow / 32));
  }
}

// They are made again from the inputs of norms and activation, which are in 16 bits, and from o.
TEST(EightBit, KeepsNoCopyThatIsRunAgain) {
  Plan plan = plan_with(Scaling::kDelayed);
  plan.recompute = Recompute::kModules;
  plan.recompute_modules = {"norm", "activation", "quantize"};
  const std::int64_t wide = 4 * kHidden + 2 * (kHidden + 2 * kKv) + 2 * kHidden + 4 * kFfn;
  EXPECT_EQ(saved_by_layer(plan), kTokens * wide);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  EXPECT_EQ(saved_by_layer(plan), kTokens * wide / 2);
}

// TransformerEngine issues 257 and 1429: fp8 takes more memory for weights than bf16, one byte a
// parameter, two with transposes (Hopper); unless the weights themselves are held in fp8.
TEST(EightBit, AddsAByteAParameterAndTwoWithTransposes) {
  const auto layer = [](const Plan& plan) {
    return (resident_bytes(job_of(plan, 3), 0, Category::kWeights) -
            resident_bytes(job_of(plan, 2), 0, Category::kWeights))
        .count;
  };
  Plan plan = plan_with(Scaling::kTensor);
  EXPECT_EQ(layer(plan_with(Scaling::kNone)), 2 * kWeights + 2 * kNorms);
  EXPECT_EQ(layer(plan), 4 * kWeights + 2 * kNorms);
  plan.eight_bit.transposes = false;
  EXPECT_EQ(layer(plan), 3 * kWeights + 2 * kNorms);
  plan.eight_bit.weights = true;
  EXPECT_EQ(layer(plan), kWeights + 2 * kNorms);
  plan.eight_bit.transposes = true;
  EXPECT_EQ(layer(plan), 2 * kWeights + 2 * kNorms);
  EXPECT_EQ(layer(plan_with(Scaling::kMx)), (2 + 2) * kWeights + kWeights / 16 + 2 * kNorms);
  EXPECT_EQ(layer(plan_with(Scaling::kBlock)), 4 * kWeights + 2 * kNorms);
  // Shards at rest are those of the weights.
  plan = plan_with(Scaling::kTensor);
  plan.data = plan.global_batch = 4;
  plan.zero = 3;
  EXPECT_EQ(layer(plan), (2 * kWeights + 2 * kNorms) / 4);
}

// --------------------------------------------------------------------------------------- traffic

struct Gathered {
  std::int64_t gathered = 0, scattered = 0, reduced = 0;  // bytes of the whole tensors
};

// Of the tensor axis, by one layer in a step.
Gathered tensor_traffic(Scaling scaling) {
  Plan plan = plan_with(scaling);
  plan.tensor = 4;
  plan.sequence_parallel = true;
  const auto of = [&](std::int64_t layers) {
    Gathered sum;
    const Job job = job_of(plan, layers);
    for (const Call& call : job.programs[0].schedule) {
      for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
        const auto* c = std::get_if<Collective>(&i);
        if (c == nullptr || c->stream != Stream::kTensor) continue;
        const Transfer& t = job.transfers[static_cast<std::size_t>(c->transfer)];
        if (t.kind == TransferKind::kAllGather) sum.gathered += t.bytes.count;
        if (t.kind == TransferKind::kReduceScatter) sum.scattered += t.bytes.count;
        if (t.reduction == Reduction::kMaximum) sum.reduced += t.bytes.count;
      }
    }
    return sum;
  };
  const Gathered three = of(3), two = of(2);
  return {three.gathered - two.gathered, three.scattered - two.scattered,
          three.reduced - two.reduced};
}

// Two halves of a layer: each gathers its input in forward and again in backward, and the gradient
// of its output; it scatters its output and the gradient of its input, which are bf16.
TEST(EightBit, GathersInputsAndGradientsOfSequenceParallelismInABytePerElement) {
  constexpr std::int64_t kMatrix = kTokens * kHidden;
  EXPECT_EQ(tensor_traffic(Scaling::kNone).gathered, 6 * 2 * kMatrix);
  EXPECT_EQ(tensor_traffic(Scaling::kDelayed).gathered, 6 * kMatrix);
  // Gradients scaled in blocks would have to cross in two copies; they cross in 16 bits.
  EXPECT_EQ(tensor_traffic(Scaling::kMx).gathered,
            4 * (kMatrix + kMatrix / 32) + 2 * 2 * kMatrix);
  for (Scaling scaling : {Scaling::kNone, Scaling::kDelayed, Scaling::kTensor, Scaling::kMx}) {
    EXPECT_EQ(tensor_traffic(scaling).scattered, 4 * 2 * kMatrix);
  }
  // A scale that is found now must be that of all ranks: an fp32 for each of four quantisations.
  EXPECT_EQ(tensor_traffic(Scaling::kTensor).reduced, 4 * 4);
  EXPECT_EQ(tensor_traffic(Scaling::kDelayed).reduced, 0);
}

// ZeRO-3 on 4 ranks: weights are gathered twice, gradients scattered in bf16, each 3/4 of them.
TEST(EightBit, HalvesTheGathersOfWeightsThatAreHeldIn8Bits) {
  const auto layer = [](bool weights) {
    Plan plan = plan_with(Scaling::kDelayed);
    plan.eight_bit.weights = weights;
    plan.data = plan.global_batch = 4;
    plan.zero = 3;
    const auto sent = [&](std::int64_t layers) {
      return count_traffic(job_of(plan, layers)).stages[0][static_cast<std::size_t>(Axis::kData)];
    };
    return (sent(3) - sent(2)).count;
  };
  EXPECT_EQ(layer(false), 3 * (2 + 2 + 2) * (kWeights + kNorms) / 4);
  EXPECT_EQ(layer(true), 3 * ((1 + 1 + 2) * kWeights + (2 + 2 + 2) * kNorms) / 4);
}

// ----------------------------------------------------------------------------------------- plans

TEST(EightBit, RefusesWhatCannotRun) {
  Plan plan = plan_with(Scaling::kMx);
  plan.eight_bit.weights = true;
  EXPECT_EQ(trouble_alone(plan)->key, "fp8_weights");
  plan = plan_with(Scaling::kTensor);
  plan.eight_bit.weights = true;
  plan.master = false;
  EXPECT_EQ(trouble_alone(plan)->key, "master");
  plan = plan_with(Scaling::kTensor);
  EXPECT_FALSE(trouble_with(plan, model(2)).has_value());
  const std::optional<PlanTrouble> odd =
      trouble_with(plan, llama_model(2, 256, 8, 4, 500, 1024));
  ASSERT_TRUE(odd.has_value());
  EXPECT_THAT(odd->what, ::testing::HasSubstr("500, is no multiple of 16"));
}

}  // namespace
}  // namespace stepcast
