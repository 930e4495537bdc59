// Hash: numbers that depend on where they stand and on nothing else, so that any rank can make any
// of them (counter-based randomness, Salmon et al. 2011).
#pragma once

#include <cstdint>
#include <string_view>

namespace stepcast {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
constexpr std::uint64_t hash(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return mix(mix(mix(a) ^ b) ^ c);
}
constexpr std::uint64_t hash(std::uint64_t seed, std::string_view text) {
  for (const char c : text) seed = mix(seed ^ static_cast<unsigned char>(c));
  return seed;
}
// In [0, 1).
constexpr double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace stepcast
