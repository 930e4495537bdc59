// Numbers of 16 bits and of 32: bfloat16 is the upper half of a float. Arithmetic is in float;
// what is stored narrower is rounded once, to the nearest, of two equally near to the even one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "sim/program/op.h"

namespace stepcast {

constexpr float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
// A NaN stays one: its fraction might round to nothing, so it is cut and made quiet.
constexpr std::uint16_t round_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// REQUIRES: dtype is kFp32 or kBf16; or kInt32, whose bits can be moved so but not added up.
void to_float(const void* in, Dtype dtype, std::int64_t elements, float* out);
void from_float(const float* in, std::int64_t elements, void* out, Dtype dtype);

}  // namespace stepcast
