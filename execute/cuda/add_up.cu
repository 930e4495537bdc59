// What no Op names: the sum of a loss, and numbers copied into another dtype. Bound by memory.
#include <cuda_bf16.h>

#include <algorithm>

#include "execute/cuda/kernels.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kBlocksMax = 4096;  // a grid-stride loop does the rest

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

template <class Out, class In>
__global__ void convert(const In* in, std::int64_t elements, Out* out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < elements; i += stride) out[i] = static_cast<Out>(static_cast<float>(in[i]));
}

unsigned blocks_for(std::int64_t elements) {
  return static_cast<unsigned>(std::min((elements + kThreads - 1) / kThreads, kBlocksMax));
}

}  // namespace

// One block: the rows of a micro-batch are few, and a fixed order gives the same bits every time.
void launch_add_up(const float* values, std::int64_t elements, double* sum, const Launch& at) {
  add_up<<<1, kThreads, 0, at.stream>>>(values, elements, sum);
  check_launch();
}

void launch_convert(const Numbers& in, void* out, Dtype dtype, const Launch& at) {
  if (in.elements == 0) return;
  if (in.dtype == dtype) {
    const auto bytes = static_cast<std::size_t>(in.elements * dtype_size(dtype));
    if (cudaMemcpyAsync(out, in.data, bytes, cudaMemcpyDeviceToDevice, at.stream) != cudaSuccess) {
      check_launch();
    }
    return;
  }
  const unsigned blocks = blocks_for(in.elements);
  if (dtype == Dtype::kFp32) {
    convert<<<blocks, kThreads, 0, at.stream>>>(static_cast<const __nv_bfloat16*>(in.data),
                                                in.elements, static_cast<float*>(out));
  } else {
    convert<<<blocks, kThreads, 0, at.stream>>>(static_cast<const float*>(in.data), in.elements,
                                                static_cast<__nv_bfloat16*>(out));
  }
  check_launch();
}

}  // namespace stepcast::cuda
