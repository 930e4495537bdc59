// Compare: a forecast held against a measurement of the same question, as a gate against
// regressions. What `simulate --json` and `execute --json` write (stepcast.report/1) goes in, in
// any pairing; a kept report may stand for the forecast. MEASURED may also be what a run on a real
// cluster left behind: a log, golden values, or traces (measured.h).
//
// A metric's error is signed: predicted / measured - 1; there is none where measured is 0. Judged
// are the step's time, the allocated peak and the bytes sent on each axis: within the tolerance, or
// beyond it, in either direction. Everything else is shown without a verdict.
//
// A run's report lists the time of every step ("step_seconds"). Of n steps the first, which also
// warms up, is left out where n >= 2, and the median of the others is the step. Their spread is the
// interquartile range over the median, over all steps where n < 3. Where it exceeds the tolerance
// the machine was not still, and nothing is said about the time: inconclusive. Quantiles are
// interpolated between order statistics (type 7 of Hyndman and Fan, The American Statistician 50,
// 1996). Of a log or a trace the steps that are kept (measured.h) stand in the same way for the
// step and its spread, which is the noise floor.
//
// A trace is taken apart, and so is the forecast's own, made again from the report's config:
//   kernels        seconds of each kind of kernel on the device, by its name or op
//   communication  of each axis: the least over the ranks that took part and are traced, which is
//                  the transfer; what the others took longer is skew
//   exposed        communication that no kernel covers
//   idle           nothing runs; with exposed pipeline communication it is the bubble, as a receive
//                  that waits looks like one that transfers
// All are means over the traced ranks of the stages that are traced; the ranks' groups are matched
// to the axes of the plan's mesh by the ranks in them, else by their description.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace stepcast {

struct CompareArguments {
  std::string predicted;            // a report; one file may be -, stdin
  std::vector<std::string> measured;  // a report, or a run's log, golden values or traces
  std::string tolerance = "5%";     // --tolerance 5%, or 0.05
  std::string json;                 // --json FILE|-
  std::string junit;                // --junit FILE|-
  std::string markdown;             // --markdown FILE|-
};

// 0: within the tolerance; 1: beyond it, or inconclusive.
int compare_command(const CompareArguments& arguments);

// The worst verdict of all is the last.
enum class Verdict { kWithin, kInconclusive, kBeyond };
std::string_view verdict_name(Verdict verdict);  // "within"

struct Metric {
  enum class Unit { kSeconds, kBytes, kShare, kRate };

  std::string name;                // its place in a report: "step.seconds"
  std::string label;               // for people: "step time"
  Unit unit = Unit::kSeconds;
  double predicted = 0, measured = 0;
  std::optional<double> error;     // predicted / measured - 1
  std::optional<double> share;     // of times: of the measured step; parts: of the step they sum to
  std::optional<Verdict> verdict;  // none: only shown
  std::string message;             // what to make of a verdict that is not "within"
};

struct Comparison {
  std::string predicted, measured;  // names of the files, valid UTF-8
  double tolerance = 0;
  std::optional<double> predicted_spread, measured_spread;  // of reports with several steps
  std::vector<std::string> notes;   // what differs and may
  std::vector<Metric> metrics;      // the step first
  Verdict verdict = Verdict::kWithin;
};

// "5%", "5 %" or "0.05": above 0, at most 1. Throws Error (place: --tolerance).
double parse_tolerance(std::string_view text);

// Throws Error (place: FILE:LINE: key) for what is no report of this format, and for two reports
// that differ in model, batch, parallel, sharding or recompute: they answer different questions. A
// difference in anything else is a note.
Comparison compare_reports(const Document& predicted, const Document& measured, double tolerance);

// The same with a run. `name` is of its files. Throws Error (place: `name`) for another global
// batch, sequence length or number of ranks than the forecast's. Where a run tells of its memory,
// the counterpart of what torch has allocated is the allocated peak of the rank's stage with the
// workspaces, which torch takes from the same allocator.
struct Measured;
Comparison compare_run(const Document& predicted, const Measured& measured,
                       const std::string& name, double tolerance);

// One sentence: the verdict and the step's two times.
std::string summary_sentence(const Comparison& comparison);

std::string comparison_table(const Comparison& comparison);     // at most 100 columns but for names
Json comparison_json(const Comparison& comparison);             // "stepcast.comparison/1"
std::string comparison_junit(const Comparison& comparison);     // a test case a judged metric
std::string comparison_markdown(const Comparison& comparison);  // for a comment on a change

}  // namespace stepcast
