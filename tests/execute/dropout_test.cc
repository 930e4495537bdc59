// The generator against its published answers, the masks made of it, and those of whole trainings.
#include "execute/dropout.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/cpu_backend.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

std::vector<std::uint32_t> philox_words(PhiloxWords counter, std::uint32_t key0,
                                        std::uint32_t key1) {
  const PhiloxWords out = philox(counter, key0, key1);
  return {out.words, out.words + 4};
}

// Random123's kat_vectors, philox4x32 with 10 rounds (Salmon et al. 2011).
TEST(Philox, GivesThePublishedWords) {
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(philox_words({{0, 0, 0, 0}}, 0, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox_words({{ones, ones, ones, ones}}, ones, ones),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox_words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

constexpr std::int64_t kMaskRows = 500, kMaskColumns = 201;

std::vector<bool> mask_of(double rate, std::uint64_t key, std::uint32_t step) {
  const DropoutMask drop = dropout_rule(rate, key, &step).now();
  std::vector<bool> kept;
  for (std::int64_t row = 0; row < kMaskRows; ++row) {
    for (std::int64_t column = 0; column < kMaskColumns; ++column) {
      kept.push_back(drop.keeps((row << 31) + row, column));
    }
  }
  return kept;
}

// Of n trials of probability p, n p give or take five times sqrt(n p (1 - p)).
void expect_share(double found, double trials, double probability, const char* what) {
  EXPECT_NEAR(found, trials * probability, 5 * std::sqrt(trials * probability * (1 - probability)))
      << what;
}

template <class Mask>
double count_kept(const Mask& mask) {
  double sum = 0;
  for (const auto one : mask) sum += one ? 1 : 0;
  return sum;
}

// Masks that have nothing to do with each other agree where both keep or both drop.
template <class Mask>
void expect_independent(const Mask& a, const Mask& b, double rate, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  double same = 0;
  for (std::size_t i = 0; i < a.size(); ++i) same += (a[i] != 0) == (b[i] != 0) ? 1 : 0;
  expect_share(same, static_cast<double>(a.size()), 1 - 2 * rate * (1 - rate), what);
}

TEST(DropoutMask, KeepsItsShareAndScalesItToTheWhole) {
  for (const double rate : {0.01, 0.1, 0.5, 0.9}) {
    const double kept = count_kept(mask_of(rate, 7, 0));
    expect_share(kept, kMaskRows * kMaskColumns, 1 - rate, "kept");
    const std::uint32_t step = 0;
    EXPECT_FLOAT_EQ(dropout_rule(rate, 7, &step).now().scale * static_cast<float>(1 - rate), 1);
  }
}

TEST(DropoutMask, DiffersByStepAndByBothHalvesOfTheKey) {
  const auto base = mask_of(0.3, 1, 1);
  EXPECT_EQ(base, mask_of(0.3, 1, 1));
  expect_independent(base, mask_of(0.3, 1, 2), 0.3, "step");
  expect_independent(base, mask_of(0.3, 2, 1), 0.3, "lower half");
  expect_independent(base, mask_of(0.3, (std::uint64_t{1} << 32) + 1, 1), 0.3, "upper half");
}

// Two ranks of two heads; a micro-batch of two of the sequences 4 .. 7 of five positions.
TEST(DropoutRows, CountAlongTheModelAndTheGlobalBatch) {
  DropoutRows tokens;
  tokens.first_sequence = 4;
  tokens.positions = 5;
  tokens.sequences = 2;
  tokens.first_token = 6;  // position 3 of the first of the two
  EXPECT_EQ(tokens.of(0), 4 * 5 + 3);
  EXPECT_EQ(tokens.of(1), 5 * 5 + 3);
  EXPECT_EQ(tokens.of(2), 4 * 5 + 4);
  DropoutRows scores;
  scores.first_sequence = 4;
  scores.positions = 5;
  scores.scores = true;
  scores.heads = scores.first_head = 2;
  scores.model_heads = 4;
  scores.sequences = 2;
  EXPECT_EQ(scores.of(0), (4 * 4 + 2) * 5);
  EXPECT_EQ(scores.of(7), (4 * 4 + 3) * 5 + 2);
  EXPECT_EQ(scores.of(10), (5 * 4 + 2) * 5);
  scores.documents = 3;  // of five positions: row 20 is of the second document of sequence 4
  EXPECT_EQ(scores.of(10), (5 * 3 * 4 + 2) * 5);
  EXPECT_EQ(scores.of(20), ((4 * 3 + 1) * 4 + 2) * 5);
}

// The masks that a training on one rank stores: by dropout of the model, then by step.
using Masks = std::map<std::uint64_t, std::map<std::uint32_t, std::vector<std::uint8_t>>>;

class Watching final : public Backend {
 public:
  explicit Watching(Masks& masks) : masks_(masks) {}
  void compute(const Work& work) override {
    cpu_->compute(work);
    if (!drops(work.op) || work.writes.size() < 2 || work.dropout.first_sequence > 0) return;
    if (work.writes[1].tensor->dtype != Dtype::kUint8) return;
    const auto* first = static_cast<const std::uint8_t*>(work.writes[1].data);
    const DropoutRule& rule = work.dropout.rule;
    std::vector<std::uint8_t> now(first, first + work.writes[1].tensor->shape.elements());
    std::vector<std::uint8_t>& known = masks_[rule.key][*rule.step];
    if (!known.empty()) {
      EXPECT_EQ(known, now);  // made again
    }
    known = std::move(now);
  }
  double squared_norm(const float* values, std::int64_t elements) override {
    return cpu_->squared_norm(values, elements);
  }
  void update(const StateRange& range, const AdamW& options, std::int64_t step,
              double scale) override {
    cpu_->update(range, options, step, scale);
  }

 private:
  Masks& masks_;
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
};

// Embedding, and of two layers the probabilities and both branches: seven dropouts, each keeping
// its share in each step, no two of them alike. Forward runs twice and makes the same masks.
TEST(Dropout, OfATrainingIsOfTheSameShareEverywhereAndNowhereTheSame) {
  constexpr double kRate = 0.2;
  Plan plan = executable_plan(16, 2);
  plan.dropout = true;
  plan.dropout_rate = kRate;
  plan.fused_attention = false;
  plan.recompute = Recompute::kFull;
  const Job job = lowered(gpt_model(2, 64, 4, 61, 16), plan);
  const auto corpus = make_language(job.batch.vocabulary, 7);
  Masks masks;
  run_threads(job, train_options(3), *corpus, [&] { return std::make_unique<Watching>(masks); });
  ASSERT_EQ(masks.size(), 7u);
  std::vector<std::vector<std::uint8_t>> all;
  for (const auto& [key, steps] : masks) {
    EXPECT_EQ(steps.size(), 3u);
    for (const auto& [step, kept] : steps) {
      expect_share(count_kept(kept), static_cast<double>(kept.size()), 1 - kRate, "kept");
      for (const auto& other : all) {
        if (other.size() == kept.size()) expect_independent(other, kept, kRate, "two masks");
      }
      all.push_back(kept);
    }
  }
}

// What is left of the probabilities is scaled up: on the whole as much comes out as without.
TEST(Dropout, LeavesTheMeanOfWhatItDrops) {
  const std::uint32_t step = 5;
  const DropoutMask drop = dropout_rule(0.25, 3, &step).now();
  double sum = 0;
  constexpr int kElements = 40'000;
  for (int i = 0; i < kElements / 4; ++i) {
    for (const std::uint32_t word : drop.words(i, 0).words) sum += drop.factor(word);
  }
  // Variance of a factor: rate / (1 - rate).
  EXPECT_NEAR(sum / kElements, 1, 5 * std::sqrt(0.25 / 0.75 / kElements));
}

}  // namespace
}  // namespace stepcast
