// Lenient reading: a lookup and a conversion each, linear in the keys of an object.
#include "tools/validate/fields.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace stepcast {

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

// Positive and finite, or nothing.
std::optional<double> number_of(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  if (found == nullptr) return std::nullopt;
  double value = 0;
  if (found->is_number()) {
    value = found->get<double>();
  } else if (found->is_string()) {
    const std::string& text = found->get_ref<const std::string&>();
    const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (trouble != std::errc() || end != text.data() + text.size()) return std::nullopt;
  }
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> count_of(const Json& object, std::string_view key) {
  constexpr double kMost = 1e15;  // whole numbers are exact in a double
  const std::optional<double> value = number_of(object, key);
  if (!value || *value > kMost || *value != std::floor(*value)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<bool> switch_of(const Json& object, std::string_view key) {
  const Json* found = member(object, key);
  if (found == nullptr) return std::nullopt;
  if (found->is_boolean()) return found->get<bool>();
  const std::string text = text_of(object, key);
  if (text == "True" || text == "true") return true;
  if (text == "False" || text == "false") return false;
  return std::nullopt;
}

// A row's field, or that of the "params" in it.
const Json& holder_of(const Json& row, std::string_view key) {
  const Json* params = member(row, "params");
  return member(row, key) == nullptr && params != nullptr ? *params : row;
}

}  // namespace stepcast
