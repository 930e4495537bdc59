// What the CPU does not do is refused before anything is allocated; the memory is account()'s.
#include "tools/run/here.h"

#include <cstdio>

#include <fmt/format.h>

#include "execute/execute.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"

namespace stepcast {

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
