// The products of a layer's weights: what enters them, in 16 bits or in 8, and what they read of a
// weight.
//
// With 8-bit products (Plan::eight_bit) they read quantised copies. Under sequence parallelism it
// is the shard that is quantised, and the copy that is gathered.
#include <algorithm>

#include "models/transformer_writer.h"

namespace stepcast {

ValueId TransformerWriter::input(std::string_view name, ValueId x, std::uint16_t modules, Cut cut,
                                 bool several) {
  const bool enters = cut == Cut::kRows && split_;  // of the weight's rows: of the output's columns
  const std::string gather = std::string(name) + ".gather";
  if (!plan_.eight_bit.on()) return enters ? enter(gather, x, modules, several) : x;
  if (enters && scattered_) return gathered_input(name, x, modules, several);
  Quantization what{std::string(name) + ".input", x,
                    static_cast<std::uint16_t>(modules | kModuleQuantize)};
  what.both = plan_.recompute != Recompute::kPerOp;
  const ValueId copy = quantize(block_, block_.nodes, plan_.eight_bit, what);
  if (!what.both) late_columns(copy, what);
  if (enters) block_.exchange(gather, ExchangeKind::kEnter, {copy}, {}, modules);
  return copy;
}

// Where the matrix is quantised again in backward, the copy for its columns is made there: from the
// same amax, where recomputation keeps those.
void TransformerWriter::late_columns(ValueId copy, Quantization what) {
  if (!plan_.eight_bit.two_copies()) return;
  const Values& read = block_.nodes.back().in;
  if (plan_.recompute == Recompute::kPerOp && read.size() > 1) what.amax = read[1];
  what.name += ".columns";
  what.modules |= kModuleLate;
  const ValueId columns = quantize(block_, block_.nodes, plan_.eight_bit, what);
  block_.values[static_cast<std::size_t>(copy)].columns = columns;
}

// One scale a tensor: the gathered copy is transposed where backward reads it so (backward.cc).
// Scaled in blocks: backward gathers the shards of the other copy.
ValueId TransformerWriter::gathered_input(std::string_view name, ValueId x, std::uint16_t modules,
                                          bool several) {
  const EightBit& eight_bit = plan_.eight_bit;
  Quantization what{std::string(name) + ".input", x,
                    static_cast<std::uint16_t>(modules | kModuleQuantize)};
  what.both = eight_bit.blocks();
  what.shared_scale = true;
  const ValueId shard = quantize(block_, block_.nodes, eight_bit, what);
  const std::int64_t columns = block_.values[static_cast<std::size_t>(x)].shape.sizes[1];
  const ValueId original = act(what.name, {tokens_, columns});  // never there: what the copies mean
  const std::uint16_t again = plan_.gather_again ? kModuleGather : kModuleNone;
  const auto gather = [&](std::string_view suffix, ValueId part, std::uint16_t more) {
    const bool late = more != kModuleNone;  // backward's own
    more |= modules | again;
    Value value = block_.values[static_cast<std::size_t>(part)];
    value.name = what.name + std::string(suffix);
    value.shape = eight_bit_shape(eight_bit, tokens_, columns, false);
    value.original = original;
    value.columns = kNoValue;
    block_.values.push_back(value);
    const auto whole = static_cast<ValueId>(block_.values.size()) - 1;
    block_.exchange(std::string(name) + std::string(suffix), ExchangeKind::kAllGather, {part},
                    {whole}, more);
    if (!late) copy_gradient(several);
    return in_order(std::string(name) + std::string(suffix), whole, more);
  };
  const ValueId whole = gather(".gather", shard, 0);
  const ValueId shard_columns = block_.values[static_cast<std::size_t>(shard)].columns;
  if (shard_columns != kNoValue) {
    const ValueId again_by_columns = gather(".gather_columns", shard_columns, kModuleLate);
    block_.values[static_cast<std::size_t>(whole)].columns = again_by_columns;
  }
  return whole;
}

// Whole weights have copies that last a step. Gathered ones are quantised when they have arrived:
// in forward as it reads them, in backward as that does.
ValueId TransformerWriter::weight_read(std::string_view name, ValueId w, std::uint16_t modules) {
  const EightBit& eight_bit = plan_.eight_bit;
  if (!eight_bit.on()) return w;
  const bool streams = plan_.effective_zero() == 3;
  const std::string base = std::string(name) + ".weight";
  const auto value = [&](ValueId id) -> Value& {
    return block_.values[static_cast<std::size_t>(id)];
  };
  std::vector<Node>& nodes = streams ? block_.nodes : block_.prepare;
  const ValueKind kind = streams ? ValueKind::kActivation : ValueKind::kCopy;
  const auto again = static_cast<std::uint16_t>(modules | (streams ? kModuleGather : 0));
  const auto late = static_cast<std::uint16_t>(again | (streams ? kModuleLate : 0));
  if (eight_bit.weights) {
    if (!eight_bit.two_copies()) return w;
    const Shape turned = {value(w).shape.sizes[1], value(w).shape.sizes[0]};
    block_.values.push_back({base + ".fp8_columns", turned, Dtype::kFp8, kind});
    const auto columns = static_cast<ValueId>(block_.values.size()) - 1;
    value(columns).original = w;
    value(w).columns = columns;
    const Pointwise op{PointwiseKind::kTranspose, turned.sizes[1], turned.sizes[0], Dtype::kFp8,
                       Dtype::kFp8};
    nodes.push_back(
        {Op(op), {w}, {columns}, base + ".transpose", late, NodeUse::kPlain, Phase::kForward});
    return w;
  }
  Quantization what{base, w, again};
  what.kind = kind;
  what.both = !streams;
  const ValueId copy = quantize(block_, nodes, eight_bit, what);
  if (streams) late_columns(copy, what);
  return copy;
}

ValueId TransformerWriter::product(std::string_view name, ValueId entered, Rows rows,
                                   std::int64_t in, std::int64_t out, bool bias,
                                   std::uint16_t modules, Cut cut, Parts parts) {
  const std::string base(name);
  const std::int64_t matrices = std::max<std::int64_t>(rows.experts, 1);
  ValueId w = cut_weight(base + ".weight", {matrices * out, in}, cut, parts);
  block_.values[static_cast<std::size_t>(w)].experts = rows.experts;
  block_.values[static_cast<std::size_t>(w)].partial = rows.partial;
  if (plan_.eight_bit.weights) block_.values[static_cast<std::size_t>(w)].dtype = Dtype::kFp8;
  ValueId b = bias ? cut_weight(base + ".bias", {matrices * out}, cut, parts) : kNoValue;
  if (bias) block_.values[static_cast<std::size_t>(b)].experts = rows.experts;
  ValueId read = weight_read(name, w, modules);
  ValueId y = act(base + ".out", {matrices * rows.rows, out});
  Gemm op{rows.rows,       out,           in,    matrices, GemmRole::kForward,
          plan_.product(), plan_.compute, false, bias};
  op.block_scales = plan_.eight_bit.blocks();
  op.grouped = matrices > 1;
  block_.add(name, op, {entered, read, b}, {y}, modules);
  return y;
}

ValueId TransformerWriter::linear(std::string_view name, ValueId x, std::int64_t in,
                                  std::int64_t out, bool bias, std::uint16_t modules, Cut cut,
                                  Parts parts) {
  return product(name, input(name, x, modules, cut), in, out, bias, modules, cut, parts);
}

}  // namespace stepcast
