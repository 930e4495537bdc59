// A row is mapped once, by the very code that `validate` scores with, and its Job is lowered once;
// then every set of parameters is priced and simulated anew. Cost: that of the simulations.
#include "tools/import/fit_runs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "tools/validate/causes.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

constexpr std::size_t kRowsLeast = 4;  // of a source: fewer may all have the same flaw
constexpr double kMemoryLeast = 0.65, kMemoryMost = 0.95;
constexpr double kAttentionLeast = 0.8;
constexpr double kEightBitMost = 1.3;

struct Run {
  Job job;
  Cluster cluster;
  double measured = 0;
  std::size_t source = 0;
};

void set(std::span<const double> values, Device& device) {
  device.kernels.matrix.efficiency = values[0];
  device.kernels.memory = values[1];
  for (auto& [name, attention] : device.kernels.attention) attention.sustained = values[2];
  if (values.size() > 3) device.kernels.matrix.fp8_sustained = values[3];
}

bool has_eight_bit_product(const Job& job) {
  return std::any_of(job.ops.begin(), job.ops.end(), [](const Op& op) {
    const auto* gemm = std::get_if<Gemm>(&op);
    return gemm != nullptr && gemm->dtype == Dtype::kFp8;
  });
}

// By source, in the order of the file: the what-ifs with what was measured.
using Questions = std::map<std::string, std::vector<std::pair<Json, double>>>;

Questions questions_of(const Device& device, const std::vector<Json>& rows,
                       const Shipped& shipped) {
  Questions questions;
  RunForecasts known;
  const std::vector<MissCause> causes = shipped_causes();
  for (const Json& row : rows) {
    ValidationRow mapped = validate_row(row, "", shipped, known);
    if (!mapped.covered || !mapped.run || !mapped.measured_seconds || !mapped.variant.empty() ||
        has_cause(row, mapped, causes)) {
      continue;
    }
    const Document document{"what-if", mapped.run->what_if, {}};
    if (read_what_if(document, ".").cluster.device.name != device.name) continue;
    const std::string name = mapped.group.empty() ? mapped.source : mapped.group;
    questions[name].emplace_back(std::move(mapped.run->what_if), *mapped.measured_seconds);
  }
  std::erase_if(questions, [](const auto& one) { return one.second.size() < kRowsLeast; });
  return questions;
}

// At most `most` of them, evenly spread.
std::vector<std::size_t> some_of(std::size_t count, std::size_t most) {
  std::vector<std::size_t> picked;
  const std::size_t taken = std::min(count, most);
  for (std::size_t i = 0; i < taken; ++i) picked.push_back(i * count / taken);
  return picked;
}

std::vector<Run> lower_all(const Questions& questions, std::size_t rows_each) {
  std::vector<Run> runs;
  std::size_t source = 0;
  for (const auto& [name, asked] : questions) {
    for (const std::size_t at : some_of(asked.size(), rows_each)) {
      const Document document{"what-if", asked[at].first, {}};
      const WhatIf what_if = read_what_if(document, ".");
      runs.push_back({lower(transformer(what_if.model, what_if.plan), what_if.plan),
                      what_if.cluster, asked[at].second, source});
    }
    ++source;
  }
  return runs;
}

double three_digits(double value) { return std::round(value * 1000) / 1000; }

Residual residual_of(const std::string& name, const FitError& error, const FitError* left_out) {
  Residual residual;
  residual.rows = "runs " + name;
  residual.count = static_cast<std::int64_t>(error.count);
  residual.median_absolute_error = three_digits(error.median_absolute);
  residual.mean_absolute_error = three_digits(error.mean_absolute);
  residual.p90_absolute_error = three_digits(error.p90_absolute);
  residual.signed_bias = three_digits(error.bias);
  if (left_out == nullptr) return residual;
  residual.left_out_count = static_cast<std::int64_t>(left_out->count);
  residual.left_out_median_absolute_error = three_digits(left_out->median_absolute);
  residual.left_out_signed_bias = three_digits(left_out->bias);
  return residual;
}

}  // namespace

FittedRuns fit_runs(const Device& device, const std::vector<Json>& rows, const Shipped& shipped,
                    std::size_t rows_each) {
  const Questions questions = questions_of(device, rows, shipped);
  std::vector<Run> runs = lower_all(questions, rows_each);
  if (runs.empty()) {
    throw Error("import",
                fmt::format("no source has four runs of {} that are covered, neither "
                            "launch-bound nor unsteady, and to which no cause applies "
                            "(configs/published/causes.json)",
                            device.name));
  }
  std::vector<double> measured;
  std::vector<std::size_t> source_of;
  for (const Run& run : runs) {
    measured.push_back(run.measured);
    source_of.push_back(run.source);
  }
  const Predict predict = [&](std::span<const double> values, std::span<double> times) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Run& run = runs[i];
      set(values, run.cluster.device);
      const Prices prices = price(run.job, run.cluster);
      times[i] = to_seconds(simulate(run.job, prices).step).value;
    }
  };
  // Memory: what elementwise kernels reach (calculon-ai/calculon, systems/h100_80g_nvl8.json: 0.75
  // at 10 MB, 0.9 from 100 MB up). Attention: what kernels that last long keep of the rate of short
  // ones, 0.85 forward on a B200 (flashinfer-ai/flashinfer#2899) to 0.97 backward on an H200
  // (NVIDIA/cudnn-frontend, benchmark/attention_training). What lies beyond these bounds has
  // another cause. 8 bits: at most, power takes about nothing of a rested device's rate, where it
  // takes a quarter of that of 16 bits.
  std::vector<Parameter> parameters = {
      {"matrix.efficiency", device.kernels.matrix.efficiency, 0.2, 1},
      {"memory", std::clamp(device.kernels.memory, kMemoryLeast, kMemoryMost), kMemoryLeast,
       kMemoryMost},
      {"attention.sustained", std::max(device.kernels.usual().sustained, kAttentionLeast),
       kAttentionLeast, 1}};
  if (std::any_of(runs.begin(), runs.end(),
                  [](const Run& run) { return has_eight_bit_product(run.job); })) {
    parameters.push_back(
        {"matrix.fp8_sustained", std::min(device.kernels.matrix.fp8_sustained, kEightBitMost), 1,
         kEightBitMost});
  }
  const SourceFit fitted = fit_by_source(parameters, measured, source_of, predict);

  FittedRuns result{device, {}, {}, {}};
  for (const Parameter& parameter : parameters) result.numbers.push_back(parameter.name);
  std::vector<double> values;
  for (const double value : fitted.values) values.push_back(three_digits(value));
  set(values, result.device);
  // What a rested device does has not changed.
  MatrixKernels& matrix = result.device.kernels.matrix;
  matrix.burst = std::max(
      1.0, three_digits(matrix.burst * device.kernels.matrix.efficiency / matrix.efficiency));
  result.device.kernels.matrix.basis = Basis::kFitted;
  result.device.kernels.memory_basis = Basis::kFitted;
  for (auto& [name, attention] : result.device.kernels.attention) {
    attention.basis = Basis::kFitted;
  }
  std::size_t source = 0;
  for (const auto& [name, asked] : questions) {
    result.sources.push_back(name);
    const FitError* left_out = fitted.left_out.empty() ? nullptr : &fitted.left_out[source];
    result.residuals.push_back(residual_of(name, fitted.errors[source], left_out));
    ++source;
  }
  return result;
}

}  // namespace stepcast
