// Facts: which fields of a published training run are kept, and what each must be. Internal to
// published.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace stepcast {

// Why `value` cannot be the fact `name` ("model.layers"): "is no fact", "must be a whole number of
// at least 0"; "" if it can.
std::string fact_fault(std::string_view name, const Json& value);

bool is_fact(std::string_view name);

// Where the table has it: facts of one kind stand together. REQUIRES: is_fact(name).
std::size_t fact_order(std::string_view name);

// For suggestions; without the families of names ("software.extra.flags.*").
std::vector<std::string> fact_names();

// Fields of a row that are told by another one: the same memory in a rounded unit, a rate that was
// computed from the time. `facts` are the row's, by name.
bool is_derived(std::string_view name, const Json& facts);

}  // namespace stepcast
