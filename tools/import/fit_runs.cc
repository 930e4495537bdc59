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

constexpr const char* kEfficiency = "matrix.efficiency";
constexpr const char* kMemory = "memory";
constexpr const char* kAttention = "attention.sustained";
constexpr const char* kEightBit = "matrix.fp8_sustained";
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

// One of the numbers that runs fix.
struct Number {
  Parameter parameter;
  void (*set)(Kernels& kernels, double value);
};

void set(const std::vector<Number>& numbers, std::span<const double> values, Device& device) {
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].set(device.kernels, values[i]);
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

// Memory: what elementwise kernels reach (calculon-ai/calculon, systems/h100_80g_nvl8.json: 0.75
// at 10 MB, 0.9 from 100 MB up). Attention: what kernels that last long keep of the rate of short
// ones, 0.85 forward on a B200 (flashinfer-ai/flashinfer#2899) to 0.97 backward on an H200
// (NVIDIA/cudnn-frontend, benchmark/attention_training). What lies beyond these bounds has
// another cause. 8 bits: at most, power takes about nothing of a rested device's rate, where it
// takes a quarter of that of 16 bits.
std::vector<Number> numbers_of(const Kernels& kernels, const std::vector<Run>& runs) {
  const auto number = [](const char* name, double given, double least, double most,
                         void (*set)(Kernels&, double)) {
    return Number{{name, std::clamp(given, least, most), least, most}, set};
  };
  std::vector<Number> numbers = {
      number(kEfficiency, kernels.matrix.efficiency, 0.2, 1,
             [](Kernels& k, double v) { k.matrix.efficiency = v; }),
      number(kMemory, kernels.memory, kMemoryLeast, kMemoryMost,
             [](Kernels& k, double v) { k.memory = v; }),
      number(kAttention, kernels.usual().sustained, kAttentionLeast, 1,
             [](Kernels& k, double v) {
               for (auto& [name, attention] : k.attention) attention.sustained = v;
             })};
  if (std::any_of(runs.begin(), runs.end(),
                  [](const Run& run) { return has_eight_bit_product(run.job); })) {
    numbers.push_back(number(kEightBit, kernels.matrix.fp8_sustained, 1, kEightBitMost,
                             [](Kernels& k, double v) { k.matrix.fp8_sustained = v; }));
  }
  return numbers;
}

void check_held(const std::vector<std::string>& held) {
  const std::vector<std::string> names = {kEfficiency, kMemory, kAttention, kEightBit};
  for (const std::string& name : held) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw Error("--hold " + name,
                fmt::format("no number that runs fix{}; they are {}", did_you_mean(name, names),
                            fmt::join(names, ", ")));
  }
}

// Those to fit. Throws Error if all are held.
std::vector<Number> without_held(std::vector<Number> numbers,
                                 const std::vector<std::string>& held) {
  std::erase_if(numbers, [&](const Number& number) {
    return std::find(held.begin(), held.end(), number.parameter.name) != held.end();
  });
  if (numbers.empty()) throw Error("--hold", "nothing is left that these runs could fix");
  return numbers;
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
                    std::size_t rows_each, const std::vector<std::string>& held) {
  check_held(held);
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
  const std::vector<Number> numbers = without_held(numbers_of(device.kernels, runs), held);
  for (Run& run : runs) {  // what is held is the given device's, not the shipped one's
    Kernels& kernels = run.cluster.device.kernels;
    kernels.matrix = device.kernels.matrix;
    kernels.memory = device.kernels.memory;
    kernels.attention = device.kernels.attention;
  }
  std::vector<Parameter> parameters;
  for (const Number& number : numbers) parameters.push_back(number.parameter);
  const Predict predict = [&](std::span<const double> values, std::span<double> times) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      Run& run = runs[i];
      set(numbers, values, run.cluster.device);
      const Prices prices = price(run.job, run.cluster);
      times[i] = to_seconds(simulate(run.job, prices).step).value;
    }
  };
  const SourceFit fitted = fit_by_source(parameters, measured, source_of, predict);

  FittedRuns result{device, {}, {}, {}};
  for (const Parameter& parameter : parameters) result.numbers.push_back(parameter.name);
  std::vector<double> values;
  for (const double value : fitted.values) values.push_back(three_digits(value));
  set(numbers, values, result.device);
  result.device.kernels.matrix.basis = Basis::kFitted;
  result.device.kernels.memory_basis = Basis::kFitted;
  for (auto& [name, attention] : result.device.kernels.attention) {
    attention.basis = Basis::kFitted;
  }
  // What a rested device does has not changed.
  MatrixKernels& matrix = result.device.kernels.matrix;
  matrix.burst = std::max(
      1.0, three_digits(matrix.burst * device.kernels.matrix.efficiency / matrix.efficiency));
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
