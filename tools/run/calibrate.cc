// `stepcast calibrate`: plans are prepared first, so that a mistake in the last one costs nothing;
// then one after the other is measured. Ranks are threads that are kept between slices, or the
// processes that mpirun started, all in step.
#include "tools/run/calibrate.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "calibrate/reference.h"
#include "execute/cpu/cpu_backend.h"
#include "execute/mpi.h"
#include "execute/rank.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/run/calibrate_cuda.h"
#include "tools/run/here.h"

namespace stepcast {

namespace {

constexpr std::int64_t kRepeatMax = 100'000;
constexpr std::int64_t kSlicesLeast = 8, kSlicesMost = 200;  // where the command does not say
constexpr double kBudget = 10;        // seconds of a plan, where that is more than the least
constexpr double kSentinels = 0.025;  // seconds of the two around a slice

// A plan that is to be measured.
struct Subject {
  std::string config;
  std::string name;
  Job ring;
  int ranks = 1;
  int threads = 1;          // of each rank
  std::int64_t slices = 0;  // that are measured now
  double seconds = 0;       // that it took
};

Subject prepare(const CalibrateArguments& arguments, const std::string& config,
                const Machine& machine, bool speak) {
  std::vector<std::string> sets = arguments.sets;
  if (config != kStdout) sets.emplace_back("profile=null");  // it may name the file to be written
  const WhatIf what_if = executable_what_if(config, sets, speak);
  const Plan plan = ring_plan(what_if.plan);
  Subject subject{config, what_if.name,
                  lower_ring(transformer(what_if.model, plan), what_if.plan, kRingRounds)};
  const std::string fault = verify(subject.ring);
  STEPCAST_CHECK(fault.empty(), fault);
  const std::string trouble = executable(subject.ring);
  if (!trouble.empty()) throw Error(config, trouble);
  subject.ranks = subject.ring.mesh.ranks();
  subject.threads = std::max(1, machine.cores / subject.ranks);
  if (arguments.launch == "threads" && subject.ranks > machine.cores) {
    throw Error(config, fmt::format("{} ranks would take turns on {} cores, which says nothing "
                                    "about their times; take at most as many ranks as cores",
                                    subject.ranks, machine.cores));
  }
  check_memory(subject.ring, config, machine);
  return subject;
}

std::string now() {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

// On rank 0's process what all ranks' marks say; nothing on the others.
std::optional<Recording> gather_recording(Transport& transport, const Job& job, const Marks& mine) {
  RankRun run;
  run.rank = mine.rank;
  run.marks = {mine};
  std::vector<Marks> marks;
  for (const RankRun& one : gather_runs(transport, job.mesh, run)) {
    marks.push_back(one.marks.front());
  }
  return marks.empty() ? std::nullopt : std::optional(record(job, marks));
}

class Calibrator {
 public:
  Calibrator(const CalibrateArguments& arguments, bool speaks)
      : arguments_(arguments), speaks_(speaks), machine_(this_machine()) {
    for (const std::string& config : arguments.configs) {
      subjects_.push_back(prepare(arguments, config, machine_, speaks));
    }
    if (arguments.resume && std::filesystem::exists(arguments.out)) {
      const Document document = parse_json(read_file(arguments.out), arguments.out);
      calibration_ = resume_from(read_profile(document), arguments.launch, machine_texts());
    }
    for (Subject& subject : subjects_) {
      const std::int64_t wanted = arguments.repeat > 0 ? arguments.repeat : kSlicesLeast;
      const std::int64_t done = calibration_.by_ranks[subject.ranks].steps(subject.ring);
      subject.slices = std::max<std::int64_t>(0, wanted - done);
      calibration_.threads.emplace(subject.ranks, subject.threads);
    }
  }

  const std::vector<Subject>& subjects() const { return subjects_; }

  // Ranks as threads of this process.
  void measure_threads() {
    for (Subject& subject : subjects_) {
      if (subject.slices == 0) continue;
      begin(subject);
      const auto corpus = make_language(subject.ring.batch.vocabulary, 1);
      ExecuteOptions options;
      options.record = 1;
      options.stuck = [](const Error& error) {
        std::fputs(fmt::format("stepcast: {}\n", error.what()).c_str(), stderr);
        std::_Exit(kTrouble);  // a thread that hangs cannot be joined
      };
      const int threads = subject.threads;
      ThreadRanks ranks(subject.ring, options, *corpus,
                        [threads] { return make_cpu_backend(threads); });
      run(
          subject, std::min(machine_.cores, subject.ranks * threads),
          [&] {
            ranks.step();
            return std::optional(record(subject.ring, ranks.last_marks()));
          },
          [](double one) { return one; });
    }
  }

  // This process is one rank of each plan.
  void measure_process(const MpiSession& session, Transport& transport, Progress& progress) {
    if (!session.one_machine()) {
      throw Error("--launch mpi",
                  "the processes run on several machines, whose clocks differ; "
                  "calibrate on one");
    }
    for (Subject& subject : subjects_) {
      if (subject.ranks != session.ranks()) {
        throw Error(subject.config, fmt::format("has {} ranks, but {} processes were started; use "
                                                "mpirun -n {}",
                                                subject.ranks, session.ranks(), subject.ranks));
      }
      if (subject.slices == 0) continue;
      begin(subject);
      const auto corpus = make_language(subject.ring.batch.vocabulary, 1);
      ExecuteOptions options;
      options.record = 1;
      options.epoch = common_epoch(transport);
      const auto backend = make_cpu_backend(subject.threads);
      Rank rank(subject.ring, options, *corpus, *backend, transport, progress);
      run(
          subject, subject.threads,
          [&]() -> std::optional<Recording> {
            transport.sum_everywhere({});
            rank.step();
            return gather_recording(transport, subject.ring, rank.last_marks());
          },
          [&](double one) {
            transport.sum_everywhere({&one, 1});
            return one / subject.ranks;
          });
    }
  }

  int report() const {
    if (arguments_.out == kStdout) {
      write_file(arguments_.out, text());
      return 0;
    }
    std::string out = fmt::format("{}: measured on {} cores, {}\n\n", arguments_.out,
                                  machine_.cores, machine_.processor);
    out += " ranks  threads  kernels  transfers  slices  seconds  plan\n";
    for (const Subject& subject : subjects_) {
      const TimedWork work =
          calibration_.by_ranks.at(subject.ranks).work(subject.ranks, subject.threads);
      out += fmt::format("{:>6} {:>8} {:>8} {:>10} {:>7} {:>8.1f}  {}\n", subject.ranks,
                         subject.threads, work.kernels.size(), work.transfers.size(),
                         subject.slices, subject.seconds, subject.name);
    }
    const SentinelLog& sentinel = calibration_.sentinel;
    if (sentinel.first() > Seconds(0)) {
      out += fmt::format(
          "\nThe sentinel took {} at the begin, {} at the end, and moved by {:.1f} "
          "% in between.\n",
          format_seconds(sentinel.first()), format_seconds(sentinel.last()),
          100 * sentinel.drift());
    }
    if (checked_.kernels > 0) {
      out += fmt::format(
          "{} kernels were held against double precision first; the furthest was off "
          "by {:.1e}.\n",
          checked_.kernels, checked_.worst);
    }
    write_file("-", out);
    return 0;
  }

 private:
  // Kernels are checked before anything of the plan is timed.
  void begin(Subject& subject) {
    const int known = calibration_.threads.at(subject.ranks);
    if (known != subject.threads) {
      throw Error(arguments_.out, fmt::format("was measured with {} threads a rank, now there are "
                                              "cores for {}",
                                              known, subject.threads));
    }
    const auto backend = make_cpu_backend(subject.threads);
    const KernelCheck check = check_kernels(subject.ring, *backend);
    checked_.kernels += check.kernels;
    checked_.worst = std::max(checked_.worst, check.worst);
  }

  // `mean` of what all processes say, as they have to agree.
  template <class Step, class Mean>
  void run(Subject& subject, int threads, Step step, Mean mean) {
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    step();  // warms up; not counted
    if (arguments_.repeat == 0) {
      const double fit = kBudget / (mean(seconds()) + kSentinels);
      subject.slices = std::clamp(static_cast<std::int64_t>(fit), subject.slices, kSlicesMost);
    }
    for (std::int64_t i = 0; i < subject.slices; ++i) {
      say_progress(subject, i);
      const MeasuredSlice slice = measure_slice(threads, step);
      if (!slice.recording) continue;  // rank 0's process has it
      calibration_.by_ranks[subject.ranks].add(subject.ring, *slice.recording);
      calibration_.sentinel.add(slice);
      if (arguments_.out != kStdout) write_file(arguments_.out, text());
    }
    say_progress(subject, subject.slices);
    subject.seconds = seconds();
  }

  void say_progress(const Subject& subject, std::int64_t done) const {
    if (!speaks_ || isatty(STDERR_FILENO) == 0) return;
    const std::string text =
        done == subject.slices
            ? "\r\x1b[K"
            : fmt::format("\r{}: slice {} of {}", subject.name, done + 1, subject.slices);
    std::fputs(text.c_str(), stderr);
  }

  std::string text() const {
    const std::string name = arguments_.out == kStdout
                                 ? "calibrated"
                                 : std::filesystem::path(arguments_.out).stem().string();
    const Profile profile = profile_of(calibration_, name, provenance_of(arguments_));
    return write_profile(profile).dump(1) + "\n";
  }

  const CalibrateArguments& arguments_;
  const bool speaks_;
  const Machine machine_;
  std::vector<Subject> subjects_;
  Calibration calibration_;
  KernelCheck checked_;
};

void check_arguments(const CalibrateArguments& arguments) {
  const std::vector<std::string> devices = {"cpu", "cuda"}, launches = {"threads", "mpi"};
  const auto one_of = [](const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (!one_of(devices, arguments.device)) {
    throw Error("--device", fmt::format("must be cpu or cuda, is \"{}\"{}", arguments.device,
                                        did_you_mean(arguments.device, devices)));
  }
  if (!one_of(launches, arguments.launch)) {
    throw Error("--launch", fmt::format("must be threads or mpi, is \"{}\"{}", arguments.launch,
                                        did_you_mean(arguments.launch, launches)));
  }
  if (arguments.repeat < 0 || arguments.repeat > kRepeatMax) {
    throw Error("--repeat", fmt::format("must be from 0 (what 10 s hold) to {}, is {}", kRepeatMax,
                                        arguments.repeat));
  }
  if (arguments.out == kStdout && arguments.resume) {
    throw Error("--resume", "goes on from a file; name one with --out");
  }
  check_writable(arguments.out);
}

int calibrate_process(const CalibrateArguments& arguments) {
  // All processes find the same trouble with the question; the first says so.
  const bool speaks = launched_rank() == 0;
  std::unique_ptr<Calibrator> calibrator;
  try {
    calibrator = std::make_unique<Calibrator>(arguments, speaks);
  } catch (const Error&) {
    if (!speaks) sleep(2);
    throw;
  }
  return run_watched(calibrator->subjects().front().ring, [&](Progress& progress) {
    const MpiSession session;
    const auto transport = session.transport();
    try {
      calibrator->measure_process(session, *transport, progress);
    } catch (const Error& error) {
      // The session ends all processes on its way out, before anybody else could say why.
      std::fputs(fmt::format("stepcast: rank {}: {}\n", session.rank(), error.what()).c_str(),
                 stderr);
      throw;
    }
    return session.rank() == 0 ? calibrator->report() : 0;
  });
}

}  // namespace

void SentinelLog::add(const MeasuredSlice& slice) {
  for (const Seconds time : {slice.before, slice.after}) {
    if (count_ == 0) first_ = shortest_ = longest_ = time;
    shortest_ = std::min(shortest_, time);
    longest_ = std::max(longest_, time);
    last_ = time;
    sum_ = sum_ + time;
    ++count_;
  }
}

double SentinelLog::drift() const {
  return count_ == 0 ? 0 : (longest_ - shortest_) / (sum_ / static_cast<double>(count_));
}

std::map<std::string, std::string> provenance_of(const CalibrateArguments& arguments) {
  return {{"command", command_of(arguments)},
          {"date", now()},
          {"host", this_machine().host},
          {"launch", arguments.launch}};
}

Calibration resume_from(const Profile& profile, const std::string& launch,
                        const std::map<std::string, std::string>& here) {
  const std::string other = machine_difference(profile, here);
  if (!other.empty()) {
    throw Error(profile.file,
                fmt::format("was measured on another machine: {}; measure into a file "
                            "of its own, without --resume",
                            other));
  }
  const auto found = profile.provenance.find("launch");
  const std::string was = found == profile.provenance.end() ? "" : found->second;
  if (was != launch) {
    throw Error(profile.file, fmt::format("was measured with --launch {}, not {}", was, launch));
  }
  Calibration calibration;
  for (const TimedWork& work : profile.work) {
    calibration.by_ranks[work.ranks].add(work);
    calibration.threads[work.ranks] = work.threads;
  }
  calibration.probed = {profile.probes, profile.wires};
  return calibration;
}

Profile profile_of(const Calibration& calibration, const std::string& name,
                   std::map<std::string, std::string> provenance) {
  Profile profile;
  profile.name = name;
  profile.description = "the work of the plans that its command names, timed in their course";
  profile.device = "cpu";
  profile.machine = machine_texts();
  profile.provenance = std::move(provenance);
  profile.probes = calibration.probed.probes;
  profile.wires = calibration.probed.wires;
  const SentinelLog& sentinel = calibration.sentinel;
  const auto text = [](Seconds time) { return fmt::format("{:.3f} ms", 1e3 * time.value); };
  profile.provenance["sentinel_first"] = text(sentinel.first());
  profile.provenance["sentinel_last"] = text(sentinel.last());
  profile.provenance["sentinel_drift"] = fmt::format("{:.4f}", sentinel.drift());
  for (const auto& [ranks, measurements] : calibration.by_ranks) {
    if (measurements.size() == 0) continue;
    profile.work.push_back(measurements.work(ranks, calibration.threads.at(ranks)));
  }
  return profile;
}

std::string command_of(const CalibrateArguments& arguments) {
  std::string text = "stepcast calibrate --device " + arguments.device;
  for (const std::string& config : arguments.configs) text += " --for " + config;
  for (const std::string& set : arguments.sets) text += " --set " + set;
  if (arguments.launch != "threads") text += " --launch " + arguments.launch;
  return text + fmt::format(" --repeat {} --out {}", arguments.repeat, arguments.out);
}

int calibrate_command(const CalibrateArguments& arguments) {
  check_arguments(arguments);
  if (arguments.device == "cuda") return calibrate_on_gpus(arguments);
  if (arguments.launch == "mpi") return calibrate_process(arguments);
  Calibrator calibrator(arguments, true);
  calibrator.measure_threads();
  return calibrator.report();
}

}  // namespace stepcast
