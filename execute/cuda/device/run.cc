// Threads: one a rank, each on a GPU of its own, as NCCL wants it. Who fails stops the others; the
// error that is thrown is that of the first to fail.
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/rank.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

CudaRun run_on(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
               Transport& control, int device, const CudaOptions& cuda,
               const std::atomic<bool>& stop) {
  cuda::DeviceRank rank(job, options, corpus, control, device, cuda, stop);
  for (std::int64_t step = 0; step < options.steps; ++step) rank.step();
  return rank.finish();
}

}  // namespace

CudaRun run_cuda_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                      Transport& control, int device, const CudaOptions& cuda) {
  std::atomic<bool> stop = false;  // the launcher ends the processes of the others
  return run_on(job, options, corpus, control, device, cuda, stop);
}

std::vector<CudaRun> run_cuda_threads(const Job& job, const ExecuteOptions& options,
                                      const Corpus& corpus, const CudaOptions& cuda) {
  const int ranks = job.mesh.ranks(), devices = cuda_devices();
  if (devices < ranks) {
    throw Error("execute", fmt::format("the plan has {} ranks, this machine {} GPU{}; take a plan "
                                       "of fewer ranks, or more machines with --launch mpi",
                                       ranks, devices, devices == 1 ? "" : "s"));
  }
  auto transports = make_thread_transports(ranks);
  std::vector<CudaRun> runs(transports.size());
  std::exception_ptr first;
  std::mutex mutex;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        runs[rank] =
            run_on(job, options, corpus, *transports[rank], static_cast<int>(rank), cuda, stop);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        stop.store(true);
        transports[rank]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  return runs;
}

}  // namespace stepcast
