// The walk of backward.cc, for the gradient rules that write into it (backward_rules.cc,
// backward_context.cc). Internal to these three.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "models/backward.h"

namespace stepcast {

class Backward {
 public:
  Backward(const Block& block, const std::vector<Slice>& slices, const BackwardOptions& options)
      : slices_(slices), options_(options) {
    out_.block = block;
    const std::size_t values = block.values.size();
    out_.saved.assign(values, false);
    gradient_.assign(values, kNoValue);
    weight_gradient_.assign(values, kNoValue);
    turned_.assign(values, kNoValue);
    mark_dropped();
  }

  Differentiated run();

 private:
  void mark_dropped();
  void visit(const Node& node);
  void flush_weight_gradient();

  // The forward value is there when backward comes here: saved, or made again now.
  ValueId want(ValueId value);
  void rerun(std::size_t slice);

  Value& value(ValueId id) { return out_.block.values[static_cast<std::size_t>(id)]; }
  ValueId gradient(ValueId id) const { return gradient_[static_cast<std::size_t>(id)]; }
  ValueId new_value(Value v);
  ValueId like(ValueId id, std::string_view suffix);
  // The buffer of a weight's gradient, made at its first use.
  ValueId weight_gradient(ValueId weight);
  // A weight gradient as it stands in a node's reads: it is read only where it accumulates.
  ValueId read_back(ValueId gradient) const { return options_.accumulate ? gradient : kNoValue; }

  Node make(const Node& forward, std::string_view suffix, Op op, Values in, Values out) const;
  void push(Node node) { out_.backward.push_back(std::move(node)); }
  // Adds a copy of 8 bits to backward; its other copy, too, unless it is to be gathered first.
  ValueId quantize_now(const Node& forward, ValueId gradient, bool gathered);
  void cover_new_values();
  // A fresh value for one more contribution to the gradient of `id`, and its registration once the
  // node that computes it has been pushed.
  ValueId contribution(ValueId id) {
    const ValueId original = value(id).original;
    return like(original == kNoValue ? id : original, ".gradient");
  }
  void add_to(const Node& forward, ValueId id, ValueId more, ValueId sum);
  void give(const Node& forward, ValueId id, ValueId contribution);
  void alias(const Node& forward, ValueId id, ValueId same);

  void rule(const Node& node, const Gemm& op);
  void linear(const Node& node, const Gemm& op);
  ValueId quantized_gradient(const Node& node, ValueId dy);
  ValueId columns_of(const Node& node, ValueId copy, std::string_view suffix);
  void scores(const Node& node, const Gemm& op);
  void context(const Node& node, const Gemm& op);
  Attention backward_of(const Attention& op) const;
  ValueId own_attention(const Node& node, const Attention& op);
  void keys_values(const Node& node, const Pointwise& op);
  void gathered_attention(const Node& node, const Attention& op);
  void ring(const Node& own, const Attention& op);
  ValueId passed_on(ValueId next) const;
  ValueId shift(const Node& like_node, std::string_view suffix, ValueId from, ValueId to);
  void rule(const Node& node, const Attention& op);
  void rule(const Node& node, const Norm& op);
  void rule(const Node& node, const Pointwise& op);
  void rule(const Node& node, const Gather& op);
  void rule(const Node& node, const Loss& op);
  void rule(const Node& node, const Update& op);
  void rule(const Node& node, const Route& op);
  void rule(const Node& node, const Permute& op);
  void rule(const Node& node, const OwnSlots& op);
  void rule(const Node& node, const ShareHeads& op);
  void rule(const Node& node, const Regroup& op);
  void rule(const Node& node, const LatentKeys& op);
  ValueId copied(const Node& node, ValueId d);
  void rule(const Node& node, const Exchange& exchange);
  void gate(const Node& node, const Pointwise& op, PointwiseKind kind);
  void unary(const Node& node, const Pointwise& op, PointwiseKind kind, ValueId saved);
  void weighted(const Node& node, const Pointwise& op, PointwiseKind kind);
  void expert_bias(const Node& node, const Pointwise& op);
  void bias_gradient(const Node& node, const Pointwise& op, ValueId bias, ValueId d);

  const std::vector<Slice>& slices_;
  const BackwardOptions& options_;
  Differentiated out_;
  std::vector<ValueId> gradient_;         // by value
  std::vector<ValueId> weight_gradient_;  // by value
  std::vector<ValueId> turned_;           // by value: an 8-bit copy, transposed in backward
  std::vector<std::int32_t> dropped_;     // by value: its slice, or -1
  std::vector<bool> rerun_;               // by slice
  std::vector<Node> ring_;     // attention to passed keys, visited before that to the rank's own
  std::vector<Node> pending_;  // a weight gradient and its copies; waits for an exchange to start
};

}  // namespace stepcast
