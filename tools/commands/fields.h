// Fields: every key of the what-if file and of the report, and the field's terms, with what they
// mean. One table, from which `stepcast explain` and `stepcast schema` are written; tests hold it
// against what the readers and writers really take and give.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace stepcast {

enum class Topic : std::uint8_t { kWhatIf, kReport, kTerm };

// What a value looks like.
enum class Form : std::uint8_t {
  kNone,          // of a term
  kObject, kList, // what is in it has paths of its own: "a.b", "a[].b"
  kText, kWord,   // one of Field::words
  kCount, kNumber, kSwitch,
  kBytes, kTime, kBandwidth,         // text with a unit
  kByteLimit, kTimeLimit,            // "<= 76 GiB"
  kNameOrObject, kWordOrObject,
  kWordOrCounts,  // a word or a list of counts
  kWords,         // a list of words
  kCountOrText,   // 300000000000 or "300B"
};

struct Field {
  Topic topic = Topic::kTerm;
  Form form = Form::kNone;
  std::string_view path;       // "parallel.tensor", "memory.stages[].peak_at", "bubble"
  // Left out of a what-if, the key means: JSON where it is always the same, else words. Empty: it
  // has to be there.
  std::string_view otherwise;
  std::string_view words;      // allowed, parted by blanks
  Limits limits;               // of a count
  std::string_view meaning;    // one sentence
  std::string_view effect;     // where it bites; may be empty
  bool resolved = true;        // false: may be given, but a resolved what-if says it otherwise
};

std::vector<Field> what_if_fields();
std::vector<Field> report_fields();
std::vector<Field> terms();
std::vector<Field> all_fields();  // the three in this order

// The members of an object or list, one level down, in the order of the table.
std::vector<Field> children(const std::vector<Field>& fields, const Field& parent);

// "tensor" of "parallel.tensor", "device" of "slow_devices[].device".
std::string_view last_component(std::string_view path);

std::vector<std::string> split_words(std::string_view words);

// The JSON Schema (draft 2020-12) of the what-if file. It is a little wider than the reader, which
// also judges how the numbers fit each other.
Json what_if_schema();

// What `stepcast explain KEY` prints. Throws Error for a key that is none, with the nearest.
std::string explanation(std::string_view key);

}  // namespace stepcast
