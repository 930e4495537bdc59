// A case: what somebody reported in public about one configuration, as a what-if and its forecast.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "tools/forecast/forecast.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

struct Case {
  WhatIf what_if;
  Forecast forecast;

  const Report& report() const { return forecast.report; }
  const StageMemory& stage(std::size_t i) const { return report().footprint.stages.at(i); }
  double step() const { return to_seconds(report().timeline.step).value; }
  // Of what stays between steps on the devices of the first stage.
  double bytes_per_parameter() const {
    return static_cast<double>(stage(0).resident.count) /
           static_cast<double>(parameters(what_if.model));
  }
};

// `sets` are "path=value", as --set takes them.
inline Case case_of(std::string_view text, const std::vector<std::string>& sets = {}) {
  Document document = parse_json(text, "case.json");
  for (const std::string& set : sets) {
    const std::size_t equals = set.find('=');
    set_value(document, set.substr(0, equals), set.substr(equals + 1));
  }
  Case one;
  one.what_if = read_what_if(document, ".");
  one.forecast = forecast(one.what_if);
  return one;
}

// alibaba/Megatron-LLaMA#22: LLaMA-13B on 128 A800, 16 nodes with 4 x 200 Gb/s.
inline constexpr std::string_view kLlama13b = R"({
  "model": "llama2-13b",
  "cluster": {"device": "a100-80gb", "nodes": 16, "devices_per_node": 8,
              "fabric": {"nics_per_node": 4, "nic_bandwidth": "200 Gb/s"}},
  "batch": {"sequence_length": 2048, "micro": 2, "global": 1024},
  "parallel": {"tensor": 1, "data": 128},
  "precision": {"compute": "bf16", "gradients": "fp32"} })";

}  // namespace stepcast
