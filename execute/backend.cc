// What backends carry out, said once for all of them.
#include "execute/backend.h"

#include <cstring>
#include <limits>

namespace stepcast {

namespace {

bool known(Dtype dtype) { return dtype == Dtype::kFp32 || dtype == Dtype::kBf16; }

bool all_known(const Gemm& g) { return known(g.dtype) && known(g.output); }
bool all_known(const Attention& a) { return known(a.dtype); }
bool all_known(const Norm& n) { return known(n.dtype); }
// Slots of experts are copied where a loop over layers keeps them.
bool all_known(const Pointwise& p) {
  const bool slots = p.kind == PointwiseKind::kCast && p.dtype == Dtype::kInt32;
  return slots ? p.output == Dtype::kInt32 : known(p.dtype) && known(p.output);
}
bool all_known(const Gather& g) { return known(g.dtype) && known(g.gradient); }
bool all_known(const Loss& l) { return known(l.dtype) && known(l.statistics); }
bool all_known(const Update& u) { return known(u.weight) && known(u.gradient) && known(u.moment); }
bool all_known(const Route& r) { return known(r.dtype); }
bool all_known(const Permute& p) { return known(p.dtype); }
bool all_known(const Regroup& r) { return known(r.dtype); }
bool all_known(const OwnSlots&) { return true; }
bool all_known(const ShareHeads& s) { return known(s.dtype); }
bool all_known(const LatentKeys& l) { return known(l.dtype); }

// The scores of `heads` heads of this rank, whose heads are those after the lower ranks', in
// documents of `positions`.
DropoutRows score_rows(const Work& work, std::int64_t heads, std::int64_t positions) {
  const Batch& batch = work.place.batch;
  DropoutRows rows;
  rows.first_sequence = work.dropout.first_sequence;
  rows.sequences = batch.micro_batch;
  rows.positions = positions;
  rows.scores = true;
  rows.documents = batch.sequence_length / positions;
  rows.first_head = work.place.tensor_rank * heads;
  rows.heads = heads;
  rows.model_heads = work.place.tensor_ranks * heads;
  return rows;
}

// Of exponents and fractions as integers, all above infinity's are NaN. Looking at whole blocks
// without a branch lets the compiler take many numbers at once.
template <class Bits, Bits kInfinity>
bool any_nan(const void* data, std::int64_t elements) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  constexpr std::int64_t kBlock = 1024;
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::int64_t at = 0; at < elements; at += kBlock) {
    Bits block[kBlock];
    const std::int64_t count = elements - at < kBlock ? elements - at : kBlock;
    std::memcpy(block, bytes + at * static_cast<std::int64_t>(sizeof(Bits)),
                static_cast<std::size_t>(count) * sizeof(Bits));
    Bits most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const Bits magnitude = block[i] & kMagnitude;
      most = magnitude > most ? magnitude : most;
    }
    if (most > kInfinity) return true;
  }
  return false;
}

}  // namespace

bool Backend::has_nan(const Operand& operand) {
  const std::int64_t elements = operand.tensor->shape.elements();
  switch (operand.tensor->dtype) {
    case Dtype::kFp32: return any_nan<std::uint32_t, 0x7f800000>(operand.data, elements);
    case Dtype::kBf16: return any_nan<std::uint16_t, 0x7f80>(operand.data, elements);
    default: return false;
  }
}

bool drops(const Op& op) {
  if (const auto* attention = std::get_if<Attention>(&op)) return attention->dropout;
  const auto* pointwise = std::get_if<Pointwise>(&op);
  return pointwise != nullptr && (pointwise->kind == PointwiseKind::kDropout ||
                                  pointwise->kind == PointwiseKind::kDropoutBackward ||
                                  pointwise->kind == PointwiseKind::kDropoutAdd);
}

DropoutRows dropout_rows(const Attention& op, const Work& work) {
  const ContextShare& context = work.place.context;
  if (context.ranks == 1) return score_rows(work, op.heads, op.queries);
  DropoutRows rows = score_rows(work, op.heads, work.place.batch.sequence_length);
  if (!has_whole_sequences(op, context.positions)) return rows;
  rows.first_head = rows.first_head * context.ranks + context.rank * op.heads;
  rows.model_heads *= context.ranks;
  return rows;
}

DropoutRows dropout_rows(const Pointwise& op, const Work& work) {
  const Batch& batch = work.place.batch;
  if (op.scores) {
    return score_rows(work, op.rows / (batch.micro_batch * batch.sequence_length), op.columns);
  }
  DropoutRows rows;
  rows.first_sequence = work.dropout.first_sequence;
  rows.positions = batch.sequence_length;
  rows.first_token = work.place.token(0, op.rows);
  rows.sequences = batch.micro_batch;
  rows.context = work.place.context;
  return rows;
}

std::string unsupported(const Op& op) {
  if (!std::visit([](const auto& o) { return all_known(o); }, op)) {
    return "only fp32 and bf16 are carried out yet";
  }
  const auto* update = std::get_if<Update>(&op);
  if (update != nullptr && !update->master && update->weight != Dtype::kFp32) {
    return "weights in bf16 need an fp32 master copy: an update is too small for their 8 bits";
  }
  const auto* route = std::get_if<Route>(&op);
  if (route != nullptr &&
      route->capacity > std::numeric_limits<std::int32_t>::max() / route->experts) {
    return "more slots than 32 bits number";
  }
  const auto* own = std::get_if<OwnSlots>(&op);
  if (own != nullptr && own->rows % own->ranks != 0) return "its ranks have as many rows each";
  if (own != nullptr && own->experts * own->capacity * own->ranks >
                            std::numeric_limits<std::int32_t>::max()) {
    return "more slots than 32 bits number";
  }
  const auto* keys = std::get_if<LatentKeys>(&op);
  if (keys != nullptr && keys->rotated % 2 != 0) {
    return "rotary turns pairs of columns; the shared columns of keys are odd";
  }
  const auto* pointwise = std::get_if<Pointwise>(&op);
  if (pointwise != nullptr && (pointwise->kind == PointwiseKind::kAmax ||
                               pointwise->kind == PointwiseKind::kQuantize ||
                               pointwise->kind == PointwiseKind::kQuantizeBoth ||
                               pointwise->kind == PointwiseKind::kTranspose)) {
    return "8-bit products are not carried out";
  }
  if (pointwise != nullptr &&
      (pointwise->kind == PointwiseKind::kRotary ||
       pointwise->kind == PointwiseKind::kRotaryBackward) &&
      (pointwise->head_dim % 2 != 0 || pointwise->rotated % 2 != 0)) {
    return "rotary turns pairs of columns; head_dim is odd";
  }
  return "";
}

}  // namespace stepcast
