// CUDA events time every instruction of a ring's steps but those of the first, which loads kernels
// and picks algorithms; from each its share of what ran beside it is taken off. The file is written
// after every probe and after every run of steps. A product as sentinel runs before and after.
#include "tools/run/calibrate_cuda.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "calibrate/alone.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/recorded.h"
#include "execute/mpi.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/network/measured.h"
#include "tools/base/files.h"
#include "tools/run/here.h"

namespace stepcast {

namespace {

constexpr std::int64_t kStepsFirst = 3, kStepsLeast = 8, kStepsMost = 200;
constexpr double kStepsTake = 10;  // seconds of a plan's steps, and of a run of them

struct GpuSubject {
  std::string config, name;
  Cluster cluster;
  Job ring;
  bool alone = false;  // fewer GPUs than ranks
  int ranks() const { return alone ? 1 : ring.mesh.ranks(); }
};

GpuSubject prepare(const CalibrateArguments& arguments, const std::string& config) {
  std::vector<std::string> sets = arguments.sets;
  if (config != kStdout) sets.emplace_back("profile=null");  // it may name the file to be written
  const WhatIf what_if = read_what_if(config, sets);
  const Plan plan = ring_plan(what_if.plan);
  GpuSubject subject{config, what_if.name, what_if.cluster,
                     lower_ring(transformer(what_if.model, plan), what_if.plan, kRingRounds)};
  const std::string fault = verify(subject.ring);
  STEPCAST_CHECK(fault.empty(), fault);
  std::string trouble = executable(subject.ring);
  if (trouble.empty()) trouble = cuda_unsupported(subject.ring);
  if (!trouble.empty()) throw Error(config, trouble);
  subject.alone = arguments.launch == "threads" && subject.ring.mesh.ranks() > cuda_devices();
  return subject;
}

std::map<std::string, std::string> texts_of(const CudaMachine& machine) {
  return {{"gpu", machine.device},
          {"driver", machine.driver},
          {"cuda", machine.runtime},
          {"cublaslt", machine.cublaslt},
          {"nccl", machine.nccl}};
}

class GpuCalibrator {
 public:
  // `control`: to the other processes' ranks; null: ranks are threads of this one.
  GpuCalibrator(const CalibrateArguments& arguments, const std::vector<GpuSubject>& subjects,
                Transport* control, int devices_here)
      : arguments_(arguments),
        subjects_(subjects),
        control_(control),
        device_(control == nullptr ? 0 : cuda_device_of_process(control->rank())),
        devices_here_(devices_here),
        machine_(cuda_machine(device_)),
        watch_(device_) {
    if (!first() || !arguments.resume || !std::filesystem::exists(arguments.out)) return;
    const Document document = parse_json(read_file(arguments.out), arguments.out);
    const Profile profile = read_profile(document);
    check_device(profile, subjects.front().cluster.device.name, arguments.out);
    calibration_ = resume_from(profile, arguments.launch, texts_of(machine_));
  }

  void measure() {
    for (const GpuSubject& subject : subjects_) {
      calibration_.threads.emplace(subject.ranks(), 1);
      MeasuredSlice slice;
      slice.before = sentinel();
      probe(subject);
      measure_ring(subject);
      slice.after = sentinel();
      calibration_.sentinel.add(slice);
      keep();
    }
  }

  int report() {
    const Profile profile = profile_so_far();
    write_file(arguments_.out, write_profile(profile).dump(1) + "\n");
    if (arguments_.out == kStdout) return 0;
    std::string out = fmt::format("{}: measured on {}", arguments_.out, machine_.device);
    const std::string clocks = to_text(watch_.seen());
    if (!clocks.empty()) out += ", " + clocks;
    out += "\n\n ranks  kernels  transfers\n";
    for (const TimedWork& work : profile.work) {
      out += fmt::format("{:>6} {:>8} {:>10}\n", work.ranks, work.kernels.size(),
                         work.transfers.size());
    }
    out += "\n" + to_text(calibration_.probed);
    out += fmt::format("The sentinel moved by {:.1f} %.\n", 100 * calibration_.sentinel.drift());
    write_file(kStdout, out + what_is_missing());
    return 0;
  }

 private:
  bool first() const { return control_ == nullptr || control_->rank() == 0; }

  // The ranks' mean; on a bench that has no wires.
  Seconds sentinel() {
    const auto lone = make_lone_transport(0);
    Transport& control = control_ == nullptr ? *lone : *control_;
    const auto bench = make_cuda_bench(nullptr, control, device_, never_);
    Probed none;
    return Prober(*bench, control, none, [] {}).sentinel();
  }

  // One rank's part of the probes; `probed` is kept on rank 0.
  void probe_rank(Bench& bench, Transport& control, const std::vector<ProbedTransfer>& transfers,
                  Probed& probed) {
    const bool keeps = control.rank() == 0;
    Prober prober(bench, control, probed, [&] {
      if (keeps) keep();
    });
    say("memory and launches");
    prober.measure_memory();
    prober.measure_launches();
    for (const ProbedTransfer& transfer : transfers) {
      say(fmt::format("{} of {} ranks", collective_name(transfer.load.transfer.kind),
                      transfer.ranks));
      prober.measure_wires(transfer);
      prober.measure_beside(transfer);
    }
    say("");
  }

  void probe(const GpuSubject& subject) {
    const int ranks = subject.ranks();
    std::vector<ProbedTransfer> transfers;
    if (!subject.alone) transfers = placed(subject);
    if (control_ != nullptr) {
      const Job* job = ranks > 1 ? &subject.ring : nullptr;
      const auto bench = make_cuda_bench(job, *control_, device_, never_);
      return probe_rank(*bench, *control_, transfers, calibration_.probed);
    }
    if (ranks == 1) {
      const auto control = make_lone_transport(0);
      const auto bench = make_cuda_bench(nullptr, *control, device_, never_);
      return probe_rank(*bench, *control, transfers, calibration_.probed);
    }
    const Probed known = calibration_.probed;
    bench_cuda_threads(subject.ring, [&](Bench& bench, Transport& control) {
      Probed others = known;
      probe_rank(bench, control, transfers, control.rank() == 0 ? calibration_.probed : others);
    });
  }

  // Where the groups lie: as many devices a node as this machine has ranks.
  std::vector<ProbedTransfer> placed(const GpuSubject& subject) const {
    const Cluster cluster = cluster_here(subject);
    std::vector<ProbedTransfer> transfers = probed_transfers(subject.ring);
    for (ProbedTransfer& one : transfers) {
      const Transfer& t = one.load.transfer;
      const Placement where = place(subject.ring.mesh, t.axes, t.ends_only, cluster);
      one.nodes = where.nodes;
      one.groups_per_node = where.groups_per_node;
    }
    return transfers;
  }

  Cluster cluster_here(const GpuSubject& subject) const {
    const int ranks = subject.ring.mesh.ranks();
    const int here = control_ == nullptr ? ranks : devices_here_;
    return standard_cluster(subject.cluster.device, ranks / here, here);
  }

  void measure_ring(const GpuSubject& subject) {
    Measurements& measurements = calibration_.by_ranks[subject.ranks()];
    double seconds = 0;
    for (std::int64_t before = -1;;) {
      const std::int64_t done = subject.alone ? measurements.kernel_steps(subject.ring)
                                              : measurements.steps(subject.ring);
      STEPCAST_CHECK(!first() || done > before, "every run of steps times all work");
      before = done;
      std::int64_t steps = next_steps(arguments_.repeat, done, seconds);
      if (control_ != nullptr) steps = agreed(*control_, steps);
      if (steps == 0) return;
      say(fmt::format("{} steps", steps));
      seconds = run_ring(subject, steps, measurements);
      if (control_ != nullptr) {
        // Whole nanoseconds, of rank 0.
        const auto whole = static_cast<std::int64_t>(std::ceil(seconds * 1e9));
        seconds = static_cast<double>(agreed(*control_, whole)) * 1e-9;
      }
      say("");
      keep();
    }
  }

  // Seconds of a step.
  double run_ring(const GpuSubject& subject, std::int64_t steps, Measurements& measurements) {
    const Job& job = subject.ring;
    ExecuteOptions options;
    options.steps = steps + 1;
    options.record = steps;
    const auto corpus = make_language(job.batch.vocabulary, 1);
    if (subject.alone) return run_alone(subject, options, *corpus, measurements);
    std::vector<CudaRun> runs;
    if (control_ == nullptr) {
      runs = run_cuda_threads(job, options, *corpus, {});
    } else {
      runs.push_back(run_cuda_rank(job, options, *corpus, *control_, device_, {}));
    }
    const std::vector<double> seconds = runs[0].run.seconds;
    for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
      const std::vector<std::vector<Span>> spans = all_spans(job, runs, step);
      if (spans.empty()) continue;  // rank 0's process has them
      std::vector<std::vector<Span>> alone;
      for (const auto& rank : spans) alone.push_back(spans_alone(job, rank, finder(subject)));
      const Duration whole = to_duration(Seconds(seconds.at(step + 1)));
      measurements.add(job, cuda::record_spans(job, alone, whole));
    }
    return seconds.back();
  }

  // By rank; none on other processes than rank 0's.
  std::vector<std::vector<Span>> all_spans(const Job& job, const std::vector<CudaRun>& runs,
                                           std::size_t step) {
    std::vector<std::vector<Span>> spans;
    if (control_ == nullptr) {
      for (const CudaRun& run : runs) spans.push_back(run.recorded.at(step));
      return spans;
    }
    RankRun mine;
    mine.rank = control_->rank();
    mine.spans = runs[0].recorded.at(step);
    for (RankRun& run : gather_runs(*control_, job.mesh, mine)) {
      spans.push_back(std::move(run.spans));
    }
    return spans;
  }

  double run_alone(const GpuSubject& subject, const ExecuteOptions& options, const Corpus& corpus,
                   Measurements& measurements) {
    const Job& job = subject.ring;
    double seconds = 0;
    std::set<int> stages;
    for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
      if (!stages.insert(job.mesh.stage(rank)).second) continue;  // one rank of each stage
      const auto control = make_lone_transport(rank);
      CudaOptions cuda;
      cuda.alone = true;
      const CudaRun run = run_cuda_rank(job, options, corpus, *control, device_, cuda);
      for (const auto& spans : run.recorded) measurements.add_kernels(job, rank, spans);
      seconds += run.run.seconds.back();
    }
    return seconds;
  }

  FindBeside finder(const GpuSubject& subject) const {
    const Cluster cluster = cluster_here(subject);
    const Mesh& mesh = subject.ring.mesh;
    return [this, cluster, &mesh](std::string_view kernel, const Transfer& t) {
      const Placement where = place(mesh, t.axes, t.ends_only, cluster);
      return find_beside(calibration_.probed.probes, kernel, collective_name(t.kind), where.ranks,
                         where.nodes, where.groups_per_node);
    };
  }

  std::string what_is_missing() const {
    for (const GpuSubject& subject : subjects_) {
      if (!subject.alone) continue;
      return fmt::format(
          "{} has {} ranks, this machine {} GPU{}: all but the wires was measured, "
          "each stage by itself.\n",
          subject.name, subject.ring.mesh.ranks(), devices_here_, devices_here_ == 1 ? "" : "s");
    }
    return devices_here_ == 1 && control_ == nullptr ? "One GPU: no wires were measured.\n" : "";
  }

  Profile profile_so_far() const {
    const std::string name = arguments_.out == kStdout
                                 ? "calibrated"
                                 : std::filesystem::path(arguments_.out).stem().string();
    Profile profile = profile_of(calibration_, name, provenance_of(arguments_));
    profile.device = subjects_.front().cluster.device.name;
    profile.machine = texts_of(machine_);
    const std::string clocks = to_text(watch_.seen());
    if (!clocks.empty()) profile.provenance["clocks"] = clocks;
    return profile;
  }

  void keep() {
    if (!first() || arguments_.out == kStdout) return;
    write_file(arguments_.out, write_profile(profile_so_far()).dump(1) + "\n");
  }

  // "" when it is over.
  void say(const std::string& text) const {
    if (!first() || isatty(STDERR_FILENO) == 0) return;
    std::fputs(("\r\x1b[K" + text).c_str(), stderr);
  }

  const CalibrateArguments& arguments_;
  const std::vector<GpuSubject>& subjects_;
  Transport* control_;
  const int device_, devices_here_;
  const CudaMachine machine_;
  const std::atomic<bool> never_ = false;
  Calibration calibration_;
  CudaWatch watch_;
};

std::vector<GpuSubject> prepare_all(const CalibrateArguments& arguments) {
  std::vector<GpuSubject> subjects;
  for (const std::string& config : arguments.configs) {
    subjects.push_back(prepare(arguments, config));
    const std::string &device = subjects.back().cluster.device.name,
                      &other = subjects.front().cluster.device.name;
    if (device == other) continue;
    throw Error(config, fmt::format("is of {}, {} of {}; a profile is of one device", device,
                                    subjects.front().config, other));
  }
  return subjects;
}

int calibrate_processes(const CalibrateArguments& arguments,
                        const std::vector<GpuSubject>& subjects) {
  const MpiSession session;
  try {
    for (const GpuSubject& subject : subjects) {
      const int ranks = subject.ring.mesh.ranks();
      if (ranks == session.ranks()) continue;
      throw Error(subject.config, fmt::format("has {} ranks, but {} processes were started; use "
                                              "mpirun -n {}",
                                              ranks, session.ranks(), ranks));
    }
    const auto control = session.transport();
    const int here = devices_per_node(*control, session.ranks_here(), session.ranks());
    GpuCalibrator calibrator(arguments, subjects, control.get(), here);
    calibrator.measure();
    return session.rank() == 0 ? calibrator.report() : 0;
  } catch (const Error& error) {
    // The session ends all processes on its way out, before anybody else could say why.
    std::fputs(fmt::format("stepcast: rank {}: {}\n", session.rank(), error.what()).c_str(),
               stderr);
    throw;
  }
}

}  // namespace

std::string to_text(const Probed& probed) {
  std::string out;
  const Probes& probes = probed.probes;
  if (!probes.memory.empty()) {
    const auto largest = std::max_element(
        probes.memory.begin(), probes.memory.end(),
        [](const MemoryPoint& a, const MemoryPoint& b) { return a.bytes < b.bytes; });
    out += fmt::format("memory: {:.0f} GB/s, by {} of {} MB\n",
                       static_cast<double>(largest->bytes.count) / largest->time.mean.value / 1e9,
                       largest->kernel, largest->bytes.count / 1'000'000);
  }
  if (probes.launch) {
    out += fmt::format("launch: {} of the host, {} from kernel to kernel, {} in a graph\n",
                       format_seconds(probes.launch->issue.mean),
                       format_seconds(probes.launch->gap.mean),
                       format_seconds(probes.launch->graph_gap.mean));
  }
  for (const WireCurve& curve : probed.wires) {
    const WirePoint& last = curve.points.back();
    out += fmt::format("{} over {} ranks: {} to {} at {} MB\n", curve.collective, curve.ranks,
                       format_seconds(curve.points.front().time), format_seconds(last.time),
                       last.bytes.count / 1'000'000);
  }
  for (const BesidePoint& point : probes.beside) {
    out += fmt::format("{} beside {} over {} ranks: {:.2f} times as long, the other {:.2f}\n",
                       point.kernel, point.collective, point.ranks, point.kernel_factor,
                       point.collective_factor);
  }
  return out;
}

std::int64_t next_steps(std::int64_t wanted, std::int64_t done, double seconds) {
  if (wanted == 0) {
    const double fit = seconds > 0 ? kStepsTake / seconds : 0;
    wanted = static_cast<std::int64_t>(
        std::clamp(fit, static_cast<double>(kStepsLeast), static_cast<double>(kStepsMost)));
  }
  if (done >= wanted) return 0;
  const std::int64_t left = wanted - done;
  if (!(seconds > 0)) return std::min(kStepsFirst, left);
  const double run = std::clamp(kStepsTake / seconds, 1.0, static_cast<double>(kStepsMost));
  return std::min(left, static_cast<std::int64_t>(run));
}

int devices_per_node(Transport& control, int here, int ranks) {
  double sums[] = {static_cast<double>(here), static_cast<double>(here) * here};
  control.sum_everywhere(sums);
  const bool even = sums[1] * ranks == sums[0] * sums[0];  // no variance
  if (!even || ranks % here != 0) {
    throw Error("--launch mpi", fmt::format("this machine has {} of {} ranks, others another "
                                            "number; start as many on each",
                                            here, ranks));
  }
  return here;
}

int calibrate_on_gpus(const CalibrateArguments& arguments) {
  const std::string missing = cuda_missing();
  if (!missing.empty()) throw Error("--device cuda", missing);
  if (arguments.launch == "mpi") {
    // All processes find the same trouble with the question; the first says so.
    const bool speaks = launched_rank() == 0;
    std::vector<GpuSubject> subjects;
    try {
      subjects = prepare_all(arguments);
    } catch (const Error&) {
      if (!speaks) sleep(2);
      throw;
    }
    return calibrate_processes(arguments, subjects);
  }
  const std::vector<GpuSubject> subjects = prepare_all(arguments);
  GpuCalibrator calibrator(arguments, subjects, nullptr, cuda_devices());
  calibrator.measure();
  return calibrator.report();
}

}  // namespace stepcast
