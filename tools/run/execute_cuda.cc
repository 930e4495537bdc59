// What a report says of a GPU: what it is, how it was clocked, and where its memory went.
#include "tools/run/execute_cuda.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

bool choose_gpus(const ExecuteArguments& arguments) {
  if (arguments.device == "cuda") {
    const std::string missing = cuda_missing();
    if (!missing.empty()) throw Error("--device cuda", missing);
    return true;
  }
  bool chosen = arguments.device == "auto" && arguments.config != "-" && cuda_devices() > 0;
  if (chosen) {
    const WhatIf what_if = read_what_if(arguments.config, arguments.sets);
    const bool enough = arguments.launch == "mpi" || what_if.plan.ranks() <= cuda_devices();
    chosen = enough && what_if.cluster.device.nccl.has_value() && cuda_missing().empty();
  }
  for (const auto& [flag, given] : {std::pair("--cuda-graphs", arguments.cuda_graphs),
                                    std::pair("--register-buffers", arguments.register_buffers)}) {
    if (!given || chosen) continue;
    throw Error(flag, "is for GPUs; say --device cuda too, and see what is missing");
  }
  return chosen;
}

std::vector<RankRun> run_on_gpus(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, Gpus& gpus) {
  std::vector<RankRun> runs;
  for (CudaRun& run : run_cuda_threads(job, options, corpus, gpus.options)) {
    if (runs.empty()) gpus.memory = std::move(run.memory);
    runs.push_back(std::move(run.run));
  }
  gpus.machine = cuda_machine(0);
  return runs;
}

RankRun run_on_a_gpu(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                     Transport& control, Gpus& gpus) {
  const int device = cuda_device_of_process(control.rank());
  CudaRun run = run_cuda_rank(job, options, corpus, control, device, gpus.options);
  gpus.memory = std::move(run.memory);
  gpus.machine = cuda_machine(device);
  return std::move(run.run);
}

Json gpu_json(const Gpus& gpus) {
  const CudaMachine& m = gpus.machine;
  Json json = {{"device", m.device},
               {"multiprocessors", m.multiprocessors},
               {"capability", m.capability},
               {"memory_bytes", m.memory.count},
               {"driver", m.driver},
               {"cuda", m.runtime},
               {"nccl", m.nccl},
               {"cublaslt", m.cublaslt},
               {"clock_megahertz", m.clock_mhz},
               {"clock_limit_megahertz", m.clock_mhz_max},
               {"memory_clock_megahertz", m.memory_clock_mhz},
               {"power_watts", m.power_watts},
               {"power_limit_watts", m.power_limit_watts},
               {"temperature_celsius", m.temperature_celsius},
               {"throttled_by", m.throttled_by},
               {"cuda_graphs", gpus.options.graphs},
               {"registered_buffers", gpus.options.register_buffers}};
  json["memory_items"] = Json::array();
  for (const MemoryItem& item : gpus.memory) {
    json["memory_items"].push_back({{"name", item.name}, {"bytes", item.bytes.count}});
  }
  return json;
}

std::string gpu_text(const Gpus& gpus) {
  if (!gpus.used) return "";
  std::string out = "\nmemory of rank 0's GPU, in MB\n";
  for (const MemoryItem& item : gpus.memory) {
    out += fmt::format("{:>10.1f}  {}\n", static_cast<double>(item.bytes.count) / 1e6, item.name);
  }
  if (!gpus.machine.throttled_by.empty()) {
    out += fmt::format("Its clocks are held down by: {}.\n",
                       fmt::join(gpus.machine.throttled_by, ", "));
  }
  return out;
}

}  // namespace stepcast
