// Philox 4x32-10: a counter-based random generator (Salmon, Moraes, Dror & Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). The same counter and key give the same four words
// whoever asks, so a dropout mask does not depend on how the work is laid out over threads,
// blocks or ranks: an element's counter is its place in the whole tensor of the model.
#pragma once

#include "execute/cuda/lanes.h"

namespace stepcast::cuda {

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

// Which elements dropout keeps: each with probability 1 - rate, by seed, step, the place in the
// model (`layer`: any number that tells one dropout from the other) and the element's place.
struct DropoutRule {
  std::uint64_t seed = 0;
  std::uint32_t step = 0, layer = 0;
  double rate = 0;

  // Words below it are kept. A rate of 0 keeps all but one in 2^32, which kept() sees to.
  STEPCAST_HD std::uint32_t threshold() const {
    return static_cast<std::uint32_t>((1 - rate) * 4294967295.0);
  }
  STEPCAST_HD float scale() const { return static_cast<float>(1 / (1 - rate)); }

  // The four words of elements 4 q .. 4 q + 3 of the whole tensor.
  STEPCAST_HD PhiloxWords words(std::int64_t quad) const {
    const auto place = static_cast<std::uint64_t>(quad);
    const PhiloxWords counter = {
        {static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32), layer, step}};
    return philox(counter, static_cast<std::uint32_t>(seed),
                  static_cast<std::uint32_t>(seed >> 32));
  }
  STEPCAST_HD bool kept(std::uint32_t word) const { return rate == 0 || word < threshold(); }
  STEPCAST_HD bool keeps(std::int64_t element) const {
    return kept(words(element / 4).words[element % 4]);
  }
};

}  // namespace stepcast::cuda
