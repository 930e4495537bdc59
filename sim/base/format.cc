// Quantities as text, both ways: "80 GB" read exactly, 80000000000 written as "80.0 GB".
//
// Bytes are read in decimal arithmetic on integers, never through a double: m * unit / 10^k is
// whole if the primes 2 and 5 of 10^k can be cancelled from m and unit, and then it is computed
// without rounding, up to 2^63 - 1. Real quantities are scaled by an exact factor and an exact
// divisor, so that "3 us" is the double nearest to 3e-6.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/json.h"

namespace stepcast {
namespace {

// One of `name` is times / over of the base unit.
struct Unit {
  std::string_view name;
  double times;
  double over;
};

constexpr double kKibi = 1024.0;
constexpr double kMebi = kKibi * kKibi;
constexpr double kGibi = kMebi * kKibi;
constexpr double kTebi = kGibi * kKibi;
constexpr double kPebi = kTebi * kKibi;

constexpr std::array kByteUnits = {
    Unit{"B", 1, 1},        Unit{"kB", 1e3, 1},     Unit{"MB", 1e6, 1},     Unit{"GB", 1e9, 1},
    Unit{"TB", 1e12, 1},    Unit{"PB", 1e15, 1},    Unit{"KiB", kKibi, 1},  Unit{"MiB", kMebi, 1},
    Unit{"GiB", kGibi, 1},  Unit{"TiB", kTebi, 1},  Unit{"PiB", kPebi, 1}};

constexpr std::array kSecondUnits = {
    Unit{"s", 1, 1},     Unit{"ms", 1, 1e3},  Unit{"us", 1, 1e6},    Unit{"ns", 1, 1e9},
    Unit{"min", 60, 1},  Unit{"h", 3600, 1},  Unit{"d", 86400, 1}};

constexpr std::array kBandwidthUnits = {
    Unit{"B/s", 1, 1},        Unit{"kB/s", 1e3, 1},    Unit{"MB/s", 1e6, 1},
    Unit{"GB/s", 1e9, 1},     Unit{"TB/s", 1e12, 1},   Unit{"PB/s", 1e15, 1},
    Unit{"KiB/s", kKibi, 1},  Unit{"MiB/s", kMebi, 1}, Unit{"GiB/s", kGibi, 1},
    Unit{"TiB/s", kTebi, 1},  Unit{"PiB/s", kPebi, 1}, Unit{"b/s", 1, 8},
    Unit{"kb/s", 1e3, 8},     Unit{"Mb/s", 1e6, 8},    Unit{"Gb/s", 1e9, 8},
    Unit{"Tb/s", 1e12, 8}};

constexpr std::array kFlopRateUnits = {
    Unit{"GFLOP/s", 1e9, 1},  Unit{"TFLOP/s", 1e12, 1},  Unit{"PFLOP/s", 1e15, 1},
    Unit{"GFLOPS", 1e9, 1},   Unit{"TFLOPS", 1e12, 1},   Unit{"PFLOPS", 1e15, 1}};

constexpr std::string_view kBytesExample = "200 MB";
constexpr std::string_view kSecondsExample = "5 us";
constexpr std::string_view kBandwidthExample = "400 Gb/s";
constexpr std::string_view kFlopRateExample = "989 TFLOP/s";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t skip_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

// Where a decimal number at the start of `text` ends: digits, a fraction, an exponent.
std::size_t number_end(std::string_view text) {
  std::size_t end = skip_digits(text, 0);
  if (end == 0) return 0;
  if (end < text.size() && text[end] == '.') {
    const std::size_t fraction = skip_digits(text, end + 1);
    if (fraction > end + 1) end = fraction;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    std::size_t digits = end + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    const std::size_t exponent = skip_digits(text, digits);
    if (exponent > digits) end = exponent;
  }
  return end;
}

struct Amount {
  std::string_view number;
  Unit unit;
};

Amount split_amount(std::string_view text, std::string_view place, std::span<const Unit> units,
                    std::string_view example) {
  if (!text.empty() && text[0] == '-') {
    throw Error(place, fmt::format("must not be negative, is \"{}\"", text));
  }
  const std::size_t end = number_end(text);
  if (end == 0) {
    throw Error(place, fmt::format("\"{}\" does not begin with a number; write a number and a "
                                   "unit, such as \"{}\"", text, example));
  }
  std::string_view name = text.substr(end);
  while (!name.empty() && name[0] == ' ') name.remove_prefix(1);
  if (name.empty()) {
    throw Error(place,
                fmt::format("\"{}\" has no unit; write a unit, such as \"{}\"", text, example));
  }
  std::vector<std::string> names;
  for (const Unit& unit : units) {
    if (unit.name == name) return {text.substr(0, end), unit};
    names.emplace_back(unit.name);
  }
  const std::string guess = did_you_mean(name, names);
  throw Error(place, fmt::format("unknown unit \"{}\"{}", name,
                                 guess.empty() ? fmt::format("; use {}", fmt::join(names, ", "))
                                               : guess));
}

double parse_real(std::string_view text, std::string_view place, std::span<const Unit> units,
                  std::string_view example) {
  const Amount amount = split_amount(text, place, units, example);
  double number = 0;
  const char* const end = amount.number.data() + amount.number.size();
  const auto [stopped, trouble] = std::from_chars(amount.number.data(), end, number);
  const double value = number * amount.unit.times / amount.unit.over;
  if (trouble != std::errc() || stopped != end || !std::isfinite(value)) {
    throw Error(place, fmt::format("\"{}\" is out of range", text));
  }
  return value;
}

// mantissa / 10^places, exactly.
struct Decimal {
  std::int64_t mantissa = 0;
  int places = 0;
};

// Nothing if the digits that count are more than 63 bits hold.
std::optional<Decimal> parse_decimal(std::string_view number) {
  constexpr int kExponentMax = 1000;  // far beyond any quantity, far below the limits of int
  const std::size_t mark = std::min(number.find_first_of("eE"), number.size());
  const std::string_view plain = number.substr(0, mark);
  const std::size_t point = std::min(plain.find('.'), plain.size());

  std::string digits(plain.substr(0, point));
  if (point < plain.size()) digits += plain.substr(point + 1);
  const std::size_t significant = digits.find_last_not_of('0') + 1;  // 0 if there is none
  if (significant == 0) return Decimal{};
  if (digits.size() > kExponentMax) return std::nullopt;

  Decimal decimal;
  decimal.places = static_cast<int>(significant) - static_cast<int>(point);
  const char* const end = digits.data() + significant;
  if (std::from_chars(digits.data(), end, decimal.mantissa).ec != std::errc()) return std::nullopt;
  if (mark == number.size()) return decimal;

  std::string_view power = number.substr(mark + 1);
  if (power[0] == '+') power.remove_prefix(1);  // from_chars takes a minus only
  int exponent = 0;
  const auto trouble = std::from_chars(power.data(), power.data() + power.size(), exponent).ec;
  if (trouble != std::errc() || std::abs(exponent) > kExponentMax) return std::nullopt;
  decimal.places -= exponent;
  return decimal;
}

// decimal * unit if that is a whole number within 63 bits.
std::optional<std::int64_t> exact_product(Decimal decimal, std::int64_t unit) {
  std::int64_t value = decimal.mantissa;
  if (value == 0) return 0;
  for (; decimal.places > 0; --decimal.places) {
    for (const std::int64_t prime : {std::int64_t{2}, std::int64_t{5}}) {
      if (value % prime == 0) {
        value /= prime;
      } else if (unit % prime == 0) {
        unit /= prime;
      } else {
        return std::nullopt;
      }
    }
  }
  if (__builtin_mul_overflow(value, unit, &value)) return std::nullopt;
  for (; decimal.places < 0; ++decimal.places) {
    if (__builtin_mul_overflow(value, std::int64_t{10}, &value)) return std::nullopt;
  }
  return value;
}

// Three significant digits of a positive value, without an exponent down to 0.001.
std::string three_digits(double value) {
  if (value < 0.9995) return fmt::format("{:.3g}", value);
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

// The first unit in which `value` is written with less than `base`; the last takes what remains.
std::string in_units(double value, double base, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  // The half is for rounding: 999,999 bytes are 1.00 MB and not 1000 kB.
  while (value >= base - 0.5 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), units[unit]);
}

// In `unit` (`size` of the base unit) with as many digits as it takes, else all digits in the base
// unit.
std::string exact_text(double value, std::string_view unit, double size, std::string_view base,
                       double (*parse)(const std::string&)) {
  constexpr int kDigitsMax = 17;  // of a double
  for (int digits = 3; digits <= kDigitsMax; ++digits) {
    std::string text = fmt::format("{:.{}g} {}", value / size, digits, unit);
    if (parse(text) == value) return text;
  }
  return fmt::format("{} {}", value, base);
}

std::string format_bytes_by(Bytes bytes, double base, std::span<const std::string_view> units) {
  const double value = std::abs(static_cast<double>(bytes.count));
  // Few bytes are a count, not a measurement: all digits.
  if (value < base) return fmt::format("{} B", bytes.count);
  return (bytes.count < 0 ? "-" : "") + in_units(value, base, units);
}

}  // namespace

Bytes parse_bytes(std::string_view text, std::string_view place) {
  const Amount amount = split_amount(text, place, kByteUnits, kBytesExample);
  const std::optional<Decimal> decimal = parse_decimal(amount.number);
  std::optional<std::int64_t> count;
  if (decimal) count = exact_product(*decimal, static_cast<std::int64_t>(amount.unit.times));
  if (!count) {
    throw Error(place,
                fmt::format("must be a whole number of bytes below 2^63, is \"{}\"", text));
  }
  return Bytes(*count);
}

Seconds parse_seconds(std::string_view text, std::string_view place) {
  return Seconds(parse_real(text, place, kSecondUnits, kSecondsExample));
}

Bandwidth parse_bandwidth(std::string_view text, std::string_view place) {
  return Bandwidth(parse_real(text, place, kBandwidthUnits, kBandwidthExample));
}

FlopRate parse_flop_rate(std::string_view text, std::string_view place) {
  return FlopRate(parse_real(text, place, kFlopRateUnits, kFlopRateExample));
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"B",  "kB", "MB", "GB",
                                                             "TB", "PB", "EB"};
  return format_bytes_by(bytes, 1000, kUnits);
}

std::string format_binary_bytes(Bytes bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"B",   "KiB", "MiB", "GiB",
                                                             "TiB", "PiB", "EiB"};
  return format_bytes_by(bytes, 1024, kUnits);
}

std::string format_seconds(Seconds seconds) {
  static constexpr std::array<std::string_view, 4> kUnits = {"ps", "ns", "us", "ms"};
  constexpr double kMinute = 60;
  constexpr double kHour = 60 * kMinute;
  constexpr double kDay = 24 * kHour;
  const double value = std::abs(seconds.value);
  if (value == 0) return "0 s";
  const std::string sign = seconds.value < 0 ? "-" : "";
  if (!std::isfinite(value)) return fmt::format("{} s", seconds.value);
  // From ms to s by the same rounding as between the smaller units.
  if (value * 1e3 < 999.5) return sign + in_units(value * 1e12, 1000, kUnits);
  if (value <= 2 * kMinute) return fmt::format("{}{} s", sign, three_digits(value));
  if (value <= 2 * kHour) return fmt::format("{}{:.1f} min", sign, value / kMinute);
  if (value <= 2 * kDay) return fmt::format("{}{:.1f} h", sign, value / kHour);
  return fmt::format("{}{:.1f} days", sign, value / kDay);
}

std::string format_count(double count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "k", "M", "B", "T"};
  const double value = std::abs(count);
  if (value == 0) return "0";
  if (value >= 999.5e12 || !std::isfinite(value)) return fmt::format("{:.2e}", count);
  if (value < 1000 && value == std::floor(value)) return fmt::format("{:.0f}", count);
  const std::string sign = count < 0 ? "-" : "";
  if (value < 999.5) return sign + three_digits(value);
  return sign + in_units(value, 1000, kUnits);
}

std::string exact_seconds(Seconds seconds) {
  return exact_text(seconds.value, "us", 1e-6, "s",
                    [](const std::string& text) { return parse_seconds(text, "").value; });
}

std::string exact_bandwidth(Bandwidth bandwidth) {
  return exact_text(bandwidth.value, "GB/s", 1e9, "B/s",
                    [](const std::string& text) { return parse_bandwidth(text, "").value; });
}

}  // namespace stepcast
