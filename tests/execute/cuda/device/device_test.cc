// What only a GPU can show. Without one, every test here is skipped and says so.
#include <cuda_runtime.h>

#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/kernels.h"

namespace stepcast {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = cuda_missing();
    if (!missing.empty()) GTEST_SKIP() << "skipped: no GPU: " << missing;
  }
};

TEST_F(CudaDevice, AddsUpInDouble) {
  const std::vector<float> values(1000, 0.1f);
  float* data = nullptr;
  double* sum = nullptr;
  ASSERT_EQ(cudaMalloc(&data, values.size() * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&sum, sizeof(double)), cudaSuccess);
  ASSERT_EQ(cudaMemset(sum, 0, sizeof(double)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(data, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
            cudaSuccess);
  cuda::launch_add_up(data, 1000, sum, {});
  double result = 0;
  ASSERT_EQ(cudaMemcpy(&result, sum, sizeof(double), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_NEAR(result, 1000 * static_cast<double>(0.1f), 1e-9);
  cudaFree(data);
  cudaFree(sum);
}

}  // namespace
}  // namespace stepcast
