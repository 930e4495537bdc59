// A traced step, taken apart in the same way whether it ran or was simulated: what kinds of kernels
// take, what each axis's communication takes and how much of it nothing covers, what is idle.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/program/mesh.h"
#include "sim/program/program.h"
#include "sim/result/result.h"
#include "tools/compare/measured_trace.h"

namespace stepcast {

// Communication whose group the trace does not tell, or that fits no axis of the mesh.
inline constexpr std::string_view kUnknownAxis = "unknown group";

// The axes of a group that a trace names: from its ranks where all are of the mesh; else from the
// words of its description (torchtitan's "mesh_dp_shard", Megatron-LM's
// "TENSOR_MODEL_PARALLEL_GROUP"); else the one axis of that degree. Replicas count as data.
std::optional<AxisSet> axes_of_group(const TraceGroup& group, const Mesh& mesh);

struct PlacedKernel {
  double begin = 0, end = 0;  // seconds
  KernelKind kind = KernelKind::kOther;
  int step = 0;      // index into PlacedRank::steps
  std::string axes;  // of communication: "tensor", "data", kUnknownAxis
  int group = -1;    // of communication: which of the groups on these axes; -1: unknown
  bool point_to_point = false;
};

struct PlacedRank {
  int rank = 0;
  std::vector<double> steps;  // seconds, from mark to mark
  std::vector<PlacedKernel> kernels;
};

// Throws Error for a rank or world that is not the mesh's, for a rank that is there twice, and for
// ranks with different steps.
std::vector<PlacedRank> placed_ranks(const std::vector<TraceFile>& traces, const Mesh& mesh);
std::vector<PlacedRank> placed_ranks(const Job& job, const Trace& trace);

// Means over steps, ranks of a stage, and stages; seconds.
struct StepParts {
  double step = 0;
  std::array<double, kKernelKinds> kernels = {};    // kernel time; communication stays 0
  std::map<std::string, double> transfer, exposed;  // by axis
  std::map<std::string, double> skew;  // empty where no two ranks of a group are traced
  double idle = 0;
};

// `first` is the first step that counts. Ranks of other stages than `stages` are left out.
StepParts step_parts(const std::vector<PlacedRank>& ranks, const Mesh& mesh,
                     const std::set<int>& stages, std::size_t first);

std::set<int> stages_of(const std::vector<PlacedRank>& ranks, const Mesh& mesh);

}  // namespace stepcast
