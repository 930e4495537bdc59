// The ring's steps run one after the other; CUDA events time every instruction in all of them but
// the first, which loads kernels and picks algorithms. What the GPU was clocked at, and what held
// its clocks down, is asked before and after and stands in the profile's provenance.
#include "tools/calibrate_cuda.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "execute/cuda/cuda_device.h"
#include "execute/cuda/recorded.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "tools/files.h"
#include "tools/here.h"

namespace stepcast {

namespace {

struct GpuSubject {
  std::string config, device;
  Job ring;
};

GpuSubject prepare(const CalibrateArguments& arguments, const std::string& config) {
  const WhatIf what_if = read_what_if(config, arguments.sets);
  const Plan plan = ring_plan(what_if.plan);
  GpuSubject subject{config, what_if.cluster.device.name,
                     lower_ring(transformer(what_if.model, plan), what_if.plan, kRingRounds)};
  const std::string fault = verify(subject.ring);
  STEPCAST_CHECK(fault.empty(), fault);
  const std::string trouble = executable(subject.ring);
  if (!trouble.empty()) throw Error(config, trouble);
  if (subject.ring.mesh.ranks() > cuda_devices()) {
    throw Error(config, fmt::format("the plan has {} ranks, this machine {} GPUs; with fewer GPUs, "
                                    "calibrate a plan of fewer ranks: all but the wires",
                                    subject.ring.mesh.ranks(), cuda_devices()));
  }
  return subject;
}

void measure(const GpuSubject& subject, std::int64_t steps, Measurements& measurements) {
  ExecuteOptions options;
  options.steps = steps + 1;
  options.record = steps;
  const auto corpus = make_language(subject.ring.batch.vocabulary, 1);
  const std::vector<CudaRun> runs = run_cuda_threads(subject.ring, options, *corpus, {});
  for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
    std::vector<std::vector<Span>> spans;
    for (const CudaRun& run : runs) spans.push_back(run.recorded.at(step));
    const auto seconds = Seconds(runs[0].run.seconds.at(step + 1));
    measurements.add(subject.ring, cuda::record_spans(subject.ring, spans, to_duration(seconds)));
  }
}

std::string state_of(const CudaMachine& machine) {
  return fmt::format("{} MHz of {}, {:.0f} W of {:.0f}, {} C{}", machine.clock_mhz,
                     machine.clock_mhz_max, machine.power_watts, machine.power_limit_watts,
                     machine.temperature_celsius,
                     machine.throttled_by.empty()
                         ? std::string()
                         : fmt::format(", held down by {}", fmt::join(machine.throttled_by, ", ")));
}

}  // namespace

int calibrate_on_gpus(const CalibrateArguments& arguments) {
  const std::string missing = cuda_missing();
  if (!missing.empty()) throw Error("--device cuda", missing);
  if (arguments.launch != "threads") {
    throw Error("--launch", "GPUs are calibrated with ranks as threads of one process");
  }
  if (arguments.resume) throw Error("--resume", "is for --device cpu; a GPU is measured anew");
  std::vector<GpuSubject> subjects;
  for (const std::string& config : arguments.configs) {
    subjects.push_back(prepare(arguments, config));
    if (subjects.back().device == subjects.front().device) continue;
    throw Error(config, fmt::format("is of {}, {} of {}; a profile is of one device",
                                    subjects.back().device, subjects.front().config,
                                    subjects.front().device));
  }
  const CudaMachine before = cuda_machine(0);
  Calibration calibration;
  for (const GpuSubject& subject : subjects) {
    const int ranks = subject.ring.mesh.ranks();
    calibration.threads[ranks] = 1;
    measure(subject, arguments.repeat, calibration.by_ranks[ranks]);
  }
  const CudaMachine after = cuda_machine(0);
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  Profile profile = profile_of(
      calibration,
      arguments.out == "-" ? "calibrated" : std::filesystem::path(arguments.out).stem().string(),
      {{"command", command_of(arguments)},
       {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
       {"host", this_machine().host},
       {"gpu_before", state_of(before)},
       {"gpu_after", state_of(after)},
       {"launch", arguments.launch}});
  for (const char* key : {"sentinel_first", "sentinel_last", "sentinel_drift"}) {
    profile.provenance.erase(key);  // it is a kernel of the host
  }
  profile.device = subjects.empty() ? "" : subjects.front().device;
  profile.machine = {{"gpu", after.device},
                     {"driver", after.driver},
                     {"cuda", after.runtime},
                     {"cublaslt", after.cublaslt},
                     {"nccl", after.nccl}};
  write_file(arguments.out, write_profile(profile).dump(1) + "\n");
  if (arguments.out == "-") return 0;
  std::string out = fmt::format("{}: measured on {}, {}\n\n ranks  kernels  transfers\n",
                                arguments.out, after.device, state_of(after));
  for (const TimedWork& work : profile.work) {
    out +=
        fmt::format("{:>6} {:>8} {:>10}\n", work.ranks, work.kernels.size(), work.transfers.size());
  }
  if (cuda_devices() == 1) out += "\nOne GPU: no wires were measured.\n";
  write_file("-", out);
  return 0;
}

}  // namespace stepcast
