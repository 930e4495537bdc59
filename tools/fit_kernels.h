// Fitting a device's kernels to published measurements: what is in configs/profiles.
#pragma once

#include <string>
#include <vector>

#include "calibrate/fit.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"

namespace stepcast {

// How well a group of rows is met by the parameters that were fitted to it.
struct Residual {
  std::string rows;   // "gemm", "attention flash2", "collective"
  FitError error;
  FitError left_out;  // count 0: too few rows
};

struct FittedKernels {
  Device device;                    // as given, with its fitted kernels
  std::vector<Residual> residuals;  // one a group
};

// Fits every group of rows (in the form that validate_row() reads) that are about this device.
// Groups of fewer than two rows a parameter are left alone.
FittedKernels fit_kernels(const Device& device, const std::vector<Json>& rows);

}  // namespace stepcast
