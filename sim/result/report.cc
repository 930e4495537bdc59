// The report as JSON. Integers stay integers; a number that is not finite would be written as null
// and read by nobody, so it ends the program here, with the key that it was meant for. Cost: linear
// in stages and simulated ranks.
#include "sim/result/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

double finite(double value, std::string_view key) {
  STEPCAST_CHECK(std::isfinite(value), fmt::format("{} is not a finite number", key));
  return value;
}

double seconds(Duration duration) { return to_seconds(duration).value; }

const RankTime& slowest(const Timeline& timeline) {
  STEPCAST_CHECK(timeline.slowest >= 0, "a timeline without a slowest rank");
  const auto index = static_cast<std::size_t>(timeline.slowest);
  STEPCAST_CHECK(index < timeline.ranks.size(), "a timeline without its slowest rank");
  return timeline.ranks[index];
}

void check_config(const Json& value) {
  if (value.is_number_float()) finite(value.get<double>(), "a number in config");
  if (!value.is_structured()) return;
  for (const Json& member : value) check_config(member);
}

Json step_json(const Report& report) {
  const double step = seconds(report.timeline.step);
  const double low = finite(report.low.value, "seconds_low");
  const double high = finite(report.high.value, "seconds_high");
  // The step is rounded to picoseconds, its range is not.
  STEPCAST_CHECK(low <= step + 1e-12 && step <= high + 1e-12, "the step is outside its range");
  return Json{
      {"seconds", step},
      {"seconds_low", std::min(low, step)},
      {"seconds_high", std::max(high, step)},
      {"range_from", report.range_from},
      {"tokens_per_second_per_device",
       finite(report.tokens_per_second_per_device, "tokens_per_second_per_device")},
      {"mfu", finite(report.mfu, "mfu")},
      {"hfu", finite(report.hfu, "hfu")},
      {"bubble_fraction", finite(report.timeline.bubble_fraction, "bubble_fraction")}};
}

Json breakdown_json(const Timeline& timeline) {
  const RankTime& rank = slowest(timeline);
  Json json = Json::object();
  Duration sum;
  for (std::size_t i = 0; i < kParts; ++i) {
    sum += rank.breakdown[i];
    json[std::string(part_name(static_cast<Part>(i)))] = seconds(rank.breakdown[i]);
  }
  STEPCAST_CHECK(sum == timeline.step, "the parts of the slowest rank do not sum to the step");
  return json;
}

// Where the live bytes are highest: "backward 3", "backward 3 chunk 1", "optimizer"; "rest" is
// before and after the step.
std::string peak_text(const Job& job, const Program& program, const StageMemory& memory) {
  if (memory.peak_instruction < 0) return "rest";
  const Call& call = program.schedule.at(static_cast<std::size_t>(memory.peak_call));
  const Body& body = job.bodies.at(static_cast<std::size_t>(call.body));
  if (body.phase == Phase::kOptimizer) return body.name;
  return call.chunk > 0 ? fmt::format("{} {} chunk {}", body.name, call.micro_batch, call.chunk)
                        : fmt::format("{} {}", body.name, call.micro_batch);
}

Json memory_json(const Report& report, const Job& job) {
  const std::vector<StageMemory>& footprint = report.footprint.stages;
  STEPCAST_CHECK(footprint.size() == job.programs.size(), "one footprint a stage");
  Bytes peak, reserved, total;
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < footprint.size(); ++stage) {
    const StageMemory& memory = footprint[stage];
    peak = std::max(peak, memory.peak);
    reserved = std::max(reserved, memory.reserved);
    total = std::max(total, memory.device_total());
    Json json{{"stage", stage},
              {"allocated_peak_bytes", memory.peak.count},
              {"peak_at", peak_text(job, job.programs[stage], memory)}};
    Bytes sum;
    for (std::size_t i = 0; i < kCategories; ++i) {
      sum += memory.at_peak[i];
      json[fmt::format("{}_bytes", category_name(static_cast<Category>(i)))] =
          memory.at_peak[i].count;
    }
    STEPCAST_CHECK(sum == memory.peak, "the categories do not sum to the peak");
    STEPCAST_CHECK(memory.peak + memory.workspace <= memory.reserved, "what is live is reserved");
    json["workspace_bytes"] = memory.workspace.count;
    json["reserved_peak_bytes"] = memory.reserved.count;
    json["communicators_bytes"] = memory.communicators.count;
    json["context_bytes"] = memory.context.count;
    json["device_total_bytes"] = memory.device_total().count;
    json["allocation_retries"] = memory.allocation_retries;
    stages.push_back(std::move(json));
  }
  return Json{{"capacity_bytes", report.capacity.count},
              {"fits", total <= report.capacity},
              {"allocated_peak_bytes", peak.count},
              {"reserved_peak_bytes", reserved.count},
              {"device_total_bytes", total.count},
              {"not_modelled", report.footprint.not_modelled},
              {"stages", std::move(stages)}};
}

// The most that a device of any stage sends, axis by axis. To a reader replicas are data-parallel
// ranks: they count as data.
Json traffic_json(const Traffic& traffic) {
  const auto most = [&traffic](AxisSet axes) {
    Bytes result;
    for (const auto& stage : traffic.stages) {
      Bytes sum;
      for (std::size_t i = 0; i < kAxes; ++i) {
        if (axes.has(static_cast<Axis>(i))) sum += stage[i];
      }
      result = std::max(result, sum);
    }
    return result.count;
  };
  Json sent = Json::object();
  for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kPipeline}) {
    sent[std::string(axis_name(axis))] = most(axis);
  }
  sent[std::string(axis_name(Axis::kData))] = most(Axis::kData | Axis::kReplica);
  return Json{{"sent_bytes_per_device", std::move(sent)}, {"links", Json::array()}};
}

// Shares of all simulated kernel time; a step without kernels rests on the data sheet.
Json basis_json(const Timeline& timeline) {
  std::array<double, kBases> sums = {};
  double total = 0;
  for (const RankTime& rank : timeline.ranks) {
    for (std::size_t i = 0; i < kBases; ++i) {
      sums[i] += seconds(rank.basis[i]);
      total += seconds(rank.basis[i]);
    }
  }
  Json json = Json::object();
  for (std::size_t i = 0; i < kBases; ++i) {
    const auto basis = static_cast<Basis>(i);
    const double none = basis == Basis::kDatasheet ? 1.0 : 0.0;
    json[std::string(basis_name(basis))] = total > 0 ? sums[i] / total : none;
  }
  return json;
}

Json training_json(const Report& report, int devices) {
  const double rate = report.tokens_per_second_per_device * devices;
  const double days =
      finite(static_cast<double>(*report.training_tokens) / rate / 86'400, "time_to_train.days");
  return Json{{"tokens", *report.training_tokens},
              {"days", days},
              {"device_hours", days * 24 * devices}};
}

}  // namespace

Json write_report(const Report& report, const Job& job) {
  check_config(report.config);
  Json json{{"format", "stepcast.report/1"},
            {"config", report.config},
            {"step", step_json(report)},
            {"breakdown_seconds", breakdown_json(report.timeline)},
            {"memory", memory_json(report, job)},
            {"traffic", traffic_json(report.traffic)},
            {"basis", basis_json(report.timeline)},
            {"model",
             {{"parameters", report.parameters},
              {"flops_per_token", finite(report.flops_per_token.value, "flops_per_token")}}}};
  if (report.training_tokens) json["time_to_train"] = training_json(report, job.mesh.ranks());
  return json;
}

}  // namespace stepcast
