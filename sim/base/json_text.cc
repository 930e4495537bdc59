// Words for the errors of json.h. Linear in the length of the text.
#include "sim/base/json_text.h"

#include <cstddef>

#include <fmt/format.h>

namespace stepcast {

std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) return std::string(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole UTF-8
  return std::string(text.substr(0, end)) + "...";
}

std::string escaped_key(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string dotted_path(std::string_view pointer) {
  std::string out;
  for (std::size_t i = 1; i < pointer.size(); ++i) {
    if (pointer[i] == '/') {
      out += '.';
    } else if (pointer[i] == '~' && i + 1 < pointer.size()) {
      out += pointer[++i] == '1' ? '/' : '~';
    } else {
      out += pointer[i];
    }
  }
  return shortened(out);
}

std::string place_text(std::string_view file, int line, std::string_view pointer) {
  const std::string path = dotted_path(pointer);
  if (path.empty()) return fmt::format("{}:{}", file, line);
  return fmt::format("{}:{}: {}", file, line, path);
}

}  // namespace stepcast
