// Here: what of a what-if can be carried out on this machine.
#pragma once

#include <string>
#include <vector>

#include "sim/program/program.h"
#include "tools/whatif/machine.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

// The what-if as it can be carried out by the CPU: in fp32. Says so on stderr where that is a
// change, if it may speak.
WhatIf executable_what_if(const std::string& config, const std::vector<std::string>& sets,
                          bool speak);

// Lowered and verified. Throws Error (place: the config) for what no backend carries out.
Job executable_job(const WhatIf& what_if, const std::string& config);

// Throws Error where all ranks' memory, `times` over, is more than the machine has: it would swap.
void check_memory(const Job& job, const std::string& config, const Machine& machine, int times = 1);

}  // namespace stepcast
