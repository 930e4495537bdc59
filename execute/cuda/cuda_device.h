// CUDA, as those see it who know nothing of it: whether there is a GPU here, and a Job run on it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "execute/bench.h"
#include "execute/execute.h"
#include "sim/program/program.h"

namespace stepcast {

// "" where this program was built with CUDA and finds a GPU and its libraries; else one line that
// says what is missing and what to do about it.
std::string cuda_missing();

int cuda_devices();  // that this process sees; 0 where cuda_missing() says why

// The device of a process that mpirun or srun started: by its number on its machine (Open MPI's,
// MPICH's and Slurm's variables), or else by its rank; in turns where a process sees fewer.
int cuda_device_of_process(int rank);

struct CudaOptions {
  bool graphs = false;  // capture a step once and launch it whole: no gaps between kernels. Spans
                        // and the breakdown are then unknown: all of a step is Part::kOther.
                        // REQUIRES: no Synchronize, no HostWait: they cannot be captured
  bool register_buffers = false;  // NCCL allocates the arena and knows it, so that it need not copy
                                  // through buffers of its own (NCCL 2.19 and later)
  bool alone = false;   // without the other ranks: what they would send is made up. For timing a
                        // rank's kernels where there are fewer GPUs than ranks; the losses are none
};

// What the device's memory went to, as cudaMemGetInfo saw it go: the arena, and by name what lies
// outside it.
struct MemoryItem {
  std::string name;
  Bytes bytes;
};

struct CudaRun {
  RankRun run;
  std::vector<MemoryItem> memory;
  // Spans of the last steps, as many as ExecuteOptions::record asks for: of each Compute,
  // Collective, Send and Receive in the order of issue, from the step's begin.
  std::vector<std::vector<Span>> recorded;
};

// What the machine is, for reports and profiles. Numbers are 0 and texts "" where nobody tells:
// clocks, power and throttling come from NVML, which is part of the driver.
struct CudaMachine {
  std::string device, driver, runtime, nccl, cublaslt;
  int multiprocessors = 0;
  int capability = 0;  // 90: compute capability 9.0
  Bytes memory;
  std::int64_t clock_mhz = 0, clock_mhz_max = 0, memory_clock_mhz = 0;
  double power_watts = 0, power_limit_watts = 0;
  int temperature_celsius = 0;
  std::vector<std::string> throttled_by;  // "power cap", "heat", ...: why clocks are low just now
};
CudaMachine cuda_machine(int device);

// How a GPU was clocked over some time, from looks at it.
struct ClockRange {
  std::int64_t looks = 0;
  std::int64_t least_mhz = 0, most_mhz = 0, limit_mhz = 0;
  double mean_mhz = 0;
  double most_watts = 0, limit_watts = 0;
  int most_celsius = 0;
  std::map<std::string, std::int64_t> throttled_by;  // looks at which it was
  void add(const CudaMachine& look);
};
// "1755 to 1980 MHz, 1902 in the mean, of 1980; up to 690 W of 700, 71 C; held down by power cap in
// 40 % of 321 looks"; "" where NVML tells nothing.
std::string to_text(const ClockRange& clocks);

// Looks at a GPU ten times a second, on a thread of its own.
class CudaWatch {
 public:
  explicit CudaWatch(int device);
  ~CudaWatch();
  CudaWatch(const CudaWatch&) = delete;
  CudaWatch& operator=(const CudaWatch&) = delete;
  ClockRange seen() const;  // so far

 private:
  struct Watcher;
  std::unique_ptr<Watcher> watcher_;
};

// "" or what of a Job that the host carries out (executable()) a GPU does not yet.
std::string cuda_unsupported(const Job& job);

// Runs one rank on a device to the end; `control` carries what ranks agree on before NCCL does
// the rest. REQUIRES: verify(job), executable(job), cuda_unsupported(job) and cuda_missing() are
// "". Throws Error for trouble with the device, its memory or another rank.
CudaRun run_cuda_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                      Transport& control, int device, const CudaOptions& cuda);

// All ranks as threads of this process, each on a GPU of its own. Throws the first rank's Error,
// and one where there are fewer GPUs than ranks.
std::vector<CudaRun> run_cuda_threads(const Job& job, const ExecuteOptions& options,
                                      const Corpus& corpus, const CudaOptions& cuda);

// A GPU as microbenchmarks see it; transfers are of the Job's groups, with the ranks that `control`
// reaches. Null: there are none. `stop`: set where another rank of this process failed. REQUIRES:
// cuda_missing() is ""; all outlive it. Throws Error where the device has too little memory left.
std::unique_ptr<Bench> make_cuda_bench(const Job* job, Transport& control, int device,
                                       const std::atomic<bool>& stop);
// A bench for each rank of the Job, on threads and GPUs of their own. Throws as run_cuda_threads().
void bench_cuda_threads(const Job& job, const std::function<void(Bench&, Transport&)>& each);

}  // namespace stepcast
