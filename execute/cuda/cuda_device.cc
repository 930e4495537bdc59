// Without CUDA at hand when this was built, there is only a reason to give.
#include "execute/cuda/cuda_device.h"

#include "sim/base/error.h"

namespace stepcast {

#ifndef STEPCAST_CUDA

std::string cuda_missing() {
  return "this stepcast was built without CUDA; install the CUDA toolkit (nvcc, cuBLASLt) and "
         "NCCL, "
         "and build again with --preset cuda";
}
int cuda_devices() { return 0; }
CudaMachine cuda_machine(int) { throw Error("cuda", cuda_missing()); }
CudaRun run_cuda_rank(const Job&, const ExecuteOptions&, const Corpus&, Transport&, int,
                      const CudaOptions&) {
  throw Error("cuda", cuda_missing());
}
std::vector<CudaRun> run_cuda_threads(const Job&, const ExecuteOptions&, const Corpus&,
                                      const CudaOptions&) {
  throw Error("cuda", cuda_missing());
}

#endif

}  // namespace stepcast
