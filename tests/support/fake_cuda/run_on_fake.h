// A Job run by the executor of execute/cuda on a fake machine, and held against the CPU's run of
// the same Job.
#pragma once

#include <string>
#include <vector>

#include "execute/cuda/cuda_device.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {

struct FakeRun {
  std::vector<CudaRun> runs;  // empty where it ended with an error
  std::string error;
  std::vector<std::string> complaints, leaks;
};

// On a machine of as many devices as the Job has ranks. Never throws.
FakeRun run_on_fake(const Job& job, const ExecuteOptions& options, fake::MachineOptions machine,
                    const CudaOptions& cuda = {});

// "" where losses are the CPU's within `tolerance` of them, bytes those of account() and
// count_traffic(), nothing was done wrong and nothing left over; else all that is not so.
std::string differences(const Job& job, const ExecuteOptions& options, const FakeRun& run,
                        double tolerance);

// As executable_plan, with bf16 weights beside an fp32 master copy and gradients in fp32.
Plan mixed_plan(std::int64_t sequence, std::int64_t global);

}  // namespace stepcast
