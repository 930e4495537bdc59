// What no Op names: the sum of the losses of a step.
#include "execute/cuda/kernels.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

constexpr unsigned kThreads = 256;

void check_launch() {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) throw Error("cuda", cudaGetErrorString(status));
}

__global__ void add_up(const float* values, std::int64_t elements, double* sum) {
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < elements; i += blockDim.x) mine += values[i];
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum += parts[0];
}

}  // namespace

// One block: the rows of a micro-batch are few, and a fixed order gives the same bits every time.
void launch_add_up(const float* values, std::int64_t elements, double* sum, const Launch& at) {
  add_up<<<1, kThreads, 0, at.stream>>>(values, elements, sum);
  check_launch();
}

}  // namespace stepcast::cuda
