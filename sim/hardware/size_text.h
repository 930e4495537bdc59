// Sizes as profiles write them: "32 MiB" where it is whole, as nccl-tests' are, else "1000 B"; and
// the group that was measured. Internal to sim/hardware.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "sim/base/json.h"
#include "sim/base/units.h"

namespace stepcast {

inline constexpr std::int64_t kMeasuredRanksMost = std::int64_t{1} << 20;  // kRanksMax of mesh.h
inline constexpr Seconds kMeasuredTimeMost{1e5};  // more than a day is a slip of units

std::string size_text(Bytes bytes);

// The key "bytes": text with a unit, or a count; from 1 B to 1 PiB. Throws Error.
Bytes read_size(const Object& object);

// The keys "ranks", "nodes" and "groups_per_node" of an entry with members of those names. Throws
// Error.
template <class Entry>
void read_group(const Object& object, Entry& entry) {
  entry.ranks = static_cast<int>(object.integer("ranks", {2, kMeasuredRanksMost}));
  entry.nodes = static_cast<int>(object.integer("nodes", {1, kMeasuredRanksMost}));
  if (entry.nodes > entry.ranks) {
    object.fail("nodes", fmt::format("{} ranks cannot span {} nodes", entry.ranks, entry.nodes));
  }
  entry.groups_per_node =
      static_cast<int>(object.integer("groups_per_node", 1, {1, kMeasuredRanksMost}));
}

}  // namespace stepcast
