// Fitting a device's kernels to published measurements: what is in configs/profiles.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"

namespace stepcast {

struct FittedKernels {
  Device device;                    // as given, with its fitted kernels (basis: fitted)
  std::vector<Residual> residuals;  // one a group of rows
  std::set<std::string> sources;    // of the rows, as validate_row() names them
};

// Fits every group of rows (in the form that validate_row() reads) that are about this device.
// Groups of fewer than two rows a parameter are left alone. Parameters have four digits.
FittedKernels fit_kernels(const Device& device, const std::vector<Json>& rows);

}  // namespace stepcast
