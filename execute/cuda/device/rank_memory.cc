// What a rank on a GPU has in memory: one block for the arena and for scratch, pinned memory for
// what the host says before each step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <set>

#include "execute/convert.h"
#include "execute/cuda/device/rank.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

// The arena is the Job's; behind it in the same block lies what kernels and cuBLASLt scratch on.
void DeviceRank::take_places(StagePlaces stage) {
  int device = 0;
  cudaDeviceProp properties;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  MemoryPlan places = std::move(stage.memory);
  fences_ = std::move(stage.fences);
  for (std::size_t i = 0; i < fences_.size(); ++i) {
    fence_events_.emplace_back(false);
    fences_after_.emplace(fences_[i].after, i);
  }
  scratch_.bytes = workspace_bytes(properties.major * 10 + properties.minor);
  for (const Op& op : job_.ops) {
    scratch_.bytes = std::max(scratch_.bytes, scratch_bytes(op, properties.multiProcessorCount));
  }
  const std::size_t arena = places.size;
  const auto allocate = cuda_.register_buffers ? registrable_memory : device_memory;
  block_ = allocate(arena + scratch_.bytes, "a rank");
  scratch_.data = block_.get() + arena;
  arena_.emplace(std::move(places), block_.get());
  memory_.push_back({"arena", Bytes(static_cast<std::int64_t>(arena))});
  memory_.push_back({"workspaces", Bytes(static_cast<std::int64_t>(scratch_.bytes))});
  const Bytes before = free_bytes();
  matmul_.emplace(scratch_.data, scratch_.bytes);
  memory_.push_back({"cuBLASLt", before - free_bytes()});
  state_ = device_memory(sizeof(StepState), "a step's state");
  run_.arena = Bytes(static_cast<std::int64_t>(arena));
}

void DeviceRank::place_residents() {
  std::size_t i = 0, tokens = 0;
  for_residents([&](TensorId id, std::int32_t chunk) {
    slot(id, {0, chunk, 0}) = arena_->resident(i++, tensor(id));
    if (index_.data_use(id) != DataUse::kNone) {
      tokens += static_cast<std::size_t>(tensor(id).bytes().count);
    }
  });
  run_.resident = arena_->live();
  // Tokens of all calls of a step, and one StepState in front.
  std::size_t calls = 0;
  for (const Call& call : program().schedule) {
    if (job_.bodies[static_cast<std::size_t>(call.body)].phase != Phase::kOptimizer) ++calls;
  }
  staging_ = pinned_memory(kCudaAlignment + calls * tokens);
}

// The kernels of each body once, on zeros, before there is any communicator: what is loaded at its
// first launch may wait for the whole device, and so for a collective that waits for another rank
// (CUDA programming guide, lazy loading). It also picks the products' algorithms.
void DeviceRank::rehearse() {
  const Bytes before = free_bytes();
  arena_->begin_step();
  std::set<BodyId> known;
  for (const Call& call : program().schedule) {
    call_ = call;
    const bool fresh = known.insert(call.body).second;
    const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
    for (const Instruction& instruction : body.code) {
      const bool computes = std::holds_alternative<Compute>(instruction);
      if (computes ? fresh : !takes_time(instruction)) work(body, instruction);
    }
  }
  check(cudaStreamSynchronize(stream(Stream::kCompute)), "the first kernels");
  check(cudaMemset(block_.get(), 0, arena_->size()), "cudaMemset");
  settle();
  memory_.push_back({"kernels, and cuBLASLt's", before - free_bytes()});
}

void DeviceRank::register_arena() {
  const Bytes before = free_bytes();
  groups_->register_buffer(block_.get(), arena_->size());
  memory_.push_back({"the arena's registration", before - free_bytes()});
}

// Weights begin as all plans' do; all else at zero.
void DeviceRank::write_initial_values() {
  std::vector<std::byte> stored;
  for_residents([&](TensorId id, std::int32_t chunk) {
    const std::vector<float> initial =
        initial_values(id, chunk, options_.initial_deviation, options_.seed);
    if (initial.empty()) return;
    stored.resize(static_cast<std::size_t>(tensor(id).bytes().count));
    from_float(initial.data(), tensor(id).shape.elements(), stored.data(), tensor(id).dtype);
    check(cudaMemcpy(slot(id, {0, chunk, 0}), stored.data(), stored.size(), cudaMemcpyHostToDevice),
          "copying initial weights");
  });
  settle();  // such a copy returns when it has read what it copies
}

// All of the step's tokens and numbers into pinned memory. REQUIRES: no step is under way.
void DeviceRank::load_step() {
  auto* state = new (staging_.get()) StepState;
  const auto n = static_cast<double>(step_ + 1);
  state->step = static_cast<std::uint32_t>(step_);
  const AdamW& adam = options_.optimizer;
  state->scalars.correction1 = static_cast<float>(1 / (1 - std::pow(adam.beta1, n)));
  state->scalars.correction2 = static_cast<float>(1 / (1 - std::pow(adam.beta2, n)));
  std::byte* out = staging_.get() + kCudaAlignment;
  for (const Call& call : program().schedule) {
    if (job_.bodies[static_cast<std::size_t>(call.body)].phase == Phase::kOptimizer) continue;
    for_residents([&](TensorId id, std::int32_t chunk) {
      if (chunk != call.chunk) return;
      const auto ids = tokens(id, call, step_, corpus_);
      if (!ids.empty()) std::memcpy(out, ids.data(), ids.size_bytes());
      out += ids.size_bytes();
    });
  }
}

// This call's tokens to the device, behind the kernels that read the last call's.
void DeviceRank::copy_tokens() {
  for_residents([&](TensorId id, std::int32_t chunk) {
    if (chunk != call_.chunk || index_.data_use(id) == DataUse::kNone) return;
    const auto bytes =
        static_cast<std::size_t>(job_.batch.sequence_length * job_.batch.micro_batch) *
        sizeof(std::int64_t);
    check(cudaMemcpyAsync(slot(id, call_), staging_.get() + token_at_, bytes,
                          cudaMemcpyHostToDevice, stream(Stream::kCompute)),
          "copying tokens");
    token_at_ += bytes;
  });
}

}  // namespace stepcast::cuda
