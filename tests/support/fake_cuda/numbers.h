// Numbers of fp32 and bf16 where they lie: one truth for the fake libraries that compute.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>

namespace stepcast::fake {

// `wide`: fp32, else bf16.
template <std::integral Index>
float load(const void* data, bool wide, Index at) {
  if (wide) return static_cast<const float*>(data)[at];
  const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// To nearest, ties to even.
template <std::integral Index>
void store(void* data, bool wide, Index at, float value) {
  if (wide) {
    static_cast<float*>(data)[at] = value;
    return;
  }
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  static_cast<std::uint16_t*>(data)[at] = static_cast<std::uint16_t>(nan ? 0x7fffu : rounded);
}

}  // namespace stepcast::fake
