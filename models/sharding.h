// Sharding: the training state of a chunk, where it lives, and what moves it (ZeRO, Rajbhandari et
// al. 2020; FSDP; Megatron-LM's distributed optimizer).
//
// The weights of one block and type form a *unit*: gathered, reduced and updated together; those of
// experts that ranks share, of which there are fewer copies, one of their own. With n elements and
// d shards (context x data ranks; of such experts those that have the same ones) a unit holds, of
// each, all n or ceil(n / d):
//                      stage 0   1        2        3
//   weights            n         n        n        n/d  (gathered when used)
//   gradients          n         n        n/d      n/d  (whole ones live until they are reduced)
//   master, moments    n         n/d      n/d      n/d
// Bytes an element follow from the plan's precision: 16, 18 or 20 in all.
#pragma once

#include <array>
#include <vector>

#include "models/body_writer.h"
#include "models/plan.h"

namespace stepcast {

inline constexpr TensorId kNoTensor = -1;

// The axes of kStateAxes that the plan has ranks on (data, where there is but one). Experts that
// are spread over context and expert ranks are copies over data ranks alone.
inline AxisSet state_axes(const Plan& plan, bool experts = false) {
  AxisSet axes = Axis::kData;
  if (experts) return axes;
  if (plan.context > 1) axes = axes | Axis::kContext;
  return plan.expert_data() > 1 ? axes | Axis::kExpert : axes;
}

struct Unit {
  std::int32_t layer = -1;
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kBf16;              // of its weights
  std::vector<TensorId> weights;           // whole
  std::vector<TensorId> gradients;         // whole
  std::vector<TensorId> partial;           // of the gradients: a sum over the tensor axis is due
  bool experts = false;                    // they are of experts that ranks share
  bool used_twice = false;                 // by two blocks of the chunk
  bool ends = false;                       // first and last stage hold a copy (tied embeddings)
  TensorId weight_shard = kNoTensor;       // stage 3
  TensorId gradient_shard = kNoTensor;     // stages 2, 3
  TensorId reduced = kNoTensor;            // stages 2, 3 with several micro-batches: one's shard
  TensorId gradient_copy = kNoTensor;      // from after the last backward to the update
  TensorId master = kNoTensor;
  TensorId moment1 = kNoTensor, moment2 = kNoTensor;
};

// The state of one chunk and the instructions that move it.
class State {
 public:
  State(Tables& tables, const Plan& plan) : tables_(tables), plan_(plan) {}

  // Adds the unit's shards and optimizer tensors to the Job. REQUIRES: its weights are there.
  std::int32_t add(Unit unit);
  const Unit& unit(std::int32_t i) const { return units_[static_cast<std::size_t>(i)]; }
  std::int32_t units() const { return static_cast<std::int32_t>(units_.size()); }
  const std::vector<TensorId>& residents() const { return residents_; }

  // Stage 3: brings the units' whole weights in, on the data stream; `done` is recorded when they
  // are there. Stages 1, 2: the same in place, after each rank has updated its part.
  void gather(BodyWriter& body, const std::vector<std::int32_t>& units, EventId done) const;
  // Stage 3, where gathered weights are not used where they came: compute copies them out.
  void unflatten(BodyWriter& body, const std::vector<std::int32_t>& units) const;
  void drop(BodyWriter& body, const std::vector<std::int32_t>& units) const;  // stage 3

  // Stages 2, 3: whole gradients exist from before a unit's backward to their reduction.
  void open_gradients(BodyWriter& body, const std::vector<std::int32_t>& units) const;
  // Starts the reduction of the units' gradients beside what compute does next.
  void reduce(BodyWriter& body, const std::vector<std::int32_t>& units) const;
  // Stages 2, 3: compute waits for the reduction, adds its result to the shard, frees the rest.
  void close_gradients(BodyWriter& body, const std::vector<std::int32_t>& units) const;

  bool reduces() const;                    // there is anybody to reduce gradients with
  Bytes gradient_bytes(std::int32_t i) const;

  // After the last micro-batch: waits for all reductions and does those that cross other axes,
  // then adds the chunk's share of the squared gradient norm to `norm` (kNoTensor: no clipping),
  // which starts at zero in every step.
  void settle(BodyWriter& body, TensorId norm) const;
  // The optimizer, then (unless the next step's forward does it) the gather of updated weights,
  // and zeroed gradients for the next step.
  void update(BodyWriter& body, TensorId norm, bool gather_now) const;

 private:
  std::int64_t shards(const Unit& unit) const;
  std::int64_t shard_elements(const Unit& unit) const;
  std::int64_t owned_elements(const Unit& unit) const;  // of the optimizer, on one rank
  // The same units, those of experts in a list of their own.
  std::array<std::vector<std::int32_t>, 2> apart(const std::vector<std::int32_t>& units) const;
  void gather_alike(BodyWriter& body, const std::vector<std::int32_t>& units) const;
  void reduce_alike(BodyWriter& body, const std::vector<std::int32_t>& units) const;
  TensorId resident(std::string_view name, std::int32_t layer, std::int64_t elements, Dtype dtype,
                    Category category);
  TensorId transient(std::string_view name, std::int32_t layer, std::int64_t elements, Dtype dtype,
                     Category category);
  std::vector<TensorId> final_gradients(const Unit& unit) const;  // what the update reads
  void reduce_replicas(BodyWriter& body, const std::vector<TensorId>& tensors, Bytes bytes) const;
  void zero_gradients(BodyWriter& body) const;

  Tables& tables_;
  const Plan& plan_;
  std::vector<Unit> units_;
  std::vector<TensorId> residents_;
};

}  // namespace stepcast
