// Machine: what this machine is, as far as measured times depend on it.
#pragma once

#include <map>
#include <string>

#include "sim/base/units.h"

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

}  // namespace stepcast
