// The executor of execute/cuda itself, on a machine of GPUs that are none: any plan gives the
// losses and the bytes that it gives on the CPU, in whatever order streams get on.
#include <algorithm>
#include <functional>
#include <map>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "models/fragment.h"
#include "tests/support/fake_cuda/run_on_fake.h"

namespace stepcast {
namespace {

using fake::Order;

constexpr std::int64_t kSequence = 4, kGlobal = 4;

Model gpt(std::int64_t layers) { return gpt_model(layers, 16, 4, 29, 6); }
Model llama(std::int64_t layers) { return llama_model(layers, 16, 4, 2, 24, 29); }
Model qwen(std::int64_t layers) {
  Model model = llama_model(layers, 16, 4, 4, 24, 29);
  model.qk_norm = model.qkv_bias = model.tied_embeddings = true;
  return model;
}

struct Case {
  std::string name;
  Model (*model)(std::int64_t layers);
  std::int64_t layers = 1;
  bool bf16 = false;
  bool graphs = false;
  std::function<void(Plan&)> change = {};
  bool registers = false;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

Job job_of(const Case& one) {
  Plan plan = one.bf16 ? mixed_plan(kSequence, kGlobal) : executable_plan(kSequence, kGlobal);
  if (one.change) one.change(plan);
  return lowered(one.model(one.layers), plan);
}

class FakeTraining : public testing::TestWithParam<Case> {};

// The seed, and with it the order, is another for each case.
TEST_P(FakeTraining, FollowsTheCpu) {
  const Case& one = GetParam();
  const Job job = job_of(one);
  ASSERT_EQ(verify(job), "");
  const ExecuteOptions options = train_options(3);
  fake::MachineOptions machine;
  machine.seed = static_cast<unsigned>(std::hash<std::string>()(one.name));
  const FakeRun run = run_on_fake(job, options, machine, {one.graphs, one.registers});
  EXPECT_EQ(differences(job, options, run, one.bf16 ? 4e-3 : 2e-5), "");
  EXPECT_GT(fake::work_done(), 100);
  EXPECT_EQ(fake::calls("cudaGraphLaunch"), one.graphs ? 2 * job.mesh.ranks() : 0);
  EXPECT_EQ(fake::calls("ncclCommRegister") > 0, one.registers);
}

void recompute(Plan& plan, Recompute policy) { plan.recompute = policy; }

std::vector<Case> cases() {
  using enum PipelineSchedule;
  std::vector<Case> out = {
      {"one_rank", gpt},
      {"one_rank_bf16", llama, 2, true},
      {"one_rank_graph", gpt, 1, false, true},
      {"micro2_bf16", gpt, 1, true, false, [](Plan& p) { p.micro_batch = 2; }},
      {"micro4", llama, 1, false, true, [](Plan& p) { p.micro_batch = 4; }},
      {"unfused_bf16", qwen, 1, true, false,
       [](Plan& p) { p.fused_attention = false, p.micro_batch = 2; }},
      {"softmax_of_megatron_bf16", gpt, 1, true, false,
       [](Plan& p) { p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatron; }},
      {"bf16_gradients", gpt, 1, true, false, [](Plan& p) { p.gradients = Dtype::kBf16; }},
      {"gradient_copy", gpt, 2, true, false,
       [](Plan& p) { p.data = 2, p.zero = 1, p.gradients = Dtype::kBf16, p.gradient_copy = true; }},
      {"without_clipping", llama, 1, false, false, [](Plan& p) { p.clip_gradients = false; }},
      {"recompute_full", gpt, 2, false, true, [](Plan& p) { recompute(p, Recompute::kFull); }},
      {"recompute_every2", llama, 3, false, false,
       [](Plan& p) { recompute(p, Recompute::kFull), p.recompute_every = 2; }},
      {"recompute_selective", gpt, 1, true, false,
       [](Plan& p) { recompute(p, Recompute::kSelective), p.fused_attention = false; }},
      {"separate_products_per_op_bf16", qwen, 2, true, false,
       [](Plan& p) { recompute(p, Recompute::kPerOp), p.fused_qkv = p.fused_gate_up = false; }},
      {"separate_products_tensor2_sequence", llama, 1, false, false,
       [](Plan& p) {
         p.tensor = 2, p.sequence_parallel = true;
         p.fused_qkv = p.fused_gate_up = false;
       }},
      {"tensor2", gpt, 1, false, false, [](Plan& p) { p.tensor = 2; }},
      {"tensor2_sequence_bf16", llama, 1, true, true,
       [](Plan& p) { p.tensor = 2, p.sequence_parallel = true; }},
      {"tensor4_sequence", qwen, 1, false, false,
       [](Plan& p) { p.tensor = 4, p.sequence_parallel = true, p.global_batch = 1; }},
      {"gpipe2", gpt, 2, false, false, [](Plan& p) { p.pipeline = 2, p.schedule = kGpipe; }},
      {"1f1b3_uneven", llama, 4, false, true, [](Plan& p) { p.pipeline = 3, p.schedule = k1f1b; }},
      {"interleaved2_tied", gpt, 4, false, false,
       [](Plan& p) { p.pipeline = 2, p.schedule = kInterleaved, p.virtual_stages = 2; }},
      {"whole_tensors_between_stages", llama, 2, true, false,
       [](Plan& p) {
         p.pipeline = 2, p.schedule = k1f1b, p.tensor = 2, p.global_batch = 2;
         p.scatter_gather = p.pipeline_overlap = p.tensor_overlap = false;
       }},
      {"deterministic", llama, 2, true, false,
       [](Plan& p) {
         p.pipeline = p.tensor = 2, p.schedule = k1f1b, p.global_batch = 2;
         p.deterministic = true, p.filled = 2 * kFilledMessage - 1;
       }},
      {"tensor2_pipeline2_zero1", gpt, 2, false, true,
       [](Plan& p) {
         p.tensor = p.pipeline = p.data = 2, p.zero = 1, p.schedule = k1f1b;
         p.sequence_parallel = true;
       }},
      {"hybrid", llama, 1, false, false,
       [](Plan& p) { p.data = 4, p.zero = 3, p.shard_group = 2; }},
      {"zero3_tied_far_prefetch", qwen, 3, false, true,
       [](Plan& p) { p.data = 2, p.zero = 3, p.prefetch = 3; }},
      {"zero1_small_buckets", qwen, 2, true, false,
       [](Plan& p) { p.data = 2, p.zero = 1, p.bucket = Bytes(4000); }},
      {"zero3_recompute_bf16", gpt, 2, true, false,
       [](Plan& p) { p.data = 2, p.zero = 3, recompute(p, Recompute::kFull); }},
      {"dropout_graph", gpt, 1, false, true, [](Plan& p) { p.dropout = true; }},
      {"dropout_unfused_bf16", gpt, 1, true, false,
       [](Plan& p) { p.dropout = true, p.fused_attention = false, p.micro_batch = 2; }},
      {"dropout_tensor2_recompute", gpt, 2, false, true,
       [](Plan& p) {
         p.dropout = p.sequence_parallel = true, p.tensor = 2;
         recompute(p, Recompute::kFull);
       }},
      {"registered_tensor2_pipeline2_zero1", gpt, 2, false, true,
       [](Plan& p) {
         p.tensor = p.pipeline = p.data = 2, p.zero = 1, p.schedule = k1f1b;
         p.sequence_parallel = true;
       },
       true},
      {"registered_interleaved2_tied", gpt, 4, false, false,
       [](Plan& p) { p.pipeline = 2, p.schedule = kInterleaved, p.virtual_stages = 2; }, true},
      {"registered_zero3_bf16", llama, 2, true, false, [](Plan& p) { p.data = 2, p.zero = 3; },
       true},
  };
  for (int zero = 0; zero <= 3; ++zero) {
    out.push_back({"zero" + std::to_string(zero), zero % 2 == 0 ? gpt : llama, 2, zero == 2,
                   zero == 1, [zero](Plan& p) { p.data = 2, p.zero = zero; }});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Plans, FakeTraining, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

// The partial sums of a bias of 4,160 columns take more than the 4 MiB that cuBLASLt works on.
TEST(FakeTraining, HasScratchForTheKernelThatNeedsMost) {
  Model model = gpt(1);
  model.ffn = 4160;
  const Job job = lowered(model, executable_plan(kSequence, 1));
  const ExecuteOptions options = train_options(2);
  EXPECT_EQ(differences(job, options, run_on_fake(job, options, {}), 2e-5), "");
}

// The plan with most on its streams, in every order that there is: each stream as late as it can be
// and as early, the default stream (-1) too, all at once, and graphs.
TEST(FakeTraining, DoesNotDependOnTheOrderOfStreams) {
  Plan plan = executable_plan(kSequence, 4);
  plan.pipeline = plan.data = 2;
  plan.schedule = PipelineSchedule::k1f1b;
  plan.zero = 3;
  const Job job = lowered(llama(2), plan);
  const ExecuteOptions options = train_options(2);
#if defined(__SANITIZE_ADDRESS__)
  constexpr int kNext = 4;  // each order takes seconds there
#else
  constexpr int kNext = 1;
#endif
  for (int stream = -1; stream < 7; stream += kNext) {
    for (const Order order : {Order::kLate, Order::kEarly}) {
      fake::MachineOptions machine;
      machine.order = order;
      machine.stream = stream;
      const FakeRun run = run_on_fake(job, options, machine, {stream % 2 == 1});
      EXPECT_EQ(differences(job, options, run, 2e-5), "")
          << (order == Order::kLate ? "late " : "early ") << stream;
    }
  }
  fake::MachineOptions machine;
  machine.order = Order::kAtOnce;
  EXPECT_EQ(differences(job, options, run_on_fake(job, options, machine), 2e-5), "");
}

// Spans lie within the step, one for each instruction that takes time, those of a stream one after
// the other; the parts sum to the step.
TEST(FakeTraining, TimesWhatItDid) {
  Plan plan = executable_plan(kSequence, 4);
  plan.pipeline = 2;
  plan.schedule = PipelineSchedule::k1f1b;
  const Job job = lowered(gpt(2), plan);
  ExecuteOptions options = train_options(2);
  options.trace = true;
  options.record = 2;
  const FakeRun run = run_on_fake(job, options, {});
  ASSERT_EQ(run.error, "");
  for (const CudaRun& one : run.runs) {
    ASSERT_FALSE(one.run.spans.empty());
    EXPECT_EQ(one.run.spans.size(), static_cast<std::size_t>(one.run.instructions));
    EXPECT_EQ(one.recorded.size(), 2u);
    std::map<Stream, Instant> until;
    Duration busy;
    for (const Span& span : one.run.spans) {
      EXPECT_GE(span.begin, until[span.stream]);
      EXPECT_GE(span.end, span.begin);
      EXPECT_LE(span.end, one.run.time.end + Duration(1'000'000'000));
      until[span.stream] = span.end;
      busy += span.end - span.begin;
    }
    EXPECT_GT(busy, Duration());
    Duration sum;
    for (const Duration part : one.run.time.breakdown) sum += part;
    EXPECT_GT(sum, Duration());
  }
}

// What is issued behind a Synchronize begins when all that was issued before it has ended, on every
// stream; behind a HostWait right after a Record of compute, when all on compute has. Returns how
// many there were.
int expect_waits(const Job& job, const RankRun& run) {
  Instant latest, computed, floor;
  std::size_t next = 0;
  int waits = 0;
  for (const Call& call :
       job.programs[static_cast<std::size_t>(job.mesh.stage(run.rank))].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (std::holds_alternative<Synchronize>(i)) floor = latest, ++waits;
      if (std::holds_alternative<HostWait>(i)) floor = std::max(floor, computed), ++waits;
      if (!takes_time(i)) continue;
      const Span& span = run.spans.at(next++);
      EXPECT_GE(span.begin, floor) << "stage " << job.mesh.stage(run.rank);
      latest = std::max(latest, span.end);
      if (std::holds_alternative<Compute>(i)) computed = std::max(computed, span.end);
    }
  }
  return waits;
}

TEST(FakeTraining, IssuesNothingUntilAllStreamsAreEmptyWhereTheHostWaits) {
  Plan plan = executable_plan(kSequence, 4);
  plan.pipeline = 2;
  plan.schedule = PipelineSchedule::k1f1b;
  plan.pass_sync = plan.optimizer_sync = true;
  const Job job = lowered(gpt(2), plan);
  ExecuteOptions options = train_options(2);
  options.trace = true;
  for (int stream = 0; stream < 4; ++stream) {
    fake::MachineOptions machine;
    machine.order = Order::kLate;
    machine.stream = stream;
    const FakeRun run = run_on_fake(job, options, machine);
    EXPECT_EQ(differences(job, options, run, 2e-5), "");
    for (const CudaRun& one : run.runs) EXPECT_GT(expect_waits(job, one.run), 0);
  }
}

TEST(FakeTraining, IssuesNothingUntilTheEventForWhichTheHostWaits) {
  Plan plan = executable_plan(kSequence, 4);
  plan.pipeline = 2;
  plan.schedule = PipelineSchedule::k1f1b;
  Job job = lowered(gpt(2), plan);
  for (Body& body : job.bodies) {  // behind it many a call begins with a receive
    body.code.insert(body.code.end(),
                     {Record{Stream::kCompute, kComputeReady}, HostWait{kComputeReady}});
  }
  ASSERT_EQ(verify(job), "");
  ExecuteOptions options = train_options(2);
  options.trace = true;
  fake::MachineOptions machine;
  machine.order = Order::kLate;
  machine.stream = static_cast<int>(Stream::kCompute);
  const FakeRun run = run_on_fake(job, options, machine);
  EXPECT_EQ(differences(job, options, run, 2e-5), "");
  for (const CudaRun& one : run.runs) EXPECT_GT(expect_waits(job, one.run), 0);
}

}  // namespace
}  // namespace stepcast
