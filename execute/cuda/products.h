// Products: a Gemm as calls of a column-major library (cuBLASLt).
//
// A row-major matrix is a column-major one transposed, so a row-major C(m, n) = A(m, k) B(k, n) is
// computed as C^T = B^T A^T: the library's first operand is our B, its second our A, its result has
// n rows and m columns and a leading dimension of C's row stride.
//
// A linear layer is one call. Unfused attention reads its heads out of a packed qkv: the heads of
// one sequence that share no key-value head lie a fixed stride apart, so that is one strided batch
// over key-value heads for each sequence and each head of a group: micro-batch x group calls.
#pragma once

#include <cstdint>
#include <vector>

#include "execute/backend.h"

namespace stepcast::cuda {

// An operand of one call: elements from the beginning of a tensor. Column-major (rows, columns) as
// stored, before `transposed`.
struct Panel {
  Operand operand;
  std::int64_t offset = 0;  // of the first batch element
  std::int64_t rows = 0, columns = 0;
  std::int64_t leading = 0;       // elements from one column to the next
  std::int64_t batch_stride = 0;  // elements from one batch element to the next
  bool transposed = false;
};

// result = alpha op(first) op(second) + beta result [+ bias, of the result's rows]
struct Product {
  Panel first, second, result;
  std::int64_t inner = 0;  // k
  std::int64_t batch = 1;
  float alpha = 1, beta = 0;
  Operand bias;  // null: none
};

struct Products {
  std::vector<Product> calls;  // in order: later ones may add to what earlier ones wrote
  Operand d_y, bias_gradient;  // null, or: column sums of d_y are due as well
};

// REQUIRES: the operands fit the op (see Gemm in op.h), which verify() has proved of a Job.
Products products_of(const Gemm& op, const Work& work);

}  // namespace stepcast::cuda
