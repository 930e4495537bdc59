// Data: the tokens that a run trains on.
//
// Step n of a run takes the sequences n G .. n G + G - 1, G the global batch; which rank works on
// which of them is the plan's affair, so all plans see the same batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stepcast {

class Corpus {
 public:
  virtual ~Corpus() = default;
  // `length` tokens of one sequence from its beginning; may be called from many threads.
  virtual void read(std::int64_t sequence, std::int64_t length, std::int64_t* out) const = 0;
};

// A language made up from a seed: of the last two symbols, each pair prefers one of four successors
// of the last one, seven times in ten. A model that learns the last symbol's successors comes from
// log(symbols) down to log(4), one that learns the pairs to 0.94 nats. It has min(vocabulary, 256)
// symbols.
std::unique_ptr<Corpus> make_language(std::int64_t vocabulary, std::uint64_t seed);

// The bytes of a text, sequence after sequence of `stride` tokens, from its beginning again when it
// ends. Throws Error (place: `name`) for an empty text or a byte beyond the vocabulary.
std::unique_ptr<Corpus> make_text(std::string text, std::string_view name, std::int64_t vocabulary,
                                  std::int64_t stride);

}  // namespace stepcast
