// Report: what a search found, for programs and for people.
//
// `--json` writes "stepcast.search/1", in SI units that stand in the keys:
//   format, name, config, sets     the question: its file, and what --set said of it
//   work                           {model, parameters, device, global_batch, sequence_length,
//                                  training_tokens}
//   given                          {key: [values]}, as --vary and --fix have it
//   capacity_bytes, limit_bytes    of a device; limit: the same, or the peak that the file expects
//   counts                         {candidates, refused, too_large, simulated, fit, too_fragmented,
//                                  not_needed}, as in Findings
//   refusals                       [{key, count, example}]
//   plans                          by devices, then by step time: {rank, devices, sets, batch,
//                                  parallel, sharding, recompute, step, memory, device_seconds,
//                                  training, pareto, tie}. rank is null where a plan is shown for
//                                  the front alone; sets give the plan to `simulate`, those of the
//                                  question included; training is null without train.tokens, its
//                                  price null without --price-per-device-hour
//   nearest                        the same of plans that do not fit, least excess first
//   own                            the same of the file's own plan; null if it is not legal
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tools/search/explore.h"
#include "tools/search/space.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

struct SearchReport {
  std::string config;             // as the command line names it
  std::vector<std::string> sets;  // the command line's own
  std::vector<Choice> given;
  WhatIf common;  // all but the plan, with the file's own cluster
  std::int64_t global_batch = 0, sequence_length = 0;
  std::optional<double> price;  // of a device for an hour
  std::int64_t sizes = 1;       // clusters that were searched
  std::int64_t top = 0;         // plans ranked on each
  Findings findings;
  std::optional<RankedPlan> own;  // the file's plan as it is
  std::string own_trouble;        // why there is none
};

Json search_json(const SearchReport& report);

// What training on train.tokens takes with a plan, if nothing fails.
struct Training {
  double seconds = 0, device_hours = 0;
};
std::optional<Training> training(const SearchReport& report, const RankedPlan& plan);

// ASCII, at most 100 columns but for words that are longer.
std::string search_table(const SearchReport& report);

// Whether a plan fits and, where the file expects a step time, meets it.
bool is_welcome(const SearchReport& report);

}  // namespace stepcast
