// Every kernel, emulated on the host thread by thread, against those of execute/cpu in double.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/kernel_cases.h"

namespace stepcast::cuda {
namespace {

class EmulatedKernels : public testing::TestWithParam<KernelCase> {};

std::string name_of(const testing::TestParamInfo<KernelCase>& info) {
  return std::string(info.param.name);
}

TEST_P(EmulatedKernels, AgreeWithTheCpu) {
  EmulatedOp op;
  GetParam().run(op);
  EXPECT_EQ(op.failures(), std::vector<std::string>());
  EXPECT_EQ(op.bank_conflicts(), 0);
}

TEST(KernelConstants, AreTheCpus) {
  EXPECT_EQ(kEpsilon, static_cast<float>(cpu::kNormEpsilon));
  EXPECT_EQ(kRotaryBaseOfCpu, cpu::kRotaryBase);
}

INSTANTIATE_TEST_SUITE_P(Memory, EmulatedKernels, testing::ValuesIn(memory_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Attention, EmulatedKernels, testing::ValuesIn(attention_cases()), name_of);

}  // namespace
}  // namespace stepcast::cuda
