// Running mean and variance: Welford 1962; of two samples together Chan, Golub and LeVeque 1979.
#include "calibrate/measure.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "calibrate/sentinel.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

Phase phase_of(const std::string& name) {
  for (int i = 0; i < kPhases; ++i) {
    if (phase_name(static_cast<Phase>(i)) == name) return static_cast<Phase>(i);
  }
  STEPCAST_CHECK(false, "a phase that reading a profile let through");
}

TransferKey transfer_key_of(const TimedTransfer& timed) {
  TransferKey key;
  key.ranks = timed.ranks;
  key.bytes = timed.bytes;
  for (int i = 0; i <= static_cast<int>(TransferKind::kSendReceive); ++i) {
    for (const bool receives : {false, true}) {
      key.kind = static_cast<TransferKind>(i);
      key.receives = receives;
      if (transfer_key_name(key) == timed.transfer) return key;
    }
  }
  key = {TransferKind::kSendReceive, false, timed.ranks, timed.bytes, true};
  if (transfer_key_name(key) == timed.transfer) return key;
  STEPCAST_CHECK(false, "a transfer that reading a profile let through");
}

}  // namespace

void Statistic::add(double value) {
  ++count_;
  const double distance = value - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ += distance * (value - mean_);
}

void Statistic::add(const Statistic& other) {
  if (other.count_ == 0) return;
  const auto a = static_cast<double>(count_), b = static_cast<double>(other.count_);
  const double distance = other.mean_ - mean_;
  count_ += other.count_;
  mean_ += distance * b / (a + b);
  squares_ += other.squares_ + distance * distance * a * b / (a + b);
}

Statistic Statistic::of(const Timing& timing) {
  Statistic statistic;
  statistic.count_ = timing.samples;
  statistic.mean_ = timing.mean.value;
  const double deviation = timing.spread * timing.mean.value;
  statistic.squares_ = deviation * deviation * static_cast<double>(timing.samples - 1);
  return statistic;
}

double Statistic::spread() const {
  if (count_ < 2 || !(mean_ > 0)) return 0;
  return std::sqrt(squares_ / static_cast<double>(count_ - 1)) / mean_;
}

Timing timing_of(const Statistic& statistic) {
  const double microseconds = std::round(statistic.mean() * 1e12) / 1e6;
  return {Seconds(microseconds * 1e-6), std::round(statistic.spread() * 1e4) / 1e4,
          statistic.count()};
}

Duration counted_time(const Job& job, const Instruction& instruction, const Recording& recording,
                      int rank, std::size_t at) {
  const auto* collective = std::get_if<Collective>(&instruction);
  const auto r = static_cast<std::size_t>(rank);
  if (collective != nullptr) {
    const Transfer& transfer = job.transfers[static_cast<std::size_t>(collective->transfer)];
    if (!transfer.axes.has(Axis::kPipeline)) return recording.whole.at(r).at(at);
  }
  return recording.durations.at(r).at(at);
}

Statistic& Measurements::at(const WorkKey& key) {
  const std::size_t i = catalog_.index(key);
  if (i >= statistics_.size()) statistics_.resize(i + 1);
  return statistics_[i];
}

void Measurements::add(const Job& job, const Recording& recording) {
  STEPCAST_CHECK(std::ssize(recording.durations) == job.mesh.ranks(), "a recording of all ranks");
  for (int rank = 0; rank < job.mesh.ranks(); ++rank) {
    const Program& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
    for_each_timed(
        job, program,
        [&](const Call& call, std::size_t, const Instruction& instruction, std::size_t i) {
          const Duration time = counted_time(job, instruction, recording, rank, i);
          at(work_key(job, call, instruction)).add(to_seconds(time).value);
        });
  }
}

void Measurements::add_kernels(const Job& job, int rank, std::span<const Span> spans) {
  const Program& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
  for_each_timed(job, program,
                 [&](const Call& call, std::size_t, const Instruction& instruction, std::size_t i) {
                   STEPCAST_CHECK(i < spans.size(), "a span each for what takes time");
                   if (!std::holds_alternative<Compute>(instruction)) return;
                   const Duration time = spans[i].end - spans[i].begin;
                   at(work_key(job, call, instruction)).add(to_seconds(time).value);
                 });
}

void Measurements::add(const TimedWork& work) {
  for (const TimedKernel& kernel : work.kernels) {
    const KernelKey key{kernel.op, phase_of(kernel.phase), kernel.first};
    at(key).add(Statistic::of(kernel.time));
  }
  for (const TimedTransfer& transfer : work.transfers) {
    at(transfer_key_of(transfer)).add(Statistic::of(transfer.time));
  }
}

std::int64_t Measurements::steps(const Job& job) const { return steps(job, 1, false); }

std::int64_t Measurements::kernel_steps(const Job& job) const {
  return steps(job, job.mesh.ranks() / job.mesh.stages(), true);
}

// Of a step in which every `of` ranks are one.
std::int64_t Measurements::steps(const Job& job, std::int64_t of, bool kernels) const {
  Catalog wanted;
  wanted.add(job);
  std::int64_t least = INT64_MAX;
  for (std::size_t i = 0; i < wanted.keys().size(); ++i) {
    if (kernels && !std::holds_alternative<KernelKey>(wanted.keys()[i])) continue;
    const Statistic* known = find(wanted.keys()[i]);
    const std::int64_t count = known == nullptr ? 0 : known->count();
    least = std::min(least, count * of / wanted.instances(i));
  }
  return least;
}

const Statistic* Measurements::find(const WorkKey& key) const {
  const std::optional<std::size_t> i = catalog_.find(key);
  return i ? &statistics_[*i] : nullptr;
}

TimedWork Measurements::work(int ranks, int threads) const {
  TimedWork work;
  work.ranks = ranks;
  work.threads = threads;
  for (std::size_t i = 0; i < statistics_.size(); ++i) {
    match(
        catalog_.keys()[i],
        [&](const KernelKey& key) {
          work.kernels.push_back(
              {key.op, std::string(phase_name(key.phase)), key.first, timing_of(statistics_[i])});
        },
        [&](const TransferKey& key) {
          work.transfers.push_back(
              {transfer_key_name(key), key.ranks, key.bytes, timing_of(statistics_[i])});
        });
  }
  return work;
}

MeasuredSlice measure_slice(int threads, const std::function<std::optional<Recording>()>& step) {
  MeasuredSlice slice;
  slice.before = run_sentinel(threads);
  slice.recording = step();
  slice.after = run_sentinel(threads);
  return slice;
}

}  // namespace stepcast
