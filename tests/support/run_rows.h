// A published training run as a row, its parts changed one by one, and what is asked for it.
#pragma once

#include <string>

#include "sim/base/error.h"
#include "tests/support/shipped.h"
#include "tools/validate/question.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

// A run in which everything that the mapping asks for is stated.
inline Json whole_row() {
  return parse_json(R"row({
    "id": "r", "model": {"name": "llama3-8b", "layers": 32, "hidden": 4096, "heads": 32,
      "kv_heads": 8, "ffn_hidden": 14336, "gated_mlp": true, "vocab": 128256, "seq_len": 8192,
      "tied_embeddings": false},
    "hardware": {"gpu": "H100-80GB-SXM", "gpus_per_node": 8, "gpus_total": 16,
      "inter_node_link": "8x NDR400"},
    "software": {"framework": "torchtitan", "precision": "bf16 (fp32 main grads)",
      "attention_impl": "flash", "extra": {"overlap": "none"}},
    "parallel": {"tp": 4, "sequence_parallel": true, "pp": 2, "dp": 2, "cp": 1, "ep": 1,
      "zero_stage": 1, "schedule": "1f1b", "micro_batch": 1, "global_batch": 32,
      "grad_accumulation": 16},
    "recompute": "selective", "measured": {"step_time_s": 10}})row",
                    "row")
      .root;
}

inline Json with(const std::string& path, const std::string& value) {
  Document document{"row", whole_row(), {}};
  set_value(document, path, value);
  return document.root;
}

// The row without one field of a section.
inline Json without(const std::string& section, const std::string& key) {
  Json row = whole_row();
  row[section].erase(key);
  return row;
}

inline RunQuestion ask(const Json& row) { return run_question(row, shipped()); }

inline std::string row_refusal(const Json& row) {
  try {
    ask(row);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline WhatIf read(const RunQuestion& question) {
  return read_what_if(Document{"what-if", question.what_if, {}}, ".");
}

}  // namespace stepcast
