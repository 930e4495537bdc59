// The fake machine itself: that it finds what would go wrong on a GPU.
#include <array>
#include <cmath>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/event.h"
#include "execute/cuda/device/library.h"
#include "execute/cuda/kernels.h"
#include "sim/base/error.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace stepcast::fake {
namespace {

using cuda::check;
using Strings = std::vector<std::string>;

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  return stream;
}

float* device_floats(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(float)), "memory");
  return static_cast<float*>(memory);
}

float* pinned_floats(std::size_t count) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, count * sizeof(float), cudaHostAllocDefault), "memory");
  return static_cast<float*>(memory);
}

float read(const float* memory) {
  float value = 0;
  check(cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost), "a copy");
  return value;
}

void copy(void* to, const void* from, cudaMemcpyKind kind, cudaStream_t on) {
  check(cudaMemcpyAsync(to, from, sizeof(float), kind, on), "a copy");
}

// One stream writes a number, another reads it; what was read.
float read_by_another_stream(Order order, int stream, bool wait) {
  MachineOptions options;
  options.order = order;
  options.stream = stream;
  start(options);
  const cudaStream_t writer = new_stream(), reader = new_stream();
  float *number = device_floats(1), *host = pinned_floats(2);
  host[0] = 7;
  const cuda::Event written(false);
  copy(number, host, cudaMemcpyHostToDevice, writer);
  written.record(writer);
  if (wait) written.hold(reader);
  copy(host + 1, number, cudaMemcpyDeviceToHost, reader);
  check(cudaStreamSynchronize(reader), "the reader");
  return host[1];
}

TEST(FakeMachine, LetsAStreamThatDoesNotWaitReadWhatIsNotThere) {
  EXPECT_TRUE(std::isnan(read_by_another_stream(Order::kLate, 0, false)));
  EXPECT_TRUE(std::isnan(read_by_another_stream(Order::kEarly, 1, false)));
  EXPECT_EQ(read_by_another_stream(Order::kLate, 0, true), 7);
  EXPECT_EQ(read_by_another_stream(Order::kEarly, 1, true), 7);
}

TEST(FakeMachine, RunsNothingBeforeTheHostWaits) {
  start({});
  const cudaStream_t stream = new_stream();
  float *number = device_floats(1), *host = pinned_floats(1);
  *host = 1;
  copy(number, host, cudaMemcpyHostToDevice, stream);
  *host = 2;  // too early
  check(cudaStreamSynchronize(stream), "the stream");
  EXPECT_EQ(read(number), 2);
}

// The default stream is no order for streams that do not block.
TEST(FakeMachine, SetsMemoryWhenItLikes) {
  MachineOptions options;
  options.order = Order::kLate;
  options.stream = -1;  // the default stream
  start(options);
  const cudaStream_t stream = new_stream();
  float *number = device_floats(1), *host = pinned_floats(1);
  *host = 3;
  check(cudaMemset(number, 0, sizeof(float)), "a memset");
  copy(number, host, cudaMemcpyHostToDevice, stream);
  check(cudaStreamSynchronize(stream), "the stream");
  EXPECT_EQ(read(number), 0);
}

TEST(FakeMachine, FindsWhatIsWrittenBehindAnAllocation) {
  start({});
  float* numbers = device_floats(3);
  check(enqueue(nullptr,
                [=] {
                  return [=] {
                    numbers[3] = 1;
                    return true;
                  };
                }),
        "work");
  check(cudaFree(numbers), "cudaFree");
  EXPECT_EQ(complaints(), Strings{"something was written behind the end of an allocation"});
}

TEST(FakeMachineDeathTest, LetsNoHostTouchADevicesMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  start({});
  float* number = device_floats(1);
  EXPECT_DEATH(*static_cast<volatile float*>(number) = 1, "");
}

TEST(FakeMachine, RefusesCopiesThatAreNoCopies) {
  start({});
  float* number = device_floats(1);
  float host = 0;
  EXPECT_NE(cudaMemcpy(number, &host, 2 * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_NE(cudaMemcpy(&host, &host, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(complaints().size(), 2u);
}

TEST(FakeMachine, LaunchesAGraphAgainAndAgain) {
  start({});
  const cudaStream_t first = new_stream(), second = new_stream();
  float *number = device_floats(1), *host = pinned_floats(1);
  cuda::Event begun(false), ended(false);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), "a capture");
  begun.record(first);
  begun.hold(second);
  copy(number, host, cudaMemcpyHostToDevice, second);
  ended.record(second);
  ended.hold(first);
  check(cudaStreamEndCapture(first, &graph), "the end");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  check(cudaGraphDestroy(graph), "destroy");
  for (const float value : {1.0f, 2.0f}) {
    *host = value;
    check(cudaGraphLaunch(executable, first), "a launch");
    check(cudaStreamSynchronize(first), "the stream");
    EXPECT_EQ(read(number), value);
  }
  check(cudaGraphExecDestroy(executable), "destroy");
  EXPECT_EQ(complaints(), Strings());
}

TEST(FakeMachine, RefusesACaptureThatLeavesAStreamBehind) {
  start({});
  const cudaStream_t first = new_stream(), second = new_stream();
  float *number = device_floats(1), *host = pinned_floats(1);
  cuda::Event begun(false);
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), "a capture");
  begun.record(first);
  begun.hold(second);
  copy(number, host, cudaMemcpyHostToDevice, second);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&host), 1), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaErrorStreamCaptureUnjoined);
}

TEST(FakeMachine, SaysWhatWasNotGivenBack) {
  start({});
  device_floats(1);
  new_stream();
  EXPECT_EQ(leaks(), (Strings{"1 pieces of device memory", "1 streams"}));
}

// ------------------------------------------------------------------------------ its libraries

struct Shape {
  cudaDataType_t a = CUDA_R_16BF, b = CUDA_R_16BF, d = CUDA_R_32F;
  std::int64_t leading = 8;
  std::int32_t bias_type = -1;
};

cublasStatus_t heuristic(const Shape& shape) {
  const cuda::CublasLt& lt = cuda::cublaslt();
  cublasLtMatmulDesc_t work = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  lt.cublasLtMatmulDescCreate(&work, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  if (shape.bias_type >= 0) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void* bias = &shape;
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      check(lt.cublasLtMatmulDescSetAttribute(work, attribute, &value, sizeof value), "attribute");
    };
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, shape.bias_type);
  }
  lt.cublasLtMatrixLayoutCreate(&a, shape.a, 8, 4, shape.leading);
  lt.cublasLtMatrixLayoutCreate(&b, shape.b, 4, 2, 4);
  lt.cublasLtMatrixLayoutCreate(&d, shape.d, 8, 2, 8);
  lt.cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  const cublasStatus_t status =
      lt.cublasLtMatmulAlgoGetHeuristic(nullptr, work, a, b, d, d, preference, 1, &found, &count);
  lt.cublasLtMatmulPreferenceDestroy(preference);
  for (cublasLtMatrixLayout_t one : {a, b, d}) lt.cublasLtMatrixLayoutDestroy(one);
  lt.cublasLtMatmulDescDestroy(work);
  return status;
}

TEST(FakeCublasLt, RefusesWhatCublasLtRefuses) {
  start({});
  EXPECT_EQ(heuristic({}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(heuristic({.d = CUDA_R_16BF}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(heuristic({.bias_type = CUDA_R_32F}), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(heuristic({.a = CUDA_R_32F}), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(heuristic({.a = CUDA_R_32F, .b = CUDA_R_32F, .d = CUDA_R_16BF}), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(heuristic({.leading = 7}), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(heuristic({.bias_type = CUDA_R_16BF}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(complaints().size(), 4u);
}

// Both members of a communicator, each in a thread of its own, on a device of its own.
template <class Function>
void on_two_ranks(Function function) {
  start({.devices = 2});
  ncclUniqueId id;
  check(cuda::nccl().ncclGetUniqueId(&id), "an id");
  std::array<std::thread, 2> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
      check(cudaSetDevice(rank), "a device");
      ncclComm_t comm = nullptr;
      check(cuda::nccl().ncclCommInitRank(&comm, 2, id, rank), "a communicator");
      function(rank, comm, new_stream());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(FakeNccl, AddsUpInOrderOnEveryMember) {
  on_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream) {
    float* number = device_floats(1);
    const float mine = rank == 0 ? 1 : 2;
    check(cudaMemcpy(number, &mine, sizeof mine, cudaMemcpyHostToDevice), "a copy");
    check(cudaStreamSynchronize(nullptr), "the copy");
    check(cuda::nccl().ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, comm, stream), "sum");
    check(cudaStreamSynchronize(stream), "the stream");
    EXPECT_EQ(read(number), 3);
    check(cuda::nccl().ncclCommDestroy(comm), "destroy");
  });
  EXPECT_EQ(complaints(), Strings());
}

TEST(FakeNccl, FindsMembersWhoseCallsDiffer) {
  on_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream) {
    const std::size_t count = rank == 0 ? 1 : 2;
    float* numbers = device_floats(2);
    check(cuda::nccl().ncclAllReduce(numbers, numbers, count, ncclFloat32, ncclSum, comm, stream),
          "sum");
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) {
      const cuda::Event event(false);
      event.record(stream);
      EXPECT_EQ(cudaEventQuery(event.get()), cudaErrorNotReady);
      check(cuda::nccl().ncclCommGetAsyncError(comm, &state), "a question");
    }
    EXPECT_EQ(state, ncclInvalidUsage);
    check(cuda::nccl().ncclCommAbort(comm), "abort");
  });
  EXPECT_EQ(complaints(), Strings{"NCCL: members whose calls differ"});
}

TEST(FakeNccl, RefusesBuffersThatOverlapButNotInPlace) {
  on_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream) {
    float* numbers = device_floats(2);
    const float* mine = numbers + (rank == 0 ? 1 : 0);
    EXPECT_NE(cuda::nccl().ncclAllGather(mine, numbers, 1, ncclFloat32, comm, stream), ncclSuccess);
    check(cuda::nccl().ncclCommAbort(comm), "abort");
  });
  EXPECT_EQ(complaints().size(), 2u);
}

TEST(FakeNccl, FindsAKernelThatIsLoadedWhileItsCallIsUnderWay) {
  std::latch launched(1);
  on_two_ranks([&](int rank, ncclComm_t comm, cudaStream_t stream) {
    float* numbers = device_floats(2);
    const auto sum = [&] {
      check(cuda::nccl().ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, comm, stream),
            "sum");
    };
    sum();
    check(cudaStreamSynchronize(stream), "the stream");
    if (rank == 1) launched.wait();
    sum();
    if (rank == 0) {
      const cuda::Launch at{new_stream(), {}};
      cuda::launch_convert({numbers, Dtype::kFp32, 1}, numbers + 1, Dtype::kFp32, at);
      launched.count_down();
    }
    check(cudaStreamSynchronize(stream), "the stream");
    check(cuda::nccl().ncclCommDestroy(comm), "destroy");
  });
  EXPECT_EQ(complaints(), Strings{"a kernel is loaded while a call of NCCL is under way"});
}

TEST(FakeNccl, HasMemoryThatOnlyItGivesBack) {
  start({});
  void* memory = nullptr;
  check(cuda::nccl().ncclMemAlloc(&memory, 1), "memory");
  check(cudaFree(memory), "what is NCCL's");
  EXPECT_EQ(leaks(), Strings{"1 pieces of NCCL's memory"});
  check(cuda::nccl().ncclMemAlloc(&memory, 1), "memory");
  check(cuda::nccl().ncclMemFree(memory), "memory");
  EXPECT_EQ(leaks(), Strings{"1 pieces of NCCL's memory"});
}

TEST(FakeMachine, IsAMachineToTheProbe) {
  start({.devices = 1});
  EXPECT_EQ(cuda_missing(), "");
  const CudaMachine machine = cuda_machine(0);
  EXPECT_EQ(machine.device, "a GPU that is none");
  EXPECT_EQ(machine.capability, 80);
  EXPECT_EQ(machine.runtime, "13.0");
  EXPECT_EQ(machine.nccl, "2.28.0");
  EXPECT_EQ(machine.cublaslt, "13.0.0");
}

}  // namespace
}  // namespace stepcast::fake
