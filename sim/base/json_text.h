// Words for the errors of json.h: paths, and text that is short enough to print.
#pragma once

#include <string>
#include <string_view>

namespace stepcast {

// The first 60 bytes or so, whole UTF-8 characters, then "...": what a hostile or mistaken input
// can put into a message is limited.
std::string shortened(std::string_view text);

// A key as a JSON pointer spells it (RFC 6901): "~" is "~0", "/" is "~1".
std::string escaped_key(std::string_view key);

// A JSON pointer as --set spells it: "/parallel/tensor" is "parallel.tensor", the root "".
std::string dotted_path(std::string_view pointer);

// "FILE:LINE: dotted.path", for the root "FILE:LINE".
std::string place_text(std::string_view file, int line, std::string_view pointer);

}  // namespace stepcast
