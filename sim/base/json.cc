// JSON with places. nlohmann's SAX parser is iterative and calls back as soon as a token ends; its
// lexer has then taken at most one character more (after a number). The parser reads through an
// iterator that shows how far it came, so the last character taken tells the line of each value: no
// token but a comment holds a newline. One pass, O(n log n) for the table of lines.
//
// Depth, duplicate keys and size are refused while parsing, before anything is built on them.
#include "sim/base/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/base/json_text.h"

namespace stepcast {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
// A pointer is stored for every value, so long keys around long arrays would multiply.
constexpr std::size_t kPointerBytesMax = 16 * kJsonBytesMax;

// Reads characters and keeps `next`, which all copies share, at the first one not yet taken.
class CharReader {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CharReader(const char* at, const char** next) : at_(at), next_(next) {}
  reference operator*() const { return *at_; }
  CharReader& operator++() {
    *next_ = ++at_;
    return *this;
  }
  CharReader operator++(int) {
    const CharReader before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CharReader& other) const { return at_ == other.at_; }
  bool operator!=(const CharReader& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** next_;
};

bool is_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x80 && (std::isalnum(byte) != 0 || c == '_' || c == '.' || c == '+' || c == '-');
}

// Where the token starts whose last character is text[last].
std::size_t token_start(std::string_view text, std::size_t last) {
  std::size_t start = last;
  if (text[last] == '"') {
    // Back to the quote that no backslash escapes; a valid string holds no other.
    while (start > 0) {
      --start;
      if (text[start] != '"') continue;
      std::size_t slashes = 0;
      while (slashes < start && text[start - 1 - slashes] == '\\') ++slashes;
      if (slashes % 2 == 0) return start;
    }
    return last;
  }
  while (is_word(text[start]) && start > 0 && is_word(text[start - 1])) --start;
  return start;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// nlohmann says "[json.exception...] parse error at ...: syntax error while parsing object -
// unexpected number literal; expected string literal", with "; last read: '...'" after the lexer's
// own complaints. Keep the cause, in plain words.
std::string plain_cause(std::string_view what, const std::string& last_read) {
  std::string cause(what);
  const std::size_t syntax = cause.find("syntax error ");
  const std::size_t dash = syntax == std::string::npos ? syntax : cause.find("- ", syntax);
  if (dash != std::string::npos) cause.erase(0, dash + 2);
  const std::string tail = "; last read: '" + last_read + "'";
  if (const std::size_t at = cause.find(tail); at != std::string::npos) {
    cause.erase(at, tail.size());
  }
  replace_all(cause, "'[', '{', or a literal", "a value");
  replace_all(cause, "string literal", "string");
  replace_all(cause, "number literal", "number");
  for (const char* word : {"true", "false", "null"}) {
    replace_all(cause, fmt::format("{} literal", word), word);
  }
  replace_all(cause, "end of input", "end of the text");
  return cause;
}

[[noreturn]] void fail_at(std::string_view file, std::string_view text, std::size_t offset,
                          std::string_view cause) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  std::string_view row = newline == std::string_view::npos ? before : before.substr(newline + 1);
  if (row.data() == text.data() && row.starts_with(kByteOrderMark)) {
    row.remove_prefix(kByteOrderMark.size());
  }
  // A column is a character, as editors count: the bytes that continue one do not count.
  const auto column = 1 + std::count_if(row.begin(), row.end(), [](char c) {
                        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                      });
  throw Error(fmt::format("{}:{}:{}", file, line, column), cause);
}

// Builds a Document from the parser's callbacks. Names and signatures are nlohmann's.
class Builder {
 public:
  Builder(std::string_view text, Document& document, const char* const& next)
      : text_(text), document_(document), next_(next) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(Json(value)); }
  bool number_float(Json::number_float_t value, const Json::string_t& digits) {
    if (!std::isfinite(value)) fail_here(fmt::format("number {} is too large", shortened(digits)));
    return put(Json(value));
  }
  bool string(Json::string_t& value) { return put(Json(std::move(value))); }
  bool binary(Json::binary_t&) { fail_here("binary data is not JSON"); }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(Json::string_t& name) {
    Level& level = levels_.back();
    const int line = current_line();
    const auto [first, fresh] = level.keys.emplace(name, line);
    if (!fresh) {
      const std::string pointer = level.pointer + "/" + escaped_key(name);
      throw Error(place_text(document_.file, line, pointer),
                  fmt::format("duplicate key \"{}\"; the first is on line {}", shortened(name),
                              first->second));
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t taken, const std::string& last_read,
                   const Json::exception& trouble) {
    // The lexer counts the end as one character more.
    if (taken > text_.size()) {
      fail_at(document_.file, text_, text_.size(), plain_cause(trouble.what(), last_read));
    }
    std::size_t at = taken == 0 ? 0 : taken - 1;
    constexpr int kNumberOverflow = 406;  // nlohmann's out_of_range.406
    if (trouble.id == kNumberOverflow) {
      const std::size_t start = token_start(text_, at);
      fail_at(document_.file, text_, start,
              fmt::format("number {} is too large",
                          shortened(text_.substr(start, at - start + 1))));
    }
    const std::string cause = plain_cause(trouble.what(), last_read);
    if (cause.starts_with("invalid literal")) fail_at_word(at);
    if (cause.starts_with("unexpected")) at = token_start(text_, at);
    fail_at(document_.file, text_, at, cause);
  }

 private:
  struct Level {
    Json value;
    std::string pointer;
    std::string key;                            // of the member that comes next
    std::unordered_map<std::string, int> keys;  // seen in this object -> line
  };

  // The line of the last character taken. Callbacks come in the order of the text, so the newlines
  // are counted once.
  int current_line() {
    const char* const last = next_ == text_.data() ? next_ : next_ - 1;
    if (last > counted_) {
      line_ += static_cast<int>(std::count(counted_, last, '\n'));
      counted_ = last;
    }
    return line_;
  }

  [[noreturn]] void fail_here(std::string_view what) {
    throw Error(place_text(document_.file, current_line(), ""), what);
  }

  // The lexer stops at the first wrong letter; a person sees the word.
  [[noreturn]] void fail_at_word(std::size_t at) {
    if (!is_word(text_[at]) && at > 0 && is_word(text_[at - 1])) --at;
    const std::size_t start = token_start(text_, at);
    std::size_t end = start;
    while (end < text_.size() && is_word(text_[end])) ++end;
    const std::string_view word = text_.substr(start, end - start);
    fail_at(document_.file, text_, start,
            word.empty() ? std::string("unexpected character; text stands in double quotes")
                         : fmt::format("unknown word {}; text stands in double quotes",
                                       shortened(word)));
  }

  // The pointer of the value that begins here, with its line noted.
  std::string begin_value() {
    std::string pointer;
    if (!levels_.empty()) {
      const Level& level = levels_.back();
      pointer = level.pointer + "/";
      pointer += level.value.is_array() ? std::to_string(level.value.size())
                                        : escaped_key(level.key);
    }
    pointer_bytes_ += pointer.size();
    if (pointer_bytes_ > kPointerBytesMax) fail_here("keys are too long for this many values");
    document_.lines.emplace(pointer, current_line());
    return pointer;
  }

  bool put(Json&& value) {
    begin_value();
    attach(std::move(value));
    return true;
  }

  bool open(Json&& empty) {
    if (levels_.size() >= static_cast<std::size_t>(kJsonDepthMax)) {
      fail_here(fmt::format("nested deeper than {} levels", kJsonDepthMax));
    }
    std::string pointer = begin_value();
    levels_.push_back({std::move(empty), std::move(pointer), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    attach(std::move(value));
    return true;
  }

  void attach(Json&& value) {
    if (levels_.empty()) {
      document_.root = std::move(value);
      return;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      // At the back of ordered_map's vector: its own emplace would search all keys again.
      level.value.get_ref<Json::object_t&>().emplace_back(std::move(level.key), std::move(value));
    }
  }

  std::string_view text_;
  Document& document_;
  const char* const& next_;
  const char* counted_ = text_.data();
  int line_ = 1;
  std::vector<Level> levels_;
  std::size_t pointer_bytes_ = 0;
};

}  // namespace

Document parse_json(std::string_view text, std::string_view file) {
  if (text.size() > kJsonBytesMax) {
    throw Error(file, fmt::format("JSON of more than {} MiB", kJsonBytesMax >> 20));
  }
  // nlohmann takes a NUL for the end and would not see what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_at(file, text, nul, "a NUL character is not JSON");
  }
  Document document{std::string(file), Json(), {}};
  const char* next = text.data();
  Builder builder(text, document, next);
  const bool parsed = Json::sax_parse(CharReader(text.data(), &next),
                                      CharReader(text.data() + text.size(), &next), &builder,
                                      nlohmann::detail::input_format_t::json, true, true);
  STEPCAST_CHECK(parsed, "the builder throws and never declines");
  return document;
}

}  // namespace stepcast
