// Loop: calibrate, forecast, execute and compare, in turns, in one launch.
//
// A shared machine drifts by tens of percent within a minute, so a forecast that is to be judged
// must be of the same moment as the run that judges it. A plan is therefore timed in slices of
//   [sentinel, the ring (models/lower.h: a small Job of the plan's own work), sentinel, full steps]
// and gives one ratio a slice, forecast / measured, of the full steps by the rings before and after
// them. What is reported of these, one below the other:
//
//   composition  the full steps put together again of their own times (composition.h): what the
//                engine gets wrong about order and waiting
//   cost         of each kind of work, what the ring says it takes against what it took in the step
//   total        the median of the ratios - 1, with its bootstrap interval (Efron 1979; 95 %)
//   kept         the same with a profile that was measured once, before the first slice, as users
//                keep them; and how far the machine has drifted since then, by the sentinel
//
// A step is timed from the first rank's begin to the last one's end. Within a slice means count:
// a step is a sum of all its instances, the slow ones too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "tools/compare/compare.h"

namespace stepcast {

struct LoopArguments {
  std::vector<std::string> configs;
  std::vector<std::string> sets;    // --set path=value
  std::int64_t slices = 15;         // --slices
  std::string tolerance = "4%";     // --tolerance, of a plan's total
  std::string json;                 // --json FILE|-
  bool allow_inconclusive = false;  // --allow-inconclusive: exit 0 where nothing is beyond
};
// 0: all plans within the tolerance; 1: one beyond it, or inconclusive and not allowed to be.
int loop_command(const LoopArguments& arguments);

struct LoopSlice {
  Seconds sentinel;  // mean of those around the two rings
  Seconds forecast;  // drawn from what the rings before and after the full steps took
  Seconds measured;  // mean of the slice's full steps
  Seconds of_means;  // forecast from the means of the same, as a profile has them
};

// Of all instances of one kind in a step, all ranks, mean over the slices.
struct KindCost {
  std::string kind;  // "gemm", "attention", ..., "all-reduce", "send", "receive"
  Seconds forecast, measured;
};

struct Interval {
  double median = 0, low = 0, high = 0;
  double half_width() const { return (high - low) / 2; }
};
// Of the median of the values, by resampling them 2,000 times with a fixed seed. REQUIRES: one
// value at least.
Interval bootstrap_median(std::span<const double> values);

struct LoopPlan {
  std::string name, config;
  int ranks = 1, threads = 1;       // threads of each rank
  std::vector<double> composition;  // errors, step by step
  std::vector<LoopSlice> slices;
  std::vector<KindCost> costs;  // the dearest first
  Seconds kept_forecast;        // by the profile that was measured first
  Seconds kept_sentinel;

  Interval total() const;  // of forecast / measured - 1
  Interval kept() const;
  Interval drift() const;  // of the sentinel / the first profile's - 1
  Verdict verdict(double tolerance) const;
};

// For a verdict: half the width that an interval may have, and the fewest slices.
inline constexpr double kWidest = 0.03;
inline constexpr std::size_t kFewestSlices = 5;

// Runs one plan. Throws Error for what cannot be carried out or timed here.
LoopPlan run_loop(const std::string& config, const LoopArguments& arguments);

std::string loop_table(const std::vector<LoopPlan>& plans, double tolerance);
Json loop_json(const std::vector<LoopPlan>& plans, double tolerance);  // "stepcast.loop/1"

}  // namespace stepcast
