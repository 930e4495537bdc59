// A key and an outcome are rows of integers in one array; comparing is comparing integers, and the
// event loop allocates nothing. Cost of a look-up: the live-in and live-out registers of a segment.
#include "sim/engine/memo.h"

#include <algorithm>
#include <limits>

namespace stepcast {
namespace {

constexpr std::int64_t kHostDoesNotBind = std::numeric_limits<std::int64_t>::min();

Instant at(const Instant* clocks, std::int32_t reg) {
  return clocks[static_cast<std::size_t>(reg)];
}

}  // namespace

Memo::Memo(const Code& code) : code_(code) {
  std::size_t longest = 0, total = 0;
  for (const Segment& segment : code.segments) {
    Place place;
    place.first = total;
    place.key = 1 + segment.keys.size();
    for (const Segment::Key& key : segment.keys) place.key += key.with_cause ? 1 : 0;
    place.stride = place.key + segment.outs.size() + kParts;
    total += place.stride * kOutcomes;
    longest = std::max(longest, place.key);
    places_.push_back(place);
  }
  memory_.resize(total);
  key_.resize(longest);
}

// segment.cc proves that equal keys have equal outcomes.
void Memo::make_key(const Segment& segment, const Instant* clocks, const std::int32_t* causes) {
  std::int64_t* key = key_.data();
  const Instant host = clocks[kHostRegister];
  const bool binds = std::any_of(
      segment.bounds.begin(), segment.bounds.end(),
      [&](const Segment::Bound& bound) { return host > at(clocks, bound.reg) + bound.slack; });
  *key++ = binds ? (host - base_).picoseconds : kHostDoesNotBind;
  for (const Segment::Key& live : segment.keys) {
    const Instant value = live.clamped ? later(base_, at(clocks, live.reg)) : at(clocks, live.reg);
    *key++ = (value - base_).picoseconds;
    // An event that is not late explains nothing.
    if (live.with_cause) *key++ = value > base_ ? causes[static_cast<std::size_t>(live.reg)] : -1;
  }
}

bool Memo::recall(std::int32_t segment_index, Instant* clocks, std::int32_t* causes,
                  Breakdown& parts) {
  const Segment& segment = code_.segments[static_cast<std::size_t>(segment_index)];
  const Place& place = places_[static_cast<std::size_t>(segment_index)];
  base_ = clocks[kComputeRegister];
  make_key(segment, clocks, causes);
  for (std::int32_t i = 0; i < place.filled; ++i) {
    const std::int64_t* row = &memory_[place.first + static_cast<std::size_t>(i) * place.stride];
    if (!std::equal(row, row + place.key, key_.data())) continue;
    const std::int64_t* out = row + place.key;
    for (const Segment::Out& written : segment.outs) {
      const auto reg = static_cast<std::size_t>(written.reg);
      clocks[reg] = base_ + Duration(*out++);
      if (written.cause >= 0) causes[reg] = written.cause;
    }
    for (Duration& part : parts) part += Duration(*out++);
    clocks[kHostRegister] += segment.issue;
    return true;
  }
  before_ = parts;
  return false;
}

void Memo::remember(std::int32_t segment_index, const Instant* clocks, const Breakdown& parts) {
  const Segment& segment = code_.segments[static_cast<std::size_t>(segment_index)];
  Place& place = places_[static_cast<std::size_t>(segment_index)];
  std::int64_t* row = &memory_[place.first + static_cast<std::size_t>(place.oldest) * place.stride];
  place.oldest = (place.oldest + 1) % kOutcomes;
  place.filled = std::min(place.filled + 1, kOutcomes);
  row = std::copy_n(key_.data(), place.key, row);
  for (const Segment::Out& written : segment.outs) {
    *row++ = (at(clocks, written.reg) - base_).picoseconds;
  }
  for (std::size_t p = 0; p < parts.size(); ++p) *row++ = (parts[p] - before_[p]).picoseconds;
}

}  // namespace stepcast
