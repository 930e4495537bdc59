// A run is asked once for each distinct what-if: published tables repeat plans over releases, and
// forecasting is all the cost there is. Otherwise linear in the row.
//
// Memory. Tables mean different things by it: the peak of torch's allocator on the fullest rank,
// on the rank that writes the log (Megatron-LM: the last one, hence the last stage), or what the
// allocator has reserved. `memory` says which; the forecast's counterpart is the allocated peak of
// that stage, or of the fullest, with the workspaces that torch takes from the same allocator.
#include "tools/validate/runs.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/forecast/fidelity.h"
#include "tools/forecast/forecast.h"
#include "tools/validate/fields.h"
#include "tools/validate/question.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {


constexpr double kMebibyte = 1 << 20;
constexpr double kGibibyte = 1 << 30;

RunForecast ask(const Json& what_if) {
  RunForecast answer;
  try {
    const Document document{"what-if", what_if, {}};
    const WhatIf question = read_what_if(document, ".");
    const Forecast result = forecast(question);
    const Timeline& timeline = result.report.timeline;
    const RankTime& rank = timeline.ranks.at(static_cast<std::size_t>(timeline.slowest));
    answer.seconds = to_seconds(timeline.step).value;
    for (std::size_t i = 0; i < kParts; ++i) {
      answer.parts[i] = to_seconds(rank.breakdown[i]).value;
    }
    for (const StageMemory& stage : result.report.footprint.stages) {
      // torch's counter has the workspaces of matrix products among what is allocated.
      answer.peaks.push_back(static_cast<double>((stage.peak + stage.workspace).count));
      answer.residents.push_back(static_cast<double>((stage.resident + stage.workspace).count));
      const double share = static_cast<double>(stage.device_total().count) /
                           static_cast<double>(result.report.capacity.count);
      answer.memory_share = std::max(answer.memory_share, share);
      answer.fits = answer.fits && stage.device_total() <= result.report.capacity;
    }
    const Device& device = question.cluster.device;
    answer.plan = plan_word(question.plan);
    answer.device = device.name;
    answer.kind = plan_kind(question.model, question.plan, device);
    answer.layer_launches = layer_launches(question.model, question.plan, device);
  } catch (const Error& error) {
    answer.reason = error.what();
  }
  return answer;
}

// -------------------------------------------------------------------------------------- measured

// Of the step, from a rate where no time is given.
std::optional<double> measured_step(const Json& row, const RunQuestion& question,
                                    std::vector<std::string>& assumed) {
  const Json& measured = section_of(row, "measured");
  const Json& extra = section_of(measured, "extra");
  if (const auto time = number_of(measured, "step_time_s")) {
    if (switch_of(extra, "step_time_is_derived") == true) {
      assumed.emplace_back("step_time_s (derived by the row)");
    }
    return time;
  }
  const Json& batch = question.what_if.at("batch");
  const double tokens =
      batch.at("sequence_length").get<double>() * batch.at("global").get<double>();
  std::optional<double> rate = number_of(extra, "published_tokens_per_s_total");
  if (!rate) {
    const auto each = number_of(measured, "tokens_per_s_per_gpu");
    const auto gpus = number_of(section_of(row, "hardware"), "gpus_total");
    if (each && gpus) rate = *each * *gpus;
  }
  if (!rate) return std::nullopt;
  assumed.emplace_back("step_time_s (from tokens/s)");
  return tokens / *rate;
}

bool unsteady(const Json& row) {
  const Json& measured = section_of(row, "measured");
  const auto median = number_of(measured, "step_time_s");
  const auto fastest = number_of(section_of(measured, "extra"), "step_time_min_s");
  const auto fabric = number_of(section_of(row, "hardware"), "all_reduce_spread");
  return (median && fastest && *median > kUnsteady * *fastest) ||
         (fabric && *fabric > kUnsteadyFabric);
}

// Peaks by rank, on the stage of each: pipeline is the outermost axis.
void compare_stages(const Json& by_rank, const RunForecast& answer, std::int64_t ranks,
                    RunDetails& run) {
  const auto stages = static_cast<std::int64_t>(answer.peaks.size());
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    run.stages.push_back({static_cast<int>(stage), answer.peaks[static_cast<std::size_t>(stage)],
                          0});
  }
  for (const auto& [key, value] : by_rank.items()) {
    std::int64_t rank = -1;
    std::from_chars(key.data(), key.data() + key.size(), rank);
    const auto mebibytes = number_of(by_rank, key);
    if (rank < 0 || rank >= ranks || !mebibytes) continue;
    StageBytes& stage = run.stages[static_cast<std::size_t>(rank / (ranks / stages))];
    stage.measured = std::max(stage.measured, *mebibytes * kMebibyte);
  }
  std::erase_if(run.stages, [](const StageBytes& stage) { return stage.measured == 0; });
}

void compare_memory(const Json& row, const RunForecast& answer, std::int64_t ranks,
                    ValidationRow& result) {
  const Json& measured = section_of(row, "measured");
  const Json& extra = section_of(measured, "extra");
  RunDetails& run = *result.run;
  // Megatron-LM's tensorboard is written by the last rank, and so are its golden values.
  const bool last = has(lower(text_of(row, "notes")), "last rank");
  const double fullest = *std::max_element(answer.peaks.begin(), answer.peaks.end());
  run.memory = last ? "allocated, last rank" : "allocated, fullest rank";
  if (const auto bytes = number_of(extra, "peak_memory_bytes")) {
    result.measured_bytes = bytes;
  } else if (const auto gibibytes = number_of(measured, "peak_memory_gib")) {
    result.measured_bytes = *gibibytes * kGibibyte;
  } else if (const auto reserved = number_of(extra, "peak_reserved_gib")) {
    result.measured_bytes = *reserved * kGibibyte;
    run.memory = "reserved, fullest rank";
    result.assumed.emplace_back("memory (reserved held against allocated)");
  } else {
    run.memory.clear();
  }
  result.predicted_bytes = last ? answer.peaks.back() : fullest;
  if (const auto steady = number_of(extra, "steady_allocated_bytes")) {
    run.measured_resident = steady;
    run.predicted_resident = last ? answer.residents.back() : answer.residents.front();
  }
  const Json& by_rank = section_of(extra, "peak_allocated_mib_by_rank");
  if (!by_rank.empty()) compare_stages(by_rank, answer, ranks, run);
}

std::int64_t ranks_of(const Json& what_if) {
  const Json& parallel = what_if.at("parallel");
  return parallel.at("tensor").get<std::int64_t>() *
         parallel.at("pipeline").get<std::int64_t>() * parallel.at("data").get<std::int64_t>();
}

// What all ways to cut one training step have in common.
void name_cut(const Json& row, const Json& what_if, ValidationRow& result) {
  const Json& batch = what_if.at("batch");
  Json model = what_if.at("model");
  if (model.is_object()) model.erase("vocabulary");  // its padding depends on the cut
  const std::string sequence = batch.at("sequence_length").dump();
  const std::string global = batch.at("global").dump();
  result.run->cut = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", result.group, model.dump(),
                                what_if.at("cluster").dump(), sequence, global,
                                what_if.at("precision").dump());
  result.run->cut_name = fmt::format("{}, {} GPUs, batch {} x {}",
                                     text_of(section_of(row, "model"), "name"),
                                     ranks_of(what_if), global, sequence);
}

// The number that `assumed` names as "KEY (N)" is now another.
void assume_choice(const char* key, const Json& value, std::vector<std::string>& assumed) {
  const std::string start = fmt::format("{} (", key);
  std::erase_if(assumed, [&](const std::string& one) { return one.starts_with(start); });
  assumed.push_back(fmt::format("{}{}, the fastest that fits)", start, value.dump()));
}

const RunForecast& ask_once(const Json& what_if, RunForecasts& known) {
  const auto [at, fresh] = known.try_emplace(what_if.dump());
  if (fresh) at->second = ask(what_if);
  return at->second;
}

// Where the row leaves a choice, `question` becomes the fastest of those that fit.
const RunForecast& ask_best(RunQuestion& question, RunForecasts& known) {
  const RunForecast* best = &ask_once(question.what_if, known);
  if (!best->reason.empty() || question.others.empty()) return *best;
  for (const Json& other : question.others) {
    const RunForecast& answer = ask_once(other, known);
    if (!answer.reason.empty() || answer.fits < best->fits) continue;
    if (answer.fits == best->fits && answer.seconds >= best->seconds) continue;
    best = &answer;
    question.what_if = other;
  }
  bool micro = false, chunks = false;
  for (const Json& other : question.others) {
    micro |= other.at("batch") != question.what_if.at("batch");
    chunks |= other.at("parallel") != question.what_if.at("parallel");
  }
  if (micro) assume_choice("micro_batch", question.what_if["batch"]["micro"], question.assumed);
  if (chunks) {
    assume_choice("virtual_pp", question.what_if["parallel"]["virtual_stages"], question.assumed);
  }
  return *best;
}

}  // namespace

std::string plan_word(const Plan& plan) {
  std::string word;
  const auto add = [&](const std::string& part) { word += (word.empty() ? "" : "+") + part; };
  if (plan.tensor > 1) add(plan.sequence_parallel ? "tp+sp" : "tp");
  if (plan.context > 1) add("cp");
  if (plan.expert > 1) add("ep");
  if (plan.pipeline > 1) add(plan.virtual_stages > 1 ? "vpp" : "pp");
  if (plan.data > 1 || (plan.context > 1 && plan.zero > 0)) {
    add(plan.zero > 0 ? fmt::format("zero{}", plan.effective_zero()) : "dp");
  }
  return word.empty() ? "one device" : word;
}

void validate_run(const Json& row, const Shipped& shipped, RunForecasts& known,
                  ValidationRow& result) {
  RunQuestion question;
  try {
    question = run_question(row, shipped);
    std::vector<std::string> assumed = question.assumed;
    result.measured_seconds = measured_step(row, question, assumed);
    question.assumed = std::move(assumed);
  } catch (const Error& error) {
    result.reason = error.what();
    return;
  }
  const RunForecast& answer = ask_best(question, known);
  if (!answer.reason.empty()) {
    result.reason = answer.reason;
    return;
  }
  result.assumed = std::move(question.assumed);
  result.predicted_seconds = answer.seconds;
  result.run = RunDetails();
  result.run->plan = answer.plan;
  result.run->device = answer.device;
  result.run->kind = answer.kind;
  result.run->layer_launches = answer.layer_launches;
  result.run->memory_share = answer.memory_share;
  result.run->seconds = answer.parts;
  if (answer.layer_launches < kLayerKernels) result.variant = kLaunchBound;
  if (unsteady(row)) result.variant = "unsteady";
  compare_memory(row, answer, ranks_of(question.what_if), result);
  name_cut(row, question.what_if, result);
  result.run->what_if = std::move(question.what_if);
  if (!result.measured_seconds && !result.measured_bytes) {
    result.reason = "measured: neither a time, a rate nor a peak of memory is stated";
    result.run.reset();
    return;
  }
  result.covered = true;
}

}  // namespace stepcast
