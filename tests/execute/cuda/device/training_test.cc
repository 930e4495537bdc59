// Training on GPUs: the same losses as on the CPU, the bytes that the simulator counts. Skipped
// without a GPU, or with fewer than a plan has ranks; what needs none is the libraries' loading.
#include <functional>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/library.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

constexpr std::int64_t kSteps = 50;

// Every function that is called is in the libraries that the build found.
TEST(CudaLibraries, HaveWhatIsCalled) {
  EXPECT_NE(cuda::cublaslt().cublasLtMatmul, nullptr);
  EXPECT_GT(cuda::cublaslt().cublasLtGetVersion(), 0u);
  int version = 0;
  EXPECT_EQ(cuda::nccl().ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version / 10000, NCCL_MAJOR);
}

TEST(CudaLibraries, SayWhatIsWrong) {
  EXPECT_EQ(cuda::open_library({"libnowhere.so.1"}), nullptr);
  try {
    cuda::check(ncclInvalidUsage, "a call");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("a call: "), std::string::npos);
  }
}

struct Case {
  std::string name;
  bool gpt = true;
  std::function<void(Plan&)> change;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class GpuTraining : public testing::TestWithParam<Case> {};

TEST_P(GpuTraining, FollowsTheCpu) {
  const std::string missing = cuda_missing();
  if (!missing.empty()) GTEST_SKIP() << "skipped: no GPU: " << missing;
  const Case& one = GetParam();
  const Model model =
      one.gpt ? gpt_model(2, 256, 4, 512, 128) : llama_model(2, 256, 4, 2, 512, 512);
  Plan alone = executable_plan(64, 8);
  Plan plan = alone;
  plan.compute = Dtype::kBf16;
  plan.master = true;
  one.change(plan);
  alone.dropout = plan.dropout;
  if (plan.ranks() > cuda_devices()) {
    GTEST_SKIP() << "skipped: " << plan.ranks() << " ranks on " << cuda_devices() << " GPUs";
  }
  ExecuteOptions options = train_options(kSteps);
  options.optimizer.rate = 1e-3;
  const std::vector<double> expected = train(lowered(model, alone), options)[0].losses;
  const Job job = lowered(model, plan);
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const Footprint memory = account(job);
  const Traffic traffic = count_traffic(job);
  for (const CudaOptions& cuda : {CudaOptions{}, {true}, {false, true}, {true, true}}) {
    for (const CudaRun& run : run_cuda_threads(job, options, *corpus, cuda)) {
      ASSERT_EQ(run.run.losses.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(run.run.losses[i], expected[i], 0.01 * expected[i]) << "step " << i;
      }
      const auto stage = static_cast<std::size_t>(job.mesh.stage(run.run.rank));
      EXPECT_EQ(run.run.peak, memory.stages[stage].peak);
      EXPECT_EQ(run.run.at_peak, memory.stages[stage].at_peak);
      EXPECT_EQ(run.run.sent, traffic.stages[stage]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, GpuTraining,
    testing::Values(
        Case{"one_rank", true, [](Plan&) {}}, Case{"one_rank_llama", false, [](Plan&) {}},
        Case{"micro2", false, [](Plan& p) { p.micro_batch = 2; }},
        Case{"micro8", true, [](Plan& p) { p.micro_batch = 8; }},
        Case{"unfused", true, [](Plan& p) { p.fused_attention = false; }},
        Case{"softmax_of_megatron", true,
             [](Plan& p) { p.fused_attention = false, p.softmax = SoftmaxKernels::kMegatron; }},
        Case{"fp32", false,
             [](Plan& p) { p.compute = p.gradients = Dtype::kFp32, p.master = false; }},
        Case{"recompute_full", true, [](Plan& p) { p.recompute = Recompute::kFull; }},
        Case{"recompute_selective", true, [](Plan& p) { p.recompute = Recompute::kSelective; }},
        Case{"recompute_every2", false,
             [](Plan& p) { p.recompute = Recompute::kFull, p.recompute_every = 2; }},
        Case{"dropout", true, [](Plan& p) { p.dropout = true; }},
        Case{"dropout_unfused_recompute", true,
             [](Plan& p) {
               p.dropout = true, p.fused_attention = false, p.recompute = Recompute::kFull;
             }},
        Case{"dropout_tensor2", true,
             [](Plan& p) { p.dropout = true, p.tensor = 2, p.sequence_parallel = true; }},
        Case{"bf16_gradients", true, [](Plan& p) { p.gradients = Dtype::kBf16; }},
        Case{"data2_zero1", true, [](Plan& p) { p.data = 2, p.zero = 1; }},
        Case{"data2_zero3", false, [](Plan& p) { p.data = 2, p.zero = 3; }},
        Case{"tensor2", false, [](Plan& p) { p.tensor = 2, p.sequence_parallel = true; }},
        Case{"pipeline2", true, [](Plan& p) { p.pipeline = 2; }}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace stepcast
