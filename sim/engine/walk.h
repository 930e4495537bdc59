// Walk: the event loop over compiled code.
#pragma once

#include <cstdint>
#include <span>

#include "sim/engine/compile.h"
#include "sim/program/mesh.h"
#include "sim/program/program.h"
#include "sim/result/recording.h"
#include "sim/result/result.h"

namespace stepcast {

struct WalkOptions {
  bool trace = false;
  std::uint64_t shuffle = 0;  // not 0: the worklist is a lottery with this seed. Same results
  const Recording* recording = nullptr;  // its durations count, not the code's
};

// Simulates every rank of `mesh`: Job::mesh, or its pipeline axis alone (folded). `code` was
// compiled for that mesh. `slow` is empty or one factor a rank; then, with a trace or a recording,
// `code` has no segments.
Timeline walk(const Job& job, const Code& code, const Mesh& mesh, std::span<const double> slow,
              const WalkOptions& options = {});

}  // namespace stepcast
