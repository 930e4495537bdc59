// Memo: the last few outcomes of every segment, found by the registers that they depend on.
//
// REQUIRES: durations as compiled (no slow ranks) and no trace, which needs every instruction.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/compile.h"

namespace stepcast {

class Memo {
 public:
  explicit Memo(const Code& code);

  // Carries the registers and the parts of a rank from the begin of the segment to its end, if the
  // outcome is known. If not, false: the caller walks it and then calls remember().
  bool recall(std::int32_t segment, Instant* clocks, std::int32_t* causes, Breakdown& parts);
  void remember(std::int32_t segment, const Instant* clocks, const Breakdown& parts);

 private:
  static constexpr std::int32_t kOutcomes = 4;  // kept of a segment; then the oldest goes

  // Where the outcomes of a segment lie in memory_, each `stride` long: key, outs, parts.
  struct Place {
    std::size_t first = 0;
    std::size_t key = 0;
    std::size_t stride = 0;
    std::int32_t filled = 0;
    std::int32_t oldest = 0;
  };

  void make_key(const Segment& segment, const Instant* clocks, const std::int32_t* causes);

  const Code& code_;
  std::vector<Place> places_;
  std::vector<std::int64_t> memory_;
  // Of the segment being walked: its key, and where the rank stood before it.
  std::vector<std::int64_t> key_;
  Instant base_;
  Breakdown before_ = {};
};

}  // namespace stepcast
