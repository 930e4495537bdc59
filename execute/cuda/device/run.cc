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
               Transport& control, int device, const CudaOptions& cuda, cuda::StagePlaces places,
               const std::atomic<bool>& stop) {
  cuda::DeviceRank rank(job, options, corpus, control, device, cuda, std::move(places), stop);
  for (std::int64_t step = 0; step < options.steps; ++step) rank.step();
  return rank.finish();
}

// function(control transport, stop) for each rank, on a thread of its own.
template <class Function>
void on_threads(int ranks, Function function) {
  const int devices = cuda_devices();
  if (devices < ranks) {
    throw Error("execute", fmt::format("the plan has {} ranks, this machine {} GPU{}; take a plan "
                                       "of fewer ranks, or more machines with --launch mpi",
                                       ranks, devices, devices == 1 ? "" : "s"));
  }
  auto transports = make_thread_transports(ranks);
  std::exception_ptr first;
  std::mutex mutex;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (const auto& transport : transports) {
    threads.emplace_back([&, control = transport.get()] {
      try {
        function(*control, stop);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        stop.store(true);
        control->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace

CudaRun run_cuda_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                      Transport& control, int device, const CudaOptions& cuda) {
  std::atomic<bool> stop = false;  // the launcher ends the processes of the others
  const auto stage = static_cast<std::size_t>(job.mesh.stage(control.rank()));
  // What nobody sends and nobody receives keeps no rank waiting.
  cuda::StagePlaces places = cuda.alone ? cuda::place_stage(job, job.programs[stage], 0)
                                        : std::move(cuda::plan_places(job)[stage]);
  return run_on(job, options, corpus, control, device, cuda, std::move(places), stop);
}

std::vector<CudaRun> run_cuda_threads(const Job& job, const ExecuteOptions& options,
                                      const Corpus& corpus, const CudaOptions& cuda) {
  const std::vector<cuda::StagePlaces> places = cuda::plan_places(job);
  std::vector<CudaRun> runs(static_cast<std::size_t>(job.mesh.ranks()));
  on_threads(job.mesh.ranks(), [&](Transport& control, std::atomic<bool>& stop) {
    const int rank = control.rank();
    const auto stage = static_cast<std::size_t>(job.mesh.stage(rank));
    runs[static_cast<std::size_t>(rank)] =
        run_on(job, options, corpus, control, rank, cuda, places[stage], stop);
  });
  return runs;
}

void bench_cuda_threads(const Job& job, const std::function<void(Bench&, Transport&)>& each) {
  on_threads(job.mesh.ranks(), [&](Transport& control, std::atomic<bool>& stop) {
    const auto bench = make_cuda_bench(&job, control, control.rank(), stop);
    each(*bench, control);
  });
}

}  // namespace stepcast
