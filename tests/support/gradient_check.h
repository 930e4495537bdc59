// Gradient: kernels of execute/cpu in double precision, their gradients held against central
// differences: with L = sum(out * r) for random r, dL/dx = (L(x + h) - L(x - h)) / 2h + O(h^2),
// h = 1e-5.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cpu/kernels.h"

namespace stepcast {

struct Array {
  Tensor tensor;
  std::vector<double> data;
  std::vector<std::int32_t> slots;  // instead, of an int32 tensor

  void* memory() {
    return tensor.dtype == Dtype::kInt32 ? static_cast<void*>(slots.data()) : data.data();
  }
};

class Gradient : public testing::Test {
 protected:
  // What the Job says; the kernels here run in double.
  static constexpr Dtype kReal = Dtype::kFp32;

  Array random(Shape shape, Scope scope = Scope::kMicroBatch) {
    Array array = empty(shape, scope);
    std::normal_distribution<double> normal;
    for (double& value : array.data) value = normal(random_);
    return array;
  }
  static Array empty(Shape shape, Scope scope = Scope::kMicroBatch) {
    return {Tensor{{}, shape, kReal, Category::kActivations, scope},
            std::vector<double>(static_cast<std::size_t>(shape.elements()), 0.0),
            {}};
  }
  static Array weight(Array array) {
    array.tensor.scope = Scope::kChunk;
    return array;
  }
  void run(const Op& op, const std::vector<Array*>& reads, const std::vector<Array*>& writes) {
    std::vector<Operand> in, out;
    for (Array* array : reads) in.push_back({array->memory(), &array->tensor});
    for (Array* array : writes) out.push_back({array->memory(), &array->tensor});
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (in[i].tensor->dtype == Dtype::kInt64) in[i].data = ids_.data();
    }
    cpu::compute<double>({op, in, out, place_, dropout_}, scratch_);
  }
  Array ids(std::vector<std::int64_t> values) {
    ids_ = std::move(values);
    return {Tensor{{},
                   {static_cast<std::int64_t>(ids_.size())},
                   Dtype::kInt64,
                   Category::kBuffers,
                   Scope::kChunk},
            {},
            {}};
  }
  static Array slots(Shape shape) {
    return {Tensor{{}, shape, Dtype::kInt32, Category::kActivations, Scope::kMicroBatch},
            {},
            std::vector<std::int32_t>(static_cast<std::size_t>(shape.elements()))};
  }

  // sum(out * r) with r from its own seed.
  static double sum(const Array& out) {
    double total = 0;
    const Array r = weights_of(out);
    for (std::size_t i = 0; i < out.data.size(); ++i) total += out.data[i] * r.data[i];
    return total;
  }
  static Array weights_of(const Array& out) {
    Array r = out;
    std::mt19937 random(99);
    std::normal_distribution<double> normal;
    for (double& value : r.data) value = normal(random);
    return r;
  }

  static void expect_gradient(const std::function<double()>& loss, Array& x,
                              const Array& gradient) {
    constexpr double kStep = 1e-5;
    ASSERT_EQ(x.data.size(), gradient.data.size());
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      const double at = x.data[i];
      x.data[i] = at + kStep;
      const double above = loss();
      x.data[i] = at - kStep;
      const double below = loss();
      x.data[i] = at;
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient.data[i], expected, 1e-6 * (1 + std::abs(expected))) << "element " << i;
    }
  }

  // What a kernel leaves that adds to its own result.
  static void expect_twice(const Array& twice, const Array& once) {
    ASSERT_EQ(twice.data.size(), once.data.size());
    for (std::size_t i = 0; i < once.data.size(); ++i) {
      EXPECT_NEAR(twice.data[i], 2 * once.data[i], 1e-9);
    }
  }

  Place place_{{3, 2, 1, 5}, 0, 1, 6};  // 3 positions of 2 sequences, a vocabulary of 5
  std::uint32_t step_ = 4;
  Dropout dropout_{dropout_rule(0.4, 99, &step_), 2};
  cpu::Scratch<double> scratch_;
  std::vector<std::int64_t> ids_;
  std::mt19937 random_{20240607};
};

}  // namespace stepcast
