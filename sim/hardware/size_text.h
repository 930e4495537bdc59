// Sizes as profiles write them: "32 MiB" where it is whole, as nccl-tests' are, else "1000 B"; and
// the limits of what else stands beside them. Internal to sim/hardware.
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/json.h"
#include "sim/base/units.h"

namespace stepcast {

inline constexpr std::int64_t kMeasuredRanksMost = std::int64_t{1} << 20;  // kRanksMax of mesh.h
inline constexpr Seconds kMeasuredTimeMost{1e5};  // more than a day is a slip of units

std::string size_text(Bytes bytes);

// The key "bytes": text with a unit, or a count; from 1 B to 1 PiB. Throws Error.
Bytes read_size(const Object& object);

}  // namespace stepcast
