// Execute: a Job carried out. The same text that simulate() gives a meaning in time is interpreted
// instruction by instruction by as many ranks as it has, and trains a transformer.
//
// A rank issues its program in order on one thread: every stream's work is done where it is issued,
// which is one of the orders that Record and Wait allow. Receives and collectives block, sends do
// not; verify() has proved that this cannot lock. Any legal plan of one model and one batch gives
// the same losses, up to the order in which float sums are taken: weights begin as the same numbers
// (job_index.h) and every rank takes its share of the same tokens (data.h). Only where experts drop
// tokens does it hang on the layout, which: each rank gives an expert so many of its own (Route).
//
// Numbers are stored as the Job says, fp32 or bf16 with an fp32 master copy of the weights, and
// computed in fp32 (executable() says what is in the way). Dropout drops the same elements whatever
// the plan (dropout.h). Constants that a Job does not give: the optimizer's (backend.h), norms'
// epsilon 1e-5, rotary base 10000, and the deviation of initial weights.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "execute/backend.h"
#include "execute/data.h"
#include "execute/progress.h"
#include "execute/transport.h"
#include "sim/program/program.h"
#include "sim/result/recording.h"
#include "sim/result/result.h"

namespace stepcast {

struct ExecuteOptions {
  std::int64_t steps = 10;
  AdamW optimizer;
  double initial_deviation = 0.02;
  std::uint64_t seed = 1;
  bool trace = false;          // keep the spans of the last step
  std::int64_t record = 0;     // keep the marks of so many steps, the last ones
  bool poison = false;         // new memory is filled with NaN, so that what nobody wrote shows
  bool check_numbers = false;  // a kernel that writes a NaN is an Error that names it; not with
                               // poison, of which a kernel that writes part of a tensor leaves some
  // Where marks count from, on a clock that all ranks share.
  std::chrono::steady_clock::time_point epoch = std::chrono::steady_clock::now();
  // Of ranks that are threads: called when one hangs, from another thread; it should end the
  // process. Without it nobody watches.
  std::function<void(const Error&)> stuck;
};

// What one rank did.
struct RankRun {
  int rank = 0;
  std::vector<double> losses;   // of the whole job, by step: the same on every rank
  std::vector<double> seconds;  // by step, until all ranks were done
  Bytes peak;                   // of the arena, and its categories then
  std::array<Bytes, kCategories> at_peak = {};
  Bytes resident;                      // before and after each step
  Bytes arena;                         // asked from the machine
  std::array<Bytes, kAxes> sent = {};  // in the last step, by charged axis
  RankTime time;                       // of the last step
  std::int64_t instructions = 0;       // in a step
  Duration between;                    // in the last step, between kernels: interpreting it,
                                       // and loading tokens
  std::vector<Span> spans;             // of the last step
  std::vector<Marks> marks;            // of the last steps, as many as were asked for
};

// "" or why the Job cannot be carried out: an op, a dtype, or that it does not say its batch.
std::string executable(const Job& job);

// Runs one rank to the end. REQUIRES: verify(job) and executable(job) are "". Throws Error for
// trouble with memory or data; the caller then aborts the transport, for the others' sake.
RankRun run_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                 Backend& backend, Transport& transport, Progress& progress);

// Runs all ranks as threads of this process, each on a backend of its own, made in its thread.
// Throws the first rank's Error. The results are in the order of the ranks.
using MakeBackend = std::function<std::unique_ptr<Backend>()>;
std::vector<RankRun> run_threads(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, const MakeBackend& make_backend);

// The same, step by step: ranks that keep their memory and their weights and wait between calls.
// `steps` of the options is not looked at. Throws the first rank's Error, and then again.
// REQUIRES: job, options and corpus outlive it.
class ThreadRanks {
 public:
  ThreadRanks(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
              const MakeBackend& make_backend);
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  void step(std::int64_t count = 1);
  // Of the last step, by rank; only if recorded.
  std::vector<Marks> last_marks() const;
  // What all ranks did so far; no step comes after.
  std::vector<RankRun> finish();

 private:
  class Team;
  std::unique_ptr<Team> team_;
};

}  // namespace stepcast
