// Summaries of validated rows: how far off, which way, how often close, and in which order.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/validate/validate.h"

namespace stepcast {

// Kendall's tau-b (Kendall 1945, "The treatment of ties in ranking problems"): of n pairs (x, y)
//   (C - D) / sqrt((P - X)(P - Y)),   P = n (n - 1) / 2
// C and D count the pairs of pairs that x and y order alike and otherwise, X and Y those tied in x
// and in y. 1: the same order, -1: the opposite. Nothing where all of x or all of y is tied.
// REQUIRES: as many x as y. Cost: n^2.
std::optional<double> kendall_tau_b(const std::vector<double>& x, const std::vector<double>& y);

// Of relative errors; all 0 if there are none.
struct ErrorSummary {
  int count = 0;
  double mean_absolute = 0, median_absolute = 0;
  double p90_absolute = 0;         // the 90th percentile
  double signed_bias = 0;          // their mean
  double within_5_percent = 0, within_10_percent = 0;  // shares
};
ErrorSummary summarise_errors(const std::vector<double>& errors);

// Of a set of rows. Errors are of the covered ones with both a predicted and a measured value.
struct ValidationSummary {
  std::string source, group, gpu, kind, variant;  // of summarise(); "" stands for all
  std::string name;                // what a table calls it
  int rows = 0;                    // all of them
  bool fitted = false;             // a shipped number was fitted to some of them
  ErrorSummary time;
  ErrorSummary memory;             // peaks of the step
  ErrorSummary resident;           // bytes before and after it
  ErrorSummary stages;             // peaks stage by stage, where a row tells its ranks apart
  // Kernels: over all rows. Runs: mean over the cuts of at least three rows, weighted by rows.
  std::optional<double> kendall_tau;
  std::array<double, kParts> parts = {};  // runs: mean share of the predicted step, by Part
};

// By kind, source, group, GPU, variant, in this order of importance.
std::vector<ValidationSummary> summarise(const std::vector<ValidationRow>& rows);

// By a name that `name_of` gives; rows for which it gives "" are left out. Sorted by name.
std::vector<ValidationSummary> summarise_by(
    const std::vector<ValidationRow>& rows,
    const std::function<std::string(const ValidationRow&)>& name_of);

// Each source weighs the same, however many rows it has; counts are sums.
ValidationSummary mean_of(const std::vector<ValidationSummary>& sources);

// Those that no shipped number was fitted to: what a forecast is worth where it has not looked.
std::vector<ValidationSummary> unseen(std::vector<ValidationSummary> sources);

// Training runs that are neither launch-bound nor unsteady (runs.h); what a table calls
// their source.
bool ordinary_run(const ValidationRow& row);
std::string label_of(const ValidationRow& row);

// Ordinary runs by source and, of the covered ones, by GPU and by plan; the launch-bound and the
// unsteady ones by source; all but these by how much work a layer gives each kernel.
std::vector<ValidationSummary> runs_by_source(const std::vector<ValidationRow>& rows);
std::vector<ValidationSummary> runs_by_gpu(const std::vector<ValidationRow>& rows);
std::vector<ValidationSummary> runs_by_plan(const std::vector<ValidationRow>& rows);
std::vector<ValidationSummary> launch_bound_runs(const std::vector<ValidationRow>& rows);
std::vector<ValidationSummary> unsteady_runs(const std::vector<ValidationRow>& rows);
std::vector<ValidationSummary> runs_by_work(const std::vector<ValidationRow>& rows);

// By GPU and decade; the name is "GPU\nDECADE\nfrom 1 MB", of which the second part only sorts.
// Clusters that were set up badly are no evidence of a size, and left out.
std::vector<ValidationSummary> collectives_by_size(const std::vector<ValidationRow>& rows);
std::pair<std::string, std::string> gpu_and_size(const std::string& name);  // without it

// Rows that are not covered, by what they have in common; the most frequent first.
struct Reason {
  std::string kind, what;
  int rows = 0;
};
std::vector<Reason> reasons_of(const std::vector<ValidationRow>& rows);

// What was filled in for covered runs, without the values; the most frequent first.
std::vector<Reason> assumptions_of(const std::vector<ValidationRow>& rows);

// Ordinary runs that are missed by more than kMiss, by cause; "" is "not understood". The most
// frequent first.
inline constexpr double kMiss = 0.15;
struct MissSummary {
  std::string cause;
  int too_fast = 0, too_slow = 0;  // forecasts
  std::string sources;             // "dgxc 12, sc21 1"
};
std::vector<MissSummary> misses_of(const std::vector<ValidationRow>& rows);

// The standard deviation of a good forecast's error.
inline constexpr double kGoodError = 0.02;

// One model, sequence, batch and cluster, cut in several ways.
struct CutSummary {
  std::string source;              // the rows' group or source
  std::string name;                // "gpt-18.4b, 256 GPUs, batch 1024 x 2048"
  bool launch_bound = false;       // any of its rows is
  int count = 0;                   // plans
  std::optional<double> kendall_tau;
  // What tau would be on average of forecasts off by kGoodError at random: the closer the measured
  // times, the less of an order there is to be had.
  double tau_of_good = 0;
  // What following the forecast costs: the measured step of the plan that it puts first over the
  // best measured one, less 1.
  double regret = 0;
  double spread = 0;               // slowest over fastest measured step
  int best_at = 0;                 // the best measured plan's place in the forecast's order, from 1
};
// Of covered runs; at least three rows with a measured time.
std::vector<CutSummary> summarise_cuts(const std::vector<ValidationRow>& rows);

}  // namespace stepcast
