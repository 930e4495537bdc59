// Layers: how many of a model's layers each chunk of a pipeline holds, for people to see.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "models/plan.h"

namespace stepcast {

// In model order: chunk c of stage i is entry c p + i. Embedding and head do not count.
// REQUIRES: the plan is legal for the model.
std::vector<std::int64_t> layers_of_chunks(const Model& model, const Plan& plan);

}  // namespace stepcast
