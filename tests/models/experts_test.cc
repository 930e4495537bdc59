// A mixture of experts in the Job: what expert ranks divide, what they send, what their state is.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/engine/compile.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kRowsOfTokens = 128, kModelWidth = 64, kExperts = 8, kChosen = 2,
                       kExpertWidth = 32;

Model mixture(std::int64_t layers) {
  Model model = llama_model(layers, kModelWidth, 8, 4, 256, 512);
  model.experts = kExperts;
  model.experts_per_token = kChosen;
  model.expert_ffn = kExpertWidth;
  return model;
}

// Data ranks as many as expert ranks, where nothing else is set.
Plan spread(std::int64_t ranks) {
  Plan plan = small_plan(kRowsOfTokens, 1, 2);
  plan.expert = plan.data = ranks;
  plan.global_batch = 2 * plan.data;
  return plan;
}

Job lowered_mixture(const Model& model, const Plan& plan) {
  check_plan(plan, model);
  Job job = lower(transformer(model, plan), plan);
  EXPECT_EQ(verify(job), "");
  return job;
}

std::int64_t expert_bytes(const Job& job) {
  return count_traffic(job).stages[0][static_cast<std::size_t>(Axis::kExpert)].count;
}

// A layer's traffic is the difference of two depths.
std::int64_t of_a_layer(const Plan& plan) {
  return expert_bytes(lowered_mixture(mixture(3), plan)) -
         expert_bytes(lowered_mixture(mixture(2), plan));
}

// k slots a token in all, of h columns in bf16 and a weight in fp32. Tokens go, come back, and in
// backward their gradients do; weights go, and come back in backward. (n - 1) / n leave the rank.
TEST(Experts, SendEachTokenToItsExpertsAndBack) {
  for (const std::int64_t n : {2, 4, 8}) {
    const std::int64_t slots = kRowsOfTokens * kChosen, micro_batches = 2;
    const std::int64_t once = slots * (4 * kModelWidth * 2 + 2 * 4) / n * (n - 1);
    EXPECT_EQ(of_a_layer(spread(n)), micro_batches * once);
    Plan half = spread(n);
    half.capacity_factor = 0.5;
    EXPECT_EQ(of_a_layer(half), micro_batches * once / 2);
  }
}

TEST(Experts, SendAgainWhatIsRunAgain) {
  Plan plan = spread(4);
  const std::int64_t slots = kRowsOfTokens * kChosen,
                     forward = slots * (2 * kModelWidth * 2 + 4) / 4 * 3;
  const std::int64_t once = of_a_layer(plan);
  plan.recompute = Recompute::kModules;
  plan.recompute_modules = {"mlp"};
  EXPECT_EQ(of_a_layer(plan), once + 2 * forward);
}

// What the host does around its waits in the bodies of a phase: the kernel before the event's
// Record, then what it issues between that and the wait, and behind it.
std::vector<std::string> host_reads(const Job& job, std::string_view body_name) {
  const auto name_of = [&](const Instruction& instruction) -> std::string {
    const auto of = [&](Label label) { return job.names[static_cast<std::size_t>(label.name)]; };
    if (const auto* c = std::get_if<Compute>(&instruction)) return of(c->label);
    if (const auto* c = std::get_if<Collective>(&instruction)) return of(c->label);
    return "";
  };
  std::vector<std::string> reads;
  for (const Body& body : job.bodies) {
    if (body.name != body_name) continue;
    std::string story, last;
    bool open = false;
    for (const Instruction& instruction : body.code) {
      const auto* record = std::get_if<Record>(&instruction);
      if (record != nullptr && record->stream == Stream::kCompute && !open) story = last + " |";
      if (std::holds_alternative<HostWait>(instruction)) story += " wait", open = true;
      const std::string name = name_of(instruction);
      if (name.empty()) continue;
      story += " " + name, last = name;
      if (open) reads.push_back(story);
      open = false;
    }
  }
  return reads;
}

TEST(Experts, LetTheHostReadHowManyRowsEachGets) {
  using ::testing::AllOf;
  using ::testing::Each;
  using ::testing::SizeIs;
  constexpr std::int64_t kLayers = 3;
  Plan plan = spread(4);
  EXPECT_THAT(host_reads(lowered_mixture(mixture(kLayers), plan), "forward"), SizeIs(0));
  plan.route_sync = true;
  const auto read = [&](const Plan& asked, std::string_view body) {
    return host_reads(lowered_mixture(mixture(kLayers), asked), body);
  };
  EXPECT_THAT(read(plan, "forward"),
              AllOf(SizeIs(kLayers), Each("router.choice | experts.permute wait "
                                          "experts.tokens.all_to_all")));
  EXPECT_THAT(read(plan, "backward"), SizeIs(0));
  plan.recompute = Recompute::kFull;
  EXPECT_THAT(read(plan, "backward"), SizeIs(kLayers));
  plan.recompute = Recompute::kNone;
  plan.expert_exchange = ExpertExchange::kAllGather;
  EXPECT_THAT(read(plan, "forward"),
              AllOf(SizeIs(kLayers), Each("experts.choice | wait experts.permute")));
  plan.expert_exchange = ExpertExchange::kAllToAll;
  plan.expert_overlap = true;  // the host is ahead
  EXPECT_THAT(read(plan, "forward"), SizeIs(0));
  Plan alone = spread(1);
  alone.route_sync = true;
  EXPECT_THAT(read(alone, "forward"),
              AllOf(SizeIs(kLayers), Each("router.choice | experts.permute wait experts.fc1")));
}

// However experts are spread, a rank works on as many rows: with a factor of 1, k for each token of
// its own. Forward and backward take 6 FLOPs a weight and row, of three matrices and the router.
TEST(Experts, WorkOnAsManyRowsHoweverTheyAreSpread) {
  const double rows = 2 * kRowsOfTokens * kChosen;
  const double layer =
      6 * (rows * 3 * kModelWidth * kExpertWidth + 2 * kRowsOfTokens * kModelWidth * kExperts);
  Model dense = llama_model(1, kModelWidth, 8, 4, 256, 512);
  const double others = flops_of<Gemm>(lower(transformer(dense, spread(1)), spread(1))) -
                        6.0 * 2 * kRowsOfTokens * 3 * kModelWidth * 256;
  for (const std::int64_t n : {1, 2, 4, 8}) {
    EXPECT_DOUBLE_EQ(flops_of<Gemm>(lowered_mixture(mixture(1), spread(n))), others + layer);
  }
}

std::int64_t state_of(const Job& job, Category category) {
  return resident_bytes(job, 0, category).count;
}

// 16 data ranks. Each holds E / n experts whole; the moments of these are sharded over the 16 / n
// ranks that have the same ones, those of all other weights over all 16.
TEST(Experts, StateIsShardedOverTheRanksThatHaveTheSameOnes) {
  const std::int64_t expert = 3 * kModelWidth * kExpertWidth;
  Plan plan = spread(1);
  plan.data = 16;
  plan.global_batch = 32;
  plan.zero = 1;
  const std::int64_t rest =
      state_of(lowered_mixture(mixture(1), plan), Category::kWeights) - 2 * kExperts * expert;
  for (const std::int64_t n : {2, 4, 8}) {
    plan.expert = n;
    const Job job = lowered_mixture(mixture(1), plan);
    const std::int64_t held = kExperts / n * expert, shards = 16 / n;
    EXPECT_EQ(state_of(job, Category::kWeights), rest + 2 * held);
    // Of bf16 weights and fp32 moments: rest / 2 elements, sharded unit by unit, each rounded up.
    const std::int64_t moments = state_of(job, Category::kOptimizer);
    EXPECT_NEAR(static_cast<double>(moments),
                8.0 * (static_cast<double>(rest) / 2 / 16 + static_cast<double>(held / shards)),
                8.0 * 4);
  }
}

std::int64_t data_collectives(const Job& job) {
  std::int64_t sum = 0;
  for (const Call& call : job.programs[0].schedule) {
    const auto& code = job.bodies[static_cast<std::size_t>(call.body)].code;
    sum += std::count_if(code.begin(), code.end(), [](const Instruction& instruction) {
      const auto* collective = std::get_if<Collective>(&instruction);
      return collective != nullptr && collective->stream == Stream::kData;
    });
  }
  return sum;
}

// Experts that every rank has are gathered and reduced with their layer, as in a dense model; those
// that ranks share, by themselves.
TEST(Experts, MoveWithTheirLayerUnlessRanksShareThem) {
  Plan plan = spread(1);
  plan.data = 4;
  plan.global_batch = 8;
  const Model dense = llama_model(2, kModelWidth, 8, 4, 256, 512);
  for (const int zero : {1, 2, 3}) {
    plan.zero = zero;
    EXPECT_EQ(data_collectives(lowered_mixture(mixture(2), plan)),
              data_collectives(lowered_mixture(dense, plan)))
        << zero;
  }
  plan.zero = 1;
  const std::int64_t together = data_collectives(lowered_mixture(mixture(2), plan));
  plan.expert = 2;
  EXPECT_GT(data_collectives(lowered_mixture(mixture(2), plan)), together);
}

// Kept of a layer for each slot, in bytes: what the first product reads (2 h), what it makes (4 f),
// its activation (2 f) and the weight (4); and of each token the router's weights and slots (8 k).
TEST(Experts, KeepWhatBackwardNeedsOfEachSlot) {
  const auto kept = [](const Model& one, const Model& two, const Plan& plan) {
    const auto after_forward = [&](const Model& model) {
      const Job job = lower(transformer(model, plan), plan);
      Bytes live;
      const auto first = static_cast<std::size_t>(job.programs[0].schedule[0].body);
      for (const Instruction& i : job.bodies[first].code) {
        const auto* a = std::get_if<Alloc>(&i);
        const auto* f = std::get_if<Free>(&i);
        if (a != nullptr) live += job.tensors[static_cast<std::size_t>(a->tensor)].bytes();
        if (f != nullptr) live -= job.tensors[static_cast<std::size_t>(f->tensor)].bytes();
      }
      return live.count;
    };
    return after_forward(two) - after_forward(one);
  };
  const auto dense = [](std::int64_t layers) {
    return llama_model(layers, kModelWidth, 8, 4, kExpertWidth, 512);
  };
  const std::int64_t slots = kRowsOfTokens * kChosen, f = kExpertWidth;
  const std::int64_t mlp = kRowsOfTokens * 6 * f;  // a dense one's: fc1's result, fc2's input
  EXPECT_EQ(kept(mixture(3), mixture(4), spread(4)), kept(dense(3), dense(4), spread(1)) - mlp +
                                                         slots * (2 * kModelWidth + 6 * f + 4) +
                                                         kRowsOfTokens * 8 * kChosen);
}

// Forward all n T tokens are gathered, with their k weights and slots, and as many rows reduced and
// scattered; backward so are the rows' gradients, and those of the weights reduced. (n - 1) / n of
// each leave the rank, however many experts a token has.
TEST(Experts, GatherAllTokensOfTheirRanks) {
  for (const std::int64_t n : {2, 4, 8}) {
    Plan plan = spread(n);
    plan.expert_exchange = ExpertExchange::kAllGather;
    const std::int64_t rows = n * kRowsOfTokens, micro_batches = 2;
    const std::int64_t once = rows * (4 * kModelWidth * 2 + 3 * kChosen * 4) / n * (n - 1);
    EXPECT_EQ(of_a_layer(plan), micro_batches * once);
  }
}

// The same rows reach the same products; what was gathered is not kept.
TEST(Experts, GatheredTokensTakeNoMoreMemoryForBackward) {
  Plan sent = spread(4), gathered = sent;
  gathered.expert_exchange = ExpertExchange::kAllGather;
  const auto kept = [&](const Plan& plan) {
    std::int64_t bytes = 0;
    for (const std::int64_t layers : {3, 4}) {
      const Job job = lowered_mixture(mixture(layers), plan);
      bytes = account(job).stages[0].peak.count - bytes;
    }
    return bytes;
  };
  // Slots of all ranks' tokens for those of one's own: kept for backward; the router's stay.
  EXPECT_EQ(kept(gathered) - kept(sent), 4 * kRowsOfTokens * kChosen * 4);
}

// A product takes a unit, a token's journey a unit, all else nothing. Of m micro-batches each of L
// layers sends four times; overlapped, those of the first forward and of the last backward are all
// that nothing runs beside.
TEST(ExpertOverlap, LeavesTheFirstForwardsAndTheLastBackwardsExchanges) {
  constexpr std::int64_t kLayers = 3, kMicroBatches = 5;
  Plan plan = spread(4);
  plan.global_batch = plan.data * kMicroBatches;
  const auto steps = [&](bool free_exchanges) {
    const Job job = lowered_mixture(mixture(kLayers), plan);
    Prices prices;
    for (const Op& op : job.ops) {
      prices.ops.push_back(Duration(std::holds_alternative<Gemm>(op) ? 1'000'000 : 0));
      prices.basis.push_back(Basis::kDatasheet);
    }
    const auto of_tokens = [](const Transfer& transfer) {
      return transfer.kind == TransferKind::kAllToAll &&
             transfer.bytes.count == kRowsOfTokens * kChosen * kModelWidth * 2;
    };
    for (const Transfer& transfer : job.transfers) {
      const bool costs = !free_exchanges && of_tokens(transfer);
      prices.transfers.push_back(Duration(costs ? 1'000'000 : 0));
    }
    return simulate(job, prices).step.picoseconds / 1'000'000;
  };
  const auto work = steps(true);
  EXPECT_EQ(steps(false), work + 4 * kLayers * kMicroBatches);
  plan.expert_overlap = true;
  EXPECT_EQ(steps(true), work);
  EXPECT_EQ(steps(false), work + 4 * kLayers);
}

// The same work and traffic, and a host that begins as many passes. What a forward keeps, the
// backward beside it gives up, so that no second micro-batch's activations are there at once.
TEST(ExpertOverlap, KeepsTheActivationsOfOneMicroBatch) {
  const Model model = mixture(24);
  Plan plan = spread(4);
  plan.micro_batch = 16;
  plan.global_batch = 2 * plan.micro_batch * plan.data;
  const auto peak = [](const Job& job) {
    return static_cast<double>(account(job).stages[0].peak.count);
  };
  const auto passes = [](const Job& job) {
    const auto& calls = job.programs[0].schedule;
    return std::count_if(calls.begin(), calls.end(), [&](const Call& call) {
      return is_pass(job.bodies[static_cast<std::size_t>(call.body)]);
    });
  };
  const Job apart = lowered_mixture(model, plan);
  plan.expert_overlap = true;
  const Job overlapped = lowered_mixture(model, plan);
  EXPECT_EQ(count_traffic(overlapped).stages, count_traffic(apart).stages);
  EXPECT_EQ(passes(overlapped), passes(apart));
  EXPECT_LT(peak(overlapped), 1.05 * peak(apart));
  plan.expert_overlap = false;
  plan.schedule = PipelineSchedule::kGpipe;
  EXPECT_GT(peak(lowered_mixture(model, plan)), 1.5 * peak(overlapped));  // keeps both
}

TEST(Experts, EveryKindOfPlanVerifies) {
  int plans = 0;
  for (int i = 0; i < 128; ++i) {
    Model model = mixture(4);
    Plan plan = spread(4);
    if ((i & 64) != 0) plan.expert_exchange = ExpertExchange::kAllGather;
    plan.tensor = (i & 1) != 0 ? 2 : 1;
    plan.sequence_parallel = plan.tensor > 1;
    plan.expert_tensor = (i & 2) != 0 ? plan.tensor : 1;
    plan.context = (i & 4) != 0 ? 2 : 1;
    plan.pipeline = (i & 8) != 0 ? 2 : 1;
    plan.zero = (i & 16) != 0 ? 1 : 0;
    if ((i & 32) != 0) model.shared_ffn = 64, model.dense_layers = 1;
    plan.expert = 4 * plan.context * (plan.expert_tensor == 1 ? plan.tensor : 1);
    if (plan.expert > kExperts) plan.expert = kExperts;
    plan.recompute = static_cast<Recompute>(i % 3);
    plan.deterministic = i % 5 == 0;
    plan.all_reduce = i % 7 == 0;
    plan.overlap = i % 4 != 0;
    if (i % 6 == 0) plan.eight_bit.scaling = Scaling::kTensor;
    if (i % 6 == 1) plan.eight_bit.scaling = Scaling::kMx;
    if (plan.pipeline > 1 && i % 3 == 0) {
      plan.virtual_stages = 2;
      plan.schedule = PipelineSchedule::kInterleaved;
    }
    plan.expert_overlap = i % 2 == 0 && (plan.pipeline == 1 || plan.virtual_stages > 1);
    lowered_mixture(model, plan);
    EXPECT_EQ(verify(lower_ring(transformer(model, plan), plan, 2)), "");
    ++plans;
  }
  EXPECT_EQ(plans, 128);
  for (const int zero : {2, 3}) {  // every rank has all experts
    Plan plan = spread(1);
    plan.data = 4;
    plan.global_batch = 8;
    plan.zero = zero;
    lowered_mixture(mixture(2), plan);
  }
}

TEST(Experts, ReadsBackFromItsText) {
  Plan plan = spread(4);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  plan.zero = 1;
  plan.expert = 8;
  const Job job = lowered_mixture(mixture(2), plan);
  EXPECT_EQ(parse_job(print_job(job), "x"), job);
}

std::string trouble_of(const Plan& plan, const Model& model) {
  std::optional<PlanTrouble> trouble = trouble_alone(plan);
  if (!trouble) trouble = trouble_with(plan, model);
  return trouble ? trouble->section + "." + trouble->key + ": " + trouble->what : "";
}

TEST(Experts, RefuseWhatCannotBeLaidOut) {
  using testing::HasSubstr;
  const Model model = mixture(2);
  Plan plan = spread(4);
  EXPECT_EQ(trouble_of(plan, model), "");
  plan.expert = 3;
  EXPECT_THAT(trouble_of(plan, model),
              HasSubstr("parallel.expert: 3 ranks cannot share the experts"));
  plan = spread(16);
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("8 experts cannot be divided by expert 16"));
  plan = spread(4);
  plan.zero = 3;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("sharding.zero"));
  plan = spread(4);
  plan.tensor = 2;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("parallel.sequence_parallel"));
  plan.sequence_parallel = true;
  plan.expert_tensor = 4;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("parallel.expert_tensor: must be 1"));
  plan.expert_tensor = 1;
  plan.expert = 1;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("parallel.expert_tensor: tensor 2 ranks must"));
  plan = spread(1);
  plan.expert_overlap = true;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("parallel.expert_overlap: no exchange"));
  plan = spread(4);
  plan.expert_overlap = true, plan.schedule = PipelineSchedule::kGpipe;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("no backward beside a forward"));
  plan.schedule = PipelineSchedule::k1f1b, plan.pipeline = 2;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("set virtual_stages to 2 or more"));
  plan.pipeline = 1;
  EXPECT_EQ(read_plan(Object(parse_json(write_plan(plan).dump(), "plan")), model, 0), plan);
  plan.global_batch = plan.data * 2'000'000;
  EXPECT_THAT(trouble_of(plan, model), HasSubstr("too many to write down"));
  plan = spread(4);
  plan.tensor = 2, plan.sequence_parallel = true;
  Model biased = model;
  biased.mlp_bias = true, biased.shared_ffn = 0;
  plan.expert_tensor = 2;
  EXPECT_THAT(trouble_of(plan, biased), HasSubstr("experts with biases that tensor ranks cut"));
  plan = spread(4);
  Model dense = model;
  dense.experts = 0;
  EXPECT_THAT(trouble_of(plan, dense), HasSubstr("the model has no experts"));
}

}  // namespace
}  // namespace stepcast
