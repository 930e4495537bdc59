// A Markov chain of order two whose table is a hash: nothing is stored, any sequence can be made by
// itself. O(length).
#include "execute/data.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

class Language final : public Corpus {
 public:
  Language(std::int64_t vocabulary, std::uint64_t seed)
      : symbols_(static_cast<std::uint64_t>(std::min<std::int64_t>(vocabulary, 256))),
        seed_(seed) {}

  void read(std::int64_t sequence, std::int64_t length, std::int64_t* out) const override {
    const std::uint64_t start = hash(seed_, 1, static_cast<std::uint64_t>(sequence));
    std::uint64_t before = hash(start, 2, 0) % symbols_, last = hash(start, 3, 0) % symbols_;
    for (std::int64_t i = 0; i < length; ++i) {
      const double draw = unit(hash(start, 4, static_cast<std::uint64_t>(i)));
      std::uint64_t choice = hash(seed_, 5, before * symbols_ + last) % 4;
      if (draw >= kPreferred) {
        const double rest = (draw - kPreferred) / (1 - kPreferred);
        choice += 1 + std::min<std::uint64_t>(static_cast<std::uint64_t>(rest * 3), 2);
      }
      const std::uint64_t next = hash(seed_, 6, last * 4 + choice % 4) % symbols_;
      before = std::exchange(last, next);
      out[i] = static_cast<std::int64_t>(next);
    }
  }

 private:
  static constexpr double kPreferred = 0.7;
  std::uint64_t symbols_;
  std::uint64_t seed_;
};

class Text final : public Corpus {
 public:
  Text(std::string text, std::int64_t stride) : text_(std::move(text)), stride_(stride) {}

  void read(std::int64_t sequence, std::int64_t length, std::int64_t* out) const override {
    const auto size = static_cast<std::int64_t>(text_.size());
    std::int64_t at = sequence % size * (stride_ % size) % size;
    for (std::int64_t i = 0; i < length; ++i) {
      out[i] = static_cast<unsigned char>(text_[static_cast<std::size_t>(at)]);
      at = at + 1 == size ? 0 : at + 1;
    }
  }

 private:
  std::string text_;
  std::int64_t stride_;
};

}  // namespace

std::unique_ptr<Corpus> make_language(std::int64_t vocabulary, std::uint64_t seed) {
  STEPCAST_CHECK(vocabulary > 0, "a language has symbols");
  return std::make_unique<Language>(vocabulary, seed);
}

std::unique_ptr<Corpus> make_text(std::string text, std::string_view name, std::int64_t vocabulary,
                                  std::int64_t stride) {
  if (text.empty()) throw Error(name, "is empty; name a file with text to train on");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < vocabulary) continue;
    throw Error(name, fmt::format("holds the byte {}, but the model's vocabulary is {}; use a "
                                  "model with a vocabulary of at least 256", byte, vocabulary));
  }
  return std::make_unique<Text>(std::move(text), stride);
}

}  // namespace stepcast
