// A small what-if for tests of tools/: four layers, one box of eight devices, pipeline 2 x data 4.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

// Line 1 is the opening brace; each key stands on a line of its own.
inline constexpr std::string_view kSmallWhatIf = R"({
  "name": "small",
  "model": {"style": "gpt", "layers": 4, "hidden": 512, "heads": 8, "vocabulary": 1000,
            "positions": 1024},
  "cluster": {"device": "a100-40gb", "nodes": 1, "devices_per_node": 8},
  "batch": {"sequence_length": 512, "micro": 2, "global": 64},
  "parallel": {"pipeline": 2, "data": 4}
})";

// Sets are "path=value", as --set takes them.
inline WhatIf small_what_if(const std::vector<std::string>& sets = {},
                            std::string_view text = kSmallWhatIf) {
  Document document = parse_json(text, "plan.json");
  for (const std::string& set : sets) {
    const std::size_t equals = set.find('=');
    set_value(document, set.substr(0, equals), set.substr(equals + 1));
  }
  return read_what_if(document, ".");
}

}  // namespace stepcast
