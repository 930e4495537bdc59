// A layer's mixture of experts: tokens go to the ranks of their experts and come back (GShard,
// Lepikhin et al. 2020; Megatron-Core's all-to-all dispatcher, megatron/core/transformer/moe/
// token_dispatcher.py). With n ranks that share the experts and C slots for each expert, a rank
// sends (n - 1) / n of E C rows in each of four all-to-alls, two a direction. Or all ranks gather
// all tokens, and what they make of them is reduced and scattered: (n - 1) times a rank's tokens
// in each of four exchanges.
//
// A rank has the same number of slots for each expert, filled or not (Route in op.h), so all shapes
// are known. The router's weight of a token goes with it and multiplies the expert's activation, so
// that nothing but a sum is left when it is back.
#include "models/transformer_writer.h"

namespace stepcast {

// Rows of slots, expert by expert: to their experts' ranks, where they stand rank by rank.
ValueId TransformerWriter::send_to_experts(std::string_view name, ValueId x, std::int64_t columns) {
  const std::string base(name);
  const Value from = block_.values[static_cast<std::size_t>(x)];
  std::int64_t rows = from.shape.sizes[0];
  const auto like = [&](std::string_view suffix) {
    return block_.activation(base + std::string(suffix), {rows, columns}, from.dtype);
  };
  if (plan_.expert > 1) {
    const ValueId here = like(".received");
    block_.exchange(base + ".all_to_all", ExchangeKind::kAllToAll, {x}, {here}, kModuleMlp);
    std::get<Exchange>(block_.nodes.back().work).axes = plan_.expert_axes();
    x = here;
  }
  if (plan_.expert_tensor > 1) {
    rows *= plan_.expert_tensor;
    const ValueId all = like(".gathered");
    block_.exchange(base + ".gather", ExchangeKind::kAllGather, {x}, {all}, kModuleMlp);
    x = all;
  }
  return x;
}

// There: expert by expert, too.
ValueId TransformerWriter::by_expert(std::string_view name, ValueId x) {
  return regroup(std::string(name) + ".by_expert", x, plan_.expert * plan_.expert_tensor,
                 model_.experts / plan_.expert);
}

// The same way back, of (rows, h).
ValueId TransformerWriter::send_back(ValueId y) {
  const std::int64_t ranks = plan_.expert * plan_.expert_tensor;
  y = regroup("experts.by_rank", y, model_.experts / plan_.expert, ranks);
  std::int64_t rows = block_.values[static_cast<std::size_t>(y)].shape.sizes[0];
  if (plan_.expert_tensor > 1) {
    rows /= plan_.expert_tensor;
    const ValueId sum = act("experts.reduced", {rows, hidden_});
    block_.exchange("experts.reduce", ExchangeKind::kReduceScatter, {y}, {sum}, kModuleMlp);
    y = sum;
  }
  if (plan_.expert > 1) {
    const ValueId back = act("experts.returned", {rows, hidden_});
    block_.exchange("experts.all_to_all", ExchangeKind::kAllToAll, {y}, {back}, kModuleMlp);
    std::get<Exchange>(block_.nodes.back().work).axes = plan_.expert_axes();
    y = back;
  }
  return y;
}

ValueId TransformerWriter::regroup(std::string_view name, ValueId x, std::int64_t outer,
                                   std::int64_t inner) {
  if (outer == 1 || inner == 1) return x;
  Value value = block_.values[static_cast<std::size_t>(x)];
  value.name = name;
  const Regroup op{outer, inner, value.shape.sizes[0] / (outer * inner), value.shape.sizes[1],
                   value.dtype};
  block_.values.push_back(value);
  const auto y = static_cast<ValueId>(block_.values.size()) - 1;
  block_.add(name, op, {x}, {y}, kModuleMlp);
  return y;
}

// x (n L C, h), expert by expert, with the router's weight of each row: it multiplies the bias of
// the second product, too.
ValueId TransformerWriter::experts(ValueId x, ValueId weights) {
  const std::int64_t count = model_.experts / plan_.expert;
  const std::int64_t rows = block_.values[static_cast<std::size_t>(x)].shape.sizes[0];
  const std::int64_t width = model_.expert_ffn / plan_.expert_tensor;
  const bool cut = plan_.expert_tensor > 1;
  const Rows each{rows / count, count};
  const Parts branches = cut ? Parts{width, model_.gated() ? width : 0} : Parts{};
  const ValueId read = input("experts.fc1", x, kModuleMlp, Cut::kColumns);
  const ValueId up = product("experts.fc1", read, each, hidden_, model_.gated() ? 2 * width : width,
                             model_.mlp_bias, kModuleMlp, cut ? Cut::kRows : Cut::kWhole,
                             branches);
  block_.nodes.back().modules |= kModuleUp;
  const ValueId active = act("experts.activation.out", {rows, width});
  Pointwise op{activation(), rows, width, plan_.compute, plan_.compute, false};
  op.weighted = true;
  block_.add("experts.activation", op, {up, weights}, {active}, kModuleActivation | kModuleMlp);
  const ValueId down = input("experts.fc2", active, kModuleMlp, Cut::kColumns);
  const ValueId y = product("experts.fc2", down, each, width, hidden_, false, kModuleMlp,
                            cut ? Cut::kColumns : Cut::kWhole, {});
  return model_.mlp_bias ? expert_bias(y, weights, count) : y;
}

ValueId TransformerWriter::expert_bias(ValueId x, ValueId weights, std::int64_t count) {
  const ValueId bias = weight("experts.fc2.bias", {count * hidden_});
  block_.values[static_cast<std::size_t>(bias)].experts = count;
  const std::int64_t rows = block_.values[static_cast<std::size_t>(x)].shape.sizes[0];
  const ValueId y = act("experts.bias.out", {rows, hidden_});
  Pointwise op{PointwiseKind::kAddExpertBias, rows, hidden_, plan_.compute, plan_.compute};
  op.experts = count;
  block_.add("experts.bias", op, {x, bias, weights}, {y}, kModuleMlp);
  return y;
}

// Each row to the rank of its expert, and back.
ValueId TransformerWriter::sent(ValueId x, ValueId weights, ValueId places) {
  block_.nodes.back().read = HostRead::kMade;  // the router's choice
  const std::int64_t slots = model_.experts * expert_capacity(model_, plan_);
  const ValueId rows = act("experts.sent", {slots, hidden_});
  const ValueId row_weights = block_.activation("experts.weights", {slots, 1}, Dtype::kFp32);
  Permute permute{PermutePart::kPermute, rows_, model_.experts_per_token, slots, hidden_,
                  plan_.compute, true};
  block_.add("experts.permute", permute, {x, places, weights}, {rows, row_weights}, kModuleMlp);
  const std::size_t behind = block_.nodes.size();  // an exchange or, if there is none, an expert's
  const ValueId here = send_to_experts("experts.tokens", rows, hidden_);
  const ValueId here_weights = send_to_experts("experts.weights", row_weights, 1);
  const ValueId tokens = by_expert("experts.tokens", here);
  const ValueId back = send_back(experts(tokens, by_expert("experts.weights", here_weights)));
  block_.nodes[behind].read = HostRead::kNeeded;
  permute.part = PermutePart::kUnpermute;
  permute.weighted = false;
  const ValueId y = act("experts.out", {rows_, hidden_});
  block_.add("experts.unpermute", permute, {back, places}, {y}, kModuleMlp);
  return y;
}

// The ranks that have a layer's experts between them, or parts of them.
AxisSet TransformerWriter::mixture_axes() const {
  const AxisSet axes = plan_.expert_axes();
  return plan_.expert_tensor > 1 ? axes | AxisSet(Axis::kTensor) : axes;
}

ValueId TransformerWriter::gather_from_ranks(std::string_view name, ValueId x) {
  Value value = block_.values[static_cast<std::size_t>(x)];
  value.name = name;
  value.shape.sizes[0] *= plan_.expert * plan_.expert_tensor;
  block_.values.push_back(value);
  const auto all = static_cast<ValueId>(block_.values.size()) - 1;
  block_.exchange(name, ExchangeKind::kAllGather, {x}, {all}, kModuleMlp);
  std::get<Exchange>(block_.nodes.back().work).axes = mixture_axes();
  return all;
}

// All tokens to all ranks, of which each takes the rows of its own experts (Megatron-Core's
// allgather dispatcher, MoEAllGatherTokenDispatcher in the same file). Ranks that cut an expert
// have parts of a sum, so one reduce-scatter ends both.
ValueId TransformerWriter::gathered(ValueId x, ValueId weights, ValueId places) {
  const std::int64_t ranks = plan_.expert * plan_.expert_tensor;
  const std::int64_t own = model_.experts / plan_.expert, chosen = model_.experts_per_token;
  const OwnSlots choose{rows_ * ranks, chosen, own, expert_capacity(model_, plan_), ranks};
  const std::int64_t slots = own * ranks * choose.capacity;
  const ValueId all = gather_from_ranks("experts.tokens.gather", x);
  const ValueId all_weights = gather_from_ranks("experts.weights.gather", weights);
  const ValueId all_places = gather_from_ranks("experts.slots.gather", places);
  const ValueId mine =
      block_.activation("experts.slots", {choose.rows, chosen}, Dtype::kInt32);
  block_.add("experts.choice", choose, {all_places}, {mine}, kModuleMlp);
  block_.nodes.back().read = HostRead::kMade;

  const ValueId here = act("experts.rows", {slots, hidden_});
  const ValueId here_weights = block_.activation("experts.weights", {slots, 1}, Dtype::kFp32);
  Permute permute{PermutePart::kPermute, choose.rows, chosen, slots, hidden_, plan_.compute, true};
  block_.add("experts.permute", permute, {all, mine, all_weights}, {here, here_weights},
             kModuleMlp);
  block_.nodes.back().read = HostRead::kNeeded;
  const ValueId made = experts(here, here_weights);
  permute.part = PermutePart::kUnpermute;
  permute.weighted = false;
  const ValueId sums = act("experts.sums", {choose.rows, hidden_});
  block_.add("experts.unpermute", permute, {made, mine}, {sums}, kModuleMlp);
  const ValueId y = act("experts.out", {rows_, hidden_});
  block_.exchange("experts.reduce", ExchangeKind::kReduceScatter, {sums}, {y}, kModuleMlp);
  std::get<Exchange>(block_.nodes.back().work).axes = mixture_axes();
  return y;
}

ValueId TransformerWriter::mixture(ValueId x) {
  const std::int64_t count = model_.experts, chosen = model_.experts_per_token;
  const ValueId router = weight("router.weight", {count, hidden_}, scattered_);
  const ValueId logits = act("router.logits", {rows_, count});
  const ValueId bias =
      model_.mlp_bias ? weight("router.bias", {count}, scattered_) : kNoValue;
  const Gemm product{rows_,         count,         hidden_, 1,    GemmRole::kForward,
                     plan_.compute, plan_.compute, false,   model_.mlp_bias};
  block_.add("router", product, {x, router, bias}, {logits}, kModuleMlp);
  const ValueId weights = block_.activation("router.weights", {rows_, chosen}, Dtype::kFp32);
  const ValueId places = block_.activation("router.slots", {rows_, chosen}, Dtype::kInt32);
  const Route route{Pass::kForward,               rows_,         count, chosen,
                    expert_capacity(model_, plan_), plan_.compute};
  block_.add("router.choice", route, {logits}, {weights, places}, kModuleMlp);

  const bool gathers = plan_.expert_exchange == ExpertExchange::kAllGather &&
                       plan_.expert * plan_.expert_tensor > 1;
  const ValueId y = gathers ? gathered(x, weights, places) : sent(x, weights, places);
  if (model_.shared_ffn == 0) return y;
  const ValueId shared = mlp("shared.", x, model_.shared_ffn);
  const ValueId sum = act("experts.sum", {rows_, hidden_});
  const Pointwise add{PointwiseKind::kAdd, rows_, hidden_, plan_.compute, plan_.compute, false};
  block_.add("experts.add", add, {y, shared}, {sum}, kModuleMlp);
  return sum;
}

}  // namespace stepcast
