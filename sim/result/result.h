// Results: what the readers of a Job report, as plain records. Nothing here knows how a result
// came about; writers turn records into files, tools/ into tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/hardware/hardware.h"
#include "sim/program/program.h"

namespace stepcast {

// Where a rank's time goes. Seen from its compute stream: running a kernel, or waiting for the
// named thing. The parts of one rank sum to the step.
enum class Part : std::uint8_t {
  kCompute, kRecompute, kBubble, kTensor, kContext, kExpert, kPipeline, kData, kOptimizer, kOther
};
inline constexpr int kParts = 10;
std::string_view part_name(Part part);  // the key of breakdown_seconds: "tensor_exposed"

using Breakdown = std::array<Duration, kParts>;  // indexed by Part

// One stretch of work on one stream of one rank.
struct Span {
  std::int32_t rank = 0;
  BodyId body = 0;
  std::int32_t instruction = 0;    // index into the body's code
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  Stream stream = Stream::kCompute;
  Instant begin, end;
};

// All spans of the traced ranks; those of one rank are in its order of issue.
struct Trace {
  std::vector<Span> spans;
};

// One simulated (or executed) rank.
struct RankTime {
  std::int32_t rank = 0;
  Instant end;                       // its last instruction is done
  Instant pipeline_end;              // its last forward or backward call is done
  Breakdown breakdown = {};          // sums to the step, its wait for the slowest rank included
  std::array<Duration, kBases> basis = {};  // kernel time on the compute stream, by basis
};

// A step in time.
struct Timeline {
  Duration step;
  std::vector<RankTime> ranks;       // one a stage if folded, else all
  // Index into `ranks`: the one whose kernels take longest, which the others wait for (of equal
  // ones the latest to end).
  std::int32_t slowest = 0;
  // Idle share of the pipeline: 1 - busy / (pipeline time), averaged over the simulated ranks.
  double bubble_fraction = 0;
  std::int64_t instructions = 0;     // that the simulated ranks issued
  Trace trace;                       // empty unless asked for
};

// Memory of one stage's ranks: the live bytes of the Job's tensors, what the caching allocator
// holds of the device for them, and what lies outside the allocator.
//   peak <= reserved <= device_total()
struct StageMemory {
  Bytes peak;                        // live
  std::array<Bytes, kCategories> at_peak = {};   // by Category; sums to peak
  Bytes resident;                    // before and after the step
  std::int32_t peak_call = 0;        // index into the stage's schedule
  std::int32_t peak_instruction = -1;  // in that call's body; -1: at rest
  Bytes reserved = Bytes(0);         // at its peak, workspaces included
  Bytes workspace = Bytes(0);        // of matrix product libraries; part of reserved
  Bytes communicators = Bytes(0);    // buffers between ranks
  Bytes context = Bytes(0);          // the driver's context and the libraries' code
  // How often in a step the allocator has to give cached memory back to get on, which stalls.
  std::int32_t allocation_retries = 0;

  Bytes device_total() const { return reserved + communicators + context; }
};

struct Footprint {
  std::vector<StageMemory> stages;
  // Parts that count as zero because nothing is published of them: "communicators", ...
  std::vector<std::string> not_modelled;
};

// Bytes that one rank of each stage sends in a step, by axis (replica counts as its own here).
struct Traffic {
  std::vector<std::array<Bytes, kAxes>> stages;
};

}  // namespace stepcast
