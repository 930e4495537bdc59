// JSON input with places: every value knows the file, the line and the path it came from, so that
// an error can name all three. Comments (// and /* */) are allowed; duplicate keys are errors.
//
//   Document file = parse_json(text, "plan.json");
//   set_value(file, "parallel.tensor", "4");                // as --set does
//   Object root(file);
//   Object parallel = root.object("parallel");
//   int tensor = parallel.integer("tensor", 1, {1, 65536}); // default, limits
//   root.done();                                            // unknown keys end here
//
// Units stand in the value: "80 GB", "400 Gb/s", "5 us". A bare number is only a count. SI prefixes
// k M G T P are powers of 1000, Ki Mi Gi Ti powers of 1024; B is bytes, b bits; case-sensitive.
// All readers throw Error with "FILE:LINE: path" as its place.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/base/units.h"

namespace stepcast {

// Keys stay in the order of the file (ordered_json), so that what is written back reads the same.
using Json = nlohmann::ordered_json;

// Limits of any JSON that enters: size of the text, depth of nesting.
inline constexpr std::size_t kJsonBytesMax = std::size_t{64} << 20;
inline constexpr int kJsonDepthMax = 64;

struct Document {
  std::string file;                  // as the person named it
  Json root;
  std::map<std::string, int> lines;  // JSON pointer of each value -> line (1 is the first)
};

// Throws Error for bad syntax (line and column), duplicate keys, non-finite numbers, or a limit.
Document parse_json(std::string_view text, std::string_view file);

// Sets `path` (keys joined by dots; a number is an index of an array) to `value`: JSON if it parses
// as JSON, else a string. Objects on the way are created. The place of what was set is "--set".
// Throws Error for an empty path or one that runs through a value that is not an object or array.
void set_value(Document& document, std::string_view path, std::string_view value);

// Inclusive limits of an integer.
struct Limits {
  std::int64_t least = 0;
  std::int64_t most = INT64_MAX;
};

// A reader of one JSON object, which remembers the keys it was asked for.
class Object {
 public:
  explicit Object(const Document& document);  // the root; throws if it is not an object
  Object(const Document& document, std::string pointer);

  bool has(std::string_view key) const;       // present and not null
  bool is_null(std::string_view key) const;   // present and null
  const Json& at(std::string_view key) const; // throws if absent
  std::string place(std::string_view key = "") const;  // "FILE:LINE: dotted.path"
  std::string pointer(std::string_view key = "") const;

  // Each reads `key`; without a default the key is required. A value of another type, or beyond
  // its limits, throws and says what was expected.
  std::int64_t integer(std::string_view key, Limits limits) const;
  std::int64_t integer(std::string_view key, std::int64_t otherwise, Limits limits) const;
  double number(std::string_view key, double otherwise, double least, double most) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view otherwise) const;
  Bytes bytes(std::string_view key) const;
  Bytes bytes(std::string_view key, Bytes otherwise) const;
  Seconds seconds(std::string_view key) const;
  Seconds seconds(std::string_view key, Seconds otherwise) const;
  Bandwidth bandwidth(std::string_view key) const;
  Bandwidth bandwidth(std::string_view key, Bandwidth otherwise) const;
  FlopRate flop_rate(std::string_view key) const;  // "989 TFLOP/s"

  // One word out of a closed set; the error lists the set and the nearest word.
  template <class Enum>
  Enum word(std::string_view key, Enum otherwise,
            const std::vector<std::pair<std::string, Enum>>& words) const {
    if (!has(key)) {
      touch(key);
      return otherwise;
    }
    std::vector<std::string> names;
    for (const auto& [name, value] : words) names.push_back(name);
    return words[word_index(key, names)].second;
  }

  // A nested object; absent reads as an empty one.
  Object object(std::string_view key) const;
  std::size_t array_size(std::string_view key) const;  // 0 if absent; throws if not an array
  Object element(std::string_view key, std::size_t index) const;  // an object in an array

  // Marks a key as known without reading it (keys that carry no cost, comments).
  void touch(std::string_view key) const;

  // Throws for the first key of this object that was never asked for, with the nearest known key.
  void done() const;

  // An Error at a key, for what only the caller can judge.
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

 private:
  std::size_t word_index(std::string_view key, const std::vector<std::string>& names) const;

  const Document* document_;
  std::string pointer_;
  const Json* value_;
  mutable std::vector<std::string> asked_;
};

// Values with units, from text. `place` is for the error.
Bytes parse_bytes(std::string_view text, std::string_view place);
Seconds parse_seconds(std::string_view text, std::string_view place);    // s ms us ns min h d
Bandwidth parse_bandwidth(std::string_view text, std::string_view place);  // GB/s, Gb/s, GiB/s
FlopRate parse_flop_rate(std::string_view text, std::string_view place);

// Text for people: "80.0 GB" (powers of 1000), "74.5 GiB", "12.3 ms"; three significant digits.
std::string format_bytes(Bytes bytes);
std::string format_binary_bytes(Bytes bytes);
std::string format_seconds(Seconds seconds);
std::string format_count(double count);  // "8.03 B", "70.6 B", "1.01 T"

// Text for files: the shortest that reads back as exactly this value, "183.71 us", "450 GB/s".
std::string exact_seconds(Seconds seconds);
std::string exact_bandwidth(Bandwidth bandwidth);

}  // namespace stepcast
