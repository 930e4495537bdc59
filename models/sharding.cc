// All of ZeRO is here: which share of the state a unit holds, and the collectives that bring whole
// tensors together. What each stage does is decided by which tensors a unit has, once, in add();
// the rest asks for the tensors, not for the stage.
#include "models/sharding.h"

namespace stepcast {

std::int64_t State::shards(const Unit& unit) const {
  return unit.experts ? plan_.expert_shards() : plan_.shards();
}

std::int64_t State::shard_elements(const Unit& unit) const {
  return (unit.elements + shards(unit) - 1) / shards(unit);
}

std::int64_t State::owned_elements(const Unit& unit) const {
  return plan_.effective_zero() >= 1 ? shard_elements(unit) : unit.elements;
}

std::array<std::vector<std::int32_t>, 2> State::apart(
    const std::vector<std::int32_t>& units) const {
  std::array<std::vector<std::int32_t>, 2> lists;
  for (std::int32_t i : units) lists[unit(i).experts ? 1 : 0].push_back(i);
  return lists;
}

TensorId State::transient(std::string_view name, std::int32_t layer, std::int64_t elements,
                          Dtype dtype, Category category) {
  Job& job = tables_.job();
  job.tensors.push_back({tables_.label(name, layer), {elements}, dtype, category, Scope::kChunk});
  return static_cast<TensorId>(job.tensors.size()) - 1;
}

TensorId State::resident(std::string_view name, std::int32_t layer, std::int64_t elements,
                         Dtype dtype, Category category) {
  residents_.push_back(transient(name, layer, elements, dtype, category));
  return residents_.back();
}

std::int32_t State::add(Unit unit) {
  const int zero = plan_.effective_zero();
  const std::int64_t owned = owned_elements(unit);
  if (zero == 3) {
    unit.weight_shard = resident("weights.shard", unit.layer, owned, unit.dtype,
                                 Category::kWeights);
  } else {
    residents_.insert(residents_.end(), unit.weights.begin(), unit.weights.end());
  }
  if (zero >= 2) {
    unit.gradient_shard = resident("gradients.shard", unit.layer, owned, plan_.gradients,
                                   Category::kGradients);
    if (plan_.micro_batches() > 1 || unit.used_twice) {
      unit.reduced = transient("gradients.reduced", unit.layer, owned, plan_.gradients,
                               Category::kBuffers);
    }
  } else {
    residents_.insert(residents_.end(), unit.gradients.begin(), unit.gradients.end());
  }
  if (plan_.gradient_copy) {
    unit.gradient_copy =
        transient("gradients.copy", unit.layer, owned, Dtype::kFp32, Category::kBuffers);
  }
  if (plan_.master) {
    unit.master = resident("master", unit.layer, owned, Dtype::kFp32, Category::kMasterWeights);
  }
  if (zero >= 1) {
    const AxisSet axes = unit.experts ? state_axes(plan_, true) : kStateAxes;
    Flat weights{unit.weights, {}, axes}, gradients{unit.gradients, {}, axes};
    const auto share = [](Flat& flat, TensorId id) {
      if (id != kNoTensor) flat.shares.push_back(id);
    };
    share(weights, unit.weight_shard);
    share(gradients, unit.gradient_shard);
    share(gradients, unit.reduced);
    tables_.job().flats.push_back(std::move(weights));
    tables_.job().flats.push_back(std::move(gradients));
  }
  unit.moment1 = resident("moment1", unit.layer, owned, plan_.moments, Category::kOptimizer);
  unit.moment2 = resident("moment2", unit.layer, owned, plan_.moments, Category::kOptimizer);
  units_.push_back(std::move(unit));
  return static_cast<std::int32_t>(units_.size()) - 1;
}

Bytes State::gradient_bytes(std::int32_t i) const {
  return Bytes(unit(i).elements * dtype_size(plan_.gradients));
}

bool State::reduces() const { return plan_.context * plan_.data > 1; }

void State::gather(BodyWriter& body, const std::vector<std::int32_t>& units, EventId done) const {
  for (const std::vector<std::int32_t>& alike : apart(units)) gather_alike(body, alike);
  body.add(Record{Stream::kData, done});
}

void State::gather_alike(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  std::vector<TensorId> reads, writes;
  Bytes bytes;
  for (std::int32_t i : units) {
    const Unit& u = unit(i);
    bytes += Bytes(shard_elements(u) * shards(u) * dtype_size(u.dtype));
    writes.insert(writes.end(), u.weights.begin(), u.weights.end());
    if (u.weight_shard == kNoTensor) {
      reads.insert(reads.end(), u.weights.begin(), u.weights.end());
    } else {
      reads.push_back(u.weight_shard);
      for (TensorId w : u.weights) body.add(Alloc{w});
    }
  }
  if (units.empty() || shards(unit(units[0])) == 1) return;
  const Unit& first = unit(units[0]);
  const Transfer transfer{TransferKind::kAllGather, state_axes(plan_, first.experts), false, bytes};
  body.collective(transfer, reads, writes, tables_.label("weights.gather", first.layer),
                  Stream::kData, Phase::kForward);
}

// One kernel over all of a group's parameters (FSDP2's split_with_sizes_copy).
void State::unflatten(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  if (plan_.flat_weights) return;
  for (std::int32_t i : units) {
    const Unit& u = unit(i);
    body.compute(Pointwise{PointwiseKind::kUnflatten, 1, u.elements, u.dtype, u.dtype, false},
                 u.weights, u.weights, tables_.label("weights.unflatten", u.layer),
                 body.phase());
  }
}

void State::drop(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  for (std::int32_t i : units) {
    for (TensorId w : unit(i).weights) body.add(Free{w});
  }
}

void State::open_gradients(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  for (std::int32_t i : units) {
    if (unit(i).gradient_shard == kNoTensor) continue;
    for (TensorId g : unit(i).gradients) body.add(Alloc{g});
    if (unit(i).reduced != kNoTensor) body.add(Alloc{unit(i).reduced});
  }
}

// Hybrid sharding: what is reduced inside a shard group is summed over the groups' replicas.
void State::reduce_replicas(BodyWriter& body, const std::vector<TensorId>& tensors,
                            Bytes bytes) const {
  if (plan_.replicas() == 1) return;
  body.order(Stream::kData, kReplicaReady, Stream::kReplica);
  const Transfer transfer{TransferKind::kAllReduce, Axis::kReplica, false, bytes};
  body.collective(transfer, tensors, tensors, tables_.label("gradients.replica_reduce"),
                  Stream::kReplica, Phase::kBackward);
  body.order(Stream::kReplica, kReplicaReady, Stream::kData);
}

void State::reduce(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  if (units.empty() || !reduces()) return;
  for (const std::vector<std::int32_t>& alike : apart(units)) reduce_alike(body, alike);
  body.add(Record{Stream::kData, kReduceDone});
}

// Of units with the same copies.
void State::reduce_alike(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  if (units.empty() || shards(unit(units[0])) * plan_.replicas() == 1) return;
  const Unit& first = unit(units[0]);
  std::vector<TensorId> reads, shares, partial;
  std::int64_t elements = 0, padded = 0;
  for (std::int32_t i : units) {
    const Unit& u = unit(i);
    elements += u.elements;
    padded += shard_elements(u) * shards(u);
    reads.insert(reads.end(), u.gradients.begin(), u.gradients.end());
    partial.insert(partial.end(), u.partial.begin(), u.partial.end());
    if (u.reduced != kNoTensor) {
      shares.push_back(u.reduced);
    } else if (u.gradient_shard != kNoTensor) {
      shares.push_back(u.gradient_shard);
    }
  }
  const std::int64_t size = dtype_size(plan_.gradients);
  const int zero = plan_.effective_zero();
  const bool scattered = zero >= 2 || (zero == 1 && !plan_.all_reduce);
  if (!shares.empty() && !partial.empty()) {
    // Once scattered, a weight's gradient cannot be told from its neighbours'.
    Bytes sum;
    for (TensorId t : partial) sum += body.bytes(t);
    body.order(Stream::kCompute, kComputeReady, Stream::kTensor);
    body.collective({TransferKind::kAllReduce, Axis::kTensor, false, sum}, partial, partial,
                    tables_.label("gradients.tensor_reduce"), Stream::kTensor, Phase::kBackward);
    body.order(Stream::kTensor, kReduceDone, Stream::kData);
  }
  body.order(Stream::kCompute, kComputeReady, Stream::kData);
  const Label label = tables_.label("gradients.reduce", first.layer);
  AxisSet axes = state_axes(plan_, first.experts);
  if (scattered) {
    const std::vector<TensorId>& writes = shares.empty() ? reads : shares;
    body.collective({TransferKind::kReduceScatter, axes, false, Bytes(padded * size)}, reads,
                    writes, label, Stream::kData, Phase::kBackward);
    reduce_replicas(body, writes, Bytes(padded / shards(first) * size));
  } else {
    if (plan_.replicas() > 1) axes = axes | AxisSet(Axis::kReplica);
    body.collective({TransferKind::kAllReduce, axes, false, Bytes(elements * size)}, reads, reads,
                    label, Stream::kData, Phase::kBackward);
  }
}

void State::close_gradients(BodyWriter& body, const std::vector<std::int32_t>& units) const {
  bool waited = false;
  for (std::int32_t i : units) {
    const Unit& u = unit(i);
    if (u.gradient_shard == kNoTensor) continue;
    if (!waited) body.add(Wait{Stream::kCompute, kReduceDone});
    waited = true;
    for (TensorId g : u.gradients) body.add(Free{g});
    if (u.reduced == kNoTensor) continue;
    const std::int64_t n = shard_elements(u);
    body.compute(Pointwise{PointwiseKind::kAdd, 1, n, plan_.gradients, plan_.gradients, false},
                 {u.gradient_shard, u.reduced}, {u.gradient_shard},
                 tables_.label("gradients.accumulate", u.layer), Phase::kBackward);
    body.add(Free{u.reduced});
  }
}

std::vector<TensorId> State::final_gradients(const Unit& u) const {
  if (u.gradient_shard != kNoTensor) return {u.gradient_shard};
  return u.gradients;
}

void State::settle(BodyWriter& body, TensorId norm) const {
  if (reduces()) body.order(Stream::kData, kDataDone, Stream::kCompute);
  std::vector<TensorId> partial, ends, all;
  Bytes partial_bytes;
  std::int64_t owned = 0, ends_elements = 0;
  for (const Unit& u : units_) {
    const std::vector<TensorId> gradients = final_gradients(u);
    all.insert(all.end(), gradients.begin(), gradients.end());
    const std::int64_t n = owned_elements(u);
    owned += n;
    if (u.gradient_shard == kNoTensor) {
      for (TensorId t : u.partial) {
        partial.push_back(t);
        partial_bytes += body.bytes(t);
      }
    }
    if (!u.ends) continue;
    ends.insert(ends.end(), gradients.begin(), gradients.end());
    ends_elements += n;
  }
  if (!partial.empty()) {
    body.order(Stream::kCompute, kComputeReady, Stream::kTensor);
    body.collective({TransferKind::kAllReduce, Axis::kTensor, false, partial_bytes}, partial,
                    partial, tables_.label("gradients.tensor_reduce"), Stream::kTensor,
                    Phase::kOptimizer);
    body.order(Stream::kTensor, kTensorDone, Stream::kCompute);
  }
  if (!ends.empty()) {
    const Transfer transfer{TransferKind::kAllReduce, Axis::kPipeline, true,
                            Bytes(ends_elements * dtype_size(plan_.gradients))};
    body.order(Stream::kCompute, kComputeReady, Stream::kGlobal);
    body.collective(transfer, ends, ends, tables_.label("embedding.gradient.ends_reduce"),
                    Stream::kGlobal, Phase::kOptimizer);
    body.order(Stream::kGlobal, kGlobalDone, Stream::kCompute);
  }
  for (const Unit& u : units_) {
    if (u.gradient_copy == kNoTensor) continue;
    const std::int64_t n = owned_elements(u);
    body.add(Alloc{u.gradient_copy});
    body.compute(Pointwise{PointwiseKind::kCast, 1, n, plan_.gradients, Dtype::kFp32, false},
                 final_gradients(u), {u.gradient_copy}, tables_.label("gradients.copy", u.layer),
                 Phase::kOptimizer);
  }
  if (norm == kNoTensor) return;
  all.push_back(norm);
  body.compute(Update{UpdatePart::kSquaredNorm, owned, plan_.compute, plan_.gradients, plan_.master,
                      plan_.moments},
               all, {norm}, tables_.label("gradients.norm"), Phase::kOptimizer);
}

void State::zero_gradients(BodyWriter& body) const {
  std::vector<TensorId> writes;
  std::int64_t elements = 0;
  for (const Unit& u : units_) {
    if (u.gradient_shard != kNoTensor && u.reduced == kNoTensor) continue;  // overwritten anyway
    for (TensorId g : final_gradients(u)) {
      writes.push_back(g);
      elements += tables_.job().tensors[static_cast<std::size_t>(g)].shape.elements();
    }
  }
  if (writes.empty()) return;
  body.compute(
      Pointwise{PointwiseKind::kFill, 1, elements, plan_.gradients, plan_.gradients, false}, {},
      writes, tables_.label("gradients.zero"), Phase::kOptimizer);
}

void State::update(BodyWriter& body, TensorId norm, bool gather_now) const {
  std::vector<std::int32_t> gathered;
  const bool sharded = plan_.effective_zero() >= 1;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& u = units_[i];
    std::vector<TensorId> writes = u.weights;
    if (u.weight_shard != kNoTensor) writes = {u.weight_shard};
    std::vector<TensorId> reads = final_gradients(u);
    if (u.gradient_copy != kNoTensor) reads = {u.gradient_copy};
    if (norm != kNoTensor) reads.push_back(norm);
    if (u.master == kNoTensor) reads.insert(reads.end(), writes.begin(), writes.end());
    for (TensorId t : {u.master, u.moment1, u.moment2}) {
      if (t == kNoTensor) continue;
      reads.push_back(t);
      writes.push_back(t);
    }
    const std::int64_t n = owned_elements(u);
    const Dtype gradient = u.gradient_copy == kNoTensor ? plan_.gradients : Dtype::kFp32;
    body.compute(Update{UpdatePart::kAdamW, n, u.dtype, gradient, plan_.master,
                        plan_.moments},
                 reads, writes, tables_.label("update", u.layer), Phase::kOptimizer);
    if (u.gradient_copy != kNoTensor) body.add(Free{u.gradient_copy});
    if (sharded && u.weight_shard == kNoTensor) gathered.push_back(static_cast<std::int32_t>(i));
  }
  if (gather_now && !gathered.empty()) {
    body.order(Stream::kCompute, kComputeReady, Stream::kData);
    gather(body, gathered, kDataDone);
    zero_gradients(body);
    body.add(Wait{Stream::kCompute, kDataDone});
    return;
  }
  zero_gradients(body);
}

}  // namespace stepcast
