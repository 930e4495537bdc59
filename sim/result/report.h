// Report: what `--json` writes, format "stepcast.report/1". Quantities carry their SI unit in the
// key; every key is always present; no number is NaN or infinite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

struct Report {
  Json config;                        // resolved, with every default
  Timeline timeline;                  // step time, breakdown, bubble, and the basis of the kernels
  Footprint footprint;                // one entry a stage
  Traffic traffic;                    // one entry a stage
  Bytes capacity;                     // of one device
  Seconds low, high;                  // the range of the step; low <= timeline.step <= high
  std::string range_from;             // what it rests on, for people
  double tokens_per_second_per_device = 0;
  double mfu = 0, hfu = 0;            // model and hardware FLOPs utilisation, shares of the peak
  std::int64_t parameters = 0;
  Flops flops_per_token;              // of the model, forward and backward
  std::optional<std::int64_t> training_tokens;  // adds "time_to_train"
};

// `job` is the one that the report is about: it names the moments of peak memory ("backward 3").
Json write_report(const Report& report, const Job& job);

}  // namespace stepcast
