// Fitting what kernels alone do not fix to published training runs: how fast products are that
// follow each other for hours, which share of the memory's bandwidth a framework's small kernels
// reach, which share of a benchmark's rate attention keeps and, where some runs have them, what
// power leaves of products in 8 bits. Numbers of a device, never one of a row or of a framework.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"
#include "tools/validate/validate.h"

namespace stepcast {

inline constexpr std::int64_t kRowsEach = 16;  // of a source, unless told

struct FittedRuns {
  Device device;                     // as given, with the fitted numbers
  std::vector<std::string> numbers;  // their names
  std::vector<Residual> residuals;   // "runs SOURCE": of the fit, and with the source left out
  std::vector<std::string> sources;
};

// Rows in the form that validate_row() reads. Only runs count that it covers, that are of this
// device, that do not hang on the host's pace and to which no cause of
// configs/published/causes.json applies; of a source with more than `rows_each` of them
// every so manyth, of one with fewer than four none. Each source weighs the same, and is left out
// in turn. The numbers in `held` stay the device's. Throws Error (place "import") if there is no
// run, and (place "--hold ...") for a name that is no number's. Cost: some hundred forecasts of
// each row.
FittedRuns fit_runs(const Device& device, const std::vector<Json>& rows, const Shipped& shipped,
                    std::size_t rows_each = kRowsEach,
                    const std::vector<std::string>& held = {});

}  // namespace stepcast
