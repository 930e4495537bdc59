// The kernels of a mixture of experts: what they do, by hand and against plain ones, and their
// gradients against central differences.
#include <algorithm>
#include <cmath>
#include <set>

#include "execute/convert.h"
#include "execute/cpu/cpu_backend.h"
#include "tests/support/gradient_check.h"

namespace stepcast {
namespace {

class Experts : public Gradient {
 protected:
  static constexpr std::int64_t kTokens = 6, kExperts = 4, kChosen = 2;

  static Route router(Pass pass, std::int64_t capacity) {
    return {pass, kTokens, kExperts, kChosen, capacity, kReal};
  }
  // Slots of random logits, some dropped where capacity is small.
  Array routed(std::int64_t capacity) {
    Array logits = random({kTokens, kExperts}), weights = empty({kTokens, kChosen});
    Array result = slots({kTokens, kChosen});
    run(router(Pass::kForward, capacity), {&logits}, {&weights, &result});
    return result;
  }
  // The same in float as in double.
  void expect_float_too(const Op& op, const std::vector<Array*>& reads,
                        const std::vector<Array*>& writes) {
    std::vector<std::vector<float>> memory;
    std::vector<Operand> in, out;
    const auto operand = [&](Array* array) {
      if (array->tensor.dtype == Dtype::kInt32) return Operand{array->memory(), &array->tensor};
      memory.emplace_back(array->data.begin(), array->data.end());
      return Operand{memory.back().data(), &array->tensor};
    };
    memory.reserve(reads.size() + writes.size());
    for (Array* array : reads) in.push_back(operand(array));
    for (Array* array : writes) out.push_back(operand(array));
    cpu::Scratch<float> scratch;
    cpu::compute<float>({op, in, out, place_}, scratch);
    run(op, reads, writes);
    for (std::size_t w = 0; w < writes.size(); ++w) {
      if (writes[w]->tensor.dtype == Dtype::kInt32) continue;
      const auto* values = static_cast<const float*>(out[w].data);
      for (std::size_t i = 0; i < writes[w]->data.size(); ++i) {
        EXPECT_NEAR(values[i], writes[w]->data[i], 1e-5) << to_text(op) << " element " << i;
      }
    }
  }
};

// Two of three experts, two slots each. The first token's logits are equal; the third's second
// choice finds expert 1 full, the fourth's choices both.
TEST_F(Experts, TakeTheEarlierTokensOfThoseThatChooseThem) {
  Array logits = empty({4, 3}), weights = empty({4, 2}), places = slots({4, 2});
  logits.data = {1, 1, 0, 0, 2, 1, 5, 1, 0, 0, 0, 0};
  run(Route{Pass::kForward, 4, 3, 2, 2, kReal}, {&logits}, {&weights, &places});
  EXPECT_EQ(places.slots, (std::vector<std::int32_t>{0, 2, 3, 4, 1, -3, -2, -3}));
  const double second = 1 / (1 + std::exp(1.0)), last = 1 / (1 + std::exp(4.0));
  const std::vector<double> expected = {0.5, 0.5, 1 - second, second, 1 - last, last, 0.5, 0.5};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(weights.data[i], expected[i], 1e-12) << i;
  }
}

// With a slot for every token in each expert.
TEST_F(Experts, DropNobodyWhereEachHasRoomForAll) {
  const Array places = routed(kTokens);
  std::set<std::int32_t> distinct(places.slots.begin(), places.slots.end());
  EXPECT_EQ(distinct.size(), places.slots.size());
  EXPECT_GE(*distinct.begin(), 0);
  EXPECT_LT(*distinct.rbegin(), kExperts * kTokens);
}

// NaN must not choose one expert twice, nor none.
TEST_F(Experts, AreChosenOnceEachWhateverTheLogits) {
  Array logits = empty({1, 4}), weights = empty({1, 4}), places = slots({1, 4});
  logits.data = {std::nan(""), 1, std::nan(""), 2};
  run(Route{Pass::kForward, 1, 4, 4, 1, kReal}, {&logits}, {&weights, &places});
  std::vector<std::int32_t> sorted = places.slots;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<std::int32_t>{0, 1, 2, 3}));
}

// What is dropped has no part in the loss, but in the sum that makes the weights one.
TEST_F(Experts, RouterHasTheGradientOfItsWeights) {
  for (const std::int64_t capacity : {kTokens, std::int64_t{2}}) {
    Array logits = random({kTokens, kExperts}), weights = empty({kTokens, kChosen});
    Array places = slots({kTokens, kChosen});
    const auto kept = [&](Array of) {
      for (std::size_t i = 0; i < of.data.size(); ++i) of.data[i] *= places.slots[i] >= 0 ? 1 : 0;
      return of;
    };
    const auto loss = [&] {
      run(router(Pass::kForward, capacity), {&logits}, {&weights, &places});
      return sum(kept(weights));
    };
    loss();
    const auto dropped = std::count_if(places.slots.begin(), places.slots.end(),
                                       [](std::int32_t slot) { return slot < 0; });
    EXPECT_EQ(dropped > 0, capacity < kTokens);
    Array d = kept(weights_of(weights)), d_logits = empty({kTokens, kExperts});
    run(router(Pass::kBackward, capacity), {&d, &weights, &places}, {&d_logits});
    expect_gradient(loss, logits, d_logits);
    expect_float_too(router(Pass::kForward, capacity), {&logits}, {&weights, &places});
    expect_float_too(router(Pass::kBackward, capacity), {&d, &weights, &places}, {&d_logits});
  }
}

// Two ranks of two tokens, slots 3 an expert; this rank has experts 2 and 3. There its 12 slots are
// expert 2's of the first rank's tokens, then of the second's, then expert 3's.
TEST_F(Experts, TakeTheirOwnOfTheSlotsOfAllRanks) {
  Array all = slots({4, 2}), own = slots({4, 2});
  all.slots = {6, 0, 9, 7, 11, 6, -4, 8};
  place_.expert_rank = 1;
  run(OwnSlots{4, 2, 2, 3, 2}, {&all}, {&own});
  EXPECT_EQ(own.slots, (std::vector<std::int32_t>{0, -1, 6, 1, 11, 3, -1, 5}));
  place_.expert_rank = 0;
  run(OwnSlots{4, 2, 2, 3, 2}, {&all}, {&own});
  EXPECT_EQ(own.slots, (std::vector<std::int32_t>{-1, 0, -1, -1, -1, -1, -1, -1}));
}

// Each way's gradient is the other way; two slots a token at most, some of them dropped.
TEST_F(Experts, TokensGoToTheirSlotsAndBack) {
  for (const bool weighted : {false, true}) {
    Array places = routed(2);
    constexpr std::int64_t kSlots = 2 * kExperts, kColumns = 3;
    Array x = random({kTokens, kColumns}), weights = random({kTokens, kChosen});
    Array y = random({kSlots, kColumns}), p = random({kSlots, 1});
    const auto with = [&](std::vector<Array*> list, Array& weight) {
      if (weighted) list.push_back(&weight);
      return list;
    };
    const Permute forth{PermutePart::kPermute, kTokens, kChosen, kSlots, kColumns, kReal, weighted};
    Permute back = forth;
    back.part = PermutePart::kUnpermute;
    const auto there = [&] {
      run(forth, with({&x, &places}, weights), with({&y}, p));
      return sum(y) + (weighted ? sum(p) : 0);
    };
    there();
    for (std::size_t i = 0; i < places.slots.size(); ++i) {
      if (places.slots[i] < 0) continue;
      const auto slot = static_cast<std::size_t>(places.slots[i]), token = i / 2;
      EXPECT_EQ(y.data[slot * 3], x.data[token * 3]);
      if (weighted) {
        EXPECT_EQ(p.data[slot], weights.data[i]);
      }
    }
    const std::int64_t nobody =
        std::count_if(places.slots.begin(), places.slots.end(), [](auto s) { return s < 0; }) +
        kSlots - kTokens * kChosen;
    EXPECT_EQ(std::count(y.data.begin(), y.data.end(), 0.0), nobody * kColumns);
    Array dy = weights_of(y), dp = weights_of(p), dx = random({kTokens, kColumns}), dw = weights;
    run(back, with({&dy, &places}, dp), with({&dx}, dw));
    expect_gradient(there, x, dx);
    if (weighted) expect_gradient(there, weights, dw);

    const auto return_loss = [&] {
      run(back, with({&y, &places}, p), with({&x}, weights));
      return sum(x) + (weighted ? sum(weights) : 0);
    };
    Array d_out = weights_of(x), d_weights = weights_of(weights);
    run(forth, with({&d_out, &places}, d_weights), with({&dy}, dp));
    expect_gradient(return_loss, y, dy);
    if (weighted) expect_gradient(return_loss, p, dp);
    expect_float_too(forth, with({&x, &places}, weights), with({&y}, p));
    expect_float_too(back, with({&y, &places}, p), with({&x}, weights));
  }
}

// Blocks of one row, from 2 ranks of 3 experts: rows 0 1 2 | 3 4 5 become 0 3 | 1 4 | 2 5.
TEST_F(Experts, BlocksOfRanksBecomeBlocksOfExperts) {
  Array x = random({6, 2}), y = empty({6, 2}), again = y;
  const Regroup op{2, 3, 1, 2, kReal}, back{3, 2, 1, 2, kReal};
  run(op, {&x}, {&y});
  const std::vector<std::size_t> from = {0, 3, 1, 4, 2, 5};
  for (std::size_t row = 0; row < from.size(); ++row) {
    EXPECT_EQ(y.data[2 * row], x.data[2 * from[row]]);
    EXPECT_EQ(y.data[2 * row + 1], x.data[2 * from[row] + 1]);
  }
  run(back, {&y}, {&again});
  EXPECT_EQ(again.data, x.data);
  expect_float_too(op, {&x}, {&y});
}

TEST_F(Experts, ActivationsTakeTheWeightOfTheirRow) {
  using enum PointwiseKind;
  struct Kind {
    PointwiseKind forward, backward;
    std::int64_t width;  // of the input, in outputs
  };
  for (const Kind kind : {Kind{kGelu, kGeluBackward, 1}, Kind{kSwiglu, kSwigluBackward, 2},
                          Kind{kGeglu, kGegluBackward, 2},
                          Kind{kSwigluOai, kSwigluOaiBackward, 2}}) {
    Array x = random({6, 4 * kind.width}), p = random({6, 1}), y = empty({6, 4}), plain = y;
    Array dx = x, dp = p;
    Pointwise forward{kind.forward, 6, 4, kReal, kReal}, unweighted = forward;
    forward.weighted = true;
    Pointwise backward{kind.backward, 6, 4 * kind.width, kReal, kReal};
    backward.weighted = true;
    const auto loss = [&] {
      run(forward, {&x, &p}, {&y});
      return sum(y);
    };
    loss();
    run(unweighted, {&x}, {&plain});
    for (std::size_t i = 0; i < y.data.size(); ++i) {
      EXPECT_NEAR(y.data[i], p.data[i / 4] * plain.data[i], 1e-12);
    }
    Array dy = weights_of(y);
    run(backward, {&dy, &x, &p}, {&dx, &dp});
    expect_gradient(loss, x, dx);
    expect_gradient(loss, p, dp);
    expect_float_too(forward, {&x, &p}, {&y});
    expect_float_too(backward, {&dy, &x, &p}, {&dx, &dp});
  }
}

// Three experts, two rows each. The bias's gradient is added to what is there where it is read,
// too.
TEST_F(Experts, BiasesTakeTheWeightOfTheirRow) {
  using enum PointwiseKind;
  Array x = random({6, 4}), bias = weight(random({12})), p = random({6, 1}), y = empty({6, 4});
  Pointwise forward{kAddExpertBias, 6, 4, kReal, kReal};
  forward.experts = 3;
  Pointwise backward = forward;
  backward.kind = kAddExpertBiasBackward;
  const auto loss = [&] {
    run(forward, {&x, &bias, &p}, {&y});
    return sum(y);
  };
  loss();
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    EXPECT_NEAR(y.data[i], x.data[i] + p.data[i / 4] * bias.data[i / 8 * 4 + i % 4], 1e-12);
  }
  Array dy = weights_of(y), d_bias = weight(empty({12})), dp = empty({6, 1});
  run(backward, {&dy, &bias, &p}, {&d_bias, &dp});
  expect_gradient(loss, bias, d_bias);
  expect_gradient(loss, p, dp);
  Array sums = d_bias;
  for (double& one : sums.data) one = 1;
  run(backward, {&dy, &bias, &p, &sums}, {&sums, &dp});
  for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(sums.data[i], 1 + d_bias.data[i], 1e-12);
  expect_float_too(forward, {&x, &bias, &p}, {&y});
  expect_float_too(backward, {&dy, &bias, &p}, {&d_bias, &dp});
}

// Three experts of 5 x 4, two rows each, against each expert's product by itself.
TEST_F(Experts, HaveProductsOfTheirOwn) {
  constexpr std::int64_t kThree = 3;
  const auto expert = [](const Array& of, std::size_t e) {
    Array one = of;
    const std::size_t size = of.data.size() / kThree;
    one.data.assign(of.data.begin() + static_cast<std::ptrdiff_t>(e * size),
                    of.data.begin() + static_cast<std::ptrdiff_t>((e + 1) * size));
    one.tensor.shape.sizes[0] /= kThree;
    return one;
  };
  Array x = random({6, 4}), w = weight(random({15, 4})), b = weight(random({15}));
  Array y = empty({6, 5});
  const Gemm forward{2, 5, 4, kThree, GemmRole::kForward, kReal, kReal, false, true};
  const auto loss = [&] {
    run(forward, {&x, &w, &b}, {&y});
    return sum(y);
  };
  loss();
  for (std::size_t e = 0; e < kThree; ++e) {
    Gemm single = forward;
    single.batch = 1;
    Array xe = expert(x, e), we = expert(w, e), be = expert(b, e), ye = expert(y, e);
    const std::vector<double> expected = ye.data;
    run(single, {&xe, &we, &be}, {&ye});
    EXPECT_EQ(ye.data, expected) << "expert " << e;
  }
  Array dy = weights_of(y), dx = empty({6, 4}), dw = weight(empty({15, 4}));
  Array db = weight(empty({15}));
  const Gemm input{2, 4, 5, kThree, GemmRole::kInputGradient, kReal, kReal};
  const Gemm weights{5, 4, 2, kThree, GemmRole::kWeightGradient, kReal, kReal, true, true};
  run(input, {&dy, &w}, {&dx});
  run(weights, {&dy, &x, &dw, &db}, {&dw, &db});
  expect_gradient(loss, x, dx);
  expect_gradient(loss, w, dw);
  expect_gradient(loss, b, db);
  Array twice_w = dw, twice_b = db;
  run(weights, {&dy, &x, &twice_w, &twice_b}, {&twice_w, &twice_b});
  expect_twice(twice_w, dw);
  expect_twice(twice_b, db);
  expect_float_too(forward, {&x, &w, &b}, {&y});
  expect_float_too(input, {&dy, &w}, {&dx});
}

// The backend widens what is bf16, and leaves slots and weights as they are.
TEST(ExpertsInBf16, MoveTheSameBits) {
  const auto backend = make_cpu_backend(1);
  const Permute op{PermutePart::kPermute, 3, 1, 4, 2, Dtype::kBf16, true};
  const auto tensor = [](Shape shape, Dtype dtype) { return Tensor{{}, shape, dtype}; };
  const Tensor x = tensor({3, 2}, Dtype::kBf16), places = tensor({3, 1}, Dtype::kInt32);
  const Tensor weights = tensor({3, 1}, Dtype::kFp32), y = tensor({4, 2}, Dtype::kBf16);
  const Tensor p = tensor({4, 1}, Dtype::kFp32);
  std::vector<std::uint16_t> in, out(8, 0xffff);
  for (int i = 0; i < 6; ++i) in.push_back(round_bf16(0.1f * static_cast<float>(i + 1)));
  std::vector<std::int32_t> slots = {3, -2, 0};
  std::vector<float> given = {0.1f, 0.2f, 0.3f}, taken(4, -1.0f);
  const std::vector<Operand> reads = {
      {in.data(), &x}, {slots.data(), &places}, {given.data(), &weights}};
  const std::vector<Operand> writes = {{out.data(), &y}, {taken.data(), &p}};
  const Op any = op;
  backend->compute({any, reads, writes, Place{}});
  EXPECT_EQ(out, (std::vector<std::uint16_t>{in[4], in[5], 0, 0, 0, 0, in[0], in[1]}));
  EXPECT_EQ(taken, (std::vector<float>{0.3f, 0, 0, 0.1f}));
  EXPECT_EQ(slots, (std::vector<std::int32_t>{3, -2, 0}));
}

}  // namespace
}  // namespace stepcast
