// Least absolute log-errors by Subplex, which is the downhill simplex on small groups of parameters
// in turn (NLopt's LN_SBPLX). Restarted from where it ended until that gains nothing, as the
// simplex may collapse on the jumps of tile and wave counts.
#include "calibrate/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <nlopt.hpp>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr double kSquareBelow = 0.02;   // log-errors
constexpr int kRestarts = 4;
constexpr int kCallsMax = 4000;         // of each start
constexpr std::size_t kHands = 3;
constexpr double kSourceTolerance = 1e-3;  // sources differ by far more

struct Problem {
  const Predict* predict;
  std::span<const double> measured;
  std::vector<std::size_t> rows;        // that count
  std::vector<double> values, times;    // scratch
  std::vector<double> weights = {};     // by row; empty: all the same
  double tolerance = 1e-5;              // of the logs

  double loss(std::span<const double> logs) {
    for (std::size_t i = 0; i < logs.size(); ++i) values[i] = std::exp(logs[i]);
    (*predict)(values, times);
    double sum = 0, total = 0;
    for (const std::size_t row : rows) {
      const double r = std::log(times[row] / measured[row]);
      const double weight = weights.empty() ? 1 : weights[row];
      sum += weight * std::sqrt(r * r + kSquareBelow * kSquareBelow);
      total += weight;
    }
    STEPCAST_CHECK(std::isfinite(sum), "a predicted time that is not positive and finite");
    return sum / total;
  }
};

std::vector<double> minimise(const std::vector<Parameter>& parameters, Problem problem) {
  const std::size_t n = parameters.size();
  std::vector<double> at(n), least(n), most(n);
  for (std::size_t i = 0; i < n; ++i) {
    at[i] = std::log(parameters[i].value);
    least[i] = std::log(parameters[i].least);
    most[i] = std::log(parameters[i].most);
  }
  nlopt::opt search(nlopt::LN_SBPLX, static_cast<unsigned>(n));
  search.set_lower_bounds(least);
  search.set_upper_bounds(most);
  search.set_min_objective(
      [](const std::vector<double>& x, std::vector<double>&, void* data) {
        return static_cast<Problem*>(data)->loss(x);
      },
      &problem);
  search.set_maxeval(kCallsMax);
  search.set_xtol_rel(problem.tolerance);
  search.set_ftol_rel(problem.tolerance / 100);
  search.set_initial_step(0.2);
  double before = problem.loss(at);
  for (int start = 0; start < kRestarts; ++start) {
    double loss = before;
    search.optimize(at, loss);
    if (before - loss < problem.tolerance / 10) break;
    before = loss;
  }
  for (double& value : at) value = std::exp(value);
  return at;
}

}  // namespace

double quantile(std::span<const double> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

FitError fit_error(std::span<const double> predicted, std::span<const double> measured) {
  STEPCAST_CHECK(predicted.size() == measured.size(), "a prediction a row");
  FitError error;
  error.count = measured.size();
  if (error.count == 0) return error;
  std::vector<double> plain, absolute;
  for (std::size_t i = 0; i < error.count; ++i) {
    plain.push_back(predicted[i] / measured[i] - 1);
    absolute.push_back(std::abs(plain.back()));
  }
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  error.bias = mean(plain);
  error.mean_absolute = mean(absolute);
  std::sort(plain.begin(), plain.end());
  std::sort(absolute.begin(), absolute.end());
  error.median_bias = quantile(plain, 0.5);
  error.median_absolute = quantile(absolute, 0.5);
  error.p90_absolute = quantile(absolute, 0.9);
  return error;
}

Fit fit(const std::vector<Parameter>& parameters, std::span<const double> measured,
        const Predict& predict) {
  STEPCAST_CHECK(!parameters.empty() && !measured.empty(), "nothing to fit");
  const std::size_t count = measured.size();
  Problem problem{&predict, measured, {}, std::vector<double>(parameters.size()),
                  std::vector<double>(count)};
  problem.rows.resize(count);
  std::iota(problem.rows.begin(), problem.rows.end(), std::size_t{0});
  Fit result;
  result.values = minimise(parameters, problem);
  std::vector<double> times(count);
  predict(result.values, times);
  result.error = fit_error(times, measured);
  if (count < kHands * parameters.size()) return result;

  std::vector<double> left_out(count);
  for (std::size_t hand = 0; hand < kHands; ++hand) {
    problem.rows.clear();
    for (std::size_t row = 0; row < count; ++row) {
      if (row % kHands != hand) problem.rows.push_back(row);
    }
    predict(minimise(parameters, problem), times);
    for (std::size_t row = hand; row < count; row += kHands) left_out[row] = times[row];
  }
  result.left_out = fit_error(left_out, measured);
  return result;
}

SourceFit fit_by_source(const std::vector<Parameter>& parameters, std::span<const double> measured,
                        std::span<const std::size_t> source_of, const Predict& predict) {
  const std::size_t count = measured.size();
  STEPCAST_CHECK(!parameters.empty() && count > 0 && source_of.size() == count, "nothing to fit");
  const std::size_t sources = *std::max_element(source_of.begin(), source_of.end()) + 1;
  std::vector<double> rows_of(sources, 0);
  for (const std::size_t source : source_of) ++rows_of[source];

  Problem problem{&predict, measured, {}, std::vector<double>(parameters.size()),
                  std::vector<double>(count)};
  problem.tolerance = kSourceTolerance;
  for (std::size_t row = 0; row < count; ++row) {
    problem.weights.push_back(1 / rows_of[source_of[row]]);
  }
  const auto without = [&](std::size_t left_out) {
    problem.rows.clear();
    for (std::size_t row = 0; row < count; ++row) {
      if (source_of[row] != left_out) problem.rows.push_back(row);
    }
    return minimise(parameters, problem);
  };
  const auto error_of = [&](const std::vector<double>& times, std::size_t source) {
    std::vector<double> predicted, truth;
    for (std::size_t row = 0; row < count; ++row) {
      if (source_of[row] != source) continue;
      predicted.push_back(times[row]);
      truth.push_back(measured[row]);
    }
    return fit_error(predicted, truth);
  };
  SourceFit result;
  std::vector<double> times(count);
  result.values = without(sources);  // none
  predict(result.values, times);
  for (std::size_t s = 0; s < sources; ++s) result.errors.push_back(error_of(times, s));
  for (std::size_t s = 0; s < sources && sources > 1; ++s) {
    predict(without(s), times);
    result.left_out.push_back(error_of(times, s));
  }
  return result;
}

}  // namespace stepcast
