// Validate: published measurements, row by row, against the forecast of the same thing.
//
// A row is one JSON object on one line: {"id", "source", "kind": "gemm | attention | collective",
// "gpu", sizes, and a time or a rate}. Fields may be missing; what had to be filled in is listed
// in `assumed`. A row that cannot be mapped says why and stays in the result.
//   relative error = predicted / measured - 1, of times: positive where the forecast is too slow.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/hardware/hardware.h"

namespace stepcast {

struct ValidateArguments {
  std::vector<std::string> files;  // JSON lines; - is stdin
  std::string json;                // --json FILE|-
};
int validate_command(const ValidateArguments& arguments);

struct ValidationRow {
  std::string id;        // "FILE:LINE" where the row has none
  std::string source;    // "NVIDIA/nccl-tests#290", "Dao-AILab/flash-attention"
  std::string gpu;       // as the row calls it, without what stands in brackets
  std::string kind;      // gemm, attention, collective, run, ... as the row has it
  std::string variant;   // what is scored apart within a kind: "flash3", "sdp_bwd", "degraded"
  bool covered = false;
  std::string reason;    // why it is not covered
  std::vector<std::string> assumed;
  std::optional<double> predicted_seconds, measured_seconds;
  std::optional<double> predicted_bytes, measured_bytes;  // of memory
};
std::optional<double> relative_error(const ValidationRow& row);

// The shipped devices, which the rows' GPU names are looked up in.
std::vector<Device> shipped_devices();

// `place` names the row where it has no id of its own.
ValidationRow validate_row(const Json& row, const std::string& place,
                           const std::vector<Device>& devices);

// One row a line; blank lines are skipped. Throws Error (place: FILE:LINE) for a line that is no
// JSON object.
std::vector<ValidationRow> validate_lines(std::string_view text, const std::string& file,
                                          const std::vector<Device>& devices);

// Of the rows with the same source, GPU, kind and variant; of these four, "" stands for all.
struct ValidationSummary {
  std::string source, gpu, kind, variant;
  int rows = 0;    // all of them
  int count = 0;   // covered; what follows is of these and 0 if there are none
  double mean_absolute_error = 0;
  double median_absolute_error = 0;
  double signed_bias = 0;          // mean of the relative errors
  double within_10_percent = 0;    // share
  std::optional<double> kendall_tau;  // (concordant - discordant) / all pairs; at least two rows
};
// By kind, source, GPU, variant, in this order of importance. Kendall's tau costs n^2.
std::vector<ValidationSummary> summarise(const std::vector<ValidationRow>& rows);

Json validation_json(const std::vector<ValidationRow>& rows);
std::string validation_table(const std::vector<ValidationRow>& rows);

}  // namespace stepcast
