// Made in three passes over a differentiated block: slots for its values, a Tensor a slot, and one
// fragment for each way in which lowering stamps it. Cost: linear in the block, once a kind.
#include "models/block_kind.h"

#include <algorithm>
#include <iterator>

#include "models/recompute.h"
#include "models/stack.h"

namespace stepcast {

namespace {

constexpr TensorId kUnused = INT32_MIN;

class KindMaker {
 public:
  KindMaker(Tables& tables, const Block& block, const Plan& plan)
      : tables_(tables),
        plan_(plan),
        derived_(differentiate(block, recompute_slices(block, plan),
                               {plan.gradients, plan.effective_zero() < 2, plan.eight_bit,
                                plan.deterministic, plan.loss == CrossEntropy::kTorch})) {}

  BlockKind run();

 private:
  const Block& block() const { return derived_.block; }
  const Value& value(ValueId id) const { return block().values[static_cast<std::size_t>(id)]; }
  Tensor tensor(const Value& value) const;
  void assign_slots();
  void assign_weight(ValueId id);
  std::vector<Node> needed_again() const;
  void write_fragments();
  Fragment forward(bool keep_saved, bool keep_x, bool keep_y, bool recompute);
  Fragment forward(const std::vector<Node>& nodes, bool keep_saved, bool keep_x, bool keep_y,
                   bool recompute);
  Fragment prepare();
  FragmentOptions common_options() const;
  EventId backward_done() const { return plan_.expert_overlap ? kBackwardDone : kTensorDone; }

  Tables& tables_;
  const Plan& plan_;
  Differentiated derived_;
  std::vector<TensorId> slots_;  // by value
  std::vector<Node> forward_;    // without what only backward runs
  BlockKind kind_;
};

Tensor KindMaker::tensor(const Value& value) const {
  Tensor t{tables_.label(value.name), value.shape, value.dtype, Category::kActivations,
           Scope::kMicroBatch, value.cut, value.parts, value.experts};
  const int zero = plan_.effective_zero();
  switch (value.kind) {
    case ValueKind::kActivation: break;
    case ValueKind::kWeight:
      // Gathered copies of sharded weights come and go: they are buffers.
      t.category = zero == 3 ? Category::kBuffers : Category::kWeights;
      t.scope = Scope::kChunk;
      break;
    case ValueKind::kGradient:
      t.category = Category::kGradients;
      t.scope = Scope::kChunk;
      break;
    case ValueKind::kData:
      t.category = Category::kBuffers;
      t.scope = Scope::kChunk;
      break;
    case ValueKind::kCopy:
      t.category = Category::kWeights;
      t.scope = Scope::kChunk;
      break;
  }
  return t;
}

void KindMaker::assign_weight(ValueId id) {
  const Value& w = value(id);
  ValueId gradient = derived_.gradient_of[static_cast<std::size_t>(id)];
  STEPCAST_CHECK(gradient != kNoValue, "every weight has a gradient");
  WeightSlots slots{0,         0,       w.shape.elements(),
                    w.partial, w.dtype, w.experts > 0 && plan_.expert > 1};
  if (w.shared.empty()) {
    slots.weight = static_cast<TensorId>(kind_.tensors.size());
    kind_.tensors.push_back(tensor(w));
    slots.gradient = static_cast<TensorId>(kind_.tensors.size());
    kind_.tensors.push_back(tensor(value(gradient)));
    kind_.weights.push_back(slots);
  } else {
    const auto i = static_cast<TensorId>(kind_.shared.size());
    slots.weight = kPlaceShared - 2 * i;
    slots.gradient = kPlaceShared - 2 * i - 1;
    kind_.shared.push_back({w.shared, slots});
    kind_.shared_tensors.push_back(tensor(w));
    kind_.shared_tensors.push_back(tensor(value(gradient)));
  }
  slots_[static_cast<std::size_t>(id)] = slots.weight;
  slots_[static_cast<std::size_t>(gradient)] = slots.gradient;
}

void KindMaker::assign_slots() {
  const auto count = static_cast<ValueId>(block().values.size());
  slots_.assign(block().values.size(), kUnused);
  const auto place = [&](ValueId id, TensorId slot) {
    if (id != kNoValue) slots_[static_cast<std::size_t>(id)] = slot;
  };
  place(block().x, kPlaceX);
  place(block().y, kPlaceY);
  place(derived_.dx, kPlaceDx);
  place(derived_.dy, kPlaceDy);
  if (block().x != kNoValue) kind_.x = tensor(value(block().x));
  if (block().y != kNoValue) kind_.y = tensor(value(block().y));
  std::vector<bool> used(block().values.size(), false);
  const auto mark = [&](const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      for (ValueId v : node.in) used[static_cast<std::size_t>(v)] = true;
      for (ValueId v : node.out) used[static_cast<std::size_t>(v)] = true;
    }
  };
  mark(block().prepare);
  mark(block().nodes);
  mark(derived_.backward);
  for (ValueId id = 0; id < count; ++id) {
    const Value& v = value(id);
    if (v.kind == ValueKind::kWeight) assign_weight(id);
    if (slots_[static_cast<std::size_t>(id)] != kUnused || !used[static_cast<std::size_t>(id)] ||
        v.kind == ValueKind::kWeight || v.kind == ValueKind::kGradient) {
      continue;
    }
    const auto slot = static_cast<TensorId>(kind_.tensors.size());
    slots_[static_cast<std::size_t>(id)] = slot;
    kind_.tensors.push_back(tensor(v));
    if (v.kind == ValueKind::kData || v.kind == ValueKind::kCopy) kind_.residents.push_back(slot);
  }
}

// What forward and backward have in common.
FragmentOptions KindMaker::common_options() const {
  FragmentOptions options;
  options.overlap = plan_.tensor_overlap;
  options.host_reads = plan_.host_reads_counts();
  // The embedding and the head take their exchanges whole.
  if (block().numbered) options.pieces = static_cast<std::int16_t>(plan_.tensor_pieces);
  if (plan_.deterministic) options.filled = plan_.filled;
  // PyTorch's log-softmax and its backward are structured kernels; only the copies are not.
  const bool structured = plan_.loss == CrossEntropy::kTorch;
  if (structured) options.filled &= static_cast<std::uint16_t>(~kFilledLoss);
  return options;
}

Fragment KindMaker::forward(bool keep_saved, bool keep_x, bool keep_y, bool recompute) {
  return forward(forward_, keep_saved, keep_x, keep_y, recompute);
}

Fragment KindMaker::forward(const std::vector<Node>& nodes, bool keep_saved, bool keep_x,
                            bool keep_y, bool recompute) {
  FragmentOptions options = common_options();
  options.live.assign(block().values.size(), false);
  options.keep = keep_saved ? derived_.saved : options.live;
  options.recompute = recompute;
  if (recompute) options.done = backward_done();
  if (block().x != kNoValue) {
    options.live[static_cast<std::size_t>(block().x)] = true;
    if (keep_x) options.keep[static_cast<std::size_t>(block().x)] = true;
  }
  if (block().y != kNoValue) options.keep[static_cast<std::size_t>(block().y)] = keep_y;
  return write_fragment(tables_, block(), nodes, slots_, options);
}

Fragment KindMaker::prepare() {
  FragmentOptions options;
  options.live.assign(block().values.size(), false);
  options.keep = options.live;
  return write_fragment(tables_, block(), block().prepare, slots_, options);
}

// Of what is run again where no block behind it asks for the output. PyTorch's checkpoint without
// re-entrance stops when all that backward needs is there (torch/utils/checkpoint.py, early_stop,
// on since 2.1); before, and in Megatron-LM's, the whole block runs.
std::vector<Node> KindMaker::needed_again() const {
  if (!plan_.recompute_early_stop) return forward_;
  const auto kept = [&](const Node& node) {
    return std::any_of(node.out.begin(), node.out.end(),
                       [&](ValueId v) { return derived_.saved[static_cast<std::size_t>(v)]; });
  };
  const auto last = std::find_if(forward_.rbegin(), forward_.rend(), kept);
  return {forward_.begin(), last.base()};
}

void KindMaker::write_fragments() {
  std::copy_if(block().nodes.begin(), block().nodes.end(), std::back_inserter(forward_),
               [](const Node& node) { return (node.modules & kModuleLate) == 0; });
  kind_.prepare = prepare();
  kind_.forward = forward(true, false, true, false);
  if (kind_.checkpointed) {
    kind_.forward_keep = forward(false, true, true, false);
    kind_.forward_drop = forward(false, false, true, false);
    kind_.recompute = forward(true, false, true, true);
    kind_.recompute_last = forward(needed_again(), true, false, false, true);
  }
  FragmentOptions options = common_options();
  options.done = backward_done();
  options.live = derived_.saved;
  options.keep.assign(block().values.size(), false);
  if (derived_.dy != kNoValue) options.live[static_cast<std::size_t>(derived_.dy)] = true;
  if (derived_.dx != kNoValue) options.keep[static_cast<std::size_t>(derived_.dx)] = true;
  kind_.backward = write_fragment(tables_, block(), derived_.backward, slots_, options);
}

BlockKind KindMaker::run() {
  kind_.numbered = block().numbered;
  kind_.checkpointed = kind_.numbered && plan_.recompute == Recompute::kFull;
  if (plan_.scan_layers && kind_.numbered && !kind_.checkpointed) stack_saved(derived_);
  assign_slots();
  write_fragments();
  return std::move(kind_);
}

}  // namespace

BlockKind make_kind(Tables& tables, const Block& block, const Plan& plan) {
  return KindMaker(tables, block, plan).run();
}

}  // namespace stepcast
