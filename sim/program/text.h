// Text: what the printers and parsers of this folder share. Internal to sim/program.
//
// A line is words parted by blanks; a word may hold a quoted part, "as \"this\" one", with blanks
// of its own. Tokens reads a line word by word, without copying, and throws Error with the line's
// place and what was expected there.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/program/program.h"

namespace stepcast {

// Sizes and counts in text stay below this, so that sums and small multiples fit 64 bits.
inline constexpr std::int64_t kSizeMax = std::int64_t{1} << 50;
inline constexpr std::int64_t kBytesMax = std::int64_t{1} << 56;

inline constexpr int kDtypes = 7;  // that dtype_name() names

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
inline void append(std::string& out, std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}
inline void append(std::string& out, double number) {  // the shortest that reads back as the same
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}
inline void append(std::string& out, int number) { append(out, std::int64_t{number}); }
template <class First, class Second, class... Rest>
void append(std::string& out, const First& first, const Second& second, const Rest&... rest) {
  append(out, first);
  (append(out, second), ..., append(out, rest));
}

class Tokens {
 public:
  // `line` 0: the place is `file` as it is. Both views must outlive this.
  Tokens(std::string_view text, std::string_view file, int line = 0)
      : rest_(text), file_(file), line_(line) {
    advance();
  }

  bool done() const { return token_.empty(); }
  std::string_view peek() const { return token_; }  // "" at the end
  std::string_view rest() const {  // from this word to the end of the line
    return {token_.data(), token_.size() + rest_.size()};
  }
  bool take(std::string_view word) {                // true, and a word further, if it stands here
    if (token_ != word) return false;
    advance();
    return true;
  }
  std::string_view next(std::string_view expected) {
    if (done()) fail(expected);
    const std::string_view token = token_;
    advance();
    return token;
  }
  void expect(std::string_view word) {
    if (!take(word)) fail(word);
  }
  void end() const {
    if (!done()) fail("the end of the line");
  }

  // A whole number with a prefix, "chunk=3", between two limits.
  std::int64_t integer(std::string_view prefix, std::int64_t least, std::int64_t most);
  // A number between two limits.
  double real(double least, double most);
  // "4096x1024": as many sizes as asked for, each at least 1.
  void sizes(std::initializer_list<std::int64_t*> out);

  // One of an enumeration's first `count` names, behind a prefix ("output=bf16").
  template <class Enum>
  Enum word(std::string_view (*name)(Enum), int count, std::string_view prefix = "") {
    if (token_.starts_with(prefix)) {
      const std::string_view text = token_.substr(prefix.size());
      for (int i = 0; i < count; ++i) {
        if (text != name(static_cast<Enum>(i))) continue;
        advance();
        return static_cast<Enum>(i);
      }
    }
    std::string expected;
    for (int i = 0; i < count; ++i) {
      append(expected, i == 0 ? "" : i + 1 < count ? ", " : " or ", prefix,
             name(static_cast<Enum>(i)));
    }
    fail(expected);
  }

  // "FILE:LINE: expected `expected`, found ...".
  [[noreturn]] void fail(std::string_view expected) const;
  // "FILE:LINE: `what`".
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  void advance();

  std::string_view rest_;
  std::string_view token_;
  std::string_view file_;
  int line_ = 0;
};

std::string_view scope_name(Scope scope);  // "rank", "chunk", "micro_batch"

// Reads "12" into `number`; false unless all of the text is one number.
bool read_integer(std::string_view text, std::int64_t& number);

}  // namespace stepcast
