// Text: what several commands do to words.
#pragma once

#include <string>
#include <string_view>

namespace stepcast {

std::string lower(std::string_view text);  // A to Z only
bool has(std::string_view text, std::string_view part);

// A JSON key as words: "tensor_exposed" is "tensor exposed".
std::string key_words(std::string_view key);

}  // namespace stepcast
