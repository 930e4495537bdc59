// The cases that are emulated everywhere, on a GPU: what the emulation cannot know is the machine's
// own arithmetic and timing of memory. Without a GPU every test here is skipped and says so.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/attention_kernels.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/kernels.h"
#include "tests/support/kernel_cases.h"

namespace stepcast::cuda {
namespace {

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Device memory with a copy of some bytes.
class DeviceBytes {
 public:
  DeviceBytes(const void* host, std::size_t bytes) : bytes_(bytes) {
    require(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
    if (host != nullptr) require(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  template <class Real>
  Real* as() const {
    return static_cast<Real*>(data_);
  }
  std::size_t bytes() const { return bytes_; }
  void read(void* host) const { require(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Operands go to the device and come back; one that is read and written has one place there.
class DeviceOp final : public TwoSidedOp {
  void carry_out(const Work& work, WarpOrder) override {
    std::map<void*, std::unique_ptr<DeviceBytes>> places;
    const auto moved = [&](std::span<const Operand> operands) {
      std::vector<Operand> out;
      for (const Operand& operand : operands) {
        auto& held = places[operand.data];
        const auto bytes = static_cast<std::size_t>(operand.tensor->bytes().count);
        if (held == nullptr) held = std::make_unique<DeviceBytes>(operand.data, bytes);
        out.push_back({held->as<void>(), operand.tensor});
      }
      return out;
    };
    const std::vector<Operand> reads = moved(work.reads), writes = moved(work.writes);
    const DeviceBytes scratch(nullptr, scratch_bytes(work.op, 1));
    const Launch at{nullptr, {scratch.as<void>(), scratch.bytes()}};
    Work there{work.op, reads, writes, work.place, work.dropout};
    const DeviceBytes step(work.dropout.rule.step, sizeof(std::uint32_t));
    there.dropout.rule.step = step.as<std::uint32_t>();
    match(
        work.op, [&](const Gemm&) { throw std::runtime_error("no product is launched here"); },
        [&](const Update&) { throw std::runtime_error("no update is launched here"); },
        [&](const Route&) { throw std::runtime_error("experts are not covered here"); },
        [&](const Permute&) { throw std::runtime_error("experts are not covered here"); },
        [&](const LatentKeys&) { throw std::runtime_error("latents are not covered here"); },
        [&](const Regroup&) { throw std::runtime_error("experts are not covered here"); },
        [&](const ShareHeads&) { throw std::runtime_error("contexts are not covered here"); },
        [&](const OwnSlots&) { throw std::runtime_error("experts are not covered here"); },
        [&](const auto& op) { launch(op, there, at); });
    require(cudaDeviceSynchronize());
    for (const Operand& operand : work.writes) places[operand.data]->read(operand.data);
  }
};

class DeviceKernels : public testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    const std::string missing = cuda_missing();
    if (!missing.empty()) GTEST_SKIP() << "skipped: no GPU: " << missing;
  }
};

std::string name_of(const testing::TestParamInfo<KernelCase>& info) {
  return std::string(info.param.name);
}

TEST_P(DeviceKernels, AgreeWithTheCpu) {
  DeviceOp op;
  GetParam().run(op);
  EXPECT_EQ(op.failures(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Memory, DeviceKernels, testing::ValuesIn(memory_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Attention, DeviceKernels, testing::ValuesIn(attention_cases()), name_of);

class DeviceUpdate : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = cuda_missing();
    if (!missing.empty()) GTEST_SKIP() << "skipped: no GPU: " << missing;
  }
};

std::vector<float> random_floats(std::size_t size, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(size);
  for (float& x : out) x = normal(generator);
  return out;
}

template <class Real>
std::unique_ptr<DeviceBytes> on_device(const std::vector<Real>& values) {
  return std::make_unique<DeviceBytes>(values.data(), values.size() * sizeof(Real));
}

// Against the same kernel emulated: bf16 weights, gradients and an fp32 master, clipped.
TEST_F(DeviceUpdate, StepsAndTakesTheNormAsEmulated) {
  constexpr std::size_t kSize = 100003;
  std::vector<float> master = random_floats(kSize, 1), m = random_floats(kSize, 2), v(kSize, 0.5f);
  std::vector<Bf16> w(kSize), g(kSize);
  double squares = 0;
  for (std::size_t i = 0; i < kSize; ++i) {
    g[i] = round_bf16(m[i] * 0.5f + master[i]);
    squares += static_cast<double>(widen(g[i])) * static_cast<double>(widen(g[i]));
  }
  const auto d_w = on_device(w), d_g = on_device(g), d_m = on_device(m), d_v = on_device(v);
  const auto d_master = on_device(master), d_norm = on_device(std::vector<float>{0});
  const StepScalars scalars{10, 20};
  const auto d_scalars = on_device(std::vector<StepScalars>{scalars});
  const DeviceBytes scratch(nullptr, kSquaredNormFloats * sizeof(float));
  const Launch at{nullptr, {scratch.as<void>(), scratch.bytes()}};

  const Numbers numbers{d_g->as<void>(), Dtype::kBf16, kSize};
  launch_squared_norm(&numbers, 1, d_norm->as<float>(), at);
  float norm = 0;
  d_norm->read(&norm);
  EXPECT_NEAR(static_cast<double>(norm), squares, 1e-5 * squares);

  UpdateStretch stretch{d_w->as<void>(), d_master->as<float>(), d_g->as<void>(), d_m->as<void>(),
                        d_v->as<void>()};
  stretch.elements = kSize;
  launch_update(stretch, AdamW{}, d_scalars->as<StepScalars>(), d_norm->as<float>(), at);
  AdamWKernel kernel;
  kernel.size = kSize;
  kernel.weight = {w.data(), Storage::kBf16};
  kernel.master = {master.data(), Storage::kFp32};
  kernel.gradient = {g.data(), Storage::kBf16};
  kernel.moment1 = {m.data(), Storage::kFp32};
  kernel.moment2 = {v.data(), Storage::kFp32};
  kernel.options(AdamW{});
  kernel.corrections = &scalars.correction1;
  kernel.squared_norm = &norm;
  emulate(kernel);
  std::vector<float> there(kSize);
  std::vector<Bf16> weights(kSize);
  d_master->read(there.data());
  d_w->read(weights.data());
  for (std::size_t i = 0; i < kSize; ++i) {
    ASSERT_NEAR(there[i], master[i], 1e-5) << i;
    ASSERT_EQ(weights[i].bits, round_bf16(there[i]).bits) << i;
  }
}

}  // namespace
}  // namespace stepcast::cuda
