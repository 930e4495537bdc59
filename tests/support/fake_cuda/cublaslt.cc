// cuBLASLt, as far as execute/cuda asks: column-major products by plain loops, exactly as the
// descriptors and layouts say, whatever was meant. What the library refuses follows its
// documentation (cublasLtMatmul: table of data types for CUBLAS_COMPUTE_32F; attributes; layouts):
// A and B of one type; D bf16 or fp32 for bf16, fp32 for fp32; C as D; a bias of D's type; leading
// dimensions of at least the rows stored; one batch count for all. An algorithm is for the product
// it was found for and for no smaller alignment than was promised, and its workspace is ruined.
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/include/cublasLt.h"
#include "tests/support/fake_cuda/numbers.h"

struct cublasLtContext {
  int device = 0;
};

struct cublasLtFakeDesc {
  std::int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::int32_t bias_type = -1;
  const void* bias = nullptr;
};

struct cublasLtFakeLayout {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, leading = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};

struct cublasLtFakePreference {
  std::uint64_t workspace = 0;
  std::uint32_t alignments[4] = {256, 256, 256, 256};  // a, b, c, d
};

namespace {

using stepcast::fake::complain;
using stepcast::fake::current_device;
using stepcast::fake::fault_of;

// An algorithm here takes all the workspace that it may, and ruins both ends of it.
constexpr std::size_t kRuined = 512;

cublasStatus_t refuse(const char* why, cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
  const std::lock_guard lock(stepcast::fake::mutex());
  complain(std::string("cuBLASLt: ") + why);
  return status;
}

template <class Value>
cublasStatus_t take(Value& into, const void* value, std::size_t bytes) {
  if (bytes != sizeof(Value)) {
    return refuse("an attribute of another size", CUBLAS_STATUS_INVALID_VALUE);
  }
  std::memcpy(&into, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

std::int64_t size_of(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }

// A product as both calls see it.
struct Call {
  cublasLtFakeDesc work;
  cublasLtFakeLayout a, b, c, d;

  std::int64_t inner() const { return work.transposed_a == CUBLAS_OP_T ? a.rows : a.columns; }

  // Why the library does not know such a product, or null.
  const char* wrong() const {
    const std::int64_t m = work.transposed_a == CUBLAS_OP_T ? a.columns : a.rows;
    const std::int64_t n = work.transposed_b == CUBLAS_OP_T ? b.rows : b.columns;
    const std::int64_t k = work.transposed_b == CUBLAS_OP_T ? b.columns : b.rows;
    if (m != d.rows || n != d.columns || k != inner()) return "shapes that do not fit";
    if (c.rows != d.rows || c.columns != d.columns || c.type != d.type) return "C is not as D";
    for (const cublasLtFakeLayout* one : {&a, &b, &c, &d}) {
      if (one->rows <= 0 || one->columns <= 0) return "an empty matrix";
      if (one->leading < one->rows) return "a leading dimension below the rows";
      if (one->batch != d.batch) return "batch counts that differ";
    }
    if (d.batch > 1 && d.stride < d.rows) return "batch elements of D that overlap";
    if (a.type != b.type) return "A and B of two types";
    if (a.type == CUDA_R_32F && d.type != CUDA_R_32F) return "fp32 in, but not out";
    if (work.epilogue != CUBLASLT_EPILOGUE_BIAS) return nullptr;
    if (work.bias_type != -1 && work.bias_type != d.type) return "a bias of another type than D";
    return work.bias == nullptr ? "a bias of no address" : nullptr;
  }

  // What the algorithm is good for.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 1469598103934665603u;
    const auto mix = [&](std::int64_t value) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211u;
    };
    mix(work.transposed_a), mix(work.transposed_b), mix(work.epilogue);
    for (const cublasLtFakeLayout* one : {&a, &b, &c, &d}) {
      mix(one->type), mix(one->rows), mix(one->columns), mix(one->leading);
      mix(one->batch), mix(one->stride);
    }
    return hash;
  }
};

struct Operands {
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
};

void multiply(const Call& call, const Operands& on) {
  const auto& [work, a, b, c, d] = call;
  const std::int64_t inner = call.inner();
  for (std::int64_t batch = 0; batch < d.batch; ++batch) {
    for (std::int64_t column = 0; column < d.columns; ++column) {
      for (std::int64_t row = 0; row < d.rows; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < inner; ++k) {
          const bool ta = work.transposed_a == CUBLAS_OP_T, tb = work.transposed_b == CUBLAS_OP_T;
          const std::int64_t at_a = ta ? k + row * a.leading : row + k * a.leading;
          const std::int64_t at_b = tb ? column + k * b.leading : k + column * b.leading;
          sum += stepcast::fake::load(on.a, a.type == CUDA_R_32F, at_a + batch * a.stride) *
                 stepcast::fake::load(on.b, b.type == CUDA_R_32F, at_b + batch * b.stride);
        }
        float out = on.alpha * sum;
        const std::int64_t at = row + column * d.leading + batch * d.stride;
        // With beta 0 C is not read: it may hold NaNs.
        if (on.beta != 0) {
          out += on.beta * stepcast::fake::load(on.c, c.type == CUDA_R_32F,
                                                row + column * c.leading + batch * c.stride);
        }
        if (work.epilogue == CUBLASLT_EPILOGUE_BIAS)
          out += stepcast::fake::load(work.bias, d.type == CUDA_R_32F, row);
        stepcast::fake::store(on.d, d.type == CUDA_R_32F, at, out);
      }
    }
  }
}

// Elements from the first to behind the last. REQUIRES: the machine's mutex.
bool reaches(const void* data, const cublasLtFakeLayout& layout) {
  const std::int64_t last =
      (layout.batch - 1) * layout.stride + (layout.columns - 1) * layout.leading + layout.rows;
  return stepcast::fake::owns(current_device(), data,
                              static_cast<std::size_t>(last * size_of(layout.type)));
}

bool aligned(const void* data, const cublasLtFakeLayout& layout, std::uint64_t to) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto stride = static_cast<std::uint64_t>(layout.stride * size_of(layout.type));
  return address % to == 0 && (layout.batch == 1 || stride % to == 0);
}

// What fits the product and the promises that its algorithm was chosen for; else why not.
const char* unfit(const Call& call, const Operands& on, const cublasLtMatmulAlgo_t& algorithm,
                  const void* workspace, std::size_t bytes) {
  if (const char* wrong = call.wrong()) return wrong;
  if (algorithm.data[0] != call.fingerprint()) return "an algorithm of another product";
  if (bytes < algorithm.data[1]) return "a workspace that is too small";
  if (!aligned(on.a, call.a, algorithm.data[2]) || !aligned(on.b, call.b, algorithm.data[3]) ||
      !aligned(on.c, call.c, algorithm.data[4]) || !aligned(on.d, call.d, algorithm.data[5]) ||
      !aligned(workspace, {}, 256)) {
    return "an operand of less alignment than promised";
  }
  const std::lock_guard lock(stepcast::fake::mutex());
  if (!reaches(on.a, call.a) || !reaches(on.b, call.b) || !reaches(on.c, call.c) ||
      !reaches(on.d, call.d) || !stepcast::fake::owns(current_device(), workspace, bytes)) {
    return "an operand that is not within an allocation of its device";
  }
  return nullptr;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

#define STEPCAST_FAULT(name) \
  if (const int bad = fault_of(name)) return static_cast<cublasStatus_t>(bad)

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  STEPCAST_FAULT("cublasLtCreate");
  *handle = new cublasLtContext{current_device()};
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("handles of cuBLASLt");
  stepcast::fake::hold_memory(current_device(), 1 << 20);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("handles of cuBLASLt", -1);
  stepcast::fake::hold_memory(handle->device, -(1 << 20));
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  STEPCAST_FAULT("cublasLtMatmulDescCreate");
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return refuse("sums that are not fp32");
  *desc = new cublasLtFakeDesc;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("descriptors");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("descriptors", -1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(desc->transposed_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(desc->transposed_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(desc->bias_type, value, bytes);
  }
  return refuse("an attribute of a product that is none", CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  STEPCAST_FAULT("cublasLtMatrixLayoutCreate");
  *layout = new cublasLtFakeLayout;
  (*layout)->type = type;
  (*layout)->rows = static_cast<std::int64_t>(rows);
  (*layout)->columns = static_cast<std::int64_t>(columns);
  (*layout)->leading = leading;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("layouts");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("layouts", -1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(layout->stride, value, bytes);
  }
  return refuse("an attribute of a layout that is none", CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  STEPCAST_FAULT("cublasLtMatmulPreferenceCreate");
  *preference = new cublasLtFakePreference;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("preferences");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  const std::lock_guard lock(stepcast::fake::mutex());
  stepcast::fake::made("preferences", -1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(preference->alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(preference->alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(preference->alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference->alignments[3], value, bytes);
  }
  return refuse("an attribute of a preference that is none", CUBLAS_STATUS_INVALID_VALUE);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t work,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  STEPCAST_FAULT("cublasLtMatmulAlgoGetHeuristic");
  const Call call{*work, *a, *b, *c, *d};
  if (const char* wrong = call.wrong()) return refuse(wrong);
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].algo.data[0] = call.fingerprint();
  results[0].algo.data[1] = preference->workspace;
  for (std::size_t i = 0; i < 4; ++i) results[0].algo.data[2 + i] = preference->alignments[i];
  results[0].workspaceSize = results[0].algo.data[1];
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t work, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  STEPCAST_FAULT("cublasLtMatmul");
  if (handle->device != current_device()) return refuse("a handle of another device");
  const Call call{*work, *a_layout, *b_layout, *c_layout, *d_layout};
  const Operands on{
      a, b, c, d, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  if (const char* why = unfit(call, on, *algorithm, workspace, workspace_bytes)) {
    return refuse(why, CUBLAS_STATUS_INVALID_VALUE);
  }
  const std::size_t taken = algorithm->data[1], ruined = std::min(taken, kRuined);
  const cudaError_t status = stepcast::fake::enqueue(stream, [=] {
    return [=] {
      std::memset(workspace, 0xff, ruined);
      std::memset(static_cast<unsigned char*>(workspace) + taken - ruined, 0xff, ruined);
      multiply(call, on);
      return true;
    };
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
