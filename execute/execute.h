// Execute: a Job carried out. The same text that simulate() gives a meaning in time is interpreted
// instruction by instruction by as many ranks as it has, and trains a transformer.
//
// A rank issues its program in order on one thread: every stream's work is done where it is issued,
// which is one of the orders that Record and Wait allow. Receives and collectives block, sends do
// not; verify() has proved that this cannot lock. Any legal plan of one model and one batch gives
// the same losses, up to the order in which float sums are taken: weights begin as the same numbers
// (job_index.h) and every rank takes its share of the same tokens (data.h).
//
// Numbers are stored as the Job says, fp32 or bf16 with an fp32 master copy of the weights, and
// computed in fp32; there is no dropout (executable() says what is in the way). Constants that a Job does not give: the optimizer's (backend.h), norms' epsilon
// 1e-5, rotary base 10000, and the deviation of initial weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "execute/backend.h"
#include "execute/data.h"
#include "execute/transport.h"
#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

struct ExecuteOptions {
  std::int64_t steps = 10;
  AdamW optimizer;
  double initial_deviation = 0.02;
  std::uint64_t seed = 1;
  bool trace = false;   // keep the spans of the last step
  bool poison = false;  // new memory is filled with NaN, so that what nobody wrote shows
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
  std::vector<Span> spans;             // of the last step
};

// "" or why the Job cannot be carried out: an op, a dtype, or that it does not say its batch.
std::string executable(const Job& job);

// Runs one rank to the end. REQUIRES: verify(job) and executable(job) are "". Throws Error for
// trouble with memory or data; the caller then aborts the transport, for the others' sake.
RankRun run_rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                 Backend& backend, Transport& transport);

// Runs all ranks as threads of this process, each on a backend of its own, made in its thread.
// Throws the first rank's Error. The results are in the order of the ranks.
using MakeBackend = std::function<std::unique_ptr<Backend>()>;
std::vector<RankRun> run_threads(const Job& job, const ExecuteOptions& options,
                                 const Corpus& corpus, const MakeBackend& make_backend);

}  // namespace stepcast
