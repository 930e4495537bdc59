// Look-ups in tables that follow from the Job; linear in the tensors that an instruction names.
#include "execute/bound_job.h"

#include <algorithm>

#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

// Ranks that work on sequences of their own (Batch in program.h).
std::int64_t batch_ranks(const Mesh& mesh) {
  return static_cast<std::int64_t>(mesh.degree(Axis::kExpert)) * mesh.degree(Axis::kData) *
         mesh.degree(Axis::kReplica);
}

// Which of them a rank is, whatever the order of the axes.
std::int64_t batch_rank(const Mesh& mesh, int rank) {
  std::int64_t index = mesh.coordinate(rank, Axis::kReplica);
  index = index * mesh.degree(Axis::kData) + mesh.coordinate(rank, Axis::kData);
  return index * mesh.degree(Axis::kExpert) + mesh.coordinate(rank, Axis::kExpert);
}

Place place_of(const Job& job, int rank) {
  Place place;
  place.batch = job.batch;
  place.tensor_rank = job.mesh.coordinate(rank, Axis::kTensor);
  place.tensor_ranks = job.mesh.degree(Axis::kTensor);
  place.context = {job.batch.sequence_length, job.mesh.coordinate(rank, Axis::kContext),
                   job.mesh.degree(Axis::kContext)};
  place.batch_tokens = job.batch.sequence_length * job.batch.micro_batch * job.batch.micro_batches *
                       batch_ranks(job.mesh);
  place.expert_rank = job.mesh.index_in_group(rank, job.experts);
  return place;
}

}  // namespace

std::int64_t total(std::span<const Stretch> stretches) {
  std::int64_t elements = 0;
  for (const Stretch& stretch : stretches) elements += stretch.elements;
  return elements;
}

BoundJob::BoundJob(const Job& job, int rank)
    : job_(job),
      rank_(rank),
      index_(job),
      place_(place_of(job, rank)),
      stage_(job.mesh.stage(rank)),
      batch_rank_(batch_rank(job.mesh, rank)) {
  const auto chunks = static_cast<std::size_t>(index_.chunks());
  const auto batches = static_cast<std::size_t>(job.batch.micro_batches);
  slots_.resize(job.tensors.size() * (1 + chunks + chunks * batches), nullptr);
  sequence_.resize(static_cast<std::size_t>(job.batch.sequence_length) + 1);
}

std::byte*& BoundJob::slot(TensorId id, const Call& call) {
  const auto chunks = static_cast<std::size_t>(index_.chunks());
  const auto chunk = static_cast<std::size_t>(call.chunk);
  std::size_t row = 0;
  switch (tensor(id).scope) {
    case Scope::kRank: break;
    case Scope::kChunk: row = 1 + chunk; break;
    case Scope::kMicroBatch:
      row = 1 + chunks + static_cast<std::size_t>(call.micro_batch) * chunks + chunk;
      break;
  }
  return slots_[row * job_.tensors.size() + static_cast<std::size_t>(id)];
}

std::span<const TensorId> BoundJob::ids(const Body& body, Operands operands, bool writes) const {
  const TensorId* first = body.operands.data() + operands.first + (writes ? operands.reads : 0);
  return {first, static_cast<std::size_t>(writes ? operands.writes : operands.reads)};
}

std::vector<float> BoundJob::initial_values(TensorId id, std::int32_t chunk, double deviation,
                                           std::uint64_t seed) const {
  const bool master = tensor(id).category == Category::kMasterWeights;
  if (!master && tensor(id).category != Category::kWeights) return {};
  const InitialValues initial{job_, index_, place_, deviation, seed};
  const std::int64_t layer = index_.first_layer(stage_, chunk);
  std::vector<float> out(static_cast<std::size_t>(tensor(id).shape.elements()), 0.0f);
  // A master copy is of the weights end to end, or of this rank's share of them.
  const std::vector<TensorId>* weights = master ? index_.weights_of(id) : nullptr;
  if (master) STEPCAST_CHECK(weights != nullptr, "a master copy is of the weights of an update");
  const int flat = index_.flat_of_share(master ? weights->front() : id);
  if (flat < 0 && !master) {
    initial.write(id, layer, 0, tensor(id).shape.elements(), out.data());
    return out;
  }
  const int whole_flat = flat >= 0 ? flat : index_.flat_of(weights->front());
  const auto elements = tensor(id).shape.elements();
  std::int64_t whole = 0;
  for (std::size_t i = 0; master && i < weights->size(); ++i) {
    whole += tensor((*weights)[i]).shape.elements();
  }
  if (flat < 0 && elements == whole) {
    float* to = out.data();
    for (const TensorId weight : *weights) {
      initial.write(weight, layer, 0, tensor(weight).shape.elements(), to);
      to += tensor(weight).shape.elements();
    }
    return out;
  }
  STEPCAST_CHECK(whole_flat >= 0, "a share is one of a flat");
  const Flat& list = job_.flats[static_cast<std::size_t>(whole_flat)];
  for_pieces(job_, list, share_rank(list), [&](const Piece& piece) {
    initial.write(list.whole[piece.tensor], layer, piece.begin, piece.elements,
                  out.data() + piece.at);
  });
  return out;
}

std::int64_t BoundJob::first_sequence(const Call& call) const {
  return (call.micro_batch * batch_ranks(job_.mesh) + batch_rank_) * job_.batch.micro_batch;
}

Dropout BoundJob::dropout(const Op& op, std::span<const TensorId> reads,
                          std::span<const TensorId> writes, std::uint64_t seed,
                          const std::uint32_t* step) const {
  if (!drops(op)) return {};
  // Forward writes a mask, or lse, behind its result; backward reads the mask, or lse before d_o.
  const auto* attention = std::get_if<Attention>(&op);
  const bool attends_back = attention != nullptr && attention->pass == Pass::kBackward;
  std::size_t behind = 0;
  if (attends_back) {
    const bool added = std::find(reads.begin(), reads.end(), writes.back()) != reads.end();
    behind = 1 + behind_gradient(*attention, added);
  }
  const TensorId kept =
      !attends_back && writes.size() > 1 ? writes[1] : reads[reads.size() - 1 - behind];
  const Label label = tensor(kept).label;
  const std::string_view name = job_.names[static_cast<std::size_t>(label.name)];
  const std::int64_t layer =
      label.layer < 0 ? -1 : index_.first_layer(stage_, call_.chunk) + label.layer;
  constexpr std::uint64_t kPurpose = 2;  // weights of that name and layer begin by another hash
  const std::uint64_t key = hash(hash(seed, name.substr(0, name.rfind('.'))),
                                 static_cast<std::uint64_t>(layer), kPurpose);
  return {dropout_rule(job_.dropout, key, step), first_sequence(call_)};
}

// What a data loader would have copied to the device.
std::span<const std::int64_t> BoundJob::tokens(TensorId id, const Call& call, std::int64_t step,
                                              const Corpus& corpus) {
  const DataUse use = index_.data_use(id);
  if (use == DataUse::kNone) return {};
  const Batch& batch = job_.batch;
  const std::int64_t global = place_.batch_tokens / batch.sequence_length;
  const std::int64_t first = step * global + first_sequence(call);
  const std::int64_t shift = use == DataUse::kTargets ? 1 : 0;
  const std::int64_t here = batch.sequence_length / place_.context.ranks;
  tokens_.resize(static_cast<std::size_t>(here * batch.micro_batch));
  for (std::int64_t j = 0; j < batch.micro_batch; ++j) {
    corpus.read(first + j, batch.sequence_length + 1, sequence_.data());
    for (std::int64_t i = 0; i < here; ++i) {
      tokens_[static_cast<std::size_t>(i * batch.micro_batch + j)] =
          sequence_[static_cast<std::size_t>(place_.context.position(i) + shift)];
    }
  }
  return tokens_;
}

void BoundJob::collect(std::span<const TensorId> tensors, std::vector<Stretch>& out) {
  for (const TensorId id : tensors) out.push_back(stretch(id));
}

bool BoundJob::is_flat(std::span<const TensorId> tensors) const {
  return !tensors.empty() && index_.flat_of(tensors[0]) >= 0;
}

std::int64_t BoundJob::share_rank(const Flat& flat) const {
  return job_.mesh.index_in_group(rank_, flat.axes);
}

// The share of a member, or of this rank, of every flat that the tensors make up, padded.
void BoundJob::collect_share(std::span<const TensorId> tensors, std::optional<std::int64_t> member,
                             std::vector<Stretch>& out) {
  for (std::size_t i = 0; i < tensors.size();) {
    const int number = index_.flat_of(tensors[i]);
    STEPCAST_CHECK(number >= 0, "shares are of flats");
    const Flat& flat = job_.flats[static_cast<std::size_t>(number)];
    STEPCAST_CHECK(i + flat.whole.size() <= tensors.size() &&
                       std::equal(flat.whole.begin(), flat.whole.end(),
                                  tensors.begin() + static_cast<std::ptrdiff_t>(i)),
                   "a collective takes a flat whole");
    std::int64_t filled = 0;
    for_pieces(job_, flat, member.value_or(share_rank(flat)), [&](const Piece& piece) {
      out.push_back(stretch(flat.whole[piece.tensor]).part(piece.begin, piece.elements));
      filled += piece.elements;
    });
    const std::int64_t padding = share_elements(job_, flat) - filled;
    if (padding > 0) out.push_back({nullptr, padding, tensor(flat.whole[0]).dtype});
    i += flat.whole.size();
  }
}

void BoundJob::collect_flat(std::span<const TensorId> tensors, std::size_t members,
                           std::vector<Stretch>& out) {
  for (std::size_t member = 0; member < members; ++member) {
    collect_share(tensors, static_cast<std::int64_t>(member), out);
  }
}

void BoundJob::carried(const Transfer& transfer, std::span<const TensorId> reads,
                      std::span<const TensorId> writes, std::size_t members, Carried& out) {
  out.in.clear();
  out.out.clear();
  if (transfer.kind == TransferKind::kAllReduce) {
    collect(writes, out.out);
    std::int64_t bytes = 0;
    for (const Stretch& stretch : out.out) bytes += stretch.bytes();
    if (transfer.bytes.count >= bytes) return;
    // Fewer bytes than the tensors hold: this rank's share of them.
    out.out.clear();
    return collect_share(writes, std::nullopt, out.out);
  }
  const bool scatters = transfer.kind == TransferKind::kReduceScatter;
  const bool flat = is_flat(scatters ? reads : writes);
  if (transfer.kind == TransferKind::kSendReceive || transfer.kind == TransferKind::kAllToAll) {
    collect(reads, out.in);
    return collect(writes, out.out);
  }
  const auto side = [&](std::span<const TensorId> tensors, bool whole, std::vector<Stretch>& to) {
    if (flat && whole) return collect_flat(tensors, members, to);
    if (flat && is_flat(tensors)) return collect_share(tensors, std::nullopt, to);
    collect(tensors, to);
  };
  side(reads, scatters, out.in);
  side(writes, !scatters, out.out);
  const auto count = static_cast<std::int64_t>(members);
  STEPCAST_CHECK(
      scatters ? total(out.out) * count == total(out.in) : total(out.in) * count == total(out.out),
      "a member's piece is its share of the whole");
}

bool BoundJob::counts(TensorId gradient, bool sharded) const {
  const Tensor& one = tensor(gradient);
  const bool of_rank = one.experts > 0 && job_.experts.has(Axis::kTensor);
  const bool copy = one.cut == Cut::kWhole && place_.tensor_rank > 0 && !of_rank;
  const bool twice = index_.at_both_ends(gradient) && stage_ > 0;
  bool dense_copy = false;
  for (const Axis axis : job_.mesh.order) {
    if (axis == Axis::kTensor || !job_.experts.has(axis)) continue;
    dense_copy = dense_copy || job_.mesh.coordinate(rank_, axis) > 0;
  }
  return !copy && !twice && (sharded || one.experts > 0 || !dense_copy);
}

std::vector<Stretch> BoundJob::counted(const Update& op, std::span<const TensorId> reads) {
  const auto gradients = reads.first(reads.size() - 1);
  std::int64_t whole = 0;
  for (const TensorId id : gradients) whole += tensor(id).shape.elements();
  std::vector<Stretch> out;
  for (std::size_t i = 0; i < gradients.size();) {
    const TensorId id = gradients[i];
    const int share = index_.flat_of_share(id);
    const int flat = share >= 0 ? share : op.elements < whole ? index_.flat_of(id) : -1;
    if (flat < 0) {
      if (counts(id, false)) out.push_back(stretch(id));
      ++i;
      continue;
    }
    const Flat& list = job_.flats[static_cast<std::size_t>(flat)];
    for_pieces(job_, list, share_rank(list), [&](const Piece& piece) {
      const TensorId part = list.whole[piece.tensor];
      if (!counts(part, true)) return;
      out.push_back(share >= 0 ? stretch(id).part(piece.at, piece.elements)
                               : stretch(part).part(piece.begin, piece.elements));
    });
    i += share >= 0 ? 1 : list.whole.size();
  }
  return out;
}

// Behind the gradients stand the norm, and what is written: all of it where the weights are their
// own master, else the master and the moments.
std::size_t BoundJob::gradients_of(const Update& op, std::size_t reads, std::size_t writes,
                                  bool norm) const {
  return reads - (norm ? 1 : 0) - (op.master ? 3 : writes);
}

TensorId BoundJob::norm_of(const Update& op, std::span<const TensorId> reads,
                          std::span<const TensorId> writes) const {
  const std::size_t before = gradients_of(op, reads.size(), writes.size(), false);
  const TensorId last = reads[before - 1];
  return tensor(last).scope == Scope::kRank ? last : -1;
}

std::vector<StateStretch> BoundJob::owned(const Update& op, std::span<const TensorId> reads,
                                         std::span<const TensorId> writes) {
  const std::size_t states = op.master ? 3 : 2;
  const auto weights = writes.first(writes.size() - states);
  const std::size_t count =
      gradients_of(op, reads.size(), writes.size(), norm_of(op, reads, writes) >= 0);
  const auto gradients = reads.first(count);
  const Stretch moment1 = stretch(writes[writes.size() - 2]);
  const Stretch moment2 = stretch(writes[writes.size() - 1]);
  const Stretch master = op.master ? stretch(writes[weights.size()]) : Stretch{};
  // One gradient as long as the state: a share, or a copy of them all end to end.
  const bool together =
      gradients.size() == 1 && tensor(gradients[0]).shape.elements() == moment1.elements;
  std::vector<StateStretch> out;
  const auto add = [&](std::size_t i, std::int64_t begin, std::int64_t at, std::int64_t elements) {
    StateStretch one;
    one.weight = stretch(weights[i]).part(begin, elements);
    if (op.master) one.master = master.part(at, elements);
    one.gradient = together ? stretch(gradients[0]).part(at, elements)
                            : stretch(gradients[i]).part(begin, elements);
    one.moment1 = moment1.part(at, elements);
    one.moment2 = moment2.part(at, elements);
    out.push_back(one);
  };
  std::int64_t whole = 0;
  for (const TensorId id : weights) whole += tensor(id).shape.elements();
  if (moment1.elements == whole) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t elements = tensor(weights[i]).shape.elements();
      add(i, 0, at, elements);
      at += elements;
    }
    return out;
  }
  const int flat = index_.flat_of(weights[0]);
  STEPCAST_CHECK(flat >= 0, "an update of a share names the tensors of a flat");
  const Flat& list = job_.flats[static_cast<std::size_t>(flat)];
  for_pieces(job_, list, share_rank(list),
             [&](const Piece& p) { add(p.tensor, p.begin, p.at, p.elements); });
  return out;
}

std::vector<Stretch> BoundJob::share_for_copy(const Pointwise& op, std::span<const TensorId> reads,
                                             std::span<const TensorId> writes) {
  std::vector<Stretch> out;
  if (op.kind != PointwiseKind::kCast || !is_flat(reads)) return out;
  std::int64_t whole = 0;
  for (const TensorId id : reads) whole += tensor(id).shape.elements();
  if (tensor(writes[0]).shape.elements() < whole) collect_share(reads, std::nullopt, out);
  return out;
}

}  // namespace stepcast
