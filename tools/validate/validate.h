// Validate: published measurements, row by row, against the forecast of the same thing.
//
// A row is one JSON object on one line: a kernel or a collective ({"kind": "gemm | attention |
// collective", "gpu", sizes, a time or a rate}) or a training run ({"model", "hardware",
// "software", "parallel", "recompute", "measured"}, see question.h). Fields may be
// missing; what had to be filled in is listed in `assumed`. A row that cannot be mapped says why
// and stays in the result.
//   relative error = predicted / measured - 1, of times: positive where the forecast is too slow.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "sim/base/json.h"
#include "sim/hardware/hardware.h"
#include "sim/result/result.h"
#include "tools/whatif/framework.h"

namespace stepcast {

struct ValidateArguments {
  std::vector<std::string> files;  // JSON lines; - is stdin; none: the shipped published runs
  std::string json;                // --json FILE|-
  std::string markdown;            // --markdown FILE|-: the page of the shipped runs
  std::string errors;              // --errors FILE|-: their error_classes.h
};
int validate_command(const ValidateArguments& arguments);

// What rows name by their names.
struct Shipped {
  std::vector<Device> devices;
  std::vector<Model> models;       // by the name that a what-if gives them
  std::vector<Framework> frameworks;
  // Groups of published runs that a number of a shipped profile or framework was fitted to.
  std::set<std::string> fitted;
};
Shipped read_shipped();

// Peak of the ranks of one stage, allocated bytes.
struct StageBytes {
  int stage = 0;
  double predicted = 0, measured = 0;
};

// What a mapped training run has besides its times.
struct RunDetails {
  Json what_if;                    // as it was asked; `stepcast simulate` takes it
  std::string plan;                // "tp+pp+dp", "zero3"
  std::string device, kind;        // of an ErrorClass: "a100-80gb", "pipeline"
  double layer_launches = 0;       // see layer_launches()
  double memory_share = 0;         // of its capacity that the fullest device is forecast to hold
  std::string cut;                 // equal for all plans of one model, sequence, batch and cluster
  std::string cut_name;            // for people
  std::array<double, kParts> seconds = {};  // of the slowest rank, by Part
  std::string memory;              // what measured_bytes are: "allocated, last rank"
  std::vector<StageBytes> stages;  // where the row tells the ranks apart
  std::optional<double> predicted_resident, measured_resident;  // before and after a step
};

struct ValidationRow {
  std::string id;        // "FILE:LINE" where the row has none
  std::string source;    // "NVIDIA/nccl-tests#290", "Dao-AILab/flash-attention"
  std::string group;     // of a run, its own "group": one table of a source; "" if it has none
  std::string gpu;       // as the row calls it, without what stands in brackets
  std::string kind;      // gemm, attention, collective, run, ... as the row has it
  bool fitted = false;   // a shipped number was fitted to some runs of its group
  std::string variant;   // scored apart within a kind: "flash3", "degraded", "launch-bound"
  bool covered = false;
  std::string reason;    // why it is not covered
  std::vector<std::string> assumed;
  std::optional<double> predicted_seconds, measured_seconds;
  std::optional<double> predicted_bytes, measured_bytes;  // of memory
  std::optional<double> size;  // collectives: bytes, as the source counts them
  std::optional<RunDetails> run;  // of a covered training run
  std::string cause;     // of a miss beyond kMiss, see causes.h; "": not understood
};
std::optional<double> relative_error(const ValidationRow& row);         // of times
std::optional<double> memory_relative_error(const ValidationRow& row);

// What a question has been answered with, so that a plan that stands in many rows is forecast once.
struct RunForecast {
  std::string reason;                      // why there is none
  double seconds = 0;
  bool fits = true;                        // into the device's memory
  std::array<double, kParts> parts = {};
  std::vector<double> peaks, residents;    // bytes, by stage
  std::string plan, device, kind;          // as in RunDetails
  double layer_launches = 0, memory_share = 0;
};
using RunForecasts = std::map<std::string, RunForecast>;  // by the text of the what-if

// `place` names the row where it has no id of its own.
ValidationRow validate_row(const Json& row, const std::string& place, const Shipped& shipped,
                           RunForecasts& known);

// Why a row is no evidence, whatever it says: not measured, not checked, not trusted; "" if it is.
std::string doubt(const Json& row);

// Of a kernel or a collective alone; a training run is not covered here.
ValidationRow validate_row(const Json& row, const std::string& place,
                           const std::vector<Device>& devices);

// One row a line; blank lines are skipped. Throws Error (place: FILE:LINE) for a line that is no
// JSON object.
struct PlacedRow {
  Json row;
  std::string place;  // FILE:LINE
};
std::vector<PlacedRow> read_rows(std::string_view text, const std::string& file);

// One after the other; misses are given their causes.
std::vector<ValidationRow> validate_rows(const std::vector<PlacedRow>& rows,
                                         const Shipped& shipped);

// Throws as read_rows().
std::vector<ValidationRow> validate_lines(std::string_view text, const std::string& file,
                                          const Shipped& shipped);

}  // namespace stepcast
