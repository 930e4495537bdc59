// Pace: the work of each stage on a mean device and on the slowest of all, and between the two by
// bisection the period that all stages keep.
#include "sim/engine/pace.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "sim/base/error.h"
#include "sim/cost/cost.h"

namespace stepcast {
namespace {

// Seconds of each stage's kernels in a step on such a device.
std::vector<double> work_of_stages(const Job& job, const Device& device) {
  std::vector<double> of_op, of_body, of_stage;
  for (const Op& op : job.ops) of_op.push_back(op_cost(op, device).time.value);
  for (const Body& body : job.bodies) {
    double sum = 0;
    for (const Instruction& instruction : body.code) {
      const auto* compute = std::get_if<Compute>(&instruction);
      if (compute != nullptr) sum += of_op[static_cast<std::size_t>(compute->op)];
    }
    of_body.push_back(sum);
  }
  for (const Program& program : job.programs) {
    double sum = 0;
    for (const Call& call : program.schedule) sum += of_body[static_cast<std::size_t>(call.body)];
    of_stage.push_back(sum);
  }
  return of_stage;
}

}  // namespace

double pace_deviate(const Job& job, const Device& device) {
  const int ranks = job.mesh.ranks();
  const double all = highest_of(ranks);
  if (job.mesh.stages() == 1 || device.spread == 0 || all == 0) return all;
  STEPCAST_CHECK(std::ssize(job.programs) == job.mesh.stages(), "a program a stage");
  const std::vector<double> mean = work_of_stages(job, device);
  const std::vector<double> slow = work_of_stages(job, slower_by(device, all));
  const auto deviate = [&](std::size_t stage, double period) {
    const double slower = slow[stage] - mean[stage];
    if (slower <= 0) return std::numeric_limits<double>::infinity();
    return all * (period - mean[stage]) / slower;
  };
  const double ranks_of_one = static_cast<double>(ranks) / job.mesh.stages();
  const double quantile = ranks * log_share_below(all);
  double low = *std::max_element(mean.begin(), mean.end());
  double high = *std::max_element(slow.begin(), slow.end());
  for (int halved = 0; halved < 50; ++halved) {
    const double middle = (low + high) / 2;
    double below = 0;  // logarithm
    for (std::size_t stage = 0; stage < mean.size(); ++stage) {
      below += ranks_of_one * log_share_below(deviate(stage, middle));
    }
    (below < quantile ? low : high) = middle;
  }
  double first = all;
  for (std::size_t stage = 0; stage < mean.size(); ++stage) {
    first = std::min(first, deviate(stage, high));
  }
  return first;
}

}  // namespace stepcast
