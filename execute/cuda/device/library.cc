// dlopen by the name that the linker would have written down, then where the build found it.
#include "execute/cuda/device/library.h"

#include <dlfcn.h>

#include <string_view>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

template <class Function>
void resolve_if_there(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(function_of(library, name));
}

template <class Function>
void resolve(void* library, const char* file, const char* name, Function& function) {
  resolve_if_there(library, name, function);
  if (function != nullptr) return;
  throw Error("cuda", fmt::format("{} has no {}; it is another version than this stepcast was "
                                  "built with",
                                  file, name));
}

CublasLt open_cublaslt() {
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = open_library({file, std::string(STEPCAST_CUDA_LIBRARIES) + "/" + file});
  if (library == nullptr) {
    throw Error("cuda", file + " is not found; put the CUDA toolkit's lib64 into LD_LIBRARY_PATH");
  }
  CublasLt out;
#define STEPCAST_RESOLVE(name) resolve(library, file.c_str(), #name, out.name);
  STEPCAST_CUBLASLT_FUNCTIONS(STEPCAST_RESOLVE)
  return out;
}

Nccl open_nccl() {
  const std::string file = fmt::format("libnccl.so.{}", NCCL_MAJOR);
  void* library = open_library({file, STEPCAST_NCCL_LIBRARY});
  if (library == nullptr) {
    throw Error("cuda", file + " is not found; put NCCL's lib into LD_LIBRARY_PATH");
  }
  Nccl out;
  STEPCAST_NCCL_FUNCTIONS(STEPCAST_RESOLVE)
#undef STEPCAST_RESOLVE
  resolve_if_there(library, "ncclMemAlloc", out.ncclMemAlloc);
  resolve_if_there(library, "ncclMemFree", out.ncclMemFree);
  resolve_if_there(library, "ncclCommRegister", out.ncclCommRegister);
  resolve_if_there(library, "ncclCommDeregister", out.ncclCommDeregister);
  return out;
}

}  // namespace

void* open_library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

void* function_of(void* library, const char* name) { return dlsym(library, name); }

const CublasLt& cublaslt() {
  static const CublasLt library = open_cublaslt();
  return library;
}

const Nccl& nccl() {
  static const Nccl library = open_nccl();
  return library;
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error("cuda", fmt::format("{}: {}", what, cudaGetErrorString(status)));
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error("cuda", fmt::format("{}: {}", what, cublaslt().cublasLtGetStatusString(status)));
}

void check(ncclResult_t status, const char* what) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const std::string_view more = nccl().ncclGetLastError(nullptr);
  throw Error("cuda", fmt::format("{}: {}{}{}", what, nccl().ncclGetErrorString(status),
                                  more.empty() ? "" : ": ", more));
}

}  // namespace stepcast::cuda
