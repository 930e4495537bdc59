// Library: cuBLASLt, NCCL and NVML, opened when a run asks for them. cuBLASLt alone is half a
// gigabyte, which no forecast should wait for; NVML comes with the driver and may be missing. The
// types are those of the libraries' own headers.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace stepcast::cuda {

#define STEPCAST_CUBLASLT_FUNCTIONS(F)                                                      \
  F(cublasLtCreate)                                                                         \
  F(cublasLtDestroy)                                                                        \
  F(cublasLtMatmul) F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy)                \
      F(cublasLtMatmulDescSetAttribute) F(cublasLtMatrixLayoutCreate)                       \
          F(cublasLtMatrixLayoutDestroy) F(cublasLtMatrixLayoutSetAttribute)                \
              F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceDestroy)          \
                  F(cublasLtMatmulPreferenceSetAttribute) F(cublasLtMatmulAlgoGetHeuristic) \
                      F(cublasLtGetVersion) F(cublasLtGetStatusString)

#define STEPCAST_NCCL_FUNCTIONS(F)                                                         \
  F(ncclGetUniqueId)                                                                       \
  F(ncclCommInitRank)                                                                      \
  F(ncclCommSplit) F(ncclCommDestroy) F(ncclCommAbort) F(ncclCommGetAsyncError)            \
      F(ncclGetErrorString) F(ncclGetLastError) F(ncclGetVersion) F(ncclAllReduce)         \
          F(ncclAllGather) F(ncclReduceScatter) F(ncclReduce) F(ncclBroadcast) F(ncclSend) \
              F(ncclRecv) F(ncclGroupStart) F(ncclGroupEnd)

#define STEPCAST_POINTER(name) decltype(&::name) name = nullptr;
struct CublasLt {
  STEPCAST_CUBLASLT_FUNCTIONS(STEPCAST_POINTER)
};
struct Nccl {
  STEPCAST_NCCL_FUNCTIONS(STEPCAST_POINTER)
  // Buffers that NCCL knows, since 2.19; null in a library that is older, whatever the header.
  ncclResult_t (*ncclMemAlloc)(void** data, std::size_t bytes) = nullptr;
  ncclResult_t (*ncclMemFree)(void* data) = nullptr;
  ncclResult_t (*ncclCommRegister)(ncclComm_t, void* data, std::size_t, void** handle) = nullptr;
  ncclResult_t (*ncclCommDeregister)(ncclComm_t, void* handle) = nullptr;

  bool registers() const {
    return ncclMemAlloc != nullptr && ncclMemFree != nullptr && ncclCommRegister != nullptr &&
           ncclCommDeregister != nullptr;
  }
};
#undef STEPCAST_POINTER

// Opened once a process, by whoever comes first. Throws Error naming the file that is missing and
// how to make it found.
const CublasLt& cublaslt();
const Nccl& nccl();

// The address of a function of an opened library, or null. `names` are tried in turn.
void* open_library(const std::vector<std::string>& names);
void* function_of(void* library, const char* name);

// Throw Error ("cuda", what and the library's own words) for anything but success.
void check(cudaError_t status, const char* what);
void check(cublasStatus_t status, const char* what);
void check(ncclResult_t status, const char* what);

}  // namespace stepcast::cuda
