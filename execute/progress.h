// Progress: where a rank is in its program, for whoever watches it from another thread or, in
// memory that both share, from another process; and what a watcher makes of it.
//
// A rank that is at no instruction (between steps, before the first) is not watched. One that is at
// a kernel has kRest for it, and as long again as a very slow core would take; one that waits for
// others has as long as their whole step may take. The first to exceed its time is the one to
// blame: who waits for a rank that hangs has more time than that one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "sim/base/error.h"
#include "sim/program/program.h"

namespace stepcast {

struct Progress {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  std::atomic<std::int32_t> rank{-1};        // -1: not known yet
  std::atomic<std::int32_t> call{0};         // index into its stage's schedule
  std::atomic<std::int32_t> instruction{0};  // index into the body's code
  std::atomic<std::int64_t> step{0};         // from 1
  std::atomic<std::int64_t> since{0};        // on the steady clock, in ns; 0: at no instruction

  void turn_to(std::int32_t number, std::int64_t now) {
    instruction.store(number, std::memory_order_relaxed);
    since.store(now, std::memory_order_release);
  }
  void rest() { since.store(0, std::memory_order_release); }
};

// On the clock of Progress::since.
std::int64_t steady_nanoseconds();

// "step 3, forward of chunk 0, micro-batch 2, instruction 17: layer0.qkv".
std::string place_text(const Job& job, int stage, std::int64_t step, const Call& call,
                       std::int32_t instruction);
// The same of where a rank stands now; REQUIRES: its rank is known.
std::string place_text(const Job& job, const Progress& progress);

// Seconds that a rank may be at an instruction.
double patience(const Job& job, const Instruction& instruction);

// "rank 1: step 3, ...: has not come to an end for 5 seconds", or nothing while all is well. Time
// before `awake`, since when the watcher has looked without a pause, does not count: the machine
// was asleep, or the user had stopped all.
std::optional<Error> find_stuck(const Job& job, std::span<const Progress> ranks, std::int64_t now,
                                std::int64_t awake = 0);

// Looks ten times a second from a thread of its own, until it is destroyed; calls `stuck` at most
// once. A thread that hangs cannot be ended, so `stuck` should end the process.
class Watch {
 public:
  Watch(const Job& job, std::span<const Progress> ranks, std::function<void(const Error&)> stuck);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Runs `run` in a child process and watches it: what it returns is returned. If a signal ends the
// child, or it is stuck or stays stopped (which ends it), one line on stderr says which rank it was
// and where, and the answer is 2. If this process is ended first, the child says so and ends, too.
// Call it before there are threads, and before MPI begins.
int run_watched(const Job& job, const std::function<int(Progress&)>& run);

}  // namespace stepcast
