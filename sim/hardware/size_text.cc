// Powers of 1024, so that a size reads back to the same bytes.
#include "sim/hardware/size_text.h"

#include <array>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

namespace stepcast {

namespace {

constexpr std::int64_t kBytesMost = std::int64_t{1} << 50;  // as `stepcast time` allows

}  // namespace

std::string size_text(Bytes bytes) {
  static constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::int64_t count = bytes.count;
  std::size_t unit = 0;
  for (; count != 0 && count % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) count /= 1024;
  return fmt::format("{} {}", count, kUnits[unit]);
}

Bytes read_size(const Object& object) {
  const Bytes bytes = object.at("bytes").is_string()
                          ? object.bytes("bytes")
                          : Bytes(object.integer("bytes", {1, kBytesMost}));
  if (bytes < Bytes(1) || bytes > Bytes(kBytesMost)) {
    object.fail("bytes", "must be at least 1 B, at most 1 PiB");
  }
  return bytes;
}

}  // namespace stepcast
