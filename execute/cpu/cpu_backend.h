// CpuBackend: kernels in float on the threads of this machine.
#pragma once

#include <memory>
#include <string>

#include "execute/backend.h"

namespace stepcast {

// Belongs to one thread, the one that calls it first. `threads`: what its matrix products may use.
std::unique_ptr<Backend> make_cpu_backend(int threads);

// The version of oneDNN, "2.6.0".
std::string cpu_library_version();

}  // namespace stepcast
