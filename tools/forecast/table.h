// Table: what `stepcast simulate` tells a person. ASCII, at most 100 columns, no colour.
//
// Every number comes out of the report that --json writes, so the two cannot differ.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tools/forecast/advice.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

struct Expectation {
  std::string key;     // "step_time"
  std::string limit;   // "12.0 s"
  std::string actual;
  bool met = false;
};
std::vector<Expectation> check_expectations(const WhatIf& what_if, const Json& report);

// What was decided without being asked for: uneven stages, a padded vocabulary, ...
std::vector<std::string> notes_on(const WhatIf& what_if);

// `report` is write_report's. Without `advice`, nothing is said about what would help.
std::string write_table(const WhatIf& what_if, const Json& report,
                        const std::optional<Advice>& advice);

// Rows of cells; columns are as wide as their widest cell and two blanks apart. A column is right
// aligned unless `left` has an 'l' at its place ("lrr"). Lines do not end in blanks.
std::string align(const std::vector<std::vector<std::string>>& rows, std::string_view left);

// Lines of at most 100 columns, broken at blanks; further lines begin with `indent`. A number and
// its unit stay together, --set and its value too, and so does a longer word.
std::string wrapped(const std::string& text, std::string_view indent);

}  // namespace stepcast
