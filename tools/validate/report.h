// What `stepcast validate` says: every row for programs, the sums for people.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tools/validate/validate.h"

namespace stepcast {

// "stepcast.validation/1": "rows", every one; "summary", by source, group, GPU, kind and variant;
// of training runs also "by_source" (all of a source's GPUs together), "by_gpu", "by_plan", "cuts"
// (orders of plans for the same work) and "overall" (each source weighs the same), all without the
// launch-bound and unsteady ones; those as "launch_bound" and "unsteady"; "by_work", ordinary and
// launch-bound ones; "uncovered", the reasons. Errors of no rows are null.
Json validation_json(const std::vector<ValidationRow>& rows);

std::string validation_table(const std::vector<ValidationRow>& rows);

}  // namespace stepcast
