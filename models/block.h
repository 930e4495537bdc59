// Block: a piece of a network's forward pass, as ops over values. What a person writes.
//
// A network is a chain of blocks (embedding, layers, head); each takes one activation `x` and gives
// one, `y`. Blocks name values, not tensors: lowering stamps a block into a Job once a layer, and
// the backward pass is derived from it (backward.h). All shapes are one rank's; the exchanges
// between tensor-parallel ranks are nodes of the block like any other, with gradients of their own.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/op.h"
#include "sim/program/program.h"

namespace stepcast {

using ValueId = std::int32_t;  // index into Block::values
inline constexpr ValueId kNoValue = -1;

enum class ValueKind : std::uint8_t {
  kActivation,  // lives from its first write to its last read
  kWeight,      // trained
  kGradient,    // of a weight (made by backward)
  kData,        // given with the batch (token ids)
  kCopy,        // of a weight in 8 bits, made once a step (Block::prepare) and kept
};

struct Value {
  std::string name;
  Shape shape;
  Dtype dtype = Dtype::kBf16;
  ValueKind kind = ValueKind::kActivation;
  // kWeight: every tensor rank holds all of it but sees only its share of the tokens (a norm under
  // sequence parallelism), so its gradient is a part of a sum over the tensor axis.
  bool partial = false;
  // kWeight: blocks that use the same non-empty name share the weight (tied embeddings).
  std::string shared = "";
  // kWeight: how it is cut over the tensor axis (see Tensor).
  Cut cut = Cut::kWhole;
  std::array<std::int64_t, kPartsMax> parts = {};
  std::int64_t experts = 0;  // kWeight: of how many experts it holds the matrices (see Tensor)
  // An 8-bit copy (eight_bit.h): the value that it is a copy of; a gradient of the copy has that
  // one's shape and type. `columns`: the further copy of the same matrix for products that read it
  // along its columns; none: this one serves both.
  ValueId original = kNoValue;
  ValueId columns = kNoValue;
  Bytes bytes() const { return Bytes(shape.elements() * dtype_size(dtype)); }
};

// What the ranks of a group exchange, and what its gradient is. Of the tensor axis (Megatron's f, g
// and their sequence-parallel forms; Shoeybi et al. 2019, Korthikanti et al. 2022):
enum class ExchangeKind : std::uint8_t {
  kEnter,          // forward nothing; backward all-reduces the gradient of its input     (f)
  kAllReduce,      // forward in place; backward nothing                                  (g)
  kAllGather,      // forward gathers rows; backward reduce-scatters the gradient
  kReduceScatter,  // forward reduces and scatters rows; backward all-gathers the gradient
  // Of the context axis: keys and values are gathered (kAllGather), or
  kShift,          // go to the next rank, those of the one before come. Backward passes them round
                   // once more, with their gradients (Backward::ring)
  // Of the axes over which experts are spread, and of the context axis, of heads:
  kAllToAll,       // forward gives each rank its part of the rows; so does backward
};
struct Exchange {
  ExchangeKind kind = ExchangeKind::kEnter;
  Reduction reduction = Reduction::kSum;
  // kReduceScatter: the gradient is quantised before it is gathered, and crosses in 8 bits.
  bool eight_bit_gradient = false;
  AxisSet axes = Axis::kTensor;
  // kAllGather: the gradient is copied, to be in the ranks' order, before it is scattered.
  bool copied_gradient = false;
};

// Which part of a layer a node belongs to, as "recompute": {"modules": [...]} names them.
enum Module : std::uint16_t {
  kModuleNone = 0,
  kModuleAttentionCore = 1,
  kModuleNorm = 2,
  kModuleActivation = 4,
  kModuleMlp = 8,
  kModuleAttention = 16,
  kModuleGather = 32,  // run again rather than kept: a gather of sequence parallelism, an 8-bit
                       // copy of a gathered weight
  kModuleLate = 64,    // only backward needs what it makes: it is not run in forward at all
  kModuleUp = 128,
  kModuleProjection = 256,
  kModuleQkv = 512,
  kModuleQuantize = 1024,
  kModuleLatentUp = 2048,
};

// How a node is to be differentiated where its Op alone does not tell.
enum class NodeUse : std::uint8_t { kPlain, kScores, kContext, kQkNorm };

// What the host has to know before it can go on: it cannot issue the products of experts, or an
// exchange of uneven parts, before the device has counted the rows of each.
enum class HostRead : std::uint8_t {
  kNone,
  kMade,    // by this node
  kNeeded,  // before this node is issued; no exchange begins between the two
};

// Up to eight values, in place.
class Values {
 public:
  Values() = default;
  Values(std::initializer_list<ValueId> list) {
    for (ValueId id : list) add(id);
  }
  void add(ValueId id) {
    if (id == kNoValue) return;  // an optional operand that is not there
    STEPCAST_CHECK(size_ < ids_.size(), "a node has at most eight operands");
    ids_[size_++] = id;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ValueId operator[](std::size_t i) const { return ids_[i]; }
  const ValueId* begin() const { return ids_.data(); }
  const ValueId* end() const { return ids_.data() + size_; }

 private:
  std::array<ValueId, 8> ids_ = {};
  std::size_t size_ = 0;
};

struct Node {
  std::variant<Op, Exchange> work;
  Values in, out;
  std::string name;  // "qkv"; its gradients are called "qkv.input_gradient", ...
  std::uint16_t modules = kModuleNone;
  NodeUse use = NodeUse::kPlain;
  Phase phase = Phase::kForward;
  HostRead read = HostRead::kNone;
};

struct Block {
  std::string name;     // "layer"
  bool numbered = true; // labels carry the layer's number
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Node> prepare;  // of weights alone: run once a step, before the first forward
  ValueId x = kNoValue;  // none: the chain begins here
  ValueId y = kNoValue;  // none: it ends here (the loss)

  ValueId activation(std::string_view value_name, Shape shape, Dtype dtype);
  ValueId weight(std::string_view value_name, Shape shape, Dtype dtype, bool partial = false);
  ValueId data(std::string_view value_name, Shape shape, Dtype dtype);
  void add(std::string_view node_name, Op op, Values in, Values out, std::uint16_t modules = 0,
           NodeUse use = NodeUse::kPlain);
  void exchange(std::string_view node_name, ExchangeKind kind, Values in, Values out,
                std::uint16_t modules = 0,
                Reduction reduction = Reduction::kSum);
  // Between context ranks.
  void context_exchange(std::string_view node_name, ExchangeKind kind, ValueId in, ValueId out,
                        std::uint16_t modules);
};

// A copy of the value, as a kernel of its own.
Pointwise copy_op(const Value& value);

// The forward work of a block, for balancing stages. Exchanges count nothing.
Flops forward_flops(const Block& block);

// Elements of the block's own weights on one rank (shared ones too).
std::int64_t weight_elements(const Block& block);

// A chain of blocks: `chain` lists indices into `kinds`, in model order.
struct Network {
  std::vector<Block> kinds;
  std::vector<std::int32_t> chain;
  std::int64_t vocabulary = 0;  // token ids are below; 0: no tokens
};

}  // namespace stepcast
