// Causes: why a published run is missed. A cause is a rule by facts of the row, in a file that a
// person reads (configs/published/causes.json), never by how far off the forecast is. A fit takes
// no run to which one applies (tools/import/fit_runs.h).
//
//   {"name": "another software stack", "forecast": "too fast", "why": "...",
//    "when": [{"fact": "software.framework", "has": ["maxtext", "paxml"]}]}
//
// The first cause of which all conditions hold, and whose direction is the miss's, has the miss;
// without one it is "not understood". A rule by "id" is for rows that are wrong in their source.
//
// A condition is a fact and one test of it. Facts: a field of the row by its path
// ("parallel.global_batch"), or "plan" ("tp+pp+dp"), "gpu", "group", "source", "assumed" (each of
// what was filled in), and of the what-if "layer_launches" (tools/forecast/fidelity.h) and
// "memory_share" (of its capacity that the fullest device is forecast to hold). Tests: "has": a
// text holds one of these, ignoring case; "is": equals one of these; "least", "most": limits of a
// number; "stated": whether the row has the fact.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tools/validate/validate.h"

namespace stepcast {

struct MissCondition {
  std::string fact;
  std::vector<std::string> has;            // in lower case
  Json is = Json::array();
  std::optional<double> least, most;
  std::optional<bool> stated;
};

struct MissCause {
  std::string name;
  std::string why;                         // for people
  std::optional<bool> too_fast;            // of the forecast; nothing: either
  std::vector<MissCondition> when;
};

// Throws Error for what is no cause.
std::vector<MissCause> read_causes(const Document& document);

// configs/published/causes.json; none if there is no such file.
std::vector<MissCause> shipped_causes();

// The cause of `result`, which is the validated `row`; "" where it is no miss or not understood.
std::string cause_of(const Json& row, const ValidationRow& result,
                     const std::vector<MissCause>& causes);

// Whether a cause applies, whatever its direction and however far off the forecast is. REQUIRES:
// `result` is of a covered run.
bool has_cause(const Json& row, const ValidationRow& result, const std::vector<MissCause>& causes);

}  // namespace stepcast
