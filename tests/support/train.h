// Training a tiny transformer by executing its Job, for tests.
#pragma once

#include <vector>

#include "execute/execute.h"
#include "models/model.h"
#include "models/plan.h"

namespace stepcast {

// A plan in fp32 for `global` sequences of `sequence` tokens.
Plan executable_plan(std::int64_t sequence, std::int64_t global);

// A rate at which tiny models learn something in a few steps.
ExecuteOptions train_options(std::int64_t steps);

// Runs the Job on threads over the made-up language of the model's vocabulary, memory poisoned.
// The Job must verify.
std::vector<RankRun> train(const Job& job, const ExecuteOptions& options);

Job lowered(const Model& model, const Plan& plan);

}  // namespace stepcast
