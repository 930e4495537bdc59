// Work that was timed: each distinct kernel, message and collective of some Jobs, on the machine
// that executes them. Part of a profile (sim/hardware/profile.h), in which it stands as
//
//   "work": [{"ranks": 2, "threads": 1,
//             "kernels": [{"op": "gemm forward 512x768x768 fp32", "phase": "forward",
//                          "micro_batch": "first", "seconds": "8.5 ms", "spread": 0.04,
//                          "samples": 48}],
//             "transfers": [{"transfer": "all-reduce", "ranks": 2, "bytes": "4 MiB",
//                            "seconds": "3 ms", "spread": 0.1, "samples": 12}]}]
//
// The text of an Op is that of sim/program/op_text.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/program/op.h"

namespace stepcast {

// Over all timed instances. The mean is what a step is made of: a median forgets the slow ones.
struct Timing {
  Seconds mean;              // >= 0, finite
  double spread = 0;         // standard deviation over the mean
  std::int64_t samples = 1;  // >= 1
  bool operator==(const Timing&) const = default;
};

struct TimedKernel {
  Op op;
  std::string phase;  // "forward", "backward", "recompute" or "optimizer"
  bool first = true;  // of the step's first micro-batch; else of a later one
  Timing time;
  bool operator==(const TimedKernel&) const = default;
};

struct TimedTransfer {
  std::string transfer;  // one of timed_transfer_names()
  int ranks = 1;         // of the group; of a pipeline all stages
  Bytes bytes;           // as Transfer::bytes counts (sim/program/program.h)
  Timing time;           // from when the last one needed turned to it to its end
  bool operator==(const TimedTransfer&) const = default;
};

// What was timed while so many ranks were at work on the machine.
struct TimedWork {
  int ranks = 1;
  int threads = 1;                   // of each rank
  std::vector<TimedKernel> kernels;  // distinct but for their times, and so are
  std::vector<TimedTransfer> transfers;
  bool operator==(const TimedWork&) const = default;
};

// collective_names() without "send-receive", of which the two ends are told apart: "send",
// "receive"; and "shift", all members' at once (sim/program/program.h).
const std::vector<std::string>& timed_transfer_names();

// "seconds", "spread" and "samples" of an object, both ways. Throws Error for a time that is not
// more than zero and finite.
Timing read_timing(const Object& object);
void write_timing(const Timing& timing, Json& json);

// Of `element`, an object of the list. Throws Error for an unknown key, an op that is none, a time
// that is negative or not finite, work that is there twice.
TimedWork read_timed_work(const Object& element);
Json write_timed_work(const TimedWork& work);  // reads back to the same

}  // namespace stepcast
