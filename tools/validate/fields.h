// Fields of a row that somebody else wrote: what is missing or of another type is nothing, never an
// error. Internal to `stepcast validate`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/base/json.h"
#include "tools/base/text.h"

namespace stepcast {

// nullptr where `object` is none, or has no such key, or null.
const Json* member(const Json& object, std::string_view key);

// Where a text is searched by std::regex, which recurses by the length of what it reads.
inline constexpr std::size_t kTextMost = 300;

// "" unless it is a string.
std::string text_of(const Json& object, std::string_view key);

// Positive and finite. A string of digits counts ("4096", as the keys of some tables have it).
std::optional<double> number_of(const Json& object, std::string_view key);
std::optional<std::int64_t> count_of(const Json& object, std::string_view key);  // whole, <= 1e15

// Also "True" and "false".
std::optional<bool> switch_of(const Json& object, std::string_view key);

// Where `key` is to be read: the row, or the object "params" in it if only that may have it.
const Json& holder_of(const Json& row, std::string_view key);

}  // namespace stepcast
