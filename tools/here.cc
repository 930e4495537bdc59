// Names and counts come from Linux: /proc, sysconf, the affinity mask.
#include "tools/here.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/execute.h"
#include "execute/mpi.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tools/files.h"

namespace stepcast {

namespace {

std::string processor_name() {
  std::string info;
  try {
    info = read_file("/proc/cpuinfo");
  } catch (const Error&) {
    return "";
  }
  const std::size_t line = info.find("model name");
  if (line == std::string::npos) return "";
  const std::size_t begin = std::min(info.find(": ", line), info.size() - 2) + 2;
  return info.substr(begin, info.find('\n', begin) - begin);
}

std::string compiler_version() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

}  // namespace

std::map<std::string, std::string> machine_texts() {
  std::map<std::string, std::string> texts = {
      {"processor", processor_name()},
      {"cores", fmt::format("{}", sysconf(_SC_NPROCESSORS_ONLN))},
      {"onednn", cpu_library_version()},
      {"compiler", compiler_version()}};
  if (const std::string mpi = mpi_version(); !mpi.empty()) texts["mpi"] = mpi;
  return texts;
}

Machine this_machine() {
  Machine machine;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) machine.host = name;
  machine.processor = processor_name();
  cpu_set_t mine;
  const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
  machine.cores =
      known ? CPU_COUNT(&mine) : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  machine.memory = Bytes(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return machine;
}

WhatIf executable_what_if(const std::string& config, const std::vector<std::string>& given,
                          bool speak) {
  const WhatIf asked = read_what_if(config, given);
  std::vector<std::string> sets = given;
  for (const char* set :
       {"precision.compute=fp32", "precision.gradients=fp32", "precision.moments=fp32",
        "precision.scaling=none", "precision.fp8_weights=false"}) {
    sets.emplace_back(set);
  }
  WhatIf what_if = config == "-" ? asked : read_what_if(config, sets);
  const bool changed = asked.plan.compute != Dtype::kFp32 || asked.plan.gradients != Dtype::kFp32 ||
                       asked.plan.moments != Dtype::kFp32;
  if (changed && config == "-") {
    throw Error("execute -",
                "runs in fp32; say \"precision\": {\"compute\": \"fp32\", \"moments\": "
                "\"fp32\"}");
  }
  if (changed && speak) {
    std::fputs("stepcast: execute runs in fp32, whatever the file says; bytes are those of fp32\n",
               stderr);
  }
  return what_if;
}

Job executable_job(const WhatIf& what_if, const std::string& config) {
  Job job = lower(transformer(what_if.model, what_if.plan), what_if.plan);
  const std::string fault = verify(job);
  STEPCAST_CHECK(fault.empty(), fault);
  const std::string trouble = executable(job);
  if (!trouble.empty()) throw Error(config, trouble);
  return job;
}

void check_memory(const Job& job, const std::string& config, const Machine& machine, int times) {
  Bytes sum;
  for (const StageMemory& stage : account(job).stages) {
    sum += stage.peak * (job.mesh.ranks() / job.mesh.stages()) * times;
  }
  if (sum <= machine.memory) return;
  throw Error(config, fmt::format("{} ranks hold {:.1f} GB at their peak, this machine has {:.1f} "
                                  "GB; take a smaller model or batch, or more of --launch mpi",
                                  job.mesh.ranks(), static_cast<double>(sum.count) / 1e9,
                                  static_cast<double>(machine.memory.count) / 1e9));
}

}  // namespace stepcast
