// The page that says how far forecasts are from the published runs: configs/published/FIDELITY.md.
#pragma once

#include <string>
#include <vector>

#include "tools/validate/causes.h"
#include "tools/validate/published.h"
#include "tools/validate/validate.h"

namespace stepcast {

// Markdown. The same rows give the same page.
std::string validation_page(const std::vector<ValidationRow>& rows,
                            const std::vector<LeftOut>& left_out,
                            const std::vector<MissCause>& causes);

}  // namespace stepcast
