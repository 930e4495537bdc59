// The generator against its published answers, and dropout made of it.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/elementwise_kernels.h"
#include "tests/support/emulated_block.h"

namespace stepcast::cuda {
namespace {

std::vector<std::uint32_t> words(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  const PhiloxWords out = philox(counter, key0, key1);
  return {out.words, out.words + 4};
}

// Random123's kat_vectors, philox4x32 with 10 rounds (Salmon et al. 2011).
TEST(Philox, GivesThePublishedWords) {
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(words({{ones, ones, ones, ones}}, ones, ones),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<std::uint8_t> mask(const DropoutRule& rule, std::int64_t first, std::int64_t size,
                               std::vector<float> x = {}) {
  x.resize(static_cast<std::size_t>(size), 1.0f);
  std::vector<std::uint8_t> out(x.size(), 9);
  DropoutForward kernel;
  kernel.rule = rule;
  kernel.first = first;
  kernel.size = size;
  kernel.x = {x.data(), Storage::kFp32};
  kernel.y = {x.data(), Storage::kFp32};
  kernel.mask = out.data();
  emulate(kernel);
  const float scale = rule.scale();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], out[i] != 0 ? scale : 0.0f);
  return out;
}

// Of n elements n (1 - rate) are kept, give or take five times sqrt(n rate (1 - rate)).
TEST(Dropout, KeepsItsShare) {
  constexpr std::int64_t kSize = 100000;
  for (const double rate : {0.0, 0.1, 0.5, 0.9}) {
    std::int64_t kept = 0;
    for (const std::uint8_t one : mask({7, 0, 0, rate}, 0, kSize)) kept += one;
    const double expected = kSize * (1 - rate), deviation = std::sqrt(expected * rate);
    EXPECT_NEAR(static_cast<double>(kept), expected, 5 * deviation) << rate;
  }
}

// A rank that holds elements 1000 .. 1999 of a tensor of 4000 drops what one that holds all drops.
TEST(Dropout, DoesNotDependOnWhoHoldsTheElements) {
  const DropoutRule rule{0x1234567890abcdef, 3, 5, 0.3};
  const auto all = mask(rule, 0, 4000);
  const auto part = mask(rule, 1000, 997);  // not a multiple of eight
  EXPECT_EQ(part, std::vector<std::uint8_t>(all.begin() + 1000, all.begin() + 1997));
  const auto single = [&](std::size_t i) { return rule.keeps(static_cast<std::int64_t>(i)); };
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(all[i] != 0, single(i));
}

// Masks of two seeds, steps or layers agree where both keep or both drop: in 1 - 2 p (1 - p).
TEST(Dropout, DiffersBySeedStepAndLayer) {
  constexpr std::int64_t kSize = 10000;
  const auto base = mask({1, 1, 1, 0.5}, 0, kSize);
  for (const DropoutRule& other :
       {DropoutRule{2, 1, 1, 0.5}, DropoutRule{1, 2, 1, 0.5}, DropoutRule{1, 1, 2, 0.5},
        DropoutRule{(std::uint64_t{1} << 32) + 1, 1, 1, 0.5}}) {
    const auto mine = mask(other, 0, kSize);
    int same = 0;
    for (std::size_t i = 0; i < base.size(); ++i) same += base[i] == mine[i] ? 1 : 0;
    EXPECT_NEAR(same, kSize / 2, 250);  // five times sqrt(10,000 / 4)
  }
}

TEST(Dropout, AddsTheResidualAndGivesTheGradientBack) {
  const DropoutRule rule{11, 0, 0, 0.25};
  std::vector<float> x(48), residual(48), bias(16), y(48), d_x(48);
  for (std::size_t i = 0; i < 48; ++i) {
    x[i] = static_cast<float>(i);
    residual[i] = 100 + static_cast<float>(i);
    if (i < 16) bias[i] = static_cast<float>(i) / 2;
  }
  std::vector<std::uint8_t> kept(48);
  DropoutForward forward{rule, 0, 48, 16, {}, {}, {}, {}, kept.data()};
  forward.x = {x.data(), Storage::kFp32};
  forward.bias = {bias.data(), Storage::kFp32};
  forward.residual = {residual.data(), Storage::kFp32};
  forward.y = {y.data(), Storage::kFp32};
  emulate(forward);
  DropoutBackward backward{
      rule.scale(), 48, {x.data(), Storage::kFp32}, kept.data(), {d_x.data(), Storage::kFp32}};
  emulate(backward);
  for (std::size_t i = 0; i < 48; ++i) {
    const float factor = rule.keeps(static_cast<std::int64_t>(i)) ? rule.scale() : 0.0f;
    EXPECT_FLOAT_EQ(y[i], (x[i] + bias[i % 16]) * factor + residual[i]);
    EXPECT_FLOAT_EQ(d_x[i], x[i] * factor);
  }
}

}  // namespace
}  // namespace stepcast::cuda
