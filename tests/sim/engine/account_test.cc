// Peaks and bytes by hand.
#include <gtest/gtest.h>

#include "sim/engine/simulate.h"

namespace stepcast {
namespace {

Tensor tensor(std::int64_t bytes, Category category, Scope scope = Scope::kMicroBatch) {
  return {{}, {bytes}, Dtype::kUint8, category, scope};
}

// Weights of 100 and 20 on each of two chunks. A forward keeps 10 and needs 5 more for a while; a
// backward needs 8 of buffers before it frees the 10.
//   at rest 220; forward: 230, 235, 230; backward: 238, 228, 220
struct AccountExample {
  Job job;

  AccountExample() {
    job.tensors = {tensor(100, Category::kWeights, Scope::kChunk),
                   tensor(20, Category::kOptimizer, Scope::kRank),
                   tensor(10, Category::kActivations), tensor(5, Category::kActivations),
                   tensor(8, Category::kBuffers)};
    job.resident_sets = {{0}, {1}};
    job.bodies = {{"forward", Phase::kForward, {Alloc{2}, Mark{}, Alloc{3}, Free{3}}, {}},
                  {"backward", Phase::kBackward, {Alloc{4}, Free{2}, Free{4}}, {}},
                  {"optimizer", Phase::kOptimizer, {Mark{}}, {}}};
    job.programs = {{{{0, 0}, {0, 1}, {1, 0}}, {}}};
  }
  StageMemory run(std::vector<Call> schedule) {
    job.programs[0].schedule = std::move(schedule);
    return account(job).stages[0];
  }
};

TEST(Account, FindsThePeakInsideACall) {
  // Two forwards ahead: 230, then 240 and 245 within the second, then 248 in the first backward.
  const StageMemory memory =
      AccountExample().run({{0, 0, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 1}, {2, 0, 0}});
  EXPECT_EQ(memory.resident, Bytes(220));
  EXPECT_EQ(memory.peak, Bytes(248));
  EXPECT_EQ(memory.peak_call, 2);
  EXPECT_EQ(memory.peak_instruction, 0);
  const std::array<Bytes, kCategories> at_peak = {Bytes(200), Bytes(0),  Bytes(0),
                                                  Bytes(20),  Bytes(20), Bytes(8)};
  EXPECT_EQ(memory.at_peak, at_peak);
}

TEST(Account, TakesTheEarliestOfEqualPeaks) {
  const StageMemory memory = AccountExample().run({{0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}});
  EXPECT_EQ(memory.peak, Bytes(238));
  EXPECT_EQ(memory.peak_call, 1);
}

TEST(Account, PeaksAtRestWhereNothingIsAllocated) {
  const StageMemory memory = AccountExample().run({{2, 0, 0}});
  EXPECT_EQ(memory.peak, memory.resident);
  EXPECT_EQ(memory.peak_instruction, -1);
}

TEST(AccountDeathTest, AbortsWhereAStepKeepsWhatItAllocates) {
  EXPECT_DEATH(AccountExample().run({{0, 0, 0}}), "allocates it frees");
}

// The same job on two devices of 100 MiB: context 8, NCCL's code 4 where there is a communicator.
TEST(Account, HoldsAllThreeNumbersAgainstTheDevice) {
  AccountExample example;
  example.job.programs[0].schedule = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}};
  Cluster cluster;
  cluster.devices_per_node = 2;
  cluster.device.memory = mebibytes(100);
  cluster.device.context_memory = mebibytes(8);
  StageMemory memory = account(example.job, cluster).stages[0];
  EXPECT_EQ(memory.peak, Bytes(238));
  EXPECT_EQ(memory.reserved, mebibytes(2));
  EXPECT_EQ(memory.communicators, Bytes(0));
  EXPECT_EQ(memory.device_total(), mebibytes(10));
  EXPECT_EQ(account(example.job, cluster).not_modelled, std::vector<std::string>{"workspace"});

  example.job.mesh.degree(Axis::kTensor) = 2;
  cluster.device.blas_workspace = mebibytes(1);
  cluster.device.context_memory.reset();
  const std::vector<std::string> unknown = {"context", "communicators"};
  EXPECT_EQ(account(example.job, cluster).not_modelled, unknown);

  cluster.device.nccl = NcclDevice{NcclGeneration::kAmpere, gigabytes_per_second(240), false,
                                   HostCpu::kAmd, mebibytes(4)};
  cluster.node_bandwidth = cluster.device.node_bandwidth = gigabytes_per_second(240);
  cluster.device.node_bandwidth_efficiency = 1;
  cluster.node_latency = cluster.nic_latency = microseconds(3);
  cluster.nic_bandwidth = gigabytes_per_second(20);
  example.job.transfers = {{TransferKind::kAllGather, Axis::kTensor, false, Bytes(1 << 28)}};
  example.job.bodies[0].code.push_back(Collective{0, {}, {}, Stream::kTensor, Phase::kForward});
  memory = account(example.job, cluster).stages[0];
  EXPECT_EQ(memory.context, mebibytes(4));
  EXPECT_GT(memory.communicators, mebibytes(200));
  EXPECT_EQ(memory.device_total(), memory.reserved + memory.communicators + memory.context);
  // What lies outside leaves the allocator nothing: it says what it would need all the same.
  EXPECT_EQ(memory.reserved, mebibytes(2));
}

// 60 MiB of a forward's 60 stay cached for the main stream, where 50 are wanted on the data stream:
// on a device of 100 the 60 go back, in every step.
TEST(Account, TellsHowOftenCachedMemoryHasToGoBack) {
  Job job;
  job.tensors = {tensor(60 << 20, Category::kActivations),
                 tensor(50 << 20, Category::kActivations)};
  job.transfers = {{TransferKind::kAllGather, Axis::kData, false, Bytes(50 << 20)}};
  job.bodies = {{"forward", Phase::kForward,
                 {Alloc{0}, Free{0}, Alloc{1},
                  Collective{0, {0, 0, 1}, {}, Stream::kData, Phase::kForward}, Free{1}},
                 {1}}};
  job.programs = {{{}, {{0, 0, 0}}}};
  Cluster cluster;
  cluster.device.memory = mebibytes(200);
  EXPECT_EQ(account(job, cluster).stages[0].allocation_retries, 0);
  EXPECT_EQ(account(job, cluster).stages[0].reserved, mebibytes(110));
  cluster.device.memory = mebibytes(100);
  EXPECT_EQ(account(job, cluster).stages[0].allocation_retries, 2);
  EXPECT_EQ(account(job, cluster).stages[0].reserved, mebibytes(60));
}

// Tensor 4, data 2, pipeline 2. One forward sends 1000 bytes on and all-reduces 400 over tensor:
// 2 * 3/4 * 400 = 600. The optimizer reduce-scatters 100 over data (1/2: 50), data+replica (the
// same two ranks: 50 on data's account), and 8 bytes over tensor+pipeline (8 ranks:
// 2 * 7/8 * 8 = 14). The last stage's forward has an all-to-all of 800 bytes over tensor, which is
// the experts' (3/4: 600).
TEST(CountTraffic, MultipliesABodysBytesByItsCalls) {
  Job job;
  job.mesh.degree(Axis::kTensor) = 4;
  job.mesh.degree(Axis::kData) = 2;
  job.mesh.degree(Axis::kPipeline) = 2;
  job.transfers = {
      {TransferKind::kSendReceive, Axis::kPipeline, false, Bytes(1000)},
      {TransferKind::kAllReduce, Axis::kTensor, false, Bytes(400)},
      {TransferKind::kReduceScatter, Axis::kData, false, Bytes(100)},
      {TransferKind::kReduceScatter, Axis::kData | Axis::kReplica, false, Bytes(100)},
      {TransferKind::kAllReduce, Axis::kTensor | Axis::kPipeline, false, Bytes(8)},
      {TransferKind::kAllToAll, Axis::kTensor, false, Bytes(800)}};
  const Collective tensor_wise{1, {}, {}, Stream::kTensor, Phase::kForward};
  job.bodies = {{"first", Phase::kForward, {tensor_wise, Send{0, 0, {}, Stream::kSendForward, 1}},
                 {}},
                {"last", Phase::kForward,
                 {Receive{0, 0, {}, Stream::kReceiveForward, -1}, tensor_wise,
                  Collective{5, {}, {}, Stream::kExpert, Phase::kForward}},
                 {}},
                {"optimizer", Phase::kOptimizer,
                 {Collective{2, {}, {}, Stream::kData, Phase::kOptimizer},
                  Collective{3, {}, {}, Stream::kData, Phase::kOptimizer},
                  Collective{4, {}, {}, Stream::kGlobal, Phase::kOptimizer}},
                 {}}};
  job.programs = {{{}, {{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {2, 0, 0}}},
                  {{}, {{1, 0, 0}, {1, 0, 1}, {1, 0, 2}, {2, 0, 0}}}};
  const Traffic traffic = count_traffic(job);
  ASSERT_EQ(traffic.stages.size(), 2u);
  const auto sent = [&](std::size_t stage, Axis axis) {
    return traffic.stages[stage][static_cast<std::size_t>(axis)];
  };
  EXPECT_EQ(sent(0, Axis::kTensor), Bytes(1800));
  EXPECT_EQ(sent(0, Axis::kPipeline), Bytes(3014));
  EXPECT_EQ(sent(0, Axis::kData), Bytes(100));
  EXPECT_EQ(sent(0, Axis::kReplica), Bytes(0));
  EXPECT_EQ(sent(1, Axis::kPipeline), Bytes(14));
  EXPECT_EQ(sent(0, Axis::kExpert), Bytes(0));
  EXPECT_EQ(sent(1, Axis::kTensor), Bytes(1800));
  EXPECT_EQ(sent(1, Axis::kExpert), Bytes(1800));
}

}  // namespace
}  // namespace stepcast
