// Matrix products on the CPU: C = alpha op(A) op(B) + beta C, row-major, with leading dimensions.
#pragma once

#include <cstdint>

namespace stepcast::cpu {

// A matrix in memory: element (i, j) lies at data[i * stride + j]; `transposed` reads (j, i).
template <class Real>
struct Matrix {
  const Real* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

// C (m, n) = alpha A (m, k) B (k, n) + beta C. float: oneDNN's sgemm; double: plain loops, as the
// slow reference that tests need.
template <class Real>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, Matrix<Real> a,
              Matrix<Real> b, double beta, Real* c, std::int64_t c_stride);

// Threads that one caller's products may use from now on.
void set_gemm_threads(int threads);

}  // namespace stepcast::cpu
