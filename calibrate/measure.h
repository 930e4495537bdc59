// Measure: how long each distinct piece of work takes, in the course of steps that are carried out
// by the very interpreter and kernels that `execute` runs.
//
//   ring = lower_ring(...)                       // a small Job of the same work (models/lower.h)
//   slices of [sentinel, a step of the ring, sentinel]; every instance of every instruction counts
//
// Alternating small slices with what they are compared to, and sentinels around each, is how a
// machine that drifts is measured. Means are kept, as a step is a sum of all its instances, the
// slow ones too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "calibrate/catalog.h"
#include "sim/base/units.h"
#include "sim/hardware/work.h"
#include "sim/result/recording.h"
#include "sim/result/result.h"

namespace stepcast {

// Mean and deviation of numbers that come one by one, and of two such together.
class Statistic {
 public:
  void add(double value);
  void add(const Statistic& other);
  static Statistic of(const Timing& timing);
  std::int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double spread() const;  // standard deviation over the mean; 0 for less than two

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

// As a profile keeps it: whole picoseconds, as a simulation counts them, in microseconds that have
// a short text; and a spread for people.
Timing timing_of(const Statistic& statistic);

// What an instance in a recorded step counts for a mean.
//
// As a rule its duration (sim/result/recording.h), which leaves out what it waited for others: a
// simulation makes that wait again. Not so in a collective whose members all run the same program:
// they turn to it at the same moment in any simulation, and one after the other in truth, by
// chance. Of two that take mu each, the later one takes more than mu; so the time from each
// member's own entry to its own end counts, the wait included. Along a rank these add up to the
// step.
Duration counted_time(const Job& job, const Instruction& instruction, const Recording& recording,
                      int rank, std::size_t at);

class Measurements {
 public:
  // Every instance in one step of all ranks, as counted_time() has it.
  void add(const Job& job, const Recording& recording);
  // The kernels of one rank's step; `spans` of what takes time, in the order of issue.
  void add_kernels(const Job& job, int rank, std::span<const Span> spans);
  // What was measured before. Throws nothing: a profile's words are checked where it is read.
  void add(const TimedWork& work);

  // In how many steps of the Job every key of it has been measured, at least.
  std::int64_t steps(const Job& job) const;
  // The same of its kernels alone, of a step of one rank of each stage.
  std::int64_t kernel_steps(const Job& job) const;
  const Statistic* find(const WorkKey& key) const;  // null: not measured
  std::size_t size() const { return statistics_.size(); }

  // Kernels and transfers in the order in which they were first met.
  TimedWork work(int ranks, int threads) const;

 private:
  std::int64_t steps(const Job& job, std::int64_t of, bool kernels) const;
  Statistic& at(const WorkKey& key);

  Catalog catalog_;
  std::vector<Statistic> statistics_;  // by catalog_'s index
};

struct MeasuredSlice {
  Seconds before, after;               // the sentinel
  std::optional<Recording> recording;  // none where another process has it
};

// One slice. `step` carries out one step on all ranks and tells what it took; `threads` are those
// that compute in it on this process, and the sentinel's.
MeasuredSlice measure_slice(int threads, const std::function<std::optional<Recording>()>& step);

}  // namespace stepcast
