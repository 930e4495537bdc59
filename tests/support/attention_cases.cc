// Attention. bf16: O is a mean of values, P rounded to 2^-8 before it is multiplied and O after, so
// errors stay near 2^-8 of the values' size; gradients are sums of s terms of which each is rounded
// once or twice.
#include <fmt/format.h>

#include <cmath>

#include "tests/support/kernel_cases.h"

namespace stepcast::cuda {

namespace {

struct Case {
  std::int64_t positions, sequences, heads, kv_heads, dim;
  bool causal;
  Dtype dtype = Dtype::kBf16;
  bool split = false;  // queries and keys from a tensor of their own
  bool drops = false;
  bool separate = false;  // three tensors
};

void check(TwoSidedOp& on, const Case& c) {
  const bool bf16 = c.dtype == Dtype::kBf16;
  const std::int64_t rows = c.positions * c.sequences;
  const std::int64_t width = (c.heads + 2 * c.kv_heads) * c.dim;
  on.place.batch.micro_batch = c.sequences;
  on.place.batch.sequence_length = c.positions;
  TwoFold qkv = on.random({rows, width}, c.dtype);
  TwoFold qk = on.random({rows, (c.heads + c.kv_heads) * c.dim}, c.dtype);
  TwoFold o = on.empty({rows, c.heads * c.dim}, c.dtype);
  TwoFold lse = on.empty({c.sequences, c.heads, c.positions}, Dtype::kFp32);
  Attention op{Pass::kForward, c.sequences, c.heads,  c.kv_heads, c.positions,
               c.positions,    c.dim,       c.causal, c.drops,    c.dtype};
  TwoFold q = on.random({rows, c.heads * c.dim}, c.dtype),
          k = on.random({rows, c.kv_heads * c.dim}, c.dtype),
          v = on.random({rows, c.kv_heads * c.dim}, c.dtype);
  std::vector<TwoFold*> reads = {&qkv};
  if (c.split) reads.insert(reads.begin(), &qk);
  if (c.separate) reads = {&q, &k, &v};
  on.run(op, reads, {&o, &lse});
  on.expect_close(lse, 1e-5, "lse");
  on.expect_close(o, bf16 ? 1e-2 : 1e-5, "o");
  on.expect_close_on_the_whole(o, bf16 ? 3e-3 : 1e-6, "o");
  const std::vector<std::uint64_t> once = o.stored;
  on.run(op, reads, {&o, &lse}, WarpOrder::kDown);  // the order of warps makes no difference
  on.expect(o.stored == once, "forward gives other bits the second time");

  for (std::size_t i = 0; i < o.size(); ++i) o.exact[i] = o.value(i);
  for (std::size_t i = 0; i < lse.size(); ++i) lse.exact[i] = lse.value(i);
  TwoFold d_o = on.random({rows, c.heads * c.dim}, c.dtype),
          d_qkv = on.empty({rows, width}, c.dtype);
  TwoFold d_q = q, d_k = k, d_v = v;
  op.pass = Pass::kBackward;
  reads.insert(reads.end(), {&o, &lse, &d_o});
  std::vector<TwoFold*> writes = {&d_qkv};
  if (c.separate) writes = {&d_q, &d_k, &d_v};
  on.run(op, reads, writes);
  std::vector<std::vector<std::uint64_t>> gradients;
  for (const TwoFold* one : writes) {
    on.expect_close(*one, bf16 ? 2e-2 : 2e-5, "d_qkv");
    on.expect_close_on_the_whole(*one, bf16 ? 4e-3 : 1e-6, "d_qkv");
    gradients.push_back(one->stored);
  }
  on.run(op, reads, writes, WarpOrder::kDown);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    on.expect(writes[i]->stored == gradients[i], "backward gives other bits the second time");
  }
}

// Columns begin .. end - 1 within three halves of a unit of bf16.
void expect_relative(TwoSidedOp& on, const TwoFold& fold, std::size_t begin, std::size_t end,
                     std::int64_t positions) {
  const auto width = static_cast<std::size_t>(fold.tensor.shape.sizes[1]);
  for (std::size_t i = 0; i < fold.size(); ++i) {
    if (i % width < begin || i % width >= end) continue;
    if (std::abs(fold.value(i) - fold.exact[i]) <= fold.exact[i] * 3 / 512 + 1e-7) continue;
    return on.expect(false, fmt::format("{} positions, element {}: {} instead of {}", positions, i,
                                        fold.value(i), fold.exact[i]));
  }
}

// Queries and keys of zeros see all keys alike: p = 1 / seen, lse = ln(seen). With values and
// gradients that are 1 in the column of their row's number (mod 64) and else 0, an element of o
// counts the keys of that number, one of dV adds up 1 / seen over the queries of that number: a
// pair left out or taken twice changes it by more than its rounding, two bf16 and a few fp32.
void flash_meets_every_visible_pair_once(TwoSidedOp& on) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t positions : {1, 63, 65, 128, 193}) {
      on.place.batch.micro_batch = 1;
      on.place.batch.sequence_length = positions;
      TwoFold qkv = on.random({positions, 3 * 64}, Dtype::kBf16),
              o = on.empty({positions, 64}, Dtype::kBf16);
      TwoFold d_o = on.random({positions, 64}, Dtype::kBf16),
              d_qkv = on.empty({positions, 192}, Dtype::kBf16);
      TwoFold lse = on.empty({1, 1, positions}, Dtype::kFp32);
      for (std::size_t i = 0; i < d_o.size(); ++i) on.set(d_o, i, i % 64 == i / 64 % 64 ? 1 : 0);
      for (std::size_t i = 0; i < qkv.size(); ++i) {
        on.set(qkv, i, i % 192 == 128 + i / 192 % 64 ? 1 : 0);
      }
      Attention op{Pass::kForward, 1, 1, 1, positions, positions, 64, causal};
      on.run(op, {&qkv}, {&o, &lse});
      for (std::size_t i = 0; i < lse.size(); ++i) {
        const double seen = causal ? static_cast<double>(i + 1) : static_cast<double>(positions);
        on.expect(std::abs(lse.value(i) - std::log(seen)) < 2e-6, "lse is not ln(seen)");
      }
      expect_relative(on, o, 0, 64, positions);
      for (std::size_t i = 0; i < lse.size(); ++i) lse.exact[i] = lse.value(i);
      op.pass = Pass::kBackward;
      on.run(op, {&qkv, &o, &lse, &d_o}, {&d_qkv});
      expect_relative(on, d_qkv, 128, 192, positions);
    }
  }
}

void flash_over_tiles_that_the_sequence_does_not_fill(TwoSidedOp& on) {
  check(on, {200, 1, 1, 1, 64, true});
  check(on, {33, 2, 2, 1, 64, true});
  check(on, {150, 1, 1, 1, 64, false});
}

void flash_over_whole_tiles_and_grouped_queries(TwoSidedOp& on) {
  check(on, {128, 1, 2, 1, 128, true});
  check(on, {64, 2, 4, 2, 64, false});
}

void flash_of_head_dimension_128(TwoSidedOp& on) { check(on, {140, 1, 1, 1, 128, false}); }

void flash_of_normalised_queries_and_keys(TwoSidedOp& on) {
  check(on, {40, 2, 2, 1, 64, true, Dtype::kBf16, true});
}

void separate_queries_keys_and_values(TwoSidedOp& on) {
  check(on, {70, 2, 4, 2, 64, true, Dtype::kBf16, false, false, true});
  check(on, {40, 1, 2, 1, 128, false, Dtype::kBf16, false, false, true});
  check(on, {9, 2, 4, 2, 80, true, Dtype::kFp32, false, false, true});
}

void plain_for_the_rest(TwoSidedOp& on) {
  check(on, {20, 2, 2, 1, 16, true, Dtype::kFp32});
  check(on, {9, 2, 2, 2, 80, false, Dtype::kFp32, true});
  check(on, {12, 1, 2, 1, 32, true, Dtype::kBf16});
}

// A fifth of the probabilities, of the second of two tensor ranks; tiles that are full and not.
void drop_probabilities(TwoSidedOp& on) {
  on.drop(0.2);
  on.place.tensor_ranks = 2;
  on.place.tensor_rank = 1;
  check(on, {70, 1, 2, 1, 64, true, Dtype::kBf16, false, true});
  check(on, {40, 2, 1, 1, 128, false, Dtype::kBf16, true, true});
  check(on, {9, 2, 4, 2, 80, true, Dtype::kFp32, true, true});
}

}  // namespace

const std::vector<KernelCase>& attention_cases() {
  static const std::vector<KernelCase> cases = {
      {"FlashMeetsEveryVisiblePairOnce", flash_meets_every_visible_pair_once},
      {"FlashOverTilesThatTheSequenceDoesNotFill",
       flash_over_tiles_that_the_sequence_does_not_fill},
      {"FlashOverWholeTilesAndGroupedQueries", flash_over_whole_tiles_and_grouped_queries},
      {"FlashOfHeadDimension128", flash_of_head_dimension_128},
      {"FlashOfNormalisedQueriesAndKeys", flash_of_normalised_queries_and_keys},
      {"SeparateQueriesKeysAndValues", separate_queries_keys_and_values},
      {"PlainForTheRest", plain_for_the_rest},
      {"DropProbabilities", drop_probabilities},
  };
  return cases;
}

}  // namespace stepcast::cuda
