// Probes: what was measured of a device apart from any plan. Part of a profile
// (sim/hardware/profile.h), in which it stands as
//
//   "memory": [{"kernel": "copy", "bytes": "512 MiB",              // read and written together
//               "seconds": "0.2 ms", "spread": 0.01, "samples": 10}],
//   "launch": {"issue": {"seconds": "3 us", "spread": 0.1, "samples": 10}, "gap": {...},
//              "graph_issue": {...}, "graph_gap": {...}},
//   "beside": [{"kernel": "product", "collective": "all-reduce", "ranks": 8, "nodes": 1,
//               "bytes": "64 MiB", "kernel_factor": 1.1, "collective_factor": 1.05,
//               "samples": 80}]
//
// From these follow (use_probes) the share of the data sheet's bandwidth that long streams get, the
// host's time for a launch and the device's before a kernel (in a graph by use_graphs), all three
// interpolated: of a kernel that was not timed itself. What runs beside each other is sim/engine's
// to price.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/hardware/kernels.h"
#include "sim/hardware/work.h"
#include "sim/program/op.h"

namespace stepcast {

// A kernel that memory bounds, over and over on other memory: "copy" a -> a, "add" a, b -> a + b.
struct MemoryPoint {
  std::string kernel;
  Bytes bytes;  // read and written together, > 0
  Timing time;  // of one
  bool operator==(const MemoryPoint&) const = default;
};

// Of small kernels, one after the other on one stream.
struct LaunchCosts {
  Timing issue;        // host time to issue one
  Timing gap;          // from one's begin to the next one's where the host is far ahead
  Timing graph_issue;  // host time to launch a captured graph of them, whole
  Timing graph_gap;    // as `gap`, in a graph
  bool operator==(const LaunchCosts&) const = default;
};

// A kernel and a collective that run at once, both again and again: how much longer each takes
// than alone.
struct BesidePoint {
  std::string kernel;      // "product": bound by the matrix units; "memory": by memory
  std::string collective;  // one of collective_names()
  int ranks = 2;           // of its group
  int nodes = 1;           // that it spans
  int groups_per_node = 1;
  Bytes bytes;  // as Transfer::bytes counts
  double kernel_factor = 1, collective_factor = 1;
  std::int64_t samples = 1;
  bool operator==(const BesidePoint&) const = default;
};

struct Probes {
  std::vector<MemoryPoint> memory;  // no two of the same kernel and bytes
  std::optional<LaunchCosts> launch;
  std::vector<BesidePoint> beside;  // no two of the same kernel, collective and group
  bool empty() const { return memory.empty() && !launch && beside.empty(); }
  bool operator==(const Probes&) const = default;
};

const std::vector<std::string>& memory_kernel_names();  // "copy", "add"
const std::vector<std::string>& beside_kernel_names();  // "product", "memory"
// Which of these an Op is like.
std::string_view beside_kernel(const Op& op);

// What was measured for a kernel beside a collective over such a group; null: nothing. No other
// group's is guessed from.
const BesidePoint* find_beside(const Probes& probes, std::string_view kernel,
                               std::string_view collective, int ranks, int nodes,
                               int groups_per_node);

// Of the profile's object. Throws Error for an unknown key or name, a time that is not finite and
// positive, a factor that is not, what is there twice.
Probes read_probes(const Object& root);
void write_probes(const Probes& probes, Json& json);  // reads back to the same

// Sets the device's launch, kernel_start and Kernels::memory to what was measured.
void use_probes(const Probes& probes, Basis basis, Device& device);

// A device whose steps are CUDA graphs. Sets graph_launch and kernel_start to what was measured, of
// the probe's graph. Else a graph takes its host what a kernel does, and kernels start as they do
// without. (2.5 us and 1 ns a node for a graph of one stream since CUDA 12.6, more for those of
// several: "Constant Time Launch for Straight-Line CUDA Graphs", developer.nvidia.com, 2024.)
void use_graphs(const Probes& probes, Device& device);

}  // namespace stepcast
