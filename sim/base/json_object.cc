// What is done with a parsed Document: --set changes it, Object reads it. Both name the place of
// whatever is wrong. A place is looked up in the table of lines by JSON pointer, O(depth * log n);
// it is only made for an error or a value with a unit.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/base/json_text.h"

namespace stepcast {
namespace {

constexpr int kSetLine = 0;  // the "line" of what came by --set

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  return shortened(value.dump());
}

// What is not in the table stands where its nearest ancestor stands.
std::string place_in(const Document& document, const std::string& pointer) {
  for (std::string above = pointer;; above.resize(above.rfind('/'))) {
    const auto found = document.lines.find(above);
    if (found != document.lines.end()) {
      if (found->second == kSetLine) return "--set " + dotted_path(pointer);
      return place_text(document.file, found->second, pointer);
    }
    if (above.empty()) break;
  }
  return pointer.empty() ? document.file : document.file + ": " + dotted_path(pointer);
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> keys;
  for (std::size_t start = 0; start <= path.size();) {
    const std::size_t dot = std::min(path.find('.', start), path.size());
    keys.emplace_back(path.substr(start, dot - start));
    start = dot + 1;
  }
  return keys;
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

Json parse_or_string(std::string_view text) {
  try {
    return parse_json(text, "--set").root;
  } catch (const Error&) {
    return Json(text);
  }
}

// The element of an array that `key` names.
std::size_t index_of(const Json& array, const std::string& key, const std::string& where) {
  std::size_t index = 0;
  const char* const end = key.data() + key.size();
  const auto [stopped, trouble] = std::from_chars(key.data(), end, index);
  if (trouble == std::errc() && stopped == end && index < array.size()) return index;
  if (array.empty()) throw Error(where, fmt::format("no index {}: the array is empty", key));
  throw Error(where, fmt::format("no index {}: the array has {} elements, 0 to {}", key,
                                 array.size(), array.size() - 1));
}

std::string quoted_list(const std::vector<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

// "from 1 to 8", "at least 1", "at most 8".
template <class Number>
std::string limits_text(Number least, Number most, bool open_below, bool open_above) {
  if (open_above) return fmt::format("at least {}", least);
  if (open_below) return fmt::format("at most {}", most);
  return fmt::format("from {} to {}", least, most);
}

// A quantity is text: a bare number would leave its unit to guessing.
const std::string& unit_text(const Object& object, std::string_view key, std::string_view example) {
  const Json& value = object.at(key);
  if (value.is_number()) {
    object.fail(key, fmt::format("{} has no unit; write a unit, such as \"{}\"", shown(value),
                                 example));
  }
  if (!value.is_string()) {
    object.fail(key, fmt::format("must be text with a unit, such as \"{}\", is {}", example,
                                 shown(value)));
  }
  return value.get_ref<const std::string&>();
}

}  // namespace

void set_value(Document& document, std::string_view path, std::string_view value) {
  if (!is_utf8(path) || !is_utf8(value)) throw Error("--set", "the text is not UTF-8");
  const std::string where = "--set " + shortened(path);
  const std::vector<std::string> keys = split_path(path);
  for (const std::string& key : keys) {
    if (key.empty()) throw Error(where, "write the path as keys joined by dots: parallel.tensor");
  }
  if (keys.size() >= static_cast<std::size_t>(kJsonDepthMax)) {
    throw Error(where, fmt::format("nested deeper than {} levels", kJsonDepthMax));
  }

  // Once something is created, all below it is new: an error can only come before any change.
  Json* node = &document.root;
  std::string pointer;
  for (const std::string& key : keys) {
    if (node->is_null()) {
      *node = Json::object();
      if (!pointer.empty()) document.lines[pointer] = kSetLine;
    }
    if (node->is_array()) {
      const std::size_t index = index_of(*node, key, where);
      node = &(*node)[index];
      pointer += "/" + std::to_string(index);
    } else if (node->is_object()) {
      node = &(*node)[key];
      pointer += "/" + escaped_key(key);
    } else {
      const std::string name = pointer.empty() ? "the file" : '"' + dotted_path(pointer) + '"';
      throw Error(where, fmt::format("{} is {}, neither an object nor an array", name,
                                     shown(*node)));
    }
  }

  *node = parse_or_string(value);
  const std::string below = pointer + "/";
  auto stale = document.lines.lower_bound(below);
  while (stale != document.lines.end() && stale->first.starts_with(below)) {
    stale = document.lines.erase(stale);
  }
  document.lines[pointer] = kSetLine;
}

Object::Object(const Document& document) : Object(document, "") {
  if (value_ == nullptr) throw Error(place(), "must be an object, is null");
}

Object::Object(const Document& document, std::string pointer)
    : document_(&document), pointer_(std::move(pointer)), value_(nullptr) {
  const Json::json_pointer path(pointer_);
  if (!document.root.contains(path)) return;
  const Json& value = document.root.at(path);
  if (value.is_null()) return;
  if (!value.is_object()) throw Error(place(), "must be an object, is " + shown(value));
  value_ = &value;
}

bool Object::has(std::string_view key) const {
  if (value_ == nullptr) return false;
  const auto found = value_->find(std::string(key));
  return found != value_->end() && !found->is_null();
}

bool Object::is_null(std::string_view key) const {
  if (value_ == nullptr) return false;
  const auto found = value_->find(std::string(key));
  return found != value_->end() && found->is_null();
}

const Json& Object::at(std::string_view key) const {
  touch(key);
  if (!has(key)) fail(key, fmt::format("\"{}\" is missing", shortened(key)));
  return *value_->find(std::string(key));
}

std::string Object::place(std::string_view key) const {
  return place_in(*document_, pointer(key));
}

std::string Object::pointer(std::string_view key) const {
  return key.empty() ? pointer_ : pointer_ + "/" + escaped_key(key);
}

std::int64_t Object::integer(std::string_view key, Limits limits) const {
  const Json& value = at(key);
  // 2e3 is as whole as 2000.
  const bool real = value.is_number_float();
  if (real ? std::floor(value.get<double>()) != value.get<double>()
           : !value.is_number_integer()) {
    fail(key, "must be an integer, is " + shown(value));
  }
  const bool fits = real ? value.get<double>() >= -0x1p63 && value.get<double>() < 0x1p63
                         : !value.is_number_unsigned() ||
                               value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
  if (fits) {
    const auto number = value.get<std::int64_t>();
    if (number >= limits.least && number <= limits.most) return number;
  }
  fail(key, fmt::format("must be {}, is {}",
                        limits_text(limits.least, limits.most, limits.least == INT64_MIN,
                                    limits.most == INT64_MAX),
                        shown(value)));
}

std::int64_t Object::integer(std::string_view key, std::int64_t otherwise, Limits limits) const {
  touch(key);
  return has(key) ? integer(key, limits) : otherwise;
}

double Object::number(std::string_view key, double otherwise, double least, double most) const {
  touch(key);
  if (!has(key)) return otherwise;
  const Json& value = at(key);
  if (!value.is_number()) fail(key, "must be a number, is " + shown(value));
  const auto number = value.get<double>();
  if (number >= least && number <= most) return number;
  fail(key, fmt::format("must be {}, is {}",
                        limits_text(least, most, std::isinf(least), std::isinf(most)),
                        shown(value)));
}

bool Object::boolean(std::string_view key, bool otherwise) const {
  touch(key);
  if (!has(key)) return otherwise;
  const Json& value = at(key);
  if (!value.is_boolean()) fail(key, "must be true or false, is " + shown(value));
  return value.get<bool>();
}

std::string Object::string(std::string_view key) const {
  const Json& value = at(key);
  if (!value.is_string()) fail(key, "must be a string, is " + shown(value));
  return value.get<std::string>();
}

std::string Object::string(std::string_view key, std::string_view otherwise) const {
  touch(key);
  return has(key) ? string(key) : std::string(otherwise);
}

Bytes Object::bytes(std::string_view key) const {
  return parse_bytes(unit_text(*this, key, "200 MB"), place(key));
}

Bytes Object::bytes(std::string_view key, Bytes otherwise) const {
  touch(key);
  return has(key) ? bytes(key) : otherwise;
}

Seconds Object::seconds(std::string_view key) const {
  return parse_seconds(unit_text(*this, key, "5 us"), place(key));
}

Seconds Object::seconds(std::string_view key, Seconds otherwise) const {
  touch(key);
  return has(key) ? seconds(key) : otherwise;
}

Bandwidth Object::bandwidth(std::string_view key) const {
  return parse_bandwidth(unit_text(*this, key, "400 Gb/s"), place(key));
}

Bandwidth Object::bandwidth(std::string_view key, Bandwidth otherwise) const {
  touch(key);
  return has(key) ? bandwidth(key) : otherwise;
}

FlopRate Object::flop_rate(std::string_view key) const {
  return parse_flop_rate(unit_text(*this, key, "989 TFLOP/s"), place(key));
}

Object Object::object(std::string_view key) const {
  touch(key);
  return Object(*document_, pointer(key));
}

std::size_t Object::array_size(std::string_view key) const {
  touch(key);
  if (!has(key)) return 0;
  const Json& value = at(key);
  if (!value.is_array()) fail(key, "must be an array, is " + shown(value));
  return value.size();
}

Object Object::element(std::string_view key, std::size_t index) const {
  STEPCAST_CHECK(index < array_size(key), "an element beyond its array");
  return Object(*document_, pointer(key) + "/" + std::to_string(index));
}

void Object::touch(std::string_view key) const {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
}

void Object::done() const {
  if (value_ == nullptr) return;
  for (const auto& [key, value] : value_->items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    std::string hint = did_you_mean(key, asked_);
    if (hint.empty() && !asked_.empty()) hint = "; the keys here are " + quoted_list(asked_);
    fail(key, fmt::format("unknown key \"{}\"{}", shortened(key), hint));
  }
}

void Object::fail(std::string_view key, std::string_view what) const {
  throw Error(place(key), what);
}

std::size_t Object::word_index(std::string_view key, const std::vector<std::string>& names) const {
  const Json& value = at(key);
  if (value.is_string()) {
    const auto found = std::find(names.begin(), names.end(), value.get_ref<const std::string&>());
    if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  }
  const std::string hint =
      value.is_string() ? did_you_mean(value.get_ref<const std::string&>(), names) : "";
  fail(key, fmt::format("must be one of {}, is {}{}", quoted_list(names), shown(value), hint));
}

}  // namespace stepcast
