// Collectives of the interpreter: what a transfer carries is packed into one array, moved, and laid
// out again. State that is sharded is packed share by share, each flat cut by itself, so that a
// member's piece is one stretch (see Flat in program.h). Cost: the bytes moved, twice copied.
#include <algorithm>

#include <fmt/format.h>

#include "execute/convert.h"
#include "execute/rank.h"
#include "sim/base/error.h"
#include "sim/program/charged.h"

namespace stepcast {

namespace {

std::span<std::byte> bytes_of(const Stretch& s) {
  return {s.data, static_cast<std::size_t>(s.bytes())};
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

std::span<float> Rank::pack(std::span<const Stretch> stretches, std::vector<float>& buffer) {
  buffer.resize(static_cast<std::size_t>(total(stretches)));
  float* out = buffer.data();
  for (const Stretch& stretch : stretches) {
    if (stretch.data == nullptr) {
      std::fill_n(out, stretch.elements, 0.0f);
    } else {
      to_float(stretch.data, stretch.dtype, stretch.elements, out);
    }
    out += stretch.elements;
  }
  return buffer;
}

void Rank::unpack(std::span<const float> values, std::span<const Stretch> stretches) {
  const float* in = values.data();
  for (const Stretch& stretch : stretches) {
    if (stretch.data != nullptr) from_float(in, stretch.elements, stretch.data, stretch.dtype);
    in += stretch.elements;
  }
}

// What was moved, not what the Job says: the two are compared by whoever reads the result.
void Rank::count_sent(const Transfer& transfer, Stream stream,
                      std::span<const Stretch> stretches) {
  Transfer moved = transfer;
  moved.bytes = {};
  for (const Stretch& stretch : stretches) moved.bytes += Bytes(stretch.bytes());
  result_run_.sent[static_cast<std::size_t>(charged_axis(stream, transfer))] +=
      sent_bytes(moved, job_.mesh);
}

// Numbers travel and are added up as floats, whatever they are stored as; they count as stored.
void Rank::all_reduce(const Transfer& transfer, const Group& members, Stream stream) {
  const std::vector<Stretch>& all = carried_.out;
  count_sent(transfer, stream, all);
  if (all.size() == 1 && all[0].data != nullptr && all[0].dtype == Dtype::kFp32) {
    transport_.all_reduce(
        members, {reinterpret_cast<float*>(all[0].data), static_cast<std::size_t>(all[0].elements)},
        transfer.reduction);
    return;
  }
  const std::span<float> packed = pack(all, packed_);
  transport_.all_reduce(members, packed, transfer.reduction);
  unpack(packed, all);
}

// All members at once: nobody's send waits for its receive.
void Rank::shift(const Transfer& transfer, const Group& members, Stream stream) {
  const std::size_t n = members.members.size(), me = members.index;
  count_sent(transfer, stream, carried_.out);
  for (const Stretch& one : carried_.in) {
    transport_.send(members.members[(me + 1) % n], stream, bytes_of(one));
  }
  for (const Stretch& one : carried_.out) {
    transport_.receive(members.members[(me + n - 1) % n], stream, bytes_of(one));
  }
}

// Tensor by tensor, as they are stored.
void Rank::all_to_all(const Transfer& transfer, const Group& members, Stream stream) {
  count_sent(transfer, stream, carried_.in);
  STEPCAST_CHECK(carried_.in.size() == carried_.out.size(), "each tensor has one it becomes");
  for (std::size_t i = 0; i < carried_.in.size(); ++i) {
    const Stretch &in = carried_.in[i], &out = carried_.out[i];
    STEPCAST_CHECK(in.data != out.data && in.bytes() == out.bytes(),
                   "an all-to-all goes into another tensor, as large");
    transport_.all_to_all(members, bytes_of(in), bytes_of(out));
  }
}

void Rank::collective(const Body& body, const Collective& collective) {
  const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective.transfer)];
  const auto reads = ids(body, collective.operands, false);
  const auto writes = ids(body, collective.operands, true);
  const Group& members = group(transfer);
  carried(transfer, reads, writes, members.members.size(), carried_);
  if (transfer.kind == TransferKind::kAllReduce) {
    all_reduce(transfer, members, collective.stream);
  } else if (transfer.kind == TransferKind::kSendReceive) {
    shift(transfer, members, collective.stream);
  } else if (transfer.kind == TransferKind::kAllToAll) {
    all_to_all(transfer, members, collective.stream);
  } else {
    const bool scatters = transfer.kind == TransferKind::kReduceScatter;
    count_sent(transfer, collective.stream, scatters ? carried_.in : carried_.out);
    const std::span<float> from = pack(carried_.in, packed_);
    result_.resize(static_cast<std::size_t>(total(carried_.out)));
    if (scatters) {
      transport_.reduce_scatter(members, from, result_, transfer.reduction);
    } else {
      transport_.all_gather(members, from, result_);
    }
    unpack(result_, carried_.out);
  }
  part_ = part_of(charged_axis(collective.stream, transfer));
}

}  // namespace stepcast
