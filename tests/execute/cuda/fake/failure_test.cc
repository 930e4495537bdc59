// Calls that go wrong under the executor of execute/cuda: whichever it is and whenever, the run
// ends with one Error, soon, with everything given back.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fake_cuda/include/cublasLt.h"
#include "tests/support/fake_cuda/include/nccl.h"
#include "tests/support/fake_cuda/run_on_fake.h"

namespace stepcast {
namespace {

const Job& two_ranks() {
  static const Job job = [] {
    Plan plan = executable_plan(4, 2);
    plan.tensor = 2;
    return lowered(gpt_model(1, 16, 2, 29, 4), plan);
  }();
  return job;
}

// Of a call by rank 1: the first, one in the middle, the last of a good run.
std::vector<int> moments(const std::string& call, bool graphs) {
  const FakeRun good = run_on_fake(two_ranks(), train_options(3), {}, {graphs});
  EXPECT_EQ(good.error, "");
  const int calls = fake::calls(call, 1);
  if (calls == 0) return {};
  if (call == "cudaEventQuery") return {0, 1, 2};  // asked as often as it takes
  std::vector<int> out = {0, calls / 2, calls - 1};
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

struct Failing {
  std::string call;
  int status;
  bool graphs;
};
void PrintTo(const Failing& one, std::ostream* out) { *out << one.call; }

class FakeFailure : public testing::TestWithParam<Failing> {};

TEST_P(FakeFailure, EndsTheRunWithOneErrorAndNothingLeftOver) {
  const Failing& one = GetParam();
  const std::vector<int> when = moments(one.call, one.graphs);
  ASSERT_FALSE(when.empty()) << "nobody calls it";
  for (const int number : when) {
    fake::MachineOptions machine;
    machine.faults = {{one.call, 1, number, one.status}};
    const FakeRun run = run_on_fake(two_ranks(), train_options(3), machine, {one.graphs});
    EXPECT_NE(run.error, "") << number;
    EXPECT_EQ(run.error.find("another rank"), std::string::npos) << run.error;
    EXPECT_EQ(run.error.find('\n'), std::string::npos) << run.error;
    EXPECT_EQ(run.complaints, std::vector<std::string>()) << number << ": " << run.error;
    EXPECT_EQ(run.leaks, std::vector<std::string>()) << number << ": " << run.error;
  }
}

std::vector<Failing> failing_calls() {
  std::vector<Failing> out;
  for (const char* call :
       {"cudaSetDevice", "cudaGetDeviceProperties", "cudaMalloc", "cudaHostAlloc", "cudaMemGetInfo",
        "cudaMemset", "cudaMemcpy", "cudaMemcpyAsync", "cudaStreamCreateWithPriority",
        "cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaStreamWaitEvent",
        "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery", "launch"}) {
    out.push_back({call, cudaErrorLaunchFailure, false});
  }
  out.push_back({"cudaEventElapsedTime", cudaErrorLaunchFailure, false});
  for (const char* call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                           "cudaGraphLaunch", "launch", "cudaStreamWaitEvent"}) {
    out.push_back({call, cudaErrorLaunchFailure, true});
  }
  for (const char* call :
       {"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
    out.push_back({call, CUBLAS_STATUS_ALLOC_FAILED, false});
  }
  for (const char* call : {"ncclCommInitRank", "ncclCommSplit", "ncclAllReduce", "async"}) {
    out.push_back({call, ncclSystemError, false});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Calls, FakeFailure, testing::ValuesIn(failing_calls()),
                         [](const auto& one) {
                           return one.param.call + (one.param.graphs ? "_graphs" : "");
                         });

TEST(FakeFailure, NamesTheCommunicatorThatFailed) {
  fake::MachineOptions machine;
  machine.faults = {{"async", 0, 5, ncclRemoteError}};
  const FakeRun run = run_on_fake(two_ranks(), train_options(3), machine);
  EXPECT_EQ(run.error,
            "cuda: communicator tensor: remote process exited or there was a network error");
}

// A step of 32 micro-batches is more than a stream holds: a host that went on issuing it, while a
// rank that failed keeps its stream waiting, would end in a launch that does not return.
TEST(FakeFailure, EndsTheOthersHoweverLongAStepIs) {
  Plan plan = executable_plan(4, 32);
  plan.tensor = 2;
  const Job job = lowered(gpt_model(1, 16, 2, 29, 4), plan);
  fake::MachineOptions machine;
  machine.faults = {{"async", 1, 5, ncclSystemError}};
  const FakeRun run = run_on_fake(job, train_options(1), machine);
  EXPECT_EQ(run.error, "cuda: communicator tensor: unhandled system error");
  EXPECT_EQ(run.complaints, std::vector<std::string>());
  EXPECT_EQ(run.leaks, std::vector<std::string>());
}

TEST(FakeFailure, SaysWhatMemoryARankNeeds) {
  fake::MachineOptions machine;
  machine.memory = std::size_t{5} << 20;  // the workspace alone is 4 MiB
  const FakeRun run = run_on_fake(two_ranks(), train_options(1), machine);
  EXPECT_NE(run.error.find("cuda: a rank needs "), std::string::npos) << run.error;
  EXPECT_EQ(run.leaks, std::vector<std::string>());
}

TEST(FakeFailure, WantsAGpuForEachRank) {
  fake::MachineOptions machine;
  fake::start(machine);
  machine.devices = 1;
  fake::start(machine);
  const ExecuteOptions options = train_options(1);
  const auto corpus = make_language(two_ranks().batch.vocabulary, 7);
  EXPECT_THROW(run_cuda_threads(two_ranks(), options, *corpus, {}), Error);
  machine.devices = 0;
  fake::start(machine);
  EXPECT_EQ(cuda_devices(), 0);
  EXPECT_NE(cuda_missing().find("no GPU is found here"), std::string::npos);
}

}  // namespace
}  // namespace stepcast
