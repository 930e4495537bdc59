// Error classes: how far off the forecasts of published runs are, by class, for the range of the
// next forecast (tools/forecast/fidelity.h).
#pragma once

#include <vector>

#include "tools/forecast/fidelity.h"
#include "tools/validate/validate.h"

namespace stepcast {

// Of covered runs with a time: every class of at least kClassLeast rows, and those wider by device,
// by kind and by both. Launch-bound runs are in their own classes only.
inline constexpr int kClassLeast = 5;
std::vector<ErrorClass> error_classes(const std::vector<ValidationRow>& rows);

}  // namespace stepcast
