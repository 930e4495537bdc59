// Here: what of a what-if can be carried out on this machine, and on what machine that is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"
#include "tools/whatif.h"

namespace stepcast {

struct Machine {
  std::string host, processor;  // as Linux says it; "" where it does not
  int cores = 1;                // that this process may use
  Bytes memory;
};

Machine this_machine();

// What has to be the same for a timed kernel to take the same time (Profile::machine): "processor",
// "cores" of the machine, "onednn", "compiler" and, if it was built with it, "mpi".
std::map<std::string, std::string> machine_texts();

// The what-if as it can be carried out by the CPU: in fp32. Says so on stderr where that is a
// change, if it may speak.
WhatIf executable_what_if(const std::string& config, const std::vector<std::string>& sets,
                          bool speak);

// Lowered and verified. Throws Error (place: the config) for what no backend carries out.
Job executable_job(const WhatIf& what_if, const std::string& config);

// Throws Error where all ranks' memory, `times` over, is more than the machine has: it would swap.
void check_memory(const Job& job, const std::string& config, const Machine& machine, int times = 1);

}  // namespace stepcast
