// A pass over a chunk is a list of steps (pass.h). Around each step stands what its unit of weights
// needs: with stage 3 a gather some steps ahead and a drop behind; in backward the reduction.
//
// How far gathers run ahead is limited, as FSDP's rate limiter does it: with a prefetch of f, at
// most f + 1 units are whole at a time, so the gather of step q waits for the end of step q - f -
// 1. That step may belong to the call before. So a step's limit event is numbered from the *end* of
// its body: the last step records 0, the one before 1, ... modulo f + 1; a body's first gathers
// find them there.
#include "models/chunk.h"

#include <algorithm>
#include <array>

#include "models/message.h"

namespace stepcast {

namespace {

struct Placed {
  const BlockKind* kind = nullptr;
  Binding binding;
  std::vector<std::int32_t> units;
  std::vector<std::int32_t> first_use;  // of `units`: those that no earlier block uses
};

class ChunkWriter {
 public:
  ChunkWriter(Tables& tables, const std::vector<BlockKind>& kinds, const ChunkShape& shape,
              const Plan& plan, TensorId norm)
      : tables_(tables), kinds_(kinds), shape_(shape), plan_(plan), norm_(norm),
        state_(tables, plan), prefetch_(plan.overlap ? static_cast<int>(plan.prefetch) : 0) {}

  ChunkBodies run(Passes passes);

 private:
  bool streams_weights() const { return plan_.effective_zero() == 3; }
  bool gathers_in_forward() const {
    const int zero = plan_.effective_zero();
    return plan_.overlap && (zero == 1 || zero == 2);
  }
  bool reduces_at_end() const { return plan_.effective_zero() < 2 && state_.reduces(); }

  TensorId add_tensor(Tensor tensor, std::int32_t layer);
  void place_blocks();
  void add_units(const BlockKind& kind, Placed& placed);
  Unit unit_of(const std::vector<WeightSlots>& weights, const Binding& binding) const;

  bool keeps_weights() const { return streams_weights() && !plan_.reshard_after_forward; }
  // The first micro-batch's forward does more than that of the others.
  bool first_differs() const;

  bool checkpointed(const Placed& placed) const;
  std::vector<PassBlock> pass_blocks() const;
  Binding on_the_way(std::size_t block) const;
  void group_gathers();
  PassBodies write_passes(const Visit& visit);

  void act(BodyWriter& body, const PassStep& step);
  void run_steps(BodyWriter& body, const std::vector<PassStep>& steps, bool gather, bool drop);
  // The units that a step gathers.
  using Gathered = std::vector<std::vector<std::int32_t>>;
  void issue_gather(BodyWriter& body, const std::vector<PassStep>& steps, int q,
                    std::vector<int>& holders, Gathered& gathers) const;
  EventId gathered(int step) const;
  EventId limit(int from_end) const;

  BodyRange forward(bool first);
  BodyRange backward(bool last);
  void after_backward(BodyWriter& body, std::size_t block);
  TensorId slice_of(TensorId tensor);

  Tables& tables_;
  const std::vector<BlockKind>& kinds_;
  const ChunkShape& shape_;
  const Plan& plan_;
  const TensorId norm_;
  State state_;
  const int prefetch_;
  std::vector<Placed> blocks_;
  Visit visit_;                        // of the bodies that are being written
  bool ring_ = false;
  std::vector<TensorId> activations_;  // activations_[j] enters block j; the last leaves the chunk
  std::vector<TensorId> gradients_;    // of activations_
  std::vector<TensorId> residents_;    // beside the state: token ids, 8-bit copies of weights
  // What crosses to the part before and after, forward and backward, where it is a slice.
  std::array<TensorId, 2> slices_in_ = {kNoTensor, kNoTensor};
  std::array<TensorId, 2> slices_out_ = {kNoTensor, kNoTensor};

  bool prepares_ = false;  // the first micro-batch's forward is being written
  // While backward is being written:
  bool last_ = false;                       // of the last micro-batch
  std::vector<std::int32_t> bucket_;        // units that wait to be reduced together
  std::vector<std::int32_t> open_;          // units whose whole gradients are being reduced

  // While a first forward is being written: groups of units, gathered together, by first block.
  std::vector<std::vector<std::int32_t>> groups_;
  std::vector<std::int32_t> group_of_block_;
};

TensorId ChunkWriter::add_tensor(Tensor tensor, std::int32_t layer) {
  tensor.label.layer = static_cast<std::int16_t>(layer);
  tables_.job().tensors.push_back(tensor);
  return static_cast<TensorId>(tables_.job().tensors.size()) - 1;
}

Unit ChunkWriter::unit_of(const std::vector<WeightSlots>& weights, const Binding& binding) const {
  Unit unit;
  unit.layer = binding.layer;
  unit.dtype = weights.front().dtype;
  unit.experts = weights.front().experts;
  for (const WeightSlots& w : weights) {
    unit.elements += w.elements;
    unit.weights.push_back(binding(w.weight));
    unit.gradients.push_back(binding(w.gradient));
    if (w.partial) unit.partial.push_back(binding(w.gradient));
  }
  return unit;
}

// Gives every block its tensors. A shared weight belongs to the first block that uses it; blocks
// behind it find it by name.
void ChunkWriter::place_blocks() {
  struct Shared {
    std::string name;
    TensorId weight, gradient;
    std::int32_t unit;
  };
  std::vector<Shared> shared;
  const std::size_t count = shape_.blocks.size();
  const auto kind_of = [&](std::size_t j) -> const BlockKind& {
    return kinds_[static_cast<std::size_t>(shape_.blocks[j])];
  };
  const auto uses = [&](const std::string& name) {
    std::int64_t n = 0;
    for (std::size_t j = 0; j < count; ++j) {
      for (const SharedWeight& s : kind_of(j).shared) n += s.name == name ? 1 : 0;
    }
    return n;
  };
  std::int32_t layer = 0;
  const auto boundary = [&](const Tensor& tensor) {
    activations_.push_back(add_tensor(tensor, layer));
    gradients_.push_back(add_tensor(tensor, layer));
    tables_.job().tensors.back().label.name =
        tables_.label(tables_.job().names[static_cast<std::size_t>(tensor.label.name)] +
                      ".gradient").name;
  };
  if (shape_.previous) {
    boundary(kind_of(0).x);
  } else {
    activations_.push_back(kNoTensor);
    gradients_.push_back(kNoTensor);
  }
  for (std::size_t j = 0; j < count; ++j) {
    const BlockKind& kind = kind_of(j);
    Placed placed;
    placed.kind = &kind;
    placed.binding.layer = kind.numbered ? layer++ : -1;
    placed.binding.base = static_cast<TensorId>(tables_.job().tensors.size());
    for (const Tensor& tensor : kind.tensors) add_tensor(tensor, placed.binding.layer);
    if (kind.y.shape.rank > 0) {
      boundary(kind.y);
    } else {
      activations_.push_back(kNoTensor);
      gradients_.push_back(kNoTensor);
    }
    placed.binding.places = {activations_[j], activations_[j + 1], gradients_[j],
                             gradients_[j + 1]};
    for (TensorId slot : kind.residents) residents_.push_back(placed.binding(slot));
    for (std::size_t s = 0; s < kind.shared.size(); ++s) {
      const SharedWeight& want = kind.shared[s];
      auto known = std::find_if(shared.begin(), shared.end(),
                                [&](const Shared& k) { return k.name == want.name; });
      const bool fresh = known == shared.end();
      if (fresh) {
        shared.push_back({want.name, add_tensor(kind.shared_tensors[2 * s], -1),
                          add_tensor(kind.shared_tensors[2 * s + 1], -1), -1});
        known = shared.end() - 1;
      }
      placed.binding.places.push_back(known->weight);
      placed.binding.places.push_back(known->gradient);
      if (fresh) {
        Unit unit = unit_of({want.slots}, placed.binding);
        unit.layer = -1;
        unit.used_twice = uses(want.name) > 1;
        unit.ends = plan_.pipeline > 1;
        known->unit = state_.add(std::move(unit));
        placed.first_use.push_back(known->unit);
      }
      placed.units.push_back(known->unit);
    }
    add_units(kind, placed);
    blocks_.push_back(std::move(placed));
  }
}

// The block's own weights, those of one type together; of experts that ranks share, apart.
void ChunkWriter::add_units(const BlockKind& kind, Placed& placed) {
  std::vector<std::vector<WeightSlots>> groups;
  for (const WeightSlots& w : kind.weights) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
      return g[0].dtype == w.dtype && g[0].experts == w.experts;
    });
    if (group == groups.end()) group = groups.insert(group, std::vector<WeightSlots>());
    group->push_back(w);
  }
  for (const std::vector<WeightSlots>& weights : groups) {
    placed.units.push_back(state_.add(unit_of(weights, placed.binding)));
    placed.first_use.push_back(placed.units.back());
  }
}

bool ChunkWriter::checkpointed(const Placed& placed) const {
  const bool here = plan_.recompute_layers == 0 || placed.binding.layer < plan_.recompute_layers;
  return placed.kind->checkpointed && here;
}

std::vector<PassBlock> ChunkWriter::pass_blocks() const {
  std::vector<PassBlock> blocks;
  for (const Placed& placed : blocks_) {
    const bool begins = placed.binding.layer % plan_.recompute_every == 0;
    blocks.push_back({placed.kind->numbered, checkpointed(placed), begins});
  }
  return blocks;
}

// What leaves a block that is passed enters the next one that is, whatever lies between them.
Binding ChunkWriter::on_the_way(std::size_t block) const {
  Binding binding = blocks_[block].binding;
  const auto here = std::find(visit_.begin(), visit_.end(), block);
  const std::size_t from = here == visit_.begin() ? 0 : *(here - 1) + 1;
  const std::size_t to = here + 1 == visit_.end() ? blocks_.size() : block + 1;
  binding.places[0] = activations_[from];
  binding.places[1] = activations_[to];
  binding.places[2] = gradients_[from];
  binding.places[3] = gradients_[to];
  return binding;
}

EventId ChunkWriter::gathered(int step) const {
  return static_cast<EventId>(kFirstRing + step % (prefetch_ + 1));
}

EventId ChunkWriter::limit(int from_end) const {
  return static_cast<EventId>(kFirstRing + prefetch_ + 1 + from_end % (prefetch_ + 1));
}

// Brings in the units of step q that no step on the way holds already.
void ChunkWriter::issue_gather(BodyWriter& body, const std::vector<PassStep>& steps, int q,
                               std::vector<int>& holders, Gathered& gathers) const {
  std::vector<std::int32_t> missing;
  for (std::int32_t unit : blocks_[steps[static_cast<std::size_t>(q)].block].units) {
    if (holders[static_cast<std::size_t>(unit)]++ == 0) missing.push_back(unit);
  }
  if (missing.empty()) return;
  const int count = static_cast<int>(steps.size());
  const int freed = q - prefetch_ - 1;  // the step whose memory this gather takes
  body.add(Wait{Stream::kData, limit(freed >= 0 ? count - 1 - freed : -1 - freed)});
  state_.gather(body, missing, gathered(q));
  gathers[static_cast<std::size_t>(q)] = std::move(missing);
}

void ChunkWriter::act(BodyWriter& body, const PassStep& step) {
  const Placed& placed = blocks_[step.block];
  const BlockKind& kind = *placed.kind;
  if (prepares_) body.stamp(kind.prepare, placed.binding);
  for (PassAction action : step.actions) {
    switch (action) {
      case PassAction::kForward:
        body.stamp(checkpointed(placed) ? kind.forward_keep : kind.forward,
                   on_the_way(step.block));
        break;
      case PassAction::kForwardDrop: body.stamp(kind.forward_drop, on_the_way(step.block)); break;
      case PassAction::kRecompute: body.stamp(kind.recompute, on_the_way(step.block)); break;
      case PassAction::kRecomputeLast:
        body.stamp(kind.recompute_last, on_the_way(step.block));
        break;
      case PassAction::kBackward:
        state_.open_gradients(body, placed.units);
        body.stamp(kind.backward, on_the_way(step.block));
        after_backward(body, step.block);
        break;
      case PassAction::kReduce:
        if (reduces_at_end()) after_backward(body, step.block);
        break;
    }
  }
}

// Weights come in with `gather`, some steps ahead, and go with `drop` when the last step that holds
// them is done. Without `gather` they are whole already; without `drop` they stay.
void ChunkWriter::run_steps(BodyWriter& body, const std::vector<PassStep>& steps, bool gather,
                            bool drop) {
  const int count = static_cast<int>(steps.size());
  std::vector<int> holders(static_cast<std::size_t>(state_.units()), 0);  // by unit
  Gathered gathers(steps.size());                                        // by step
  if (!gather) {
    for (const PassStep& step : steps) {
      for (std::int32_t unit : blocks_[step.block].units) {
        ++holders[static_cast<std::size_t>(unit)];
      }
    }
  }
  for (int q = 0; gather && q < std::min(prefetch_, count); ++q) {
    issue_gather(body, steps, q, holders, gathers);
  }
  for (int s = 0; s < count; ++s) {
    const PassStep& step = steps[static_cast<std::size_t>(s)];
    if (gather && s + prefetch_ < count) {
      issue_gather(body, steps, s + prefetch_, holders, gathers);
    }
    const std::vector<std::int32_t>& arrived = gathers[static_cast<std::size_t>(s)];
    if (!arrived.empty()) body.add(Wait{Stream::kCompute, gathered(s)});
    state_.unflatten(body, arrived);
    act(body, step);
    std::vector<std::int32_t> done;
    for (std::int32_t unit : blocks_[step.block].units) {
      if (drop && --holders[static_cast<std::size_t>(unit)] == 0) done.push_back(unit);
    }
    state_.drop(body, done);
    if (gather || drop) body.add(Record{Stream::kCompute, limit(count - 1 - s)});
  }
}

// A tensor that all tensor ranks hold whole need not cross to the next stage t times: each rank
// sends 1 / t of its rows, and the receivers gather them (Narayanan et al. 2021, section 4.1).
TensorId ChunkWriter::slice_of(TensorId tensor) {
  if (plan_.tensor == 1 || plan_.sequence_parallel || !plan_.scatter_gather) return kNoTensor;
  Tensor slice = tables_.job().tensors[static_cast<std::size_t>(tensor)];
  const std::int64_t rows = slice.shape.sizes[0];
  if (slice.shape.rank != 2 || rows % plan_.tensor != 0) return kNoTensor;
  slice.shape.sizes[0] = rows / plan_.tensor;
  slice.label = tables_.label("slice", slice.label.layer);
  return add_tensor(slice, slice.label.layer);
}

BodyRange ChunkWriter::forward(bool first) {
  BodyWriter body(tables_, first ? "forward first" : "forward", Phase::kForward);
  const bool others = first && first_differs();
  prepares_ = first;
  const std::vector<PassStep> steps = forward_steps(pass_blocks(), visit_, others);
  if (first && gathers_in_forward()) {
    // The updates before are those of the last step, which is over; in a ring, of the last round.
    if (ring_) body.order(Stream::kCompute, kComputeReady, Stream::kData);
    // Updated weights come in group by group, one group ahead of the blocks that use it.
    std::size_t issued = 0;
    const auto issue = [&] {
      if (issued >= groups_.size()) return;
      state_.gather(body, groups_[issued], static_cast<EventId>(kFirstRing + issued % 2));
      ++issued;
    };
    issue();
    if (shape_.previous) {
      write_receive(body, {activations_.front(), slices_in_[0]}, Stream::kReceiveForward, -1,
                    plan_);
    }
    std::int32_t arrived = -1;
    for (const PassStep& step : steps) {
      for (; arrived < group_of_block_[step.block]; ++arrived) {
        body.add(Wait{Stream::kCompute, static_cast<EventId>(kFirstRing + (arrived + 1) % 2)});
        issue();
      }
      act(body, step);
    }
  } else {
    if (shape_.previous) {
      write_receive(body, {activations_.front(), slices_in_[0]}, Stream::kReceiveForward, -1,
                    plan_);
    }
    const bool reshard = plan_.reshard_after_forward;
    run_steps(body, steps, streams_weights() && (first || reshard), streams_weights() && reshard);
  }
  prepares_ = false;
  if (plan_.pass_sync) body.add(Synchronize{});
  if (shape_.next) {
    write_send(body, {activations_.back(), slices_out_[0]}, Stream::kSendForward, 1, plan_);
  }
  return body.finish(plan_.expert_overlap);
}

void ChunkWriter::after_backward(BodyWriter& body, std::size_t block) {
  if (!state_.reduces()) return;
  if (plan_.effective_zero() >= 2) {
    state_.close_gradients(body, open_);
    open_ = blocks_[block].units;
    state_.reduce(body, open_);
    if (!plan_.overlap) {
      state_.close_gradients(body, open_);
      open_.clear();
    }
    return;
  }
  if (!last_ || !plan_.overlap) return;
  const std::vector<std::int32_t>& ready = blocks_[block].first_use;
  bucket_.insert(bucket_.end(), ready.begin(), ready.end());
  Bytes bytes;
  for (std::int32_t unit : bucket_) bytes += state_.gradient_bytes(unit);
  if (bytes < plan_.bucket && block > 0) return;
  state_.reduce(body, bucket_);
  bucket_.clear();
}

BodyRange ChunkWriter::backward(bool last) {
  BodyWriter body(tables_, last ? "backward last" : "backward", Phase::kBackward);
  last_ = last;
  if (shape_.next) {
    write_receive(body, {gradients_.back(), slices_out_[1]}, Stream::kReceiveBackward, 1, plan_);
  }
  const bool reshard = plan_.reshard_after_forward;
  run_steps(body, backward_steps(pass_blocks(), visit_, last), streams_weights() && reshard,
            streams_weights() && (last || reshard));
  if (!open_.empty()) {
    state_.close_gradients(body, open_);
    open_.clear();
  }
  if (plan_.pass_sync) body.add(Synchronize{});
  if (shape_.previous) {
    write_send(body, {gradients_.front(), slices_in_[1]}, Stream::kSendBackward, -1, plan_);
  }
  return body.finish(plan_.expert_overlap);
}

// Updated weights are gathered in groups, a bucket's bytes at a time.
void ChunkWriter::group_gathers() {
  Bytes bytes;
  for (const Placed& block : blocks_) {
    if (!block.first_use.empty() && (groups_.empty() || bytes >= plan_.bucket)) {
      groups_.emplace_back();
      bytes = Bytes();
    }
    for (std::int32_t unit : block.first_use) {
      groups_.back().push_back(unit);
      bytes += Bytes(state_.unit(unit).elements * dtype_size(state_.unit(unit).dtype));
    }
    group_of_block_.push_back(static_cast<std::int32_t>(groups_.size()) - 1);
  }
}

bool ChunkWriter::first_differs() const {
  const bool prepares = std::any_of(blocks_.begin(), blocks_.end(), [](const Placed& block) {
    return !block.kind->prepare.code.empty();
  });
  return gathers_in_forward() || keeps_weights() || prepares;
}

PassBodies ChunkWriter::write_passes(const Visit& visit) {
  visit_ = visit;
  PassBodies out;
  out.forward = out.forward_first = forward(false);
  if (first_differs()) out.forward_first = forward(true);
  out.backward = out.backward_last = backward(false);
  if ((reduces_at_end() && plan_.overlap) || keeps_weights()) out.backward_last = backward(true);
  return out;
}

ChunkBodies ChunkWriter::run(Passes passes) {
  place_blocks();
  if (shape_.previous) slices_in_ = {slice_of(activations_.front()), slice_of(gradients_.front())};
  if (shape_.next) slices_out_ = {slice_of(activations_.back()), slice_of(gradients_.back())};
  if (gathers_in_forward()) group_gathers();
  ChunkBodies out;
  std::vector<Visit> visits(1);
  for (std::size_t j = 0; j < blocks_.size(); ++j) visits[0].push_back(j);
  ring_ = passes == Passes::kRing;
  // What a gather ahead of its step still finds whole must be so far behind as in all blocks.
  const auto layers = static_cast<std::size_t>(streams_weights() ? std::max(2, prefetch_) : 2);
  if (ring_) visits = ring_visits(pass_blocks(), layers);
  for (const Visit& visit : visits) out.passes.push_back(write_passes(visit));

  BodyWriter settle(tables_, "settle", Phase::kOptimizer);
  if (reduces_at_end() && !plan_.overlap) {
    std::vector<std::int32_t> units;
    for (const Placed& block : blocks_) {
      units.insert(units.end(), block.first_use.begin(), block.first_use.end());
    }
    state_.reduce(settle, units);
  }
  state_.settle(settle, norm_);
  out.settle = settle.finish();

  BodyWriter update(tables_, "update", Phase::kOptimizer);
  state_.update(update, norm_, !gathers_in_forward());
  out.update = update.finish();

  std::vector<TensorId> residents = state_.residents();
  residents.insert(residents.end(), residents_.begin(), residents_.end());
  tables_.job().resident_sets.push_back(std::move(residents));
  out.residents = static_cast<std::int32_t>(tables_.job().resident_sets.size()) - 1;
  return out;
}

}  // namespace

ChunkBodies write_chunk(Tables& tables, const std::vector<BlockKind>& kinds,
                        const ChunkShape& shape, const Plan& plan, TensorId norm, Passes passes) {
  return ChunkWriter(tables, kinds, shape, plan, norm).run(passes);
}

}  // namespace stepcast
