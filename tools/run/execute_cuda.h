// `stepcast execute` on NVIDIA GPUs: when it takes them, and what it tells of them.
#pragma once

#include <string>
#include <vector>

#include "execute/cuda/cuda_device.h"
#include "sim/base/json.h"
#include "tools/run/execute.h"

namespace stepcast {

struct Gpus {
  bool used = false;
  CudaOptions options;
  CudaMachine machine;             // of rank 0, when its run was over
  std::vector<MemoryItem> memory;  // of rank 0's GPU
};

// --device cuda: yes, or Error saying what is missing. --device auto: if the what-if's cluster is
// of NVIDIA devices and there is one here for every rank that this process runs.
bool choose_gpus(const ExecuteArguments& arguments);

// All ranks as threads, or this process's one. Fill in the rest of `gpus`.
std::vector<RankRun> run_on_gpus(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, Gpus& gpus);
RankRun run_on_a_gpu(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                     Transport& control, Gpus& gpus);

Json gpu_json(const Gpus& gpus);
std::string gpu_text(const Gpus& gpus);  // "" where none is used

}  // namespace stepcast
