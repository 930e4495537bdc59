// Lowered plans, many of them: every one verifies, reads back from its text, and means the same to
// every reader.
#include "models/lower.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "models/stages.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "sim/program/pieces.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

struct Case {
  Model model;
  Plan plan;
  std::string text;
};

// A small legal plan out of all kinds.
Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<std::int64_t> list) {
    return list.begin()[random() % list.size()];
  };
  Case c;
  const std::int64_t layers = pick({4, 6, 8, 12});
  c.model = random() % 2 == 0 ? gpt_model(layers, 32, 4, 96, 64)
                              : llama_model(layers, 32, 4, 2, 96, 128);
  c.model.qk_norm = random() % 4 == 0;
  c.model.post_norms = random() % 4 == 0;
  c.model.tied_embeddings = random() % 2 == 0;
  Plan& p = c.plan;
  p = small_plan(16, pick({1, 2}), 1);
  p.tensor = pick({1, 2});
  p.sequence_parallel = p.tensor > 1 && random() % 2 == 0;
  p.tensor_overlap = random() % 2 == 0;
  if (p.sequence_parallel && p.tensor_overlap) p.tensor_pieces = pick({1, 2, 4});
  p.pipeline = pick({1, 2, 4});
  p.schedule = random() % 2 == 0 ? PipelineSchedule::k1f1b : PipelineSchedule::kGpipe;
  if (p.pipeline > 1 && layers % (2 * p.pipeline) == 0 && random() % 2 == 0) {
    p.virtual_stages = 2;
    p.schedule = PipelineSchedule::kInterleaved;
  }
  p.layout = random() % 2 == 0 ? StageLayout::kBalanced : StageLayout::kEven;
  p.pipeline_overlap = random() % 2 == 0;
  const bool interleaved = p.schedule == PipelineSchedule::kInterleaved;
  p.p2p_sync = !p.pipeline_overlap && !interleaved && random() % 2 == 0;
  p.pass_sync = !interleaved && random() % 2 == 0;
  const bool alone = p.tensor_pieces == 1 && (p.pipeline == 1 || !p.pipeline_overlap);
  p.launch_blocking = alone && !interleaved && random() % 4 == 0;
  p.scatter_gather = random() % 2 == 0;
  p.data = pick({1, 2, 4});
  p.zero = static_cast<int>(random() % 4);
  p.shard_group = p.data == 4 && random() % 2 == 0 ? 2 : 0;
  p.all_reduce = random() % 2 == 0;
  p.bucket = Bytes(pick({1, 20'000, 200'000'000}));
  p.overlap = random() % 2 == 0;
  p.prefetch = pick({0, 1, 2, 5});
  p.reshard_after_forward = p.pipeline > 1 || random() % 2 == 0;
  p.recompute = static_cast<Recompute>(random() % 4);
  p.recompute_every = pick({1, 2, 3});
  p.recompute_layers = p.recompute_every == 1 ? pick({0, 1, 2}) : 0;
  for (const std::string& module : kRecomputeModules) {
    if (random() % 2 == 0) p.recompute_modules.push_back(module);
  }
  p.gradients = random() % 2 == 0 ? Dtype::kBf16 : Dtype::kFp32;
  p.master = random() % 4 != 0;
  p.gradient_copy = random() % 4 == 0;
  p.fused_attention = random() % 2 == 0;
  p.document_length = p.fused_attention ? pick({0, 4, 16}) : 0;
  p.dropout = random() % 2 == 0;
  p.clip_gradients = random() % 4 != 0;
  p.scan_layers = random() % 4 == 0;
  p.optimizer_sync = random() % 2 == 0;
  if (random() % 2 == 0) {
    p.eight_bit.scaling = static_cast<Scaling>(1 + random() % 4);
    p.eight_bit.transposes = random() % 2 == 0;
    p.eight_bit.weights = !p.eight_bit.blocks() && random() % 2 == 0;
  }
  p.global_batch = p.micro_batch * p.data * pick({1, 2, 3, 5, 8});
  p.loss = static_cast<CrossEntropy>(random() % 5);
  p.score_buffer = p.gather_buffer = random() % 2 == 0;
  p.deferred_head = pick({0, 1, 4});
  p.deterministic = random() % 3 == 0;
  p.filled = static_cast<std::uint16_t>(random() % (2 * kFilledMessage));
  c.text = write_model(c.model).dump() + write_plan(p).dump();
  return c;
}

// Uneven durations, so that nothing agrees by chance.
Prices uneven_prices(const Job& job, std::int64_t issue) {
  Prices prices;
  for (std::size_t i = 0; i < job.ops.size(); ++i) {
    prices.ops.push_back(Duration(1000 + 137 * static_cast<std::int64_t>(i * i % 97)));
    prices.basis.push_back(static_cast<Basis>(i % kBases));
  }
  for (std::size_t i = 0; i < job.transfers.size(); ++i) {
    prices.transfers.push_back(Duration(500 + 731 * static_cast<std::int64_t>(i * i % 89)));
  }
  prices.issue = Duration(issue);
  prices.pass = Duration(issue / 2);
  for (const Body& body : job.bodies) {
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      const auto* c = std::get_if<Collective>(&body.code[i]);
      if (c == nullptr || c->pieces == 1) continue;
      const auto product = static_cast<std::size_t>(product_beside(job, body, i));
      prices.pieces.push_back({c->transfer, std::get<Compute>(body.code[product]).op, c->pieces,
                               Duration(301), Duration(457)});
    }
  }
  prices.fill = Duration(issue / 3);
  return prices;
}

// Live bytes at every instruction, the slow way.
Bytes replayed_peak(const Job& job, std::size_t stage) {
  std::int64_t live = 0;
  for (const Resident& resident : job.programs[stage].residents) {
    for (TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      live += job.tensors[static_cast<std::size_t>(id)].bytes().count;
    }
  }
  std::int64_t peak = live;
  for (const Call& call : job.programs[stage].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (const auto* a = std::get_if<Alloc>(&i)) {
        live += job.tensors[static_cast<std::size_t>(a->tensor)].bytes().count;
      } else if (const auto* f = std::get_if<Free>(&i)) {
        live -= job.tensors[static_cast<std::size_t>(f->tensor)].bytes().count;
      }
      peak = std::max(peak, live);
    }
  }
  return Bytes(peak);
}

TEST(Lower, EveryLegalPlanMeansTheSameToAllReaders) {
  std::mt19937 random(20260101);
  for (int round = 0; round < 300; ++round) {
    const Case c = random_case(random);
    const Job job = lower(transformer(c.model, c.plan), c.plan);
    ASSERT_EQ(verify(job), "") << c.text;
    if (round % 10 == 0) {
      ASSERT_TRUE(parse_job(print_job(job), "job") == job) << c.text;
    }
    const Prices prices = uneven_prices(job, round % 3 * 700);
    const Timeline folded = simulate(job, prices);
    const Timeline all = simulate(job, prices, {.ranks = Ranks::kAll});
    ASSERT_EQ(folded.step, all.step) << c.text;
    ASSERT_EQ(folded.ranks.size(), static_cast<std::size_t>(c.plan.pipeline));
    ASSERT_EQ(all.ranks.size(), static_cast<std::size_t>(c.plan.ranks()));
    for (const RankTime& rank : all.ranks) {
      const RankTime& stage = folded.ranks[static_cast<std::size_t>(job.mesh.stage(rank.rank))];
      ASSERT_EQ(rank.end, stage.end) << c.text;
      ASSERT_EQ(rank.breakdown, stage.breakdown) << c.text;
    }
    const Footprint memory = account(job);
    for (std::size_t stage = 0; stage < memory.stages.size(); ++stage) {
      ASSERT_EQ(memory.stages[stage].peak, replayed_peak(job, stage)) << c.text;
    }
  }
}

// By name, the pieces of each exchange of the first layer in bodies of that name.
std::map<std::string, int> pieces_in(const Job& job, const std::string& name) {
  std::map<std::string, int> pieces;
  for (const Body& body : job.bodies) {
    if (body.name != name) continue;
    for (const Instruction& i : body.code) {
      const auto* c = std::get_if<Collective>(&i);
      if (c == nullptr || c->label.layer > 0) continue;
      pieces[job.names[static_cast<std::size_t>(c->label.name)]] = c->pieces;
    }
  }
  return pieces;
}

// What Transformer Engine moves in pieces (userbuffers): forward's four exchanges and backward's
// gathers of gradients. Backward's others run beside the other product, whole.
TEST(Lower, MovesInPiecesWhatTheProductBesideItTakesOrMakes) {
  Plan plan = small_plan(16, 1, 1);
  plan.tensor = 2;
  plan.sequence_parallel = true;
  plan.tensor_pieces = 4;
  const Job job = lower(transformer(gpt_model(2, 32, 4, 96, 64), plan), plan);
  ASSERT_EQ(verify(job), "");
  const std::map<std::string, int> forward = pieces_in(job, "forward");
  for (const char* name : {"qkv.gather", "proj.reduce", "fc1.gather", "fc2.reduce"}) {
    EXPECT_EQ(forward.at(name), 4) << name;
  }
  const std::map<std::string, int> backward = pieces_in(job, "backward");
  for (const char* name : {"fc2.reduce.gradient", "proj.reduce.gradient"}) {
    EXPECT_EQ(backward.at(name), 4) << name;
  }
  for (const char* name : {"fc1.gather.gradient", "qkv.gather.gradient", "fc1.gather",
                           "qkv.gather"}) {
    EXPECT_EQ(backward.at(name), 1) << name;
  }
}

// How often the host waits within a call of a body of that name, and how often it is called.
std::pair<int, int> waits_in(const Job& job, std::size_t stage, const std::string& name) {
  int waits = 0, calls = 0;
  for (const Call& call : job.programs[stage].schedule) {
    const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
    if (body.name != name) continue;
    ++calls;
    for (const Instruction& i : body.code) waits += std::holds_alternative<Synchronize>(i) ? 1 : 0;
  }
  return {waits, calls};
}

Plan waiting_plan() {
  Plan plan = small_plan(16, 1, 4);
  plan.pipeline = 2;
  plan.pipeline_overlap = false;
  return plan;
}

// Two stages, four micro-batches, 1F1B. Stage 0: F F B F B F B B; its first send is followed by a
// forward, which receives nothing; behind the others comes a receive. Stage 1: F B F B F B F B;
// only its last send is followed by nothing.
TEST(Lower, LetsTheHostWaitOnceForASendAndTheReceiveBehindIt) {
  Plan plan = waiting_plan();
  plan.p2p_sync = true;
  const Model model = llama_model(4, 32, 4, 4, 64, 64);
  const Job job = lower(transformer(model, plan), plan);
  EXPECT_EQ(waits_in(job, 0, "forward"), (std::pair{0, 4}));
  EXPECT_EQ(waits_in(job, 0, "backward"), (std::pair{4, 4}));
  EXPECT_EQ(waits_in(job, 0, "synchronize"), (std::pair{1, 1}));
  EXPECT_EQ(waits_in(job, 1, "forward"), (std::pair{4, 4}));
  EXPECT_EQ(waits_in(job, 1, "backward"), (std::pair{0, 4}));
  EXPECT_EQ(waits_in(job, 1, "synchronize"), (std::pair{1, 1}));
  plan.p2p_sync = false;
  const Job ahead = lower(transformer(model, plan), plan);
  for (const Body& body : ahead.bodies) {
    for (const Instruction& i : body.code) {
      EXPECT_FALSE(std::holds_alternative<Synchronize>(i)) << body.name;
    }
  }
}

TEST(Lower, LetsTheHostWaitAtTheEndOfEveryPass) {
  Plan plan = waiting_plan();
  plan.pass_sync = true;
  const Job job = lower(transformer(llama_model(4, 32, 4, 4, 64, 64), plan), plan);
  for (const std::size_t stage : {0u, 1u}) {
    EXPECT_EQ(waits_in(job, stage, "forward"), (std::pair{4, 4}));
    EXPECT_EQ(waits_in(job, stage, "backward"), (std::pair{4, 4}));
  }
}

// Behind each kernel and each collective, forward, backward and in the optimizer. Messages as where
// the host waits for them alone: one wait behind each pair.
TEST(Lower, LetsTheHostWaitForEachLaunch) {
  Plan plan = waiting_plan();
  plan.tensor = plan.data = 2;
  plan.p2p_sync = true;
  const Model model = llama_model(4, 32, 4, 4, 64, 64);
  const Job messages = lower(transformer(model, plan), plan);
  plan.p2p_sync = false;
  plan.launch_blocking = true;
  const Job job = lower(transformer(model, plan), plan);
  ASSERT_EQ(job.bodies.size(), messages.bodies.size());
  ASSERT_EQ(job.events, messages.events + 1);
  const auto launched = static_cast<EventId>(messages.events);
  for (std::size_t b = 0; b < job.bodies.size(); ++b) {
    std::vector<Instruction> expected;
    for (const Instruction& i : messages.bodies[b].code) {
      expected.push_back(i);
      const auto* collective = std::get_if<Collective>(&i);
      if (collective == nullptr && !std::holds_alternative<Compute>(i)) continue;
      expected.emplace_back(Record{collective ? collective->stream : Stream::kCompute, launched});
      if (collective != nullptr) expected.emplace_back(Wait{Stream::kCompute, launched});
      expected.emplace_back(HostWait{launched});
    }
    EXPECT_EQ(job.bodies[b].code, expected) << job.bodies[b].name;
  }
  EXPECT_EQ(waits_in(job, 1, "synchronize"), (std::pair{1, 1}));
}

TEST(Lower, LetsTheHostReadTheNormBeforeTheUpdates) {
  Plan plan = small_plan(16, 1, 4);
  plan.optimizer_sync = true;
  const Model model = llama_model(4, 32, 4, 4, 64, 64);
  for (const bool clips : {true, false}) {
    plan.clip_gradients = clips;  // without, it reads whether a loss scale was too large
    const Job job = lower(transformer(model, plan), plan);
    EXPECT_EQ(waits_in(job, 0, "clip"), (std::pair{1, 1}));
    const std::vector<Call>& calls = job.programs[0].schedule;
    EXPECT_EQ(job.bodies[static_cast<std::size_t>(calls.end()[-2].body)].name, "clip");
    EXPECT_EQ(job.bodies[static_cast<std::size_t>(calls.back().body)].name, "update");
  }
}

// 30 layers on 4 stages: 8, 8, 7, 7; no layer is lost (Megatron-LM issue 1304 lost two).
TEST(Lower, LaysOutLayersThatDoNotDivideWithoutLosingAny) {
  Plan plan = small_plan(16, 1, 4);
  plan.pipeline = 4;
  const Network network = transformer(llama_model(30, 32, 4, 4, 64, 64), plan);
  std::vector<std::int32_t> sizes;
  for (const BlockRange& part : lay_out(network, plan)) sizes.push_back(part.size());
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{1 + 8, 8, 7, 7 + 1}));
}

// A head as heavy as two layers takes two layers' place: 4 stages of 14 layers are 4, 4, 4, 2.
TEST(Lower, BalancesStagesWithTheHeadCounted) {
  const std::int64_t h = 64;
  Model model = llama_model(14, h, 4, 4, 4 * h, 1);
  Plan plan = small_plan(16, 1, 4);
  plan.pipeline = 4;
  plan.layout = StageLayout::kBalanced;
  // A layer: 2 h (3 + 1) h + 2 h 3 f = 32 h^2 a token, and the scores; the head 2 h V.
  const Network probe = transformer(model, plan);
  const double layer = forward_flops(probe.kinds[1]).value / 16;
  model.vocabulary = static_cast<std::int64_t>(2 * layer / (2 * static_cast<double>(h)));
  std::vector<std::int32_t> sizes;
  for (const BlockRange& part : lay_out(transformer(model, plan), plan))
    sizes.push_back(part.size());
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{1 + 4, 4, 4, 2 + 1}));
}

// Stages of the same kind share their text: 16 stages of 2 chunks have three kinds of chunk.
TEST(Lower, SharesBodiesBetweenEqualStages) {
  Plan plan = small_plan(16, 1, 32);
  plan.pipeline = 16;
  plan.virtual_stages = 2;
  plan.schedule = PipelineSchedule::kInterleaved;
  const Job job = lower(transformer(llama_model(64, 32, 4, 4, 64, 64), plan), plan);
  ASSERT_EQ(verify(job), "");
  EXPECT_EQ(job.programs.size(), 16u);
  // forward, backward, settle, update of the first, a middle and the last chunk; the norm's two.
  EXPECT_EQ(job.bodies.size(), 3u * 4u + 2u);
}

// Vocabulary-parallel loss keeps 1 / t of the logits (torchtitan pull request 112).
TEST(Lower, SplitsTheLogitsOverTensorRanks) {
  const auto probabilities = [](std::int64_t t) {
    Plan plan = small_plan(64, 1, 1);
    plan.tensor = t;
    const Job job = lower(transformer(llama_model(2, 32, 4, 4, 64, 4096), plan), plan);
    for (const Tensor& tensor : job.tensors) {
      if (job.names[static_cast<std::size_t>(tensor.label.name)] == "loss.probabilities") {
        return tensor.bytes().count;
      }
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(probabilities(1), 64 * 4096 * 4);
  EXPECT_EQ(probabilities(4), 64 * 4096);
}

// A balanced model on a 1F1B pipeline: the first stage holds the most (DeepSpeed issue 4477).
TEST(Lower, LeavesEarlierStagesWithMoreActivations) {
  Plan plan = small_plan(64, 1, 16);
  plan.pipeline = 8;
  const Job job = lower(transformer(llama_model(64, 32, 4, 4, 64, 64), plan), plan);
  const Footprint memory = account(job);
  const auto activations = [&](std::size_t stage) {
    return memory.stages[stage].at_peak[static_cast<std::size_t>(Category::kActivations)];
  };
  for (std::size_t stage = 0; stage + 2 < 8; ++stage) {
    EXPECT_GT(activations(stage), activations(stage + 1)) << stage;
  }
}

TEST(Lower, AttentionStaysWithinADocument) {
  Plan plan = small_plan(64, 2, 1);
  plan.document_length = 16;
  const Job job = lower(transformer(llama_model(2, 32, 4, 2, 96, 128), plan), plan);
  EXPECT_EQ(verify(job), "");
  int found = 0;
  for (const Op& op : job.ops) {
    const auto* attention = std::get_if<Attention>(&op);
    if (attention == nullptr) continue;
    ++found;
    EXPECT_EQ(attention->batch, 2 * 64 / 16);
    EXPECT_EQ(attention->queries, 16);
    EXPECT_EQ(attention->keys, 16);
  }
  EXPECT_EQ(found, 2);  // forward and backward
}

}  // namespace
}  // namespace stepcast
