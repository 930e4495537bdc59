// Matmul: products by cuBLASLt. What a product is (products.h) decides descriptors and layouts;
// the library's heuristic picks an algorithm once for each distinct one, which is kept.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <tuple>

#include "execute/cuda/device/library.h"
#include "execute/cuda/products.h"

namespace stepcast::cuda {

// Bytes of workspace that cuBLASLt's fastest algorithms ask for: NVIDIA recommends 32 MiB from
// Hopper on and 4 MiB before (cuBLAS documentation, "cublasSetWorkspace").
std::size_t workspace_bytes(int capability);

class Matmul {
 public:
  // `workspace` is device memory that only this object's stream uses while a product runs.
  Matmul(void* workspace, std::size_t bytes);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // bf16 or fp32 in, fp32 sums, bf16 or fp32 out.
  void run(const Product& product, cudaStream_t stream);

 private:
  struct Plan;
  using Key = std::tuple<std::array<std::int64_t, 18>, std::array<int, 8>>;

  static Key key_of(const Product& product);
  Plan& plan_of(const Product& product);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_;
  std::size_t bytes_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace stepcast::cuda
