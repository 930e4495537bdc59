// The readers of a Job, one after the other. What they say is put together here: utilisation from
// counted FLOPs, and a range from how well each kernel's time is known. Cost: that of the readers,
// plus one pass over the bodies and the calls.
#include "tools/forecast.h"

#include <vector>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/cost/gemm.h"

namespace stepcast {
namespace {

// How far a time may be off, relative to it. These are assumptions, to be replaced by the spread
// that validation against published and measured runs finds. Data sheets err on the fast side.
struct Uncertainty {
  double below = 0;
  double above = 0;
};
constexpr Uncertainty kMeasuredUncertainty{0.03, 0.03};
constexpr Uncertainty kInterpolatedUncertainty{0.05, 0.05};
constexpr Uncertainty kFittedUncertainty{0.10, 0.10};
constexpr Uncertainty kDatasheetUncertainty{0.15, 0.30};

Uncertainty uncertainty(Basis basis) {
  switch (basis) {
    case Basis::kMeasured: return kMeasuredUncertainty;
    case Basis::kInterpolated: return kInterpolatedUncertainty;
    case Basis::kFitted: return kFittedUncertainty;
    case Basis::kDatasheet: return kDatasheetUncertainty;
  }
  STEPCAST_CHECK(false, "a basis out of range");
}

// Each basis counts by its share of the slowest rank's kernel time.
void set_range(Report& report) {
  const Timeline& timeline = report.timeline;
  const RankTime& rank = timeline.ranks.at(static_cast<std::size_t>(timeline.slowest));
  double total = 0;
  Uncertainty sum;
  for (std::size_t i = 0; i < kBases; ++i) {
    const double time = to_seconds(rank.basis[i]).value;
    const Uncertainty one = uncertainty(static_cast<Basis>(i));
    total += time;
    sum.below += time * one.below;
    sum.above += time * one.above;
  }
  const Uncertainty mean = total > 0 ? Uncertainty{sum.below / total, sum.above / total}
                                     : kDatasheetUncertainty;
  const Seconds step = to_seconds(timeline.step);
  report.low = step * (1 - mean.below);
  report.high = step * (1 + mean.above);
}

void set_utilisation(const WhatIf& what_if, const Job& job, Report& report) {
  const Plan& plan = what_if.plan;
  const Seconds step = to_seconds(report.timeline.step);
  STEPCAST_CHECK(step.value > 0, "a step takes time");
  const double devices = static_cast<double>(plan.ranks());
  const double tokens =
      static_cast<double>(plan.global_batch) * static_cast<double>(plan.sequence_length);
  const Flops peak = matrix_rate(plan.product(), what_if.cluster.device) * step * devices;
  report.tokens_per_second_per_device = tokens / step.value / devices;
  report.flops_per_token = model_flops_per_token(what_if.model, plan.sequence_length, true);
  report.mfu = report.flops_per_token * tokens / peak;
  report.hfu = performed_flops(job) / peak;
}

}  // namespace

Flops performed_flops(const Job& job) {
  std::vector<Flops> of_body(job.bodies.size());
  for (std::size_t i = 0; i < job.bodies.size(); ++i) {
    for (const Instruction& instruction : job.bodies[i].code) {
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
        if (std::holds_alternative<Gemm>(op) || std::holds_alternative<Attention>(op)) {
          of_body[i] += flops(op);
        }
      }
    }
  }
  Flops stages;
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) {
      stages += of_body[static_cast<std::size_t>(call.body)];
    }
  }
  return stages * (job.mesh.ranks() / job.mesh.stages());
}

Forecast forecast(const WhatIf& what_if, const ForecastOptions& options) {
  Forecast result;
  result.job = lower(transformer(what_if.model, what_if.plan), what_if.plan);
  const Job& job = result.job;
  const std::string fault = verify(job);
  STEPCAST_CHECK(fault.empty(), fault);

  const Prices prices = price(job, what_if.cluster);
  SimulateOptions simulate_options;
  simulate_options.ranks = prices.slow.empty() ? options.ranks : Ranks::kAll;
  simulate_options.trace = options.trace;

  Report& report = result.report;
  report.config = what_if.resolved;
  report.timeline = simulate(job, prices, simulate_options);
  report.footprint = account(job, what_if.cluster, {what_if.plan.expandable_segments});
  report.traffic = count_traffic(job);
  report.capacity = what_if.cluster.device.memory;
  report.parameters = parameters(what_if.model);
  if (what_if.tokens > 0) report.training_tokens = static_cast<std::int64_t>(what_if.tokens);
  set_range(report);
  set_utilisation(what_if, job, report);
  return result;
}

}  // namespace stepcast
