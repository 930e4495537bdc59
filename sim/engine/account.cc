// Account: live bytes in the order of issue; then what the device holds for them.
//
// What a body does to memory is the same in all of its calls: a change by category, and the prefix
// of its instructions after which most is live. So each body is summed once, and a stage is a walk
// over its calls that only adds: O(text of the bodies + calls). Tensors' scopes do not matter for
// counting: an Alloc makes one instance, whichever it is.
#include <algorithm>
#include <array>
#include <vector>

#include "sim/base/error.h"
#include "sim/engine/replay.h"
#include "sim/engine/simulate.h"
#include "sim/network/communicators.h"

namespace stepcast {
namespace {

// Bytes by category and their sum.
struct Live {
  std::array<Bytes, kCategories> by_category = {};
  Bytes sum;

  void add(const Tensor& tensor, std::int64_t instances) {
    const Bytes bytes = tensor.bytes() * instances;
    by_category[static_cast<std::size_t>(tensor.category)] += bytes;
    sum += bytes;
  }
  void add(const Live& other) {
    for (std::size_t c = 0; c < by_category.size(); ++c) by_category[c] += other.by_category[c];
    sum += other.sum;
  }
};

struct BodyMemory {
  Live change;              // of the whole body
  Live highest;             // before `instruction` is done with, relative to the body's begin
  std::int32_t instruction = -1;  // -1: never above where it began
};

BodyMemory sum_body(const Job& job, const Body& body) {
  BodyMemory memory;
  std::int32_t index = 0;
  for (const Instruction& instruction : body.code) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction)) {
      memory.change.add(job.tensors[static_cast<std::size_t>(alloc->tensor)], 1);
      if (memory.change.sum > memory.highest.sum) {
        memory.highest = memory.change;
        memory.instruction = index;
      }
    } else if (const auto* free = std::get_if<Free>(&instruction)) {
      memory.change.add(job.tensors[static_cast<std::size_t>(free->tensor)], -1);
    }
    ++index;
  }
  return memory;
}

StageMemory walk_stage(const Job& job, const Program& program,
                       const std::vector<BodyMemory>& bodies) {
  Live live;
  for (const Resident& resident : program.residents) {
    for (const TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      live.add(job.tensors[static_cast<std::size_t>(id)], 1);
    }
  }
  StageMemory memory;
  memory.resident = memory.peak = live.sum;
  memory.at_peak = live.by_category;
  std::int32_t index = 0;
  for (const Call& call : program.schedule) {
    const BodyMemory& body = bodies[static_cast<std::size_t>(call.body)];
    if (body.instruction >= 0 && live.sum + body.highest.sum > memory.peak) {
      Live high = live;
      high.add(body.highest);
      memory.peak = high.sum;
      memory.at_peak = high.by_category;
      memory.peak_call = index;
      memory.peak_instruction = body.instruction;
    }
    live.add(body.change);
    ++index;
  }
  STEPCAST_CHECK(live.sum == memory.resident, "what a step allocates it frees");
  return memory;
}

}  // namespace

Footprint account(const Job& job) {
  std::vector<BodyMemory> bodies;
  bodies.reserve(job.bodies.size());
  for (const Body& body : job.bodies) bodies.push_back(sum_body(job, body));
  Footprint footprint;
  for (const Program& program : job.programs) {
    footprint.stages.push_back(walk_stage(job, program, bodies));
  }
  return footprint;
}

Footprint account(const Job& job, const Cluster& cluster, const MemoryOptions& options) {
  const Device& device = cluster.device;
  Footprint footprint = account(job);
  const std::vector<std::vector<Communicator>> groups = communicators(job, cluster);
  const std::vector<Stream> streams =
      options.replay ? allocation_streams(job) : std::vector<Stream>();
  ReplayOptions replay;
  replay.allocator.expandable_segments = options.expandable_segments;
  replay.workspace = options.blas_workspace.value_or(device.blas_workspace.value_or(Bytes(0)));
  for (std::size_t stage = 0; stage < footprint.stages.size(); ++stage) {
    StageMemory& memory = footprint.stages[stage];
    for (const Communicator& group : groups[stage]) memory.communicators += group.bytes;
    memory.context = device.context_memory.value_or(Bytes(0));
    if (!groups[stage].empty()) memory.context += device.nccl->code;
    if (!options.replay) {
      memory.reserved = memory.peak;
      continue;
    }
    replay.allocator.limit =
        std::max(Bytes(0), device.memory - memory.communicators - memory.context);
    const Replay result = replay_stage(job, stage, streams, replay);
    memory.reserved = result.reserved_peak;
    memory.workspace = result.workspaces;
    memory.allocation_retries = result.retries;
    STEPCAST_CHECK(memory.peak <= memory.reserved, "what is live is reserved");
  }
  if (!device.context_memory) footprint.not_modelled.emplace_back("context");
  if (!device.blas_workspace && !options.blas_workspace) {
    footprint.not_modelled.emplace_back("workspace");
  }
  const bool has_groups = job.mesh.ranks() > 1;
  if (!device.nccl && has_groups) footprint.not_modelled.emplace_back("communicators");
  return footprint;
}

}  // namespace stepcast
