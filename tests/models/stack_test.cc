#include "models/stack.h"

#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/recompute.h"
#include "models/transformer.h"
#include "sim/engine/simulate.h"
#include "tests/support/toy_network.h"

namespace stepcast {
namespace {

constexpr std::int64_t kLayers = 3;

Plan looped(bool scan) {
  Plan plan = small_plan(128, 2, 1);
  plan.scan_layers = scan;
  return plan;
}

Model small_gpt() { return gpt_model(kLayers, 256, 4, 512, 128); }

Job lowered(const Plan& plan) { return lower(transformer(small_gpt(), plan), plan); }

// Bytes that the copies of a layer read and write.
std::int64_t copied_by_layer(const Job& job) {
  std::int64_t bytes = 0;
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      const auto* compute = std::get_if<Compute>(&instruction);
      if (compute == nullptr) continue;
      const std::string& name = job.names[static_cast<std::size_t>(compute->label.name)];
      if (name.ends_with(".stack") && compute->label.layer == 1) {
        bytes += traffic(job.ops[static_cast<std::size_t>(compute->op)]).count;
      }
    }
  }
  return bytes;
}

std::int64_t saved_bytes(const Differentiated& d) {
  std::int64_t bytes = 0;
  for (std::size_t v = 0; v < d.saved.size(); ++v) {
    if (d.saved[v]) bytes += d.block.values[v].bytes().count;
  }
  return bytes;
}

// A layer saves x, both norms' results, qkv, attention's result, the sum behind it, fc1's and
// gelu's: 2 s b h (1 + 2 + 3 + 1 + 1 + 4 + 4) = 32 s b h, and fp32 statistics: two norms' 2 s b,
// attention's s b a. Each is read and written once.
TEST(Stack, CopiesOnceWhatALayerSaves) {
  const Job job = lowered(looped(true));
  EXPECT_EQ(verify(job), "");
  const std::int64_t tokens = 128 * 2;
  const std::int64_t saved = 32 * tokens * 256 + 4 * tokens * (2 * 2 + 4);
  EXPECT_EQ(copied_by_layer(job), 2 * saved);
  EXPECT_EQ(copied_by_layer(lowered(looped(false))), 0);
}

// What is kept is as large as before, and backward reads nothing else.
TEST(Stack, KeepsTheCopiesInsteadOfTheValues) {
  const Model model = small_gpt();
  const Plan plan = looped(true);
  const Network network = transformer(model, plan);
  const Block& layer = network.kinds[1];
  const Differentiated plain = differentiate(layer, recompute_slices(layer, plan), {});
  Differentiated stacked = plain;
  stack_saved(stacked);
  EXPECT_EQ(saved_bytes(stacked), saved_bytes(plain));
  for (std::size_t v = 0; v < plain.saved.size(); ++v) {
    if (!plain.saved[v]) continue;
    EXPECT_FALSE(stacked.saved[v]);
    for (const Node& node : stacked.backward) {
      for (ValueId read : node.in) EXPECT_NE(read, static_cast<ValueId>(v)) << node.name;
    }
  }
}

// Masks are a byte an element and stay; where a layer is run again, only its input was kept.
TEST(Stack, LeavesMasksAndFullRecomputationAlone) {
  Plan plan = looped(true);
  plan.dropout = true;
  const Job job = lowered(plan);
  for (const Tensor& tensor : job.tensors) {
    const std::string& name = job.names[static_cast<std::size_t>(tensor.label.name)];
    if (!name.ends_with(".stack")) continue;
    EXPECT_NE(tensor.dtype, Dtype::kUint8) << name;
  }
  plan.recompute = Recompute::kFull;
  EXPECT_EQ(copied_by_layer(lowered(plan)), 0);
}

}  // namespace
}  // namespace stepcast
