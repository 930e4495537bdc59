// Rows of a validation, for tests of what is made of them.
#pragma once

#include <string>

#include "tools/validate/validate.h"

namespace stepcast {

// A product of two matrices on a GPU called "G".
inline ValidationRow covered(const std::string& source, double predicted, double measured) {
  ValidationRow row;
  row.source = source;
  row.gpu = "G";
  row.kind = "gemm";
  row.covered = true;
  row.predicted_seconds = predicted;
  row.measured_seconds = measured;
  return row;
}

}  // namespace stepcast
