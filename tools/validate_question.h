// Question: a published training run as the what-if that a person would write for it.
//
// A row has the sections "model", "hardware", "software", "parallel" and "measured", and beside
// them "recompute" and "offload". Its fields become the what-if's; the rest of the what-if keeps
// its defaults, except where the row's framework is known to do otherwise (Habits). Whatever was
// not stated and was filled in is named in `assumed`, with the value:
//
//   kv_heads, ffn     = heads; = 4 hidden, or 8/3 hidden up to a multiple of 256 where gated
//   heads             = hidden / 128
//   style             gated: Llama's (RMSNorm, rotary, no biases), else GPT's (LayerNorm, learned
//                     positions, biases); a preset of that name and shape says it better
//   vocabulary        50,257 (GPT-2's) for a GPT; a Llama's must be stated
//   padding           Megatron's family rounds the vocabulary up to a multiple of 128 tensor
//   degrees           the one that is left out follows from the GPU count, others are 1
//   micro             from global batch and accumulation, else 1
//   virtual_stages    2 where an interleaved schedule is stated without them, and layers divide
//   precision         bf16; Megatron: fp32 gradients with bf16, an fp32 copy of them with fp16
//   scaling of fp8    Megatron-Bridge: tensor (current), others: delayed
//   NVLink domain     a rack of 72 is shared out in even parts
//   recompute         none;  sharding: zero 0
//   links             the device's standard box
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tools/validate.h"

namespace stepcast {

struct RunQuestion {
  Json what_if;
  std::vector<std::string> assumed;
};

// Throws Error (place: the row's field) for a run that no what-if describes yet, or that says too
// little. The what-if may still be refused by its own reader.
RunQuestion run_question(const Json& row, const Shipped& shipped);

// What a framework does unless it is told otherwise.
struct Habits {
  std::string_view needle;        // stands in its lower-case name
  bool pads_vocabulary = false;   // to a multiple of 128 tensor
  bool dropout = false;           // GPT models are trained with it
  bool main_gradients = false;    // bf16: fp32 gradient buffers; fp16: an fp32 copy
  bool reduces_beside = true;     // gradient reduction overlaps backward
  bool fused_attention = true;
  bool waits_for_sends = false;   // in plain 1F1B
  bool engine = false;            // layers are Transformer Engine's, in Megatron-LM's buffers
};
Habits habits_of(std::string_view framework);

// The "model" of the what-if: a preset's name or an object. Throws Error as run_question().
Json model_question(const Json& row, const Habits& habits, std::int64_t tensor,
                    const std::vector<Model>& presets, std::vector<std::string>& assumed);

// The "precision", "recompute" and "attention" of the what-if. Throw Error as run_question().
Json precision_question(const Json& row, const Habits& habits, std::vector<std::string>& assumed);
Json recompute_question(const Json& row, std::vector<std::string>& assumed);
std::string attention_question(const Json& row, const Habits& habits,
                               std::vector<std::string>& assumed);

// The "loss", "buffers" and "allocator" of the what-if: what Megatron-LM and Transformer Engine
// keep.
Json buffers_question(const Json& row, const Habits& habits, const Device& device);
Json allocator_question(const Json& row);
std::string loss_question(const Json& row);

// The "attention_kernel" that the row states, of those that the device's kernels describe; "" for
// the device's usual one.
std::string attention_kernel_question(const Json& row, const Device& device);

// A section of a row: an empty object where it is missing.
const Json& section_of(const Json& row, std::string_view key);

// The flags of a Megatron command line, where the row repeats them.
const Json& flags_of(const Json& row);

// A count, or nothing where it is missing or 0. Throws Error where something else stands there.
std::optional<std::int64_t> stated_count(const Json& row, std::string_view section,
                                         std::string_view key);

}  // namespace stepcast
