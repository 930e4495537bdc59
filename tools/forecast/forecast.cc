// The readers of a Job, one after the other. What they say is put together here: utilisation from
// counted FLOPs, and a range from how far published runs were from their forecasts. Cost: that of
// the readers, plus one pass over the bodies and the calls.
#include "tools/forecast/forecast.h"

#include <algorithm>
#include <vector>

#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/cost/gemm.h"

namespace stepcast {
namespace {

// What a step would have been measured as, by the errors of the published runs of its class. A
// class whose forecasts all err on one side leaves the step at an end of its range.
void set_range(const WhatIf& what_if, const std::vector<ErrorClass>& errors, Report& report) {
  const Seconds step = to_seconds(report.timeline.step);
  const std::string& device = what_if.cluster.device.name;
  const std::string kind = plan_kind(what_if.model, what_if.plan, what_if.cluster.device);
  report.low = report.high = step;
  report.range_from = "no published runs";
  const ErrorClass* found = nearest_class(errors, device, kind);
  if (found == nullptr) return;
  report.low = std::min(step, step / (1 + found->high));
  report.high = std::max(step, step / (1 + found->low));
  report.range_from = class_words(*found, device, kind);
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
  report.flops_per_token = model_flops_per_token(what_if.model, plan.attended(), true);
  report.mfu = report.flops_per_token * tokens / peak;
  report.hfu = performed_flops(job) / peak;
}

Job lowered(const WhatIf& what_if) {
  return lower(transformer(what_if.model, what_if.plan), what_if.plan);
}

// Nothing is simulated or executed that does not verify.
void check_verifies(const Job& job) {
  const std::string fault = verify(job);
  STEPCAST_CHECK(fault.empty(), fault);
}

Timeline timeline_of(const WhatIf& what_if, const Job& job, const ForecastOptions& options) {
  const Prices prices = price(job, what_if.cluster);
  SimulateOptions simulate_options;
  simulate_options.ranks = prices.slow.empty() ? options.ranks : Ranks::kAll;
  simulate_options.trace = options.trace;
  return simulate(job, prices, simulate_options);
}

}  // namespace

MemoryOptions memory_options(const Plan& plan) {
  MemoryOptions options;
  options.expandable_segments = plan.expandable_segments;
  options.blas_workspace = plan.blas_workspace;
  return options;
}

Bytes device_peak(const Footprint& footprint) {
  Bytes peak;
  for (const StageMemory& stage : footprint.stages) peak = std::max(peak, stage.device_total());
  return peak;
}

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

Outline outline(const WhatIf& what_if, Bytes limit) {
  const Job job = lowered(what_if);
  MemoryOptions live = memory_options(what_if.plan);
  live.replay = false;
  Outline result;
  result.least = device_peak(account(job, what_if.cluster, live));
  if (result.least > limit) return result;
  check_verifies(job);
  result.step = timeline_of(what_if, job, {}).step;
  return result;
}

Forecast forecast(const WhatIf& what_if, const ForecastOptions& options) {
  Forecast result;
  result.job = lowered(what_if);
  const Job& job = result.job;
  check_verifies(job);
  Report& report = result.report;
  report.config = what_if.resolved;
  report.timeline = timeline_of(what_if, job, options);
  report.footprint = account(job, what_if.cluster, memory_options(what_if.plan));
  report.traffic = count_traffic(job);
  report.capacity = what_if.cluster.device.memory;
  report.parameters = parameters(what_if.model);
  if (what_if.tokens > 0) report.training_tokens = static_cast<std::int64_t>(what_if.tokens);
  set_range(what_if, options.errors, report);
  set_utilisation(what_if, job, report);
  return result;
}

}  // namespace stepcast
