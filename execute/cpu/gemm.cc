// oneDNN's sgemm packs its operands and multiplies in registers: 2 m n k operations at close to the
// machine's rate. The plain product is O(m n k) with no blocking.
#include "execute/cpu/gemm.h"

#include <fmt/format.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "execute/cpu/cpu_backend.h"
#include "sim/base/error.h"

namespace stepcast::cpu {

template <>
void multiply<float>(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, Matrix<float> a,
                     Matrix<float> b, double beta, float* c, std::int64_t c_stride) {
  const dnnl::status status = dnnl::sgemm(
      a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, static_cast<float>(alpha),
      a.data, a.stride, b.data, b.stride, static_cast<float>(beta), c, c_stride);
  STEPCAST_CHECK(status == dnnl::status::success, "oneDNN refused a matrix product");
}

template <>
void multiply<double>(std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                      Matrix<double> a, Matrix<double> b, double beta, double* c,
                      std::int64_t c_stride) {
  const auto at = [](const Matrix<double>& matrix, std::int64_t i, std::int64_t j) {
    return matrix.data[matrix.transposed ? j * matrix.stride + i : i * matrix.stride + j];
  };
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) sum += at(a, i, l) * at(b, l, j);
      double& out = c[i * c_stride + j];
      out = alpha * sum + (beta == 0 ? 0 : beta * out);
    }
  }
}

void set_gemm_threads(int threads) { omp_set_num_threads(threads); }

}  // namespace stepcast::cpu

namespace stepcast {

std::string cpu_library_version() {
  const dnnl::version_t* version = dnnl::version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace stepcast
