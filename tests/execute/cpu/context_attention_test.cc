// Attention between context ranks, in double precision, against attention over the whole sequence
// on one rank: results, log-sum-exps and all gradients, of keys gathered and of keys passed on.
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/kernels.h"

namespace stepcast {
namespace {

constexpr Dtype kSaid = Dtype::kFp32;  // what the Job says; the kernels here run in double
constexpr std::int64_t kSequences = 2, kPositions = 24, kQHeads = 4, kKHeads = 2, kHeadDim = 3;
constexpr std::int64_t kQWide = kQHeads * kHeadDim, kKvWide = 2 * kKHeads * kHeadDim;

struct Slab {
  Tensor tensor;
  std::vector<double> data;

  double* row(std::int64_t i) { return data.data() + i * tensor.shape.sizes[1]; }
};

Slab empty(Shape shape) {
  return {Tensor{{}, shape, kSaid, Category::kActivations, Scope::kMicroBatch},
          std::vector<double>(static_cast<std::size_t>(shape.elements()), 0.0)};
}

// Of one rank: what attention reads and writes.
struct Attended {
  Slab qkv, kv, o, lse, d_o, d_qkv, d_kv;
};

struct Shares {
  std::int64_t ranks = 1;
  bool normalised = false;  // queries and keys in a tensor of their own
  bool dropout = false;
};

class ContextAttention : public testing::TestWithParam<Shares> {
 protected:
  ContextAttention() {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    whole_ = sized(1);
    for (double& value : whole_.qkv.data) value = normal(random);
    for (double& value : whole_.d_o.data) value = normal(random);
    run(0, 1, op(1), {&whole_.qkv}, {&whole_.o, &whole_.lse});
    Attention back = op(1);
    back.pass = Pass::kBackward;
    run(0, 1, back, {&whole_.qkv, &whole_.o, &whole_.lse, &whole_.d_o}, {&whole_.d_qkv});
    for (std::int64_t r = 0; r < ranks(); ++r) {
      ranks_.push_back(sized(ranks()));
      Attended& mine = ranks_.back();
      for (std::int64_t i = 0; i < rows(ranks()); ++i) {
        std::copy_n(whole_.qkv.row(row_of(r, i)), kQWide + kKvWide, mine.qkv.row(i));
        std::copy_n(whole_.d_o.row(row_of(r, i)), kQWide, mine.d_o.row(i));
      }
      Pointwise pack{PointwiseKind::kKeysValues, rows(ranks()), kKvWide, kSaid, kSaid};
      run(r, ranks(), pack, inputs(mine), {&mine.kv});
    }
  }

  static std::int64_t ranks() { return GetParam().ranks; }
  static std::int64_t rows(std::int64_t ranks) { return kPositions / ranks * kSequences; }
  static ContextShare share(std::int64_t r) { return {kPositions, r, ranks()}; }
  // The row of the whole sequences' tokens that row i of a rank is.
  static std::int64_t row_of(std::int64_t r, std::int64_t i) {
    return share(r).position(i / kSequences) * kSequences + i % kSequences;
  }

  static Attended sized(std::int64_t ranks) {
    const std::int64_t n = rows(ranks);
    return {empty({n, kQWide + kKvWide}),
            empty({n, kKvWide}),
            empty({n, kQWide}),
            empty({kSequences, kQHeads, kPositions / ranks}),
            empty({n, kQWide}),
            empty({n, kQWide + kKvWide}),
            empty({n, kKvWide})};
  }

  static Attention op(std::int64_t ranks) {
    return {Pass::kForward,     kSequences, kQHeads, kKHeads,           kPositions / ranks,
            kPositions / ranks, kHeadDim,       true,   GetParam().dropout, kSaid};
  }

  // [qk,] qkv: a copy of the first columns where they are normalised; the values then stand in qkv
  // alone.
  std::vector<Slab*> inputs(Attended& mine) {
    if (!GetParam().normalised) return {&mine.qkv};
    Slab& qk = normalised_[&mine];
    const std::int64_t columns = kQWide + kKvWide / 2;
    qk = empty({mine.qkv.tensor.shape.sizes[0], columns});
    for (std::int64_t i = 0; i < qk.tensor.shape.sizes[0]; ++i) {
      std::copy_n(mine.qkv.row(i), columns, qk.row(i));
    }
    return {&qk, &mine.qkv};
  }
  std::vector<Slab*> with(std::vector<Slab*> list, const std::vector<Slab*>& more) {
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }

  void run(std::int64_t rank, std::int64_t ranks, const Op& op, const std::vector<Slab*>& reads,
           const std::vector<Slab*>& writes) {
    std::vector<Operand> in, out;
    for (Slab* array : reads) in.push_back({array->data.data(), &array->tensor});
    for (Slab* array : writes) out.push_back({array->data.data(), &array->tensor});
    Place place{{kPositions, kSequences, 1, 5}, 0, 1, 1};
    place.context = {kPositions, rank, ranks};
    cpu::compute<double>({op, in, out, place, {dropout_rule(0.3, 5, &step_), 4}}, scratch_);
  }

  // What came home of keys and values is added; then all is as on one rank.
  void expect_as_whole() {
    for (std::int64_t r = 0; r < ranks(); ++r) {
      Attended& mine = ranks_[static_cast<std::size_t>(r)];
      const Pointwise back{PointwiseKind::kKeysValuesBackward, rows(ranks()), kKvWide, kSaid,
                           kSaid};
      run(r, ranks(), back, {&mine.d_kv, &mine.d_qkv}, {&mine.d_qkv});
      for (std::int64_t i = 0; i < rows(ranks()); ++i) {
        const std::int64_t at = row_of(r, i);
        for (std::int64_t j = 0; j < kQWide; ++j) {
          EXPECT_NEAR(mine.o.row(i)[j], whole_.o.row(at)[j], 1e-12) << r << ' ' << i << ' ' << j;
        }
        for (std::int64_t j = 0; j < kQWide + kKvWide; ++j) {
          EXPECT_NEAR(mine.d_qkv.row(i)[j], whole_.d_qkv.row(at)[j], 1e-12)
              << r << ' ' << i << ' ' << j;
        }
      }
      const std::int64_t here = kPositions / ranks();
      for (std::int64_t head = 0; head < kSequences * kQHeads; ++head) {
        for (std::int64_t i = 0; i < here; ++i) {
          EXPECT_NEAR(
              mine.lse.data[static_cast<std::size_t>(head * here + i)],
              whole_.lse.data[static_cast<std::size_t>(head * kPositions + share(r).position(i))],
              1e-12);
        }
      }
    }
  }

  std::uint32_t step_ = 4;
  cpu::Scratch<double> scratch_;
  Attended whole_;
  std::vector<Attended> ranks_;
  std::map<const Attended*, Slab> normalised_;
};

TEST_P(ContextAttention, OverGatheredKeysIsThatOfTheWhole) {
  Slab all = empty({rows(ranks()) * ranks(), kKvWide}), d_all = all;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    std::copy(ranks_[r].kv.data.begin(), ranks_[r].kv.data.end(),
              all.row(static_cast<std::int64_t>(r) * rows(ranks())));
  }
  Attention forward = op(ranks());
  forward.source = KeySource::kGathered;
  forward.keys = kPositions;
  Attention back = forward;
  back.pass = Pass::kBackward;
  for (std::int64_t r = 0; r < ranks(); ++r) {
    Attended& mine = ranks_[static_cast<std::size_t>(r)];
    run(r, ranks(), forward, with(inputs(mine), {&all}), {&mine.o, &mine.lse});
    Slab d = empty({rows(ranks()) * ranks(), kKvWide});
    run(r, ranks(), back, with(inputs(mine), {&all, &mine.o, &mine.lse, &mine.d_o}),
        {&mine.d_qkv, &d});
    for (std::size_t i = 0; i < d.data.size(); ++i) d_all.data[i] += d.data[i];
  }
  for (std::int64_t r = 0; r < ranks(); ++r) {
    std::copy_n(d_all.row(r * rows(ranks())), rows(ranks()) * kKvWide,
                ranks_[static_cast<std::size_t>(r)].d_kv.data.data());
  }
  for (double& value : all.data) value = 0;
  expect_as_whole();
}

TEST_P(ContextAttention, OverPassedKeysIsThatOfTheWholeWhenMerged) {
  const std::int64_t n = rows(ranks());
  Attention step = op(ranks());
  step.source = KeySource::kPassed;
  step.keys = step.queries / 2;
  step.causal = false;
  for (std::int64_t r = 0; r < ranks(); ++r) {
    Attended& mine = ranks_[static_cast<std::size_t>(r)];
    const auto block = [&]() -> Attended& {
      return ranks_[static_cast<std::size_t>((r - step.step + ranks()) % ranks())];
    };
    run(r, ranks(), op(ranks()), inputs(mine), {&mine.o, &mine.lse});
    for (step.step = 1; step.step < ranks(); ++step.step) {
      Attended part = sized(ranks());
      run(r, ranks(), step, with(inputs(mine), {&block().kv}), {&part.o, &part.lse});
      const Pointwise merge{PointwiseKind::kMergeAttention, n, kQWide, kSaid, kSaid};
      run(r, ranks(), merge, {&mine.o, &mine.lse, &part.o, &part.lse}, {&mine.o, &mine.lse});
    }
    Attention back = op(ranks());
    back.pass = Pass::kBackward;
    run(r, ranks(), back, with(inputs(mine), {&mine.o, &mine.lse, &mine.d_o}), {&mine.d_qkv});
    for (step.step = 1; step.step < ranks(); ++step.step) {
      Slab d = empty({n, kKvWide});
      back = step;
      back.pass = Pass::kBackward;
      run(r, ranks(), back,
          with(inputs(mine), {&block().kv, &mine.o, &mine.lse, &mine.d_o, &mine.d_qkv}),
          {&mine.d_qkv, &d});
      for (std::size_t i = 0; i < d.data.size(); ++i) block().d_kv.data[i] += d.data[i];
    }
  }
  expect_as_whole();
}

INSTANTIATE_TEST_SUITE_P(Ranks, ContextAttention,
                         testing::Values(Shares{2}, Shares{3}, Shares{4}, Shares{3, true},
                                         Shares{4, false, true}, Shares{2, true, true}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) +
                                  (one.param.normalised ? "_normalised" : "") +
                                  (one.param.dropout ? "_dropout" : "");
                         });

}  // namespace
}  // namespace stepcast
