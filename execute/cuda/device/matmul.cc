// One descriptor, three layouts and one algorithm a distinct product; launching is a look-up.
#include "execute/cuda/device/matmul.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

cudaDataType_t type_of(const Operand& operand) {
  return operand.tensor->dtype == Dtype::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
}

void* address(const Panel& panel) {
  return static_cast<std::byte*>(panel.operand.data) +
         panel.offset * dtype_size(panel.operand.tensor->dtype);
}

// The largest power of two up to 256 that every batch element's address is a multiple of.
std::uint32_t alignment_of(const Panel& panel) {
  const std::int64_t size = dtype_size(panel.operand.tensor->dtype);
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address(panel)) |
                              static_cast<std::uintptr_t>(panel.batch_stride * size) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

std::size_t workspace_bytes(int capability) {
  return std::size_t{capability >= 90 ? 32u : 4u} << 20;
}

struct Matmul::Plan {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulDesc_t work = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {first, second, result}) {
      if (layout != nullptr) lt.cublasLtMatrixLayoutDestroy(layout);
    }
    if (work != nullptr) lt.cublasLtMatmulDescDestroy(work);
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(lt.cublasLtMatmulDescSetAttribute(work, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }

  void lay_out(const Panel& panel, std::int64_t batch, cublasLtMatrixLayout_t& out) const {
    check(lt.cublasLtMatrixLayoutCreate(&out, type_of(panel.operand),
                                        static_cast<std::uint64_t>(panel.rows),
                                        static_cast<std::uint64_t>(panel.columns), panel.leading),
          "cublasLtMatrixLayoutCreate");
    if (batch == 1) return;
    const auto count = static_cast<std::int32_t>(batch);
    check(lt.cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof count),
          "batch count");
    check(lt.cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &panel.batch_stride, sizeof panel.batch_stride),
          "batch stride");
  }

  void describe(const Product& product) {
    check(lt.cublasLtMatmulDescCreate(&work, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    const auto turn = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, turn(product.first.transposed));
    set(CUBLASLT_MATMUL_DESC_TRANSB, turn(product.second.transposed));
    if (product.bias.data != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(product.bias)));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(product.bias.data));
    }
    lay_out(product.first, product.batch, first);
    lay_out(product.second, product.batch, second);
    lay_out(product.result, product.batch, result);
  }

  // The best algorithm by the library's own model, for the alignment that the operands have.
  void choose(cublasLtHandle_t handle, const Product& product, std::size_t workspace) {
    cublasLtMatmulPreference_t preference = nullptr;
    check(lt.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.first));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.second));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product.result));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.result));
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
        handle, work, first, second, result, result, preference, 1, &found, &count);
    lt.cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) {
      algorithm = found.algo;
      return;
    }
    throw Error("cuda", fmt::format("cuBLASLt knows no algorithm for a product of {} x {} by {} "
                                    "({} batches)",
                                    product.result.columns, product.result.rows, product.inner,
                                    product.batch));
  }
};

Matmul::Matmul(void* workspace, std::size_t bytes) : workspace_(workspace), bytes_(bytes) {
  check(cublaslt().cublasLtCreate(&handle_), "cublasLtCreate");
}

Matmul::~Matmul() {
  plans_.clear();
  cublaslt().cublasLtDestroy(handle_);
}

Matmul::Key Matmul::key_of(const Product& p) {
  std::array<std::int64_t, 18> sizes = {};
  std::array<int, 8> kinds = {};
  std::size_t i = 0, j = 0;
  for (const Panel* panel : {&p.first, &p.second, &p.result}) {
    for (const std::int64_t size :
         {panel->rows, panel->columns, panel->leading, panel->batch_stride,
          static_cast<std::int64_t>(alignment_of(*panel))}) {
      sizes[i++] = size;
    }
    kinds[j++] = static_cast<int>(type_of(panel->operand));
    kinds[j++] = panel->transposed ? 1 : 0;
  }
  sizes[i++] = p.inner;
  sizes[i++] = p.batch;
  kinds[j++] = p.bias.data != nullptr ? 1 : 0;
  kinds[j] = p.beta != 0 ? 1 : 0;
  return {sizes, kinds};
}

Matmul::Plan& Matmul::plan_of(const Product& product) {
  std::unique_ptr<Plan>& plan = plans_[key_of(product)];
  if (!plan) {
    auto made = std::make_unique<Plan>();
    made->describe(product);
    made->choose(handle_, product, bytes_);
    plan = std::move(made);
  }
  return *plan;
}

void Matmul::run(const Product& product, cudaStream_t stream) {
  Plan& plan = plan_of(product);
  // Products that are alike have biases of their own.
  if (product.bias.data != nullptr) {
    plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(product.bias.data));
  }
  check(cublaslt().cublasLtMatmul(handle_, plan.work, &product.alpha, address(product.first),
                                  plan.first, address(product.second), plan.second, &product.beta,
                                  address(product.result), plan.result, address(product.result),
                                  plan.result, &plan.algorithm, workspace_, bytes_, stream),
        "cublasLtMatmul");
}

}  // namespace stepcast::cuda
