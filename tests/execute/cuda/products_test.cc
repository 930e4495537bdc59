// A Gemm as column-major products: carried out one number at a time, as the library documents
// them, they give what the CPU's kernels give, for linear layers and for unfused attention.
#include "execute/cuda/products.h"

#include <algorithm>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/kernels.h"
#include "execute/hash.h"

namespace stepcast {
namespace {

// Element (i, j) of a panel as the library sees it, after its transposition.
float& element(const cuda::Panel& panel, std::int64_t batch, std::int64_t i, std::int64_t j) {
  if (panel.transposed) std::swap(i, j);
  EXPECT_TRUE(i >= 0 && i < panel.rows && j >= 0 && j < panel.columns);
  const std::int64_t at = panel.offset + batch * panel.batch_stride + j * panel.leading + i;
  EXPECT_TRUE(at >= 0 && at < panel.operand.tensor->shape.elements());
  return static_cast<float*>(panel.operand.data)[at];
}

// D = alpha op(A) op(B) + beta D [+ bias of D's rows], column-major, batch by batch.
void carry_out(const cuda::Product& p) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t j = 0; j < p.result.columns; ++j) {
      for (std::int64_t i = 0; i < p.result.rows; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < p.inner; ++l) {
          sum += static_cast<double>(element(p.first, b, i, l)) * element(p.second, b, l, j);
        }
        float& out = element(p.result, b, i, j);
        double value = static_cast<double>(p.alpha) * sum;
        if (p.beta != 0) value += static_cast<double>(p.beta) * out;
        if (p.bias.data != nullptr) value += static_cast<const float*>(p.bias.data)[i];
        out = static_cast<float>(value);
      }
    }
  }
}

// Tensors with numbers of their own; the same ones again for the second way.
class Numbers {
 public:
  Operand make(Shape shape, Scope scope) {
    tensors_.push_back(std::make_unique<Tensor>());
    tensors_.back()->shape = shape;
    tensors_.back()->dtype = Dtype::kFp32;
    tensors_.back()->scope = scope;
    auto& values = values_.emplace_back(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(unit(hash(values_.size(), i, 3)) - 0.5);
    }
    return {values.data(), tensors_.back().get()};
  }
  std::vector<std::vector<float>> take() const { return {values_.begin(), values_.end()}; }
  void put(const std::vector<std::vector<float>>& values) {
    std::size_t i = 0;
    for (auto& one : values_) std::copy(values[i].begin(), values[i].end(), one.begin()), ++i;
  }

 private:
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::list<std::vector<float>> values_;
};

void expect_alike(Numbers& numbers, const Gemm& gemm, std::vector<Operand> reads,
                  std::vector<Operand> writes, std::int64_t micro_batch, std::size_t calls) {
  const Op op = gemm;
  Place place;
  place.batch.micro_batch = micro_batch;
  const Work work{op, reads, writes, place};
  const auto before = numbers.take();
  cpu::run<float>(gemm, work);
  const auto expected = numbers.take();
  EXPECT_NE(expected, before);
  numbers.put(before);
  const cuda::Products products = cuda::products_of(gemm, work);
  EXPECT_EQ(products.calls.size(), calls);
  for (const cuda::Product& one : products.calls) carry_out(one);
  if (products.bias_gradient.data != nullptr) {
    auto* sums = static_cast<float*>(products.bias_gradient.data);
    const auto* d = static_cast<const float*>(products.d_y.data);
    for (std::int64_t j = 0; j < gemm.m; ++j) {
      if (!gemm.accumulate) sums[j] = 0;
      for (std::int64_t i = 0; i < gemm.k; ++i) sums[j] += d[i * gemm.m + j];
    }
  }
  const auto found = numbers.take();
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t j = 0; j < found[i].size(); ++j) {
      ASSERT_NEAR(found[i][j], expected[i][j], 1e-5) << "operand " << i << " at " << j;
    }
  }
}

constexpr auto kF32 = Dtype::kFp32;

TEST(Products, OfALinearLayerAreOneCallEach) {
  Numbers n;
  const Operand x = n.make({6, 5}, Scope::kMicroBatch), w = n.make({4, 5}, Scope::kChunk);
  const Operand bias = n.make({4}, Scope::kChunk), y = n.make({6, 4}, Scope::kMicroBatch);
  const Operand dx = n.make({6, 5}, Scope::kMicroBatch), dw = n.make({4, 5}, Scope::kChunk);
  const Operand db = n.make({4}, Scope::kChunk);
  Gemm forward{6, 4, 5, 1, GemmRole::kForward, kF32, kF32, false, true};
  expect_alike(n, forward, {x, w, bias}, {y}, 1, 1);
  forward.bias = false;
  expect_alike(n, forward, {x, w}, {y}, 1, 1);
  const Gemm input{6, 5, 4, 1, GemmRole::kInputGradient, kF32, kF32, false, false};
  expect_alike(n, input, {y, w}, {dx}, 1, 1);
  Gemm weight{4, 5, 6, 1, GemmRole::kWeightGradient, kF32, kF32, false, true};
  expect_alike(n, weight, {y, x}, {dw, db}, 1, 1);
  weight.accumulate = true;
  expect_alike(n, weight, {y, x, dw, db}, {dw, db}, 1, 1);
}

// Two sequences of three positions; four heads of two columns on two key-value heads. Scores are
// one matrix of three by three a sequence and head.
class UnfusedAttention : public testing::TestWithParam<std::int64_t> {
 protected:
  static constexpr std::int64_t kS = 3, kB = 2, kHeads = 4, kDim = 2;
};

TEST_P(UnfusedAttention, IsOneStridedBatchASequenceAndHeadOfAGroup) {
  const std::int64_t kv = GetParam(), group = kHeads / kv, width = (kHeads + 2 * kv) * kDim;
  Numbers n;
  const Operand qkv = n.make({kS * kB, width}, Scope::kMicroBatch);
  const Operand p = n.make({kB * kHeads * kS, kS}, Scope::kMicroBatch);
  const Operand o = n.make({kS * kB, kHeads * kDim}, Scope::kMicroBatch);
  const Operand dp = n.make({kB * kHeads * kS, kS}, Scope::kMicroBatch);
  const Operand d_qkv = n.make({kS * kB, width}, Scope::kMicroBatch);
  const auto calls = static_cast<std::size_t>(kB * group);
  const auto gemm = [&](std::int64_t m, std::int64_t columns, std::int64_t k, GemmRole role) {
    return Gemm{m, columns, k, kB * kv, role, kF32, kF32, false, false};
  };
  const std::int64_t rows = group * kS;
  expect_alike(n, gemm(rows, kS, kDim, GemmRole::kForward), {qkv}, {p}, kB, calls);
  expect_alike(n, gemm(rows, kDim, kS, GemmRole::kForward), {p, qkv}, {o}, kB, calls);
  expect_alike(n, gemm(rows, kS, kDim, GemmRole::kInputGradient), {o, qkv}, {dp}, kB, calls);
  expect_alike(n, gemm(kS, kDim, rows, GemmRole::kWeightGradient), {p, o}, {d_qkv}, kB, calls);
  expect_alike(n, gemm(rows, kDim, kS, GemmRole::kInputGradient), {dp, qkv, d_qkv}, {d_qkv}, kB,
               calls);
  expect_alike(n, gemm(kS, kDim, rows, GemmRole::kWeightGradient), {dp, qkv, d_qkv}, {d_qkv}, kB,
               calls);
}

INSTANTIATE_TEST_SUITE_P(KvHeads, UnfusedAttention, testing::Values(1, 2, 4));

}  // namespace
}  // namespace stepcast
