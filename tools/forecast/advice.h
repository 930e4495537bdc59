// Advice: the smallest changes of a plan that would help, each one simulated, not guessed.
//
// If the plan does not fit: what makes it fit, the fastest first; one change if any single one
// does, else two together. If it fits: what makes the step at least 2 % faster and still fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "tools/forecast/forecast.h"
#include "tools/whatif/whatif.h"

namespace stepcast {

struct Suggestion {
  std::vector<std::string> sets;  // "recompute=full": with --set, they give just this forecast
  Duration step;
  Bytes peak;                     // device total of the fullest stage
};

struct Advice {
  bool fits = false;                     // the plan as it is
  std::vector<Suggestion> suggestions;   // best first; at most 4, or 3 if the plan fits
  std::optional<Suggestion> closest;     // if nothing fits: the least peak that was found
  int simulated = 0;
};

// `now` is the forecast of `what_if`. Makes at most 60 more, fewer where each is much work.
Advice advise(const WhatIf& what_if, const Forecast& now);

// Whether a plan that is cut in so many stages now has to be laid out as "balanced": a list is of
// the old stages, and an interleaved plan cannot be even where layers do not divide.
bool has_to_balance(StageLayout layout, const Model& model, std::int64_t pipeline,
                    std::int64_t virtual_stages);

// The most context ranks that are worth a try for sequences of that length: with fewer than 8,192
// tokens, what Llama 3's long-context runs gave each rank (Dubey et al. 2024, table 4: 131,072 over
// 16), all ranks' products would be small for nothing.
std::int64_t most_context(std::int64_t sequence_length);

// Whether exchanges of experts can run beside another micro-batch's work (Plan::expert_overlap) in
// a plan that is cut so.
bool can_overlap_experts(std::int64_t expert, std::int64_t pipeline, bool interleaved);

// A plan that differs by one step from this one, under a name that is the same for every plan.
struct Change {
  std::string name;               // "tensor x 2"
  std::vector<std::string> sets;
};

// All such changes; some of them may not be legal.
std::vector<Change> changes_of(const Plan& plan, const Model& model);

}  // namespace stepcast
