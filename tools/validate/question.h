// Question: a published training run as the what-if that a person would write for it.
//
// A row has the sections "model", "hardware", "software", "parallel" and "measured", and beside
// them "recompute" and "offload". Its fields become the what-if's; the rest is filled in by the
// framework (configs/frameworks) that the row names, as it was in the row's month, else by the
// what-if's own defaults. Whatever was not stated and was filled in is named in `assumed`, with the
// value:
//
//   kv_heads, ffn     = heads; = 4 hidden, or 8/3 hidden up to a multiple of 256 where gated
//   heads             = hidden / 128
//   style             gated: Llama's (RMSNorm, rotary, no biases), else GPT's (LayerNorm, learned
//                     positions, biases); a preset of that name and shape says it better
//   vocabulary        50,257 (GPT-2's) for a GPT; a Llama's must be stated
//   framework         what it does about the vocabulary's padding, dropout, gradients, overlap and
//                     attention
//   experts           moe_ffn_hidden = ffn; biases: none; dense layers and shared experts: none
//   degrees           the one that is left out follows from the GPU count, others are 1
//   expert_tp         tp; Megatron-Bridge: 1
//   capacity_factor   1: a router that gives each expert as many tokens
//   micro             from global batch and accumulation, else the fastest that fits
//   virtual_stages    where an interleaved schedule is stated without them, the fastest that fits
//   precision         the framework's, else bf16
//   scaling of fp8    Megatron-Bridge: tensor (current), others: delayed
//   NVLink domain     a rack of 72 is shared out in even parts
//   recompute         the framework's, else none;  sharding: zero 0
//   links             the device's standard box
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tools/validate/validate.h"

namespace stepcast {

struct RunQuestion {
  Json what_if;
  std::vector<std::string> assumed;
  // The same with other micro-batches and virtual stages, where the row states neither: its authors
  // have run the best, so the fastest that fits the device is taken.
  std::vector<Json> others;
};

// Throws Error (place: the row's field) for a run that no what-if describes yet, or that says too
// little. The what-if may still be refused by its own reader.
RunQuestion run_question(const Json& row, const Shipped& shipped);

// The month that a row's software is of, as its framework's name, a release or the number of the
// paper say: "2021-04", or "" where nothing does.
std::string month_of(const Json& row);

// What the row leaves to its framework (nullptr: none is known), or to the what-if's own defaults,
// with the value.
void note_filled_in(const Framework* framework, const Json& what_if,
                    std::vector<std::string>& assumed);

// Whoever publishes a table has tuned what it leaves out. The other micro-batches, and with an
// interleaved schedule the other numbers of chunks, that the plan could have.
std::vector<Json> other_choices(const Json& row, const Json& what_if, bool micro_stated);

// The "model" of the what-if: a preset's name or an object. Throws Error as run_question().
Json model_question(const Json& row, const std::vector<Model>& presets,
                    std::vector<std::string>& assumed);

// The "precision", "recompute" and "attention" of the what-if, null where the row does not say.
// Throw Error as run_question().
Json precision_question(const Json& row, std::vector<std::string>& assumed);
Json recompute_question(const Json& row, std::vector<std::string>& assumed);
Json attention_question(const Json& row);

// The "fusion" that the row states by Megatron-LM's flags; empty where it does not.
Json fusion_question(const Json& row);

// The "loss" and "buffers" of the what-if: what Megatron-LM and Transformer Engine keep. `engine`:
// layers are Transformer Engine's, in Megatron-LM's buffers.
Json buffers_question(const Json& row, bool engine, const Device& device);
// What a run that has to be the same again asks for: "deterministic", the workspace of cuBLAS that
// goes with it, what it fills where that is not as `framework` (or nullptr) says, and another
// attention where the device's has no such backward. All else of the what-if stands already.
void ask_deterministic(const Json& row, const Framework* framework, const Device& device,
                       Json& what_if);
Json loss_question(const Json& row);

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
