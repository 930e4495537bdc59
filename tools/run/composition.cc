// Linear in the marks.
#include "tools/run/composition.h"

#include <algorithm>
#include <cmath>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"

namespace stepcast {

double composition_error(const Job& job, const Recording& recording) {
  STEPCAST_CHECK(recording.step > Duration(), "a step takes time");
  return to_seconds(simulate(job, recording).step) / to_seconds(recording.step) - 1;
}

std::optional<Composition> compose(const Job& job, const std::vector<RankRun>& runs) {
  if (runs.empty() || runs.front().marks.empty()) return std::nullopt;
  Composition composition;
  for (std::size_t step = 0; step < runs.front().marks.size(); ++step) {
    std::vector<Marks> marks;
    for (const RankRun& run : runs) marks.push_back(run.marks.at(step));
    const Recording recording = record(job, marks);
    const double error = composition_error(job, recording);
    composition.errors.push_back(error);
    composition.measured = composition.measured + to_seconds(recording.step);
    if (std::abs(error) > std::abs(composition.largest)) composition.largest = error;
  }
  const double steps = static_cast<double>(composition.errors.size());
  composition.measured = composition.measured / steps;
  std::vector<double> sorted = composition.errors;
  std::sort(sorted.begin(), sorted.end());
  composition.error = quantile(sorted, 0.5);
  return composition;
}

Json composition_json(const Composition& composition) {
  return {{"steps", composition.errors.size()},
          {"relative_error", composition.error},
          {"largest_relative_error", composition.largest},
          {"measured_seconds", composition.measured.value}};
}

}  // namespace stepcast
