// Storage: numbers in memory as fp32 or bf16, in registers always as fp32.
//
// bf16 is the upper half of an fp32 (8 bits of exponent, 7 of mantissa). Rounding is to nearest,
// ties to even, as cvt.rn.bf16.f32 does it; what lies beyond the largest bf16 becomes infinite, and
// every NaN the one NaN 0x7fff.
#pragma once

#include <cstdint>
#include <cstring>

#include "execute/cuda/lanes.h"

namespace stepcast::cuda {

struct Bf16 {
  std::uint16_t bits = 0;
};

STEPCAST_HD std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

STEPCAST_HD float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

STEPCAST_HD float widen(Bf16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}
STEPCAST_HD float widen(float value) { return value; }

STEPCAST_HD Bf16 round_bf16(float value) {
#if defined(__CUDA_ARCH__)
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {bits};
#else
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  const std::uint32_t odd = (bits >> 16) & 1u;  // a tie goes to the even neighbour
  return {static_cast<std::uint16_t>((bits + 0x7fffu + odd) >> 16)};
#endif
}

// Two bf16 in one register, as fragments and 4-byte stores hold them: `low` at the lower address.
STEPCAST_HD std::uint32_t round_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<std::uint32_t>(round_bf16(low).bits) |
         static_cast<std::uint32_t>(round_bf16(high).bits) << 16;
#endif
}

enum class Storage : std::uint8_t { kFp32, kBf16 };

STEPCAST_HD constexpr std::int64_t size_of(Storage storage) {
  return storage == Storage::kBf16 ? 2 : 4;
}

// Numbers that a kernel moves at once where rows and addresses allow: 16 bytes of bf16.
inline constexpr int kWide = 8;

template <class Real, unsigned kCount>
struct alignas(kCount * sizeof(Real) < 16 ? kCount * sizeof(Real) : 16) Bundle {
  Real values[kCount];
};

template <unsigned kCount, class Real>
STEPCAST_HD void load_bundle(const Real* from, float (&x)[kCount]) {
  const auto bundle = *reinterpret_cast<const Bundle<Real, kCount>*>(from);
  STEPCAST_UNROLL for (unsigned i = 0; i < kCount; ++i) x[i] = widen(bundle.values[i]);
}

template <unsigned kCount>
STEPCAST_HD void store_bundle(float* to, const float (&x)[kCount]) {
  Bundle<float, kCount> bundle;
  STEPCAST_UNROLL for (unsigned i = 0; i < kCount; ++i) bundle.values[i] = x[i];
  *reinterpret_cast<Bundle<float, kCount>*>(to) = bundle;
}

template <unsigned kCount>
STEPCAST_HD void store_bundle(Bf16* to, const float (&x)[kCount]) {
  Bundle<Bf16, kCount> bundle;
  STEPCAST_UNROLL for (unsigned i = 0; i < kCount; ++i) bundle.values[i] = round_bf16(x[i]);
  *reinterpret_cast<Bundle<Bf16, kCount>*>(to) = bundle;
}

// An array of which the storage is known at run time only: the branch is the same for all threads
// and costs nothing beside the memory, and every kernel is compiled once.
struct ConstView {
  const void* data = nullptr;
  Storage storage = Storage::kFp32;

  // Elements at .. at + kCount - 1. REQUIRES: kCount 1, or `at` a multiple of kCount and data
  // aligned to 16 bytes.
  template <unsigned kCount>
  STEPCAST_HD void load(std::int64_t at, float (&x)[kCount]) const {
    if (storage == Storage::kBf16) {
      load_bundle<kCount>(static_cast<const Bf16*>(data) + at, x);
    } else {
      load_bundle<kCount>(static_cast<const float*>(data) + at, x);
    }
  }
  STEPCAST_HD float operator[](std::int64_t at) const {
    return storage == Storage::kBf16 ? widen(static_cast<const Bf16*>(data)[at])
                                     : static_cast<const float*>(data)[at];
  }
  STEPCAST_HD bool aligned() const { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
  STEPCAST_HD ConstView from(std::int64_t at) const {
    return {static_cast<const unsigned char*>(data) + at * size_of(storage), storage};
  }
  STEPCAST_HD explicit operator bool() const { return data != nullptr; }
};

struct View {
  void* data = nullptr;
  Storage storage = Storage::kFp32;

  STEPCAST_HD operator ConstView() const { return {data, storage}; }
  template <unsigned kCount>
  STEPCAST_HD void load(std::int64_t at, float (&x)[kCount]) const {
    ConstView{data, storage}.load(at, x);
  }
  template <unsigned kCount>
  STEPCAST_HD void store(std::int64_t at, const float (&x)[kCount]) const {
    if (storage == Storage::kBf16) {
      store_bundle<kCount>(static_cast<Bf16*>(data) + at, x);
    } else {
      store_bundle<kCount>(static_cast<float*>(data) + at, x);
    }
  }
  STEPCAST_HD float operator[](std::int64_t at) const { return ConstView{data, storage}[at]; }
  STEPCAST_HD void set(std::int64_t at, float value) const {
    const float one[1] = {value};
    store<1>(at, one);
  }
  STEPCAST_HD View from(std::int64_t at) const {
    return {static_cast<unsigned char*>(data) + at * size_of(storage), storage};
  }
  STEPCAST_HD bool aligned() const { return ConstView{data, storage}.aligned(); }
  STEPCAST_HD explicit operator bool() const { return data != nullptr; }
};

// Whether all begin at a multiple of 16 bytes, or are absent.
template <class... Views>
STEPCAST_HD bool all_aligned(const Views&... views) {
  return (views.aligned() && ...);
}

template <unsigned kCount>
struct Count {
  static constexpr unsigned value = kCount;
};

// Calls body(i, Count<n>) for stretches of n elements that begin at i and cover 0 .. size - 1 over
// `threads` threads, of which this is number `first`: eight at a time if `wide`, and what is left
// over one by one.
template <class Body>
STEPCAST_HD void for_stretches(std::int64_t first, std::int64_t threads, std::int64_t size,
                               bool wide, Body body) {
  const std::int64_t whole = wide ? size / kWide * kWide : 0;
  for (std::int64_t i = first * kWide; i < whole; i += threads * kWide) body(i, Count<kWide>());
  for (std::int64_t i = whole + first; i < size; i += threads) body(i, Count<1>());
}

}  // namespace stepcast::cuda
