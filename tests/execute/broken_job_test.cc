// A Job that says something wrong is found out: by verify(), before anything runs, or, where it is
// a legal Job of another training, by the losses.
#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "execute/cpu/cpu_backend.h"
#include "sim/base/error.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

Model model() { return gpt_model(2, 16, 4, 61, 12); }

// Two stages of two tensor and two data ranks, four micro-batches.
Job good() {
  Plan plan = executable_plan(8, 8);
  plan.pipeline = plan.tensor = plan.data = 2;
  plan.zero = 1;
  return lowered(model(), plan);
}

// Eight experts, two of them on each of two tensor ranks of two data ranks.
Model model_of_experts() {
  Model model = llama_model(2, 16, 4, 2, 24, 61);
  model.experts = 8;
  model.experts_per_token = 2;
  model.expert_ffn = 12;
  return model;
}
Plan plan_of_experts() {
  Plan plan = executable_plan(8, 8);
  plan.capacity_factor = 4;  // no token is dropped
  return plan;
}
Job good_with_experts() {
  Plan plan = plan_of_experts();
  plan.tensor = plan.data = 2;
  plan.sequence_parallel = true;
  plan.expert = 4;
  return lowered(model_of_experts(), plan);
}

// Takes the instruction out, and its operands out of the pool.
void erase(Body& body, std::size_t at) {
  Operands gone;
  if (const auto* c = std::get_if<Compute>(&body.code[at])) gone = c->operands;
  if (const auto* c = std::get_if<Collective>(&body.code[at])) gone = c->operands;
  const std::int32_t count = gone.reads + gone.writes;
  body.operands.erase(body.operands.begin() + gone.first,
                      body.operands.begin() + gone.first + count);
  body.code.erase(body.code.begin() + static_cast<std::ptrdiff_t>(at));
  for (Instruction& instruction : body.code) {
    if (auto* c = std::get_if<Compute>(&instruction); c && c->operands.first > gone.first) {
      c->operands.first -= count;
    }
    if (auto* c = std::get_if<Collective>(&instruction); c && c->operands.first > gone.first) {
      c->operands.first -= count;
    }
  }
}

// Erases every instruction of a kind whose label is so called; says how many there were.
template <class Kind>
int erase_all(Job& job, const std::string& name) {
  int erased = 0;
  for (Body& body : job.bodies) {
    for (std::size_t i = 0; i < body.code.size();) {
      const auto* one = std::get_if<Kind>(&body.code[i]);
      if (one && job.names[static_cast<std::size_t>(one->label.name)] == name) {
        erase(body, i);
        ++erased;
      } else {
        ++i;
      }
    }
  }
  return erased;
}

// From the losses of `alone`.
double furthest(const Job& job, const Job& alone = lowered(model(), executable_plan(8, 8))) {
  const ExecuteOptions options = train_options(6);
  const std::vector<double> losses = train(job, options)[0].losses;
  const std::vector<double> expected = train(alone, options)[0].losses;
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double off = std::abs(losses[i] - expected[i]) / expected[i];
    most = std::isnan(off) ? INFINITY : std::max(most, off);
  }
  return most;
}

TEST(BrokenJob, IsToldFromAGoodOne) {
  EXPECT_EQ(verify(good()), "");
  EXPECT_LT(furthest(good()), 1e-4);
}

TEST(BrokenJob, WithADroppedMessageDoesNotVerify) {
  Job job = good();
  ASSERT_GT(erase_all<Send>(job, "send"), 0);
  EXPECT_NE(verify(job), "");
  job = good();
  ASSERT_GT(erase_all<Receive>(job, "receive"), 0);
  EXPECT_NE(verify(job), "");
}

TEST(BrokenJob, WithSwappedMicroBatchesDoesNotVerify) {
  Job job = good();
  std::vector<Call*> forward;
  for (Call& call : job.programs[1].schedule) {
    if (job.bodies[static_cast<std::size_t>(call.body)].phase == Phase::kForward) {
      forward.push_back(&call);
    }
  }
  ASSERT_GT(forward.size(), 1u);
  std::swap(forward[0]->micro_batch, forward[1]->micro_batch);
  EXPECT_NE(verify(job), "");
}

TEST(BrokenJob, WithoutAnEventBetweenStreamsDoesNotVerify) {
  Job job = good();
  for (Body& body : job.bodies) {
    std::erase_if(body.code, [](const Instruction& i) {
      const auto* wait = std::get_if<Wait>(&i);
      return wait && wait->stream == Stream::kTensor;
    });
  }
  EXPECT_NE(verify(job), "");
}

// Ranks keep training on the shares of the weights that they had before the step.
TEST(BrokenJob, WithStaleWeightsLearnsSomethingElse) {
  Job job = good();
  ASSERT_GT(erase_all<Collective>(job, "weights.gather"), 0);
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job), 1e-3);
}

TEST(BrokenJob, WithoutTheReductionOfGradientsLearnsSomethingElse) {
  Job job = good();
  ASSERT_GT(erase_all<Collective>(job, "gradients.reduce"), 0);
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job), 1e-3);
}

// The table at both ends: without its reduction the two copies drift apart.
TEST(BrokenJob, WithoutTheReductionOfTheTiedTableLearnsSomethingElse) {
  Job job = good();
  ASSERT_GT(erase_all<Collective>(job, "embedding.gradient.ends_reduce"), 0);
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job), 1e-3);
}

TEST(BrokenJob, WithAMaximumForASumLosesItsLoss) {
  Job job = good();
  int changed = 0;
  for (Transfer& transfer : job.transfers) {
    // The sums of the loss: two numbers a token.
    if (transfer.kind != TransferKind::kAllReduce || transfer.bytes != Bytes(2 * 8 * 4)) continue;
    transfer.reduction = Reduction::kMaximum;
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job), 1e-3);
}

// Tokens that stand rank by rank meet the weights of other experts.
TEST(BrokenJob, WithExpertsOutOfOrderLearnsSomethingElse) {
  const Job alone = lowered(model_of_experts(), plan_of_experts());
  Job job = good_with_experts();
  EXPECT_LT(furthest(job, alone), 1e-4);
  int changed = 0;
  for (Op& op : job.ops) {
    auto* regroup = std::get_if<Regroup>(&op);
    if (regroup == nullptr) continue;
    EXPECT_NE(regroup->outer, regroup->inner);
    std::swap(regroup->outer, regroup->inner);
    ++changed;
  }
  ASSERT_EQ(changed, 4);  // tokens and weights there, tokens and weights' gradients back
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job, alone), 1e-3);
}

// Each rank takes itself for the one with the first experts.
TEST(BrokenJob, ThatDoesNotSayWhereExpertsAreLearnsSomethingElse) {
  Job job = good_with_experts();
  job.experts = {};
  ASSERT_EQ(verify(job), "");
  EXPECT_GT(furthest(job, lowered(model_of_experts(), plan_of_experts())), 1e-3);
}

TEST(Executable, SaysWhatIsInTheWay) {
  Plan plan = executable_plan(8, 8);
  EXPECT_EQ(executable(lowered(model(), plan)), "");
  Plan pieces = plan;
  pieces.tensor = 2;
  pieces.sequence_parallel = true;
  EXPECT_EQ(executable(lowered(model(), pieces)), "");
  pieces.tensor_pieces = 2;
  EXPECT_NE(executable(lowered(model(), pieces)).find("in 2 pieces"), std::string::npos);
  plan.dropout = true;
  plan.fused_attention = false;
  Job dropping = lowered(model(), plan);
  EXPECT_EQ(executable(dropping), "");
  dropping.batch.sequence_length = 4;
  EXPECT_NE(executable(dropping).find("scores"), std::string::npos);
  dropping.dropout = 0;
  EXPECT_NE(executable(dropping).find("rate of its dropout"), std::string::npos);
  plan.dropout = false;
  plan.compute = Dtype::kBf16;
  EXPECT_NE(executable(lowered(model(), plan)).find("fp32"), std::string::npos);
  plan.eight_bit.scaling = Scaling::kTensor;
  EXPECT_NE(executable(lowered(model(), plan)).find("8-bit"), std::string::npos);
  Job job = lowered(model(), executable_plan(8, 8));
  job.batch = {};
  EXPECT_NE(executable(job).find("batch"), std::string::npos);
  Job experts = good_with_experts();
  EXPECT_EQ(executable(experts), "");
  for (Op& op : experts.ops) {
    if (auto* route = std::get_if<Route>(&op)) route->capacity = std::int64_t{1} << 28;
  }
  EXPECT_NE(executable(experts).find("32 bits"), std::string::npos);

  Plan gathered = plan_of_experts();
  gathered.data = gathered.expert = 2;
  gathered.expert_exchange = ExpertExchange::kAllGather;
  Job slots = lowered(model_of_experts(), gathered);
  EXPECT_EQ(executable(slots), "");
  for (Transfer& transfer : slots.transfers) {
    if (transfer.axes == AxisSet(Axis::kExpert)) transfer.kind = TransferKind::kAllReduce;
  }
  EXPECT_NE(executable(slots).find("adds up int32"), std::string::npos);
}

// The others do not wait for ever.
TEST(Execute, EndsWithTheErrorOfTheRankThatFailed) {
  class Broken final : public Corpus {
    void read(std::int64_t sequence, std::int64_t length, std::int64_t* out) const override {
      if (sequence == 5) throw Error("data", "no more");
      std::fill_n(out, length, 0);
    }
  };
  const Job job = good();
  try {
    run_threads(job, train_options(2), Broken(), [] { return make_cpu_backend(1); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "no more");
  }
}

}  // namespace
}  // namespace stepcast
