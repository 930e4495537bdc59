// Words: the names under which a plan or a model is written, and the values they stand for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"

namespace stepcast {

// The word of `value`, which must be in the table.
template <class Value>
std::string word_of(Value value, const std::vector<std::pair<std::string, Value>>& words) {
  for (const auto& [name, word] : words) {
    if (word == value) return name;
  }
  STEPCAST_CHECK(false, "every value has a word");
}

}  // namespace stepcast
