// Small networks whose costs can be worked out by hand.
#pragma once

#include <cstdint>

#include "models/block.h"
#include "models/model.h"
#include "models/plan.h"
#include "sim/program/program.h"

namespace stepcast {

// One block with one weight of `elements` (rows of 1000) that is looked up and scored: nothing but
// training state. REQUIRES: elements is a multiple of 1000.
Network state_network(std::int64_t elements, const Plan& plan);

// embedding (16 rows) -> `layers` equal layers -> loss. A layer is y = x W^T with W (width, width)
// and x of `tokens` rows: it saves its input, tokens * width * 2 bytes, and nothing else.
Network chain_network(std::int64_t layers, std::int64_t tokens, std::int64_t width,
                      const Plan& plan);

// A GPT-2 style model (LayerNorm, GELU, learned positions, dropout, biases, tied table).
Model gpt_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                std::int64_t vocabulary, std::int64_t positions);

// A Llama style model (RMSNorm, SwiGLU, rotary, grouped queries).
Model llama_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                  std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocabulary);

// s, b and the number of micro-batches on one rank; set degrees, then global_batch = b m data.
Plan small_plan(std::int64_t sequence, std::int64_t micro_batch, std::int64_t micro_batches);

// Bytes of the tensors that live before and after a step on a stage, by category.
Bytes resident_bytes(const Job& job, std::size_t stage, Category category);
Bytes resident_bytes(const Job& job, std::size_t stage);  // weights, gradients, master, optimizer

// FLOPs of the first stage's ops of one kind in a step.
template <class Kind>
double flops_of(const Job& job) {
  double work = 0;
  for (const Call& call : job.programs[0].schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      const auto* compute = std::get_if<Compute>(&i);
      if (compute == nullptr) continue;
      const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
      if (std::holds_alternative<Kind>(op)) work += flops(op).value;
    }
  }
  return work;
}

}  // namespace stepcast
