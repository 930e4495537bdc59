// Choices: the nearest legal numbers, as words for the end of a message ("96 or 120").
#pragma once

#include <cstdint>
#include <string>

namespace stepcast {

// The multiples of `unit` around `value`: "96 or 120"; "24" where there is none below.
std::string nearest_multiples(std::int64_t value, std::int64_t unit);

// The divisors of `number` around `value`, which does not divide it: "2 or 4"; or the only one.
std::string nearest_divisors(std::int64_t value, std::int64_t number);

// All divisors of `number`, times `unit`: "1, 2, 4 or 8"; of many, the ends.
std::string divisors_text(std::int64_t number, std::int64_t unit = 1);

}  // namespace stepcast
