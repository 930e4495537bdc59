// Without CUDA at hand when this was built, there is only a reason to give.
#include "execute/cuda/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "sim/base/error.h"

namespace stepcast {

int cuda_device_of_process(int rank) {
  int number = rank;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view word(text);
    int local = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), local);
    if (error != std::errc() || local < 0) continue;
    number = local;
    break;
  }
  return number % std::max(1, cuda_devices());
}

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
