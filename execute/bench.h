// Bench: one rank's device, as microbenchmarks see it: pieces of work that follow each other on a
// stream, alone or beside others, timed by the device's own clock (calibrate/probe.h says which).
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "sim/base/units.h"
#include "sim/program/program.h"

namespace stepcast {

// A forward product of bf16, m = n = k = size; its operands are the same every time.
struct ProductLoad {
  std::int64_t size = 1;
};
// An elementwise kernel of bf16 that reads and writes `bytes` together, each time the next stretch
// of a large buffer.
struct MemoryLoad {
  bool add = false;  // a, b -> a + b; else a -> a
  Bytes bytes;
};
// A transfer of the group, on the communicator, that the Job has for it; of a kSendReceive every
// stage that sends does so, to the next one.
struct TransferLoad {
  Transfer transfer;
  Stream stream = Stream::kCompute;
};
using BenchLoad = std::variant<ProductLoad, MemoryLoad, TransferLoad>;

// What one stream does: `batches` times `runs` of the load, without a gap.
struct BenchLane {
  BenchLoad load;
  int batches = 1;
  int runs = 1;
};
// Of a batch; seconds from when the lanes were set going.
struct BenchSpan {
  double begin = 0, end = 0;
};

// Seconds, of one small kernel among many: see LaunchCosts (sim/hardware/probes.h).
struct LaunchTimes {
  double issue = 0, gap = 0, graph_issue = 0, graph_gap = 0;
};

// What is worth timing on a device; the same on all ranks.
struct BenchSizes {
  Bytes most;                // of a transfer, and of what a MemoryLoad moves: beyond every cache
  std::int64_t product = 1;  // of a ProductLoad: fills all multiprocessors a few times
};

class Bench {
 public:
  virtual ~Bench() = default;
  virtual BenchSizes sizes() const = 0;
  // All lanes at once, from when the device has all of them to do. By lane the spans of its
  // batches; none where this rank takes no part in the transfer. All ranks that do call it with the
  // same lanes. Throws Error for trouble with the device or another rank.
  virtual std::vector<std::vector<BenchSpan>> run(std::span<const BenchLane> lanes) = 0;
  virtual LaunchTimes launches(int kernels) = 0;
};

}  // namespace stepcast
