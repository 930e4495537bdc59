// BoundJob: a Job's tensors and instructions, bound to one rank and its memory.
//
// What an instruction means in memory does not depend on where that memory is: which instance of a
// tensor a call is about, which stretches a collective carries, which part of the training state
// an update owns. The interpreters, of the host (rank.h) and of a device, stand on this and add
// only how the work is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "execute/arena.h"
#include "execute/data.h"
#include "execute/job_index.h"
#include "sim/program/program.h"

namespace stepcast {

// Numbers of one dtype end to end in memory; without data: padding, zeros.
struct Stretch {
  std::byte* data = nullptr;
  std::int64_t elements = 0;
  Dtype dtype = Dtype::kFp32;

  std::int64_t bytes() const { return elements * dtype_size(dtype); }
  Stretch part(std::int64_t begin, std::int64_t count) const {
    return {data + begin * dtype_size(dtype), count, dtype};
  }
};
std::int64_t total(std::span<const Stretch> stretches);  // elements

// A stretch of the training state, all of the same elements. Without a master the weights are
// their own.
struct StateStretch {
  Stretch weight, master, gradient, moment1, moment2;
};

// What a collective takes from this rank and where its result goes, in the order in which the
// numbers travel. all_reduce: `out` alone, in place. reduce_scatter: `in` is everybody's pieces,
// member by member, `out` one's own; all_gather the other way round. A shift: `in` goes to the next
// member, `out` comes from the one before; an all-to-all: an equal part of each `in` goes to each
// member, and as many come from them into the `out` at its place.
struct Carried {
  std::vector<Stretch> in, out;
};

class BoundJob {
 public:
  BoundJob(const Job& job, int rank);

 protected:
  ~BoundJob() = default;
  BoundJob(const BoundJob&) = delete;
  BoundJob& operator=(const BoundJob&) = delete;

  const Tensor& tensor(TensorId id) const { return job_.tensors[static_cast<std::size_t>(id)]; }
  const Program& program() const { return job_.programs[static_cast<std::size_t>(stage_)]; }
  std::byte*& slot(TensorId id, const Call& call);
  Stretch stretch(TensorId id) {
    return {slot(id, call_), tensor(id).shape.elements(), tensor(id).dtype};
  }
  std::span<const TensorId> ids(const Body& body, Operands operands, bool writes) const;

  // Calls function(id, chunk) for what lives before the step, in the order of a MemoryPlan.
  template <class Function>
  void for_residents(Function function) const {
    for (const Resident& resident : program().residents) {
      for (const TensorId id : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
        function(id, resident.chunk);
      }
    }
  }
  // What a resident holds before the first step: weights, whole or this rank's share, and the same
  // numbers in their master copies; empty: zeros.
  std::vector<float> initial_values(TensorId id, std::int32_t chunk, double deviation,
                                    std::uint64_t seed) const;
  // Which dropout an op of the current call is, by the label of what it keeps (see program.h).
  // Nothing of an op that drops none. `step`: where the step's number stands, of the same memory as
  // the operands.
  Dropout dropout(const Op& op, std::span<const TensorId> reads, std::span<const TensorId> writes,
                  std::uint64_t seed, const std::uint32_t* step) const;
  // The tokens of a resident in a call of a step, row = position * micro-batch + sequence; empty
  // where it holds no tokens.
  std::span<const std::int64_t> tokens(TensorId id, const Call& call, std::int64_t step,
                                       const Corpus& corpus);

  // The group's members are those of the flat's axes where one is carried. Of the current call.
  void carried(const Transfer& transfer, std::span<const TensorId> reads,
               std::span<const TensorId> writes, std::size_t members, Carried& out);
  // The stretches whose squares count on this rank: each element of the model once (see Update in
  // op.h).
  std::vector<Stretch> counted(const Update& op, std::span<const TensorId> reads);
  // gradients..., norm?, [weights...], master?, moments -> weights..., master?, moments.
  std::vector<StateStretch> owned(const Update& op, std::span<const TensorId> reads,
                                  std::span<const TensorId> writes);
  // The tensor that holds the norm among an update's reads, or -1: no clipping.
  TensorId norm_of(const Update& op, std::span<const TensorId> reads,
                   std::span<const TensorId> writes) const;
  // A copy that takes this rank's share of whole tensors: where it comes from; else empty.
  std::vector<Stretch> share_for_copy(const Pointwise& op, std::span<const TensorId> reads,
                                      std::span<const TensorId> writes);

  const Job& job_;
  const int rank_;
  const JobIndex index_;
  Place place_;
  const int stage_;
  const std::int64_t batch_rank_;  // among expert x data x replica: which part of the batch
  Call call_;

 private:
  // Of a call's micro-batch, among the global batch of a step.
  std::int64_t first_sequence(const Call& call) const;
  void collect(std::span<const TensorId> tensors, std::vector<Stretch>& out);
  std::int64_t share_rank(const Flat& flat) const;  // which share of it is this rank's
  void collect_share(std::span<const TensorId> tensors, std::optional<std::int64_t> member,
                     std::vector<Stretch>& out);
  void collect_flat(std::span<const TensorId> tensors, std::size_t members,
                    std::vector<Stretch>& out);
  bool is_flat(std::span<const TensorId> tensors) const;
  bool counts(TensorId gradient, bool sharded) const;
  std::size_t gradients_of(const Update& op, std::size_t reads, std::size_t writes,
                           bool norm) const;

  std::vector<std::byte*> slots_;  // by scope, chunk, micro-batch, tensor
  std::vector<std::int64_t> sequence_, tokens_;
};

}  // namespace stepcast
