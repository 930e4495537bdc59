// Words of a line, cut on the fly: one pass over the characters, no copies.

#include "sim/program/text.h"

#include <system_error>

namespace stepcast {

bool read_integer(std::string_view text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

void Tokens::advance() {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  std::size_t begin = 0;
  while (begin < rest_.size() && blank(rest_[begin])) ++begin;
  std::size_t end = begin;
  for (bool quoted = false; end < rest_.size() && (quoted || !blank(rest_[end])); ++end) {
    if (rest_[end] == '"') quoted = !quoted;
    if (quoted && rest_[end] == '\\' && end + 1 < rest_.size()) ++end;
  }
  token_ = rest_.substr(begin, end - begin);
  rest_.remove_prefix(end);
}

std::int64_t Tokens::integer(std::string_view prefix, std::int64_t least, std::int64_t most) {
  std::int64_t number = 0;
  if (!token_.starts_with(prefix) || !read_integer(token_.substr(prefix.size()), number) ||
      number < least || number > most) {
    std::string expected;
    append(expected, prefix, "N with N from ", least, " to ", most);
    fail(expected);
  }
  advance();
  return number;
}

double Tokens::real(double least, double most) {
  double number = 0;
  const char* last = token_.data() + token_.size();
  const auto [end, error] = std::from_chars(token_.data(), last, number);
  if (done() || error != std::errc() || end != last || !(number >= least && number <= most)) {
    std::string expected;
    append(expected, "a number from ", least, " to ", most);
    fail(expected);
  }
  advance();
  return number;
}

void Tokens::sizes(std::initializer_list<std::int64_t*> out) {
  std::string_view rest = token_;
  std::size_t left = out.size();
  for (std::int64_t* size : out) {
    const std::size_t cut = --left == 0 ? rest.size() : rest.find('x');
    if (cut == std::string_view::npos || !read_integer(rest.substr(0, cut), *size) || *size < 1 ||
        *size > kSizeMax) {
      std::string expected;
      append(expected, static_cast<std::int64_t>(out.size()), " sizes such as 4096x1024");
      fail(out.size() == 1 ? "a size of at least 1" : expected);
    }
    rest.remove_prefix(left == 0 ? cut : cut + 1);
  }
  advance();
}

void Tokens::fail(std::string_view expected) const {
  std::string what;
  append(what, "expected ", expected, ", found ");
  constexpr std::size_t kShown = 40;
  if (done()) {
    append(what, "the end of the line");
  } else {
    append(what, '\'', token_.substr(0, kShown), token_.size() > kShown ? "...'" : "'");
  }
  refuse(what);
}

void Tokens::refuse(std::string_view what) const {
  std::string place(file_);
  if (line_ > 0) append(place, ':', line_);
  throw Error(place, what);
}

}  // namespace stepcast
