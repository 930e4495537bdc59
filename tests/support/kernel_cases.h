// Cases that every kernel of execute/cuda must pass, emulated on the host and on a GPU alike.
#pragma once

#include <ostream>
#include <string_view>
#include <vector>

#include "tests/support/two_sided_op.h"

namespace stepcast::cuda {

struct KernelCase {
  std::string_view name;
  void (*run)(TwoSidedOp& on);

  friend void PrintTo(const KernelCase& kernel, std::ostream* out) { *out << kernel.name; }
};

const std::vector<KernelCase>& memory_cases();
const std::vector<KernelCase>& attention_cases();

}  // namespace stepcast::cuda
