// The writer of a transformer's blocks, for its four sources: transformer.cc has the layers,
// products.cc the products of their weights and what these read, latent.cc queries, keys and values
// of latent attention, experts.cc the mixture of experts. Internal to them.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "models/eight_bit.h"
#include "models/transformer.h"

namespace stepcast {

class TransformerWriter {
 public:
  TransformerWriter(const Model& model, const Plan& plan, std::string_view name)
      : model_(model),
        plan_(plan),
        tokens_(plan.tokens()),
        rows_(plan.sequence_parallel ? tokens_ / plan.tensor : tokens_),
        hidden_(model.hidden),
        split_(plan.tensor > 1),
        scattered_(split_ && plan.sequence_parallel) {
    block_.name = name;
  }

  Block embedding();
  // `window`: what a token attends to at most, of a longer stretch; 0: to all before it.
  Block layer(bool experts, std::int64_t window);
  Block head();

 private:
  using Parts = std::array<std::int64_t, kPartsMax>;  // of a matrix that packs several

  ValueId act(std::string_view name, Shape shape) {
    return block_.activation(name, shape, plan_.compute);
  }
  ValueId weight(std::string_view name, Shape shape, bool partial = false) {
    return block_.weight(name, shape, plan_.compute, partial);
  }
  ValueId cut_weight(std::string_view name, Shape shape, Cut cut, Parts parts = {}) {
    const ValueId id = weight(name, shape);
    Value& value = block_.values[static_cast<std::size_t>(id)];
    value.cut = cut;
    value.parts = parts;
    return id;
  }
  ValueId table_weight();
  // A gradient scaled in blocks is needed in two copies of 8 bits: 16 bits are no more.
  bool crosses_in_eight_bits() const { return plan_.eight_bit.on() && !plan_.eight_bit.blocks(); }

  ValueId norm(std::string_view name, ValueId x, std::uint16_t modules);
  // Before a matrix split by columns, or several: the value that all tensor ranks see, with all
  // tokens.
  ValueId enter(std::string_view name, ValueId x, std::uint16_t modules, bool several = false);
  // After a matrix split by rows: sums the ranks' parts.
  ValueId leave(std::string_view name, ValueId partial, std::uint16_t modules,
                bool eight_bit_gradient = false);
  // Of a gather that was added last: where forward moves it in pieces beside its products, the sum
  // of their input's gradients is scattered as it is, behind a copy.
  void copy_gradient(bool several);
  // A copy of what is gathered or is to be scattered along the sequence, where that is needed.
  ValueId in_order(std::string_view name, ValueId x, std::uint16_t modules);
  // What the product `name` reads of x: of a matrix split by columns (it enters) or by rows. Or
  // what several products read, whose input's gradients are summed.
  ValueId input(std::string_view name, ValueId x, std::uint16_t modules, Cut cut,
                bool several = false);
  ValueId gathered_input(std::string_view name, ValueId x, std::uint16_t modules, bool several);
  void late_columns(ValueId copy, Quantization what);
  // What it reads of its weight.
  ValueId weight_read(std::string_view name, ValueId w, std::uint16_t modules);
  // What a product multiplies: rows of activations; by one matrix, or as many for each expert.
  struct Rows {
    std::int64_t rows = 0;
    std::int64_t experts = 0;
    bool partial = false;  // the tensor rank's share: so are the weights' gradients
  };
  // One product, of what input() gave. Split by rows of its matrix (of each part packed in it), or
  // by columns; then without bias.
  ValueId product(std::string_view name, ValueId entered, std::int64_t in, std::int64_t out,
                  bool bias, std::uint16_t modules, Cut cut, Parts parts = {}) {
    return product(name, entered, {tokens_}, in, out, bias, modules, cut, parts);
  }
  ValueId product(std::string_view name, ValueId entered, Rows rows, std::int64_t in,
                  std::int64_t out, bool bias, std::uint16_t modules, Cut cut, Parts parts);
  // The same of x, which enters, or is a part already.
  ValueId linear(std::string_view name, ValueId x, std::int64_t in, std::int64_t out, bool bias,
                 std::uint16_t modules, Cut cut, Parts parts = {});
  ValueId residual(std::string_view name, ValueId branch, ValueId x, bool bias,
                   std::uint16_t modules);
  ValueId rotary(std::string_view name, ValueId x, ValueId y, std::int64_t width);
  Values packed_heads(ValueId x);    // [qk,] qkv
  Values separate_heads(ValueId x);  // q, k, v
  // latent.cc
  Values latent_heads(ValueId x);
  ValueId down(std::string_view name, ValueId x, std::int64_t width);
  ValueId attention(ValueId x);
  ValueId attention_core(Values heads);
  ValueId softmax(ValueId scores);
  ValueId unfused_core(const Values& heads);
  // An MLP of width ffn; names begin with `prefix`.
  Values up(std::string_view prefix, ValueId x, std::int64_t ffn);
  ValueId mlp(std::string_view prefix, ValueId x, std::int64_t ffn);
  PointwiseKind activation() const;
  // experts.cc: of tokens (rows_, h), which go to ranks and come back; and what all tokens take.
  ValueId mixture(ValueId x);
  ValueId experts(ValueId x, ValueId weights);
  ValueId expert_bias(ValueId x, ValueId weights, std::int64_t count);
  ValueId sent(ValueId x, ValueId weights, ValueId places);
  ValueId gathered(ValueId x, ValueId weights, ValueId places);
  AxisSet mixture_axes() const;
  ValueId gather_from_ranks(std::string_view name, ValueId x);
  ValueId send_to_experts(std::string_view name, ValueId x, std::int64_t columns);
  ValueId by_expert(std::string_view name, ValueId x);
  ValueId send_back(ValueId y);
  ValueId regroup(std::string_view name, ValueId x, std::int64_t outer, std::int64_t inner);

  const Model& model_;
  const Plan& plan_;
  const std::int64_t tokens_;  // s b / context
  const std::int64_t rows_;    // of what lies between the halves
  const std::int64_t hidden_;
  const bool split_;
  const bool scattered_;
  std::int64_t window_ = 0;    // of the layer
  Block block_;
};

}  // namespace stepcast
