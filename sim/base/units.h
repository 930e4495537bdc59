// Units: the physical quantities of a training step, with their dimension in the type.
//
// Two families:
//   * `Bytes`, `Instant`, `Duration` count whole things (bytes, picoseconds). They are exact, so
//   that
//     memory closes to the byte and two readers of a Job can agree to the picosecond.
//   * `Seconds`, `Flops`, `Bandwidth`, `FlopRate` are real numbers, for formulas. A formula whose
//     dimensions do not match does not compile: Flops / FlopRate is Seconds, Bytes / Bandwidth too.
//
// A model computes in Seconds; the engine rounds once, with to_duration(), and then only adds
// and compares integers. Same inputs therefore give the same bytes out on any machine.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>

namespace stepcast {

// A real quantity with dimension data^kData * work^kWork * time^kTime, in bytes, FLOPs, seconds.
template <int kData, int kWork, int kTime>
struct Quantity {
  double value = 0;

  constexpr Quantity() = default;
  explicit constexpr Quantity(double v) : value(v) {}

  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity operator+(Quantity o) const { return Quantity(value + o.value); }
  constexpr Quantity operator-(Quantity o) const { return Quantity(value - o.value); }
  constexpr Quantity operator*(double f) const { return Quantity(value * f); }
  constexpr Quantity operator/(double f) const { return Quantity(value / f); }
  constexpr double operator/(Quantity o) const { return value / o.value; }
  constexpr Quantity& operator+=(Quantity o) { return *this = *this + o; }
  constexpr Quantity& operator-=(Quantity o) { return *this = *this - o; }
  friend constexpr Quantity operator*(double f, Quantity q) { return q * f; }
};

template <int D1, int W1, int T1, int D2, int W2, int T2>
  requires(D1 != D2 || W1 != W2 || T1 != T2)
constexpr auto operator/(Quantity<D1, W1, T1> a, Quantity<D2, W2, T2> b) {
  return Quantity<D1 - D2, W1 - W2, T1 - T2>(a.value / b.value);
}

template <int D1, int W1, int T1, int D2, int W2, int T2>
constexpr auto operator*(Quantity<D1, W1, T1> a, Quantity<D2, W2, T2> b) {
  return Quantity<D1 + D2, W1 + W2, T1 + T2>(a.value * b.value);
}

using Seconds = Quantity<0, 0, 1>;
using Flops = Quantity<0, 1, 0>;         // floating-point operations (a count, not a rate)
using Bandwidth = Quantity<1, 0, -1>;    // bytes per second
using FlopRate = Quantity<0, 1, -1>;     // FLOPs per second

// A whole number of bytes. Negative values are differences (a Free is a negative change).
struct Bytes {
  std::int64_t count = 0;

  constexpr Bytes() = default;
  explicit constexpr Bytes(std::int64_t c) : count(c) {}

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes operator+(Bytes o) const { return Bytes(count + o.count); }
  constexpr Bytes operator-(Bytes o) const { return Bytes(count - o.count); }
  constexpr Bytes operator-() const { return Bytes(-count); }
  constexpr Bytes operator*(std::int64_t f) const { return Bytes(count * f); }
  constexpr Bytes& operator+=(Bytes o) { return *this = *this + o; }
  constexpr Bytes& operator-=(Bytes o) { return *this = *this - o; }
};

constexpr Seconds operator/(Bytes b, Bandwidth w) {
  return Seconds(static_cast<double>(b.count) / w.value);
}

// A whole number of picoseconds between two Instants. 2^63 ps are 106 days: no step is longer.
struct Duration {
  std::int64_t picoseconds = 0;

  constexpr Duration() = default;
  explicit constexpr Duration(std::int64_t ps) : picoseconds(ps) {}

  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration o) const { return Duration(picoseconds + o.picoseconds); }
  constexpr Duration operator-(Duration o) const { return Duration(picoseconds - o.picoseconds); }
  constexpr Duration operator*(std::int64_t f) const { return Duration(picoseconds * f); }
  constexpr Duration& operator+=(Duration o) { return *this = *this + o; }
  constexpr Duration& operator-=(Duration o) { return *this = *this - o; }
};

// A point on the clock of a simulated step; the step begins at Instant{}.
struct Instant {
  std::int64_t picoseconds = 0;

  constexpr Instant() = default;
  explicit constexpr Instant(std::int64_t ps) : picoseconds(ps) {}

  constexpr auto operator<=>(const Instant&) const = default;
  constexpr Instant operator+(Duration d) const { return Instant(picoseconds + d.picoseconds); }
  constexpr Instant operator-(Duration d) const { return Instant(picoseconds - d.picoseconds); }
  constexpr Duration operator-(Instant o) const { return Duration(picoseconds - o.picoseconds); }
  constexpr Instant& operator+=(Duration d) { return *this = *this + d; }
};

constexpr Instant later(Instant a, Instant b) { return a < b ? b : a; }

// Rounds to the nearest picosecond. REQUIRES: 0 <= s < 9e6 (checked where times are priced).
inline Duration to_duration(Seconds s) { return Duration(std::llround(s.value * 1e12)); }
constexpr Seconds to_seconds(Duration d) {
  return Seconds(static_cast<double>(d.picoseconds) * 1e-12);
}

constexpr Bytes kibibytes(std::int64_t n) { return Bytes(n << 10); }
constexpr Bytes mebibytes(std::int64_t n) { return Bytes(n << 20); }
constexpr Bytes gibibytes(std::int64_t n) { return Bytes(n << 30); }
constexpr Seconds microseconds(double n) { return Seconds(n * 1e-6); }
constexpr Bandwidth gigabytes_per_second(double n) { return Bandwidth(n * 1e9); }
constexpr FlopRate teraflops_per_second(double n) { return FlopRate(n * 1e12); }

}  // namespace stepcast
