// Dropout: which elements of the model a step drops. The same ones whoever computes them, on the
// host or on a device, on however many ranks, once or again.
//
// An element's fate is one word of Philox 4x32-10, a counter-based random generator (Salmon,
// Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the same counter
// and key give the same four words whoever asks. The key is of the run's seed, of the dropout and
// of its layer; the counter of the step and of the element's place in the global batch:
//   * of tokens  row = sequence positions + position,              column of the hidden state
//   * of scores  row = (document heads + head) positions + query,  column: the key's position
// with sequences, documents (of which a sequence may be packed; else it is one), heads and columns
// numbered over all ranks. Four columns side by side share the
// four words of a counter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "execute/context_share.h"
#include "execute/host_device.h"

namespace stepcast {

struct PhiloxWords {
  std::uint32_t words[4];
};

STEPCAST_HD PhiloxWords philox(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  constexpr int kRounds = 10;
  STEPCAST_UNROLL for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter.words[0];
    const std::uint64_t product1 = kMultiplier1 * counter.words[2];
    const auto high0 = static_cast<std::uint32_t>(product0 >> 32);
    const auto high1 = static_cast<std::uint32_t>(product1 >> 32);
    counter = {{high1 ^ counter.words[1] ^ key0, static_cast<std::uint32_t>(product1),
                high0 ^ counter.words[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// One dropout in one step.
struct DropoutMask {
  std::uint32_t key0 = 0, key1 = 0;
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  // words below it are kept
  float scale = 1;              // of what is kept: 1 / (1 - rate)

  // Of the columns 4 quad .. 4 quad + 3 of a row.
  STEPCAST_HD PhiloxWords words(std::int64_t row, std::int64_t quad) const {
    const auto place = static_cast<std::uint64_t>(row);
    return philox({{static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(place),
                    static_cast<std::uint32_t>(place >> 32), step}},
                  key0, key1);
  }
  STEPCAST_HD bool keeps(std::uint32_t word) const { return word < threshold; }
  STEPCAST_HD bool keeps(std::int64_t row, std::int64_t column) const {
    return keeps(words(row, column / 4).words[column % 4]);
  }
  // What an element is multiplied by.
  STEPCAST_HD float factor(std::uint32_t word) const { return keeps(word) ? scale : 0.0f; }
};

// One dropout in every step. The step's number stands in memory, where a device finds it when it
// comes to it: a captured graph is launched again and again.
struct DropoutRule {
  std::uint64_t key = 0;
  std::uint32_t threshold = 0;
  float scale = 1;
  const std::uint32_t* step = nullptr;

  STEPCAST_HD DropoutMask now() const {
    return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32), *step,
            threshold, scale};
  }
};

// A word is one of 2^32, of which (1 - rate) 2^32 are kept.
inline DropoutRule dropout_rule(double rate, std::uint64_t key, const std::uint32_t* step) {
  DropoutRule rule;
  rule.key = key;
  rule.threshold =
      static_cast<std::uint32_t>(std::min(std::round((1 - rate) * 0x1p32), 0x1p32 - 1));
  rule.scale = static_cast<float>(1 / (1 - rate));
  rule.step = step;
  return rule;
}

// Which rows of the model the rows of a rank's tensor are (see above). Of tokens, row i is that of
// token first_token + i of the micro-batch's on its context rank; of scores, its rows are
// (document, head, query).
struct DropoutRows {
  std::int64_t first_sequence = 0;  // of the micro-batch, in the global batch
  std::int64_t sequences = 1;       // of the micro-batch
  std::int64_t positions = 1;       // of a sequence; of scores: of a document
  bool scores = false;
  std::int64_t first_token = 0;
  ContextShare context = {};   // of tokens
  std::int64_t documents = 1;  // of a sequence. The micro-batch's are numbered sequence first
  std::int64_t first_head = 0, heads = 1, model_heads = 1;  // of this rank, of all

  STEPCAST_HD std::int64_t of(std::int64_t i) const {
    if (!scores) {
      const std::int64_t token = first_token + i;
      const std::int64_t position = context.position(token / sequences);
      return (first_sequence + token % sequences) * positions + position;
    }
    const std::int64_t local = i / positions / heads;
    const std::int64_t document =
        (first_sequence + local % sequences) * documents + local / sequences;
    return (document * model_heads + first_head + i / positions % heads) * positions +
           i % positions;
  }
};

}  // namespace stepcast
