// Collectives of the interpreter: what a transfer carries is packed into one array, moved, and laid
// out again. State that is sharded is packed share by share, each flat cut by itself, so that a
// member's piece is one stretch (see Flat in program.h). Cost: the bytes moved, twice copied.
#include <algorithm>

#include <fmt/format.h>

#include "execute/rank.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

// Whose fault a wait is: the axis that the transfer's bytes are charged to.
Axis charged(AxisSet axes) {
  for (const Axis axis :
       {Axis::kPipeline, Axis::kData, Axis::kReplica, Axis::kExpert, Axis::kContext}) {
    if (axes.has(axis)) return axis;
  }
  return Axis::kTensor;
}

Part part_of(Axis axis) {
  switch (axis) {
    case Axis::kTensor: return Part::kTensor;
    case Axis::kContext: return Part::kContext;
    case Axis::kExpert: return Part::kExpert;
    case Axis::kData:
    case Axis::kReplica: return Part::kData;
    case Axis::kPipeline: return Part::kBubble;  // the norm, for which all stages wait
  }
  return Part::kOther;
}

}  // namespace

const Group& Rank::group(const Transfer& transfer) {
  const auto key = std::pair(transfer.axes.bits, transfer.ends_only);
  const auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  return groups_.emplace(key, group_of(job_.mesh, rank_, transfer.axes, transfer.ends_only))
      .first->second;
}

void Rank::collect(std::span<const TensorId> tensors, std::vector<Stretch>& out) {
  for (const TensorId id : tensors) out.push_back({values(id), tensor(id).shape.elements()});
}

bool Rank::is_flat(std::span<const TensorId> tensors) const {
  return !tensors.empty() && index_.flat_of(tensors[0]) >= 0;
}

// The share of data rank `member` of every flat that the tensors make up, padded.
void Rank::collect_share(std::span<const TensorId> tensors, std::int64_t member,
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
    for_pieces(job_, flat, member, [&](const Piece& piece) {
      out.push_back({values(flat.whole[piece.tensor]) + piece.begin, piece.elements});
      filled += piece.elements;
    });
    const std::int64_t padding = share_elements(job_, flat) - filled;
    if (padding > 0) out.push_back({nullptr, padding});
    i += flat.whole.size();
  }
}

std::int64_t Rank::total(const std::vector<Stretch>& stretches) {
  std::int64_t elements = 0;
  for (const Stretch& stretch : stretches) elements += stretch.elements;
  return elements;
}

std::span<float> Rank::pack(const std::vector<Stretch>& stretches, std::vector<float>& buffer) {
  buffer.resize(static_cast<std::size_t>(total(stretches)));
  float* out = buffer.data();
  for (const Stretch& stretch : stretches) {
    out = stretch.data == nullptr ? std::fill_n(out, stretch.elements, 0.0f)
                                  : std::copy_n(stretch.data, stretch.elements, out);
  }
  return buffer;
}

void Rank::unpack(std::span<const float> values, const std::vector<Stretch>& stretches) {
  const float* in = values.data();
  for (const Stretch& stretch : stretches) {
    if (stretch.data != nullptr) std::copy_n(in, stretch.elements, stretch.data);
    in += stretch.elements;
  }
}

// What was moved, not what the Job says: the two are compared by whoever reads the result.
void Rank::count_sent(const Transfer& transfer, std::int64_t elements) {
  Transfer moved = transfer;
  moved.bytes = Bytes(elements * dtype_size(Dtype::kFp32));
  result_run_.sent[static_cast<std::size_t>(charged(transfer.axes))] +=
      sent_bytes(moved, job_.mesh);
}

void Rank::all_reduce(const Transfer& transfer, std::span<const TensorId> tensors) {
  stretches_.clear();
  collect(tensors, stretches_);
  // Fewer bytes than the tensors hold: this rank's share of them.
  if (transfer.bytes.count < total(stretches_) * dtype_size(Dtype::kFp32)) {
    stretches_.clear();
    collect_share(tensors, data_rank_, stretches_);
  }
  count_sent(transfer, total(stretches_));
  if (stretches_.size() == 1 && stretches_[0].data != nullptr) {
    transport_.all_reduce(
        group(transfer), {stretches_[0].data, static_cast<std::size_t>(stretches_[0].elements)},
        transfer.reduction);
    return;
  }
  const std::span<float> packed = pack(stretches_, packed_);
  transport_.all_reduce(group(transfer), packed, transfer.reduction);
  unpack(packed, stretches_);
}

void Rank::reduce_scatter(const Transfer& transfer, std::span<const TensorId> reads,
                          std::span<const TensorId> writes) {
  const Group& members = group(transfer);
  stretches_.clear();
  const bool flat = is_flat(reads);
  if (flat) {
    for (std::size_t member = 0; member < members.members.size(); ++member) {
      collect_share(reads, static_cast<std::int64_t>(member), stretches_);
    }
  } else {
    collect(reads, stretches_);
  }
  count_sent(transfer, total(stretches_));
  const std::span<float> all = pack(stretches_, packed_);
  stretches_.clear();
  if (flat && is_flat(writes)) {
    collect_share(writes, data_rank_, stretches_);
  } else {
    collect(writes, stretches_);
  }
  result_.resize(static_cast<std::size_t>(total(stretches_)));
  STEPCAST_CHECK(result_.size() * members.members.size() == all.size(),
                 "a member's piece is its share of the whole");
  transport_.reduce_scatter(members, all, result_, transfer.reduction);
  unpack(result_, stretches_);
}

void Rank::all_gather(const Transfer& transfer, std::span<const TensorId> reads,
                      std::span<const TensorId> writes) {
  const Group& members = group(transfer);
  const bool flat = is_flat(writes);
  stretches_.clear();
  if (flat && is_flat(reads)) {
    collect_share(reads, data_rank_, stretches_);
  } else {
    collect(reads, stretches_);
  }
  const std::span<float> mine = pack(stretches_, packed_);
  stretches_.clear();
  if (flat) {
    for (std::size_t member = 0; member < members.members.size(); ++member) {
      collect_share(writes, static_cast<std::int64_t>(member), stretches_);
    }
  } else {
    collect(writes, stretches_);
  }
  count_sent(transfer, total(stretches_));
  result_.resize(static_cast<std::size_t>(total(stretches_)));
  STEPCAST_CHECK(mine.size() * members.members.size() == result_.size(),
                 "a member's piece is its share of the whole");
  transport_.all_gather(members, mine, result_);
  unpack(result_, stretches_);
}

void Rank::collective(const Body& body, const Collective& collective) {
  const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective.transfer)];
  const auto reads = ids(body, collective.operands, false);
  const auto writes = ids(body, collective.operands, true);
  switch (transfer.kind) {
    case TransferKind::kAllReduce: all_reduce(transfer, writes); break;
    case TransferKind::kReduceScatter: reduce_scatter(transfer, reads, writes); break;
    case TransferKind::kAllGather: all_gather(transfer, reads, writes); break;
    default: STEPCAST_CHECK(false, "executable() names the transfers that are not carried out");
  }
  part_ = part_of(charged(transfer.axes));
}

}  // namespace stepcast
