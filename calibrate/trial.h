// Trial: one op of a Job with operands of its own, filled with made-up numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "execute/backend.h"
#include "sim/program/program.h"

namespace stepcast {

struct Trial {
  // The operands of a Compute, each tensor once. Where all of an op's result is computed twice and
  // that is much, the op is made smaller, with its operands: a loss and a softmax have fewer rows,
  // attention fewer tokens of one sequence, a table fewer entries.
  Trial(const Job& job, const Body& body, const Compute& compute);

  bool with_weight() const;  // a linear layer's product
  bool is_float(std::size_t i) const { return tensors[i].dtype == Dtype::kFp32; }
  float* floats(std::size_t i) { return reinterpret_cast<float*>(memory[i].data()); }
  std::int32_t* integers(std::size_t i) {  // of an int32 tensor
    return reinterpret_cast<std::int32_t*>(memory[i].data());
  }
  void* data(std::size_t i) { return memory[i].data(); }
  std::vector<float> copy(std::size_t i);
  void run(Backend& backend);

  Op op;
  Place place;
  Dropout dropout;  // of an op that drops: some mask at the Job's rate
  std::vector<Tensor> tensors;
  std::vector<std::size_t> reads, writes;         // indices into tensors
  std::vector<std::vector<std::int64_t>> memory;  // of each tensor

 private:
  void shrink();
  void shrink_attention(std::int64_t positions);
  void shrink_rows(std::int64_t rows, std::int64_t fewer);
  void fill();
  void fill_slots(std::size_t i);
};

}  // namespace stepcast
