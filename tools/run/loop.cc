// The full Job and its ring live side by side, their ranks threads that wait for their turn, so
// that a slice begins at once. A forecast is a simulation of the full Job in which each instance
// takes what one of the ring's of its key took. Cost: that of the steps, plus a few simulations a
// slice.
#include "tools/run/loop.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "calibrate/fit.h"
#include "calibrate/measure.h"
#include "execute/cpu/cpu_backend.h"
#include "execute/hash.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/run/composition.h"
#include "tools/run/here.h"

namespace stepcast {

namespace {

constexpr std::int64_t kSlicesMax = 1000;
constexpr int kFirstSlices = 3;         // of the profile that is kept
constexpr double kSliceSeconds = 0.25;  // of full steps, at least one and at most
constexpr std::int64_t kStepsMax = 4;
constexpr int kDraws = 8;  // simulations of a slice's forecast
constexpr int kResamples = 2000;

// One Job whose ranks are kept.
class Runner {
 public:
  Runner(Job job, int threads)
      : job_(std::move(job)), corpus_(make_language(job_.batch.vocabulary, 1)) {
    options_.record = 1;
    options_.check_numbers = true;  // as `execute` does
    options_.stuck = [](const Error& error) {
      std::fputs(fmt::format("stepcast: {}\n", error.what()).c_str(), stderr);
      std::_Exit(kTrouble);
    };
    ranks_ = std::make_unique<ThreadRanks>(job_, options_, *corpus_,
                                           [threads] { return make_cpu_backend(threads); });
  }

  const Job& job() const { return job_; }
  Recording step() {
    ranks_->step();
    return record(job_, ranks_->last_marks());
  }

 private:
  Job job_;
  ExecuteOptions options_;
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<ThreadRanks> ranks_;
};

// What the ring's instances took, by key.
class Samples {
 public:
  void add(const Job& job, const Recording& recording) {
    for_each_instance(job, [&](std::size_t rank, const WorkKey& key, std::size_t at) {
      const std::size_t known = catalog_.index(key);
      if (samples_.size() <= known) samples_.resize(known + 1);
      samples_[known].push_back(recording.durations[rank][at]);
    });
    means_.add(job, recording);
  }

  // A step of the Job in which each instance takes what one of its key took, drawn by a seed. Their
  // means would do for one rank. But ranks that meet wait for the slower one each time, which takes
  // longer than the mean of both; and how far they differ is in the samples.
  Recording draw(const Job& job, std::uint64_t seed) const {
    return step_of(job, [&](const WorkKey& key, std::size_t rank, std::size_t at) {
      const std::vector<Duration>& samples = samples_[*catalog_.find(key)];
      return samples[hash(seed, rank, at) % samples.size()];
    });
  }

  // Each instance takes its key's mean, as a profile has it (calibrate/measure.h).
  Recording mean(const Job& job) const {
    return step_of(job, [&](const WorkKey& key, std::size_t, std::size_t) {
      return to_duration(Seconds(means_.find(key)->mean()));
    });
  }

 private:
  template <class Function>
  static void for_each_instance(const Job& job, Function function) {
    for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
      const auto& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
      for_each_timed(job, program,
                     [&](const Call& call, std::size_t, const Instruction& what, std::size_t at) {
                       function(static_cast<std::size_t>(rank), work_key(job, call, what), at);
                     });
    }
  }

  template <class Choose>
  Recording step_of(const Job& job, Choose choose) const {
    Recording recording;
    recording.durations.resize(static_cast<std::size_t>(job.mesh.ranks()));
    for_each_instance(job, [&](std::size_t rank, const WorkKey& key, std::size_t at) {
      STEPCAST_CHECK(catalog_.find(key), "the ring has all work of the plan: " + to_text(key));
      recording.durations[rank].push_back(choose(key, rank, at));
    });
    recording.step = simulate(job, recording).step;
    return recording;
  }

  Catalog catalog_;
  std::vector<std::vector<Duration>> samples_;  // by the catalog's index
  Measurements means_;
};

std::string kind_of(const Job& job, const Call& call, const Instruction& what) {
  const WorkKey key = work_key(job, call, what);
  if (const auto* transfer = std::get_if<TransferKey>(&key)) return transfer_key_name(*transfer);
  const std::string text = to_text(std::get<KernelKey>(key).op);
  return text.substr(0, text.find(' '));
}

// By kind, seconds of all ranks in a step; `time(what, rank, at)` is what an instance takes.
using Sums = std::map<std::string, double>;
template <class Time>
void add_up(const Job& job, double weight, Sums& sums, Time time) {
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const auto& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(job, program,
                   [&](const Call& call, std::size_t, const Instruction& what, std::size_t at) {
                     sums[kind_of(job, call, what)] +=
                         weight * to_seconds(time(what, rank, at)).value;
                   });
  }
}

void say_progress(const std::string& name, std::int64_t done, std::int64_t of) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fputs(
      fmt::format("\r{}: slice {} of {}{}", name, done, of, done == of ? "\r\x1b[K" : "").c_str(),
      stderr);
}

std::int64_t rounds_of(const Job& ring_once, const Job& full) {
  const auto calls = [](const Job& job) {
    const std::vector<Call>& all = job.programs.front().schedule;
    return std::count_if(all.begin(), all.end(), [&](const Call& call) {
      return !job.bodies[static_cast<std::size_t>(call.body)].later;
    });
  };
  return std::clamp<std::int64_t>(calls(full) / std::max<std::int64_t>(1, calls(ring_once)), 1, 4);
}

class Loop {
 public:
  Loop(const std::string& config, const LoopArguments& arguments)
      : machine_(this_machine()),
        what_if_(executable_what_if(config, arguments.sets, true)),
        slices_(arguments.slices) {
    Job job = executable_job(what_if_, config);
    plan_.name = what_if_.name;
    plan_.config = config;
    plan_.ranks = job.mesh.ranks();
    if (plan_.ranks > machine_.cores) {
      throw Error(config, fmt::format("{} ranks would take turns on {} cores, which says nothing "
                                      "about their times; take at most as many ranks as cores",
                                      plan_.ranks, machine_.cores));
    }
    plan_.threads = machine_.cores / plan_.ranks;
    check_memory(job, config, machine_, 2);
    const Network network = transformer(what_if_.model, ring_plan(what_if_.plan));
    const Job once = lower_ring(network, what_if_.plan, 1);
    full_ = std::make_unique<Runner>(std::move(job), plan_.threads);
    ring_ = std::make_unique<Runner>(
        lower_ring(network, what_if_.plan, rounds_of(once, full_->job())), plan_.threads);
  }

  LoopPlan run() {
    ring_->step();  // warm up
    const double step = to_seconds(full_->step().step).value;
    steps_ =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(kSliceSeconds / step), 1, kStepsMax);
    keep_profile();
    for (std::int64_t slice = 0; slice < slices_; ++slice) {
      run_slice();
      say_progress(plan_.name, slice + 1, slices_);
    }
    for (const auto& [kind, seconds] : measured_) {
      plan_.costs.push_back({kind, Seconds(forecast_[kind]), Seconds(seconds)});
    }
    std::sort(plan_.costs.begin(), plan_.costs.end(),
              [](const KindCost& a, const KindCost& b) { return a.measured > b.measured; });
    return std::move(plan_);
  }

 private:
  struct Ring {
    Seconds sentinel;  // mean of the two around it
    Recording recording;
  };

  Ring measure() {
    const MeasuredSlice slice =
        measure_slice(plan_.ranks * plan_.threads, [&] { return std::optional(ring_->step()); });
    return {(slice.before + slice.after) / 2, *slice.recording};
  }

  void keep_profile() {
    Samples samples;
    for (int i = 0; i < kFirstSlices; ++i) {
      last_ = measure();
      samples.add(ring_->job(), last_.recording);
      plan_.kept_sentinel = plan_.kept_sentinel + last_.sentinel / kFirstSlices;
    }
    plan_.kept_forecast = to_seconds(samples.mean(full_->job()).step);
  }

  // The full steps lie between two rings, so that a drift that goes on is in both sides.
  void run_slice() {
    const Job& job = full_->job();
    LoopSlice slice;
    const double slices = static_cast<double>(slices_), steps = static_cast<double>(steps_);
    for (std::int64_t i = 0; i < steps_; ++i) {
      const Recording recording = full_->step();
      plan_.composition.push_back(composition_error(job, recording));
      slice.measured = slice.measured + to_seconds(recording.step) / steps;
      add_up(job, 1 / (slices * steps), measured_,
             [&](const Instruction& what, int rank, std::size_t at) {
               return counted_time(job, what, recording, rank, at);
             });
    }
    const Ring next = measure();
    slice.sentinel = (last_.sentinel + next.sentinel) / 2;
    Samples samples;
    samples.add(ring_->job(), last_.recording);
    samples.add(ring_->job(), next.recording);
    for (int i = 0; i < kDraws; ++i) {
      const Recording drawn = samples.draw(job, static_cast<std::uint64_t>(i));
      slice.forecast = slice.forecast + to_seconds(drawn.step) / kDraws;
    }
    const Recording mean = samples.mean(job);
    slice.of_means = to_seconds(mean.step);
    add_up(job, 1 / slices, forecast_, [&](const Instruction&, int rank, std::size_t at) {
      return mean.durations[static_cast<std::size_t>(rank)][at];
    });
    last_ = next;
    plan_.slices.push_back(slice);
  }

  Machine machine_;
  WhatIf what_if_;
  std::int64_t slices_, steps_ = 1;
  LoopPlan plan_;
  std::unique_ptr<Runner> full_, ring_;
  Ring last_;
  Sums forecast_, measured_;
};

template <class Value>
Interval of_slices(const std::vector<LoopSlice>& slices, Value value) {
  std::vector<double> values;
  for (const LoopSlice& slice : slices) values.push_back(value(slice));
  return bootstrap_median(values);
}

}  // namespace

Interval bootstrap_median(std::span<const double> values) {
  STEPCAST_CHECK(!values.empty(), "a median of something");
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  Interval interval;
  interval.median = quantile(sorted, 0.5);
  std::vector<double> medians, sample(sorted.size());
  for (std::uint64_t i = 0; i < kResamples; ++i) {
    for (std::uint64_t k = 0; k < sample.size(); ++k) {
      sample[k] = sorted[hash(1, i, k) % sorted.size()];
    }
    std::sort(sample.begin(), sample.end());
    medians.push_back(quantile(sample, 0.5));
  }
  std::sort(medians.begin(), medians.end());
  interval.low = quantile(medians, 0.025);
  interval.high = quantile(medians, 0.975);
  return interval;
}

Interval LoopPlan::total() const {
  return of_slices(slices, [](const LoopSlice& s) { return s.forecast / s.measured - 1; });
}

Interval LoopPlan::kept() const {
  return of_slices(slices, [&](const LoopSlice& s) { return kept_forecast / s.measured - 1; });
}

Interval LoopPlan::drift() const {
  return of_slices(slices, [&](const LoopSlice& s) { return s.sentinel / kept_sentinel - 1; });
}

Verdict LoopPlan::verdict(double tolerance) const {
  const Interval interval = total();
  if (slices.size() < kFewestSlices || interval.half_width() > kWidest) {
    return Verdict::kInconclusive;
  }
  return std::abs(interval.median) <= tolerance ? Verdict::kWithin : Verdict::kBeyond;
}

LoopPlan run_loop(const std::string& config, const LoopArguments& arguments) {
  return Loop(config, arguments).run();
}

int loop_command(const LoopArguments& arguments) {
  const double tolerance = parse_tolerance(arguments.tolerance);
  if (arguments.slices < 1 || arguments.slices > kSlicesMax) {
    throw Error("--slices",
                fmt::format("must be from 1 to {}, is {}", kSlicesMax, arguments.slices));
  }
  if (!arguments.json.empty()) check_writable(arguments.json);
  // The file is written after each plan, so that what is measured stays if the rest is not.
  std::vector<LoopPlan> plans;
  for (const std::string& config : arguments.configs) {
    plans.push_back(run_loop(config, arguments));
    if (arguments.json.empty() || arguments.json == kStdout) continue;
    write_file(arguments.json, loop_json(plans, tolerance).dump(2) + "\n");
  }
  write_file(kStdout, arguments.json == kStdout ? loop_json(plans, tolerance).dump(2) + "\n"
                                                : loop_table(plans, tolerance));
  for (const LoopPlan& plan : plans) {
    const Verdict verdict = plan.verdict(tolerance);
    const bool excused = verdict == Verdict::kInconclusive && arguments.allow_inconclusive;
    if (verdict != Verdict::kWithin && !excused) return 1;
  }
  return 0;
}

}  // namespace stepcast
