// A table by kind of op, read out of the sources that configs/frameworks names. O(1).
#include "models/fill.h"

namespace stepcast {

namespace {

Filled filled_as(const Block& block, const Node& node, const Gemm&) {
  const bool of_weights = node.use == NodeUse::kPlain && block.numbered;
  return of_weights ? kFilledProduct : kFilledNone;  // the head's product is torch.matmul
}

Filled filled_as(const Node& node, const Pointwise& op) {
  const bool of_attention = (node.modules & kModuleAttentionCore) != 0;
  switch (op.kind) {
    case PointwiseKind::kSoftmax: return kFilledSoftmax;  // its backward works in place
    case PointwiseKind::kDropout:  // elsewhere compiled with what stands around it
    case PointwiseKind::kDropoutBackward: return of_attention ? kFilledDropout : kFilledNone;
    case PointwiseKind::kCast:
    case PointwiseKind::kQuantize:
    case PointwiseKind::kQuantizeBoth:
    case PointwiseKind::kTranspose: return kFilledCopy;
    default: return kFilledNone;
  }
}

// Of the logits' shape; sums and maxima of rows are reductions, which are structured.
Filled filled_as(const Loss& op, const Value& value) {
  const bool of_logits = value.shape.rank == 2 && value.shape.sizes[1] == op.vocabulary;
  return of_logits ? kFilledLoss : kFilledNone;
}

}  // namespace

Filled filled_as(const Block& block, const Node& node, const Value& value) {
  if (value.dtype == Dtype::kUint8) return kFilledNone;
  const auto* op = std::get_if<Op>(&node.work);
  if (op == nullptr) return block.numbered ? kFilledExchange : kFilledNone;
  return match(
      *op, [&](const Gemm& gemm) { return filled_as(block, node, gemm); },
      [&](const Attention&) { return kFilledAttention; }, [&](const Norm&) { return kFilledNorm; },
      [&](const Pointwise& pointwise) { return filled_as(node, pointwise); },
      [&](const Loss& loss) { return filled_as(loss, value); },
      [&](const auto&) { return kFilledNone; });
}

Pointwise fill_of(const Shape& shape, Dtype dtype) {
  const std::int64_t columns = shape.sizes[static_cast<std::size_t>(shape.rank - 1)];
  return {PointwiseKind::kFill, shape.elements() / columns, columns, dtype, dtype, false};
}

}  // namespace stepcast
