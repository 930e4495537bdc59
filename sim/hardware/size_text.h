// Sizes as profiles write them: "32 MiB" where it is whole, as nccl-tests' are, else "1000 B".
#pragma once

#include <string>

#include "sim/base/json.h"
#include "sim/base/units.h"

namespace stepcast {

std::string size_text(Bytes bytes);

// The key "bytes": text with a unit, or a count; from 1 B to 1 PiB. Throws Error.
Bytes read_size(const Object& object);

}  // namespace stepcast
