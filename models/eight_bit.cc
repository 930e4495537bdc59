// What TransformerEngine's quantizers do, as nodes: with current scaling a pass for the largest
// value, reduced over ranks that share the matrix, then the pass that scales and writes. O(1).
#include "models/eight_bit.h"

namespace stepcast {

namespace {

constexpr std::int64_t kScaleBytesIn = 32;  // elements for each byte of scales

ValueId new_value(Block& block, Value value) {
  block.values.push_back(std::move(value));
  return static_cast<ValueId>(block.values.size()) - 1;
}

}  // namespace

Shape eight_bit_shape(const EightBit& eight_bit, std::int64_t rows, std::int64_t columns,
                      bool weight) {
  const bool scales = eight_bit.scaling == Scaling::kMx ||
                      (eight_bit.scaling == Scaling::kBlock && !weight);
  return {rows, scales ? columns + (columns + kScaleBytesIn - 1) / kScaleBytesIn : columns};
}

ValueId quantize(Block& block, std::vector<Node>& nodes, const EightBit& eight_bit,
                 const Quantization& what) {
  STEPCAST_CHECK(eight_bit.on(), "there are no 8-bit products");
  const Value x = block.values[static_cast<std::size_t>(what.x)];
  const std::int64_t rows = x.shape.sizes[0], columns = x.shape.sizes[1];
  const bool weight = x.kind == ValueKind::kWeight;
  const auto push = [&](std::string_view suffix, std::variant<Op, Exchange> work, Values in,
                        Values out) {
    nodes.push_back({std::move(work), in, out, what.name + std::string(suffix), what.modules,
                     NodeUse::kPlain, what.phase});
  };
  const auto copy = [&](std::string_view suffix, Shape shape) {
    Value value{what.name + std::string(suffix), shape, Dtype::kFp8, what.kind};
    value.original = what.x;
    return new_value(block, std::move(value));
  };
  ValueId amax = what.amax;
  if (eight_bit.scaling == Scaling::kTensor && amax == kNoValue) {
    amax = new_value(block, {what.name + ".amax", {1}, Dtype::kFp32, ValueKind::kActivation});
    push(".amax", Op(Pointwise{PointwiseKind::kAmax, rows, columns, x.dtype, Dtype::kFp32}),
         {what.x}, {amax});
    if (what.shared_scale) {
      push(".amax.reduce", Exchange{ExchangeKind::kAllReduce, Reduction::kMaximum}, {amax},
           {amax});
    }
  }
  const ValueId first = copy(".fp8", eight_bit_shape(eight_bit, rows, columns, weight));
  const bool both = what.both && eight_bit.two_copies();
  ValueId second = kNoValue;
  if (both) {
    const bool turned = eight_bit.scaling != Scaling::kMx;  // MX keeps the order, Hopper does not
    second = copy(".fp8_columns", turned ? eight_bit_shape(eight_bit, columns, rows, weight)
                                         : eight_bit_shape(eight_bit, rows, columns, weight));
    block.values[static_cast<std::size_t>(first)].columns = second;
  }
  const PointwiseKind kind = both ? PointwiseKind::kQuantizeBoth : PointwiseKind::kQuantize;
  push(".quantize", Op(Pointwise{kind, rows, columns, x.dtype, Dtype::kFp8}), {what.x, amax},
       {first, second});
  return first;
}

}  // namespace stepcast
