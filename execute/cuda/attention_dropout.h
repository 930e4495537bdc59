// Dropout inside attention's kernels: the factors of probabilities (execute/dropout.h), made where
// they are needed, forward and backward alike, and stored nowhere.
//
// A lane holds two columns of two rows of a product's C, and four columns side by side share a call
// of the generator. So lanes share the calls of a tile out, one call a lane for the four elements
// that it holds, and hand each other the words: no call is made twice.
#pragma once

#include "execute/cuda/mma.h"
#include "execute/dropout.h"

STEPCAST_ELEMENT_COUNTS_BEGIN

namespace stepcast::cuda {

struct AttentionDropout {
  DropoutRule rule;
  DropoutRows rows;
};

// C (16 kTiles queries, 8 kColumns keys) times its factors: queries from the model's row first_row
// on, keys from first_key on, a multiple of four. Of two neighbouring lanes, which hold the columns
// of one call, the even one makes that of its first row, the odd one that of its second.
template <int kTiles, int kColumns>
STEPCAST_HD void drop_keys(const Thread& t, FragmentC (&c)[kTiles][kColumns],
                           const DropoutMask& drop, std::int64_t first_row, int first_key) {
  const int pair = t.lane() % 4 / 2;
  const bool odd = t.lane() % 2 != 0;
  const int row = t.lane() / 4 + (odd ? 8 : 0);
  STEPCAST_UNROLL for (int i = 0; i < kTiles; ++i) {
    STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
      const PhiloxWords mine =
          drop.words(first_row + 16 * i + row, (first_key + 8 * n + 4 * pair) / 4);
      const std::uint32_t low = shuffle_xor(t, odd ? mine.words[0] : mine.words[2], 1);
      const std::uint32_t high = shuffle_xor(t, odd ? mine.words[1] : mine.words[3], 1);
      float* elements = c[i][n].elements;
      elements[0] *= drop.factor(odd ? low : mine.words[0]);
      elements[1] *= drop.factor(odd ? high : mine.words[1]);
      elements[2] *= drop.factor(odd ? mine.words[2] : low);
      elements[3] *= drop.factor(odd ? mine.words[3] : high);
    }
  }
}

// Of a block of four by four words, a row with each of four lanes: two lanes whose numbers differ
// by 4 kStep exchange what lies off its diagonal, in columns that differ by kStep.
template <int kStep>
STEPCAST_HD void exchange_words(const Thread& t, PhiloxWords& row, bool lower_lane) {
  STEPCAST_UNROLL for (int i = 0; i < 4; ++i) {
    if ((i & kStep) != 0) continue;
    std::uint32_t& left = row.words[i];
    std::uint32_t& right = row.words[i + kStep];
    const std::uint32_t other = shuffle_xor(t, lower_lane ? left : right, 4 * kStep);
    left = lower_lane ? other : left;
    right = lower_lane ? right : other;
  }
}

// C (16 keys, 8 kColumns queries), a product's transpose, times its factors. The four lanes that
// hold the keys of one call each make that of one of their four elements: w that of element w. Then
// a transpose of four by four words in two exchanges, so that each holds its own of all four.
template <int kColumns>
STEPCAST_HD void drop_queries(const Thread& t, FragmentC (&c)[kColumns], const DropoutMask& drop,
                              std::int64_t first_row, int first_key) {
  const int key = t.lane() / 4, w = key % 4;
  const int query = 2 * (t.lane() % 4) + w % 2;
  const int quad = (first_key + 8 * (w / 2) + key - w) / 4;
  STEPCAST_UNROLL for (int n = 0; n < kColumns; ++n) {
    PhiloxWords all = drop.words(first_row + 8 * n + query, quad);
    exchange_words<1>(t, all, w % 2 != 0);
    exchange_words<2>(t, all, w / 2 != 0);
    STEPCAST_UNROLL for (int e = 0; e < 4; ++e) { c[n].elements[e] *= drop.factor(all.words[e]); }
  }
}

}  // namespace stepcast::cuda

STEPCAST_ELEMENT_COUNTS_END
