// Fit: a model's few parameters from many measured times.
//
// Minimises over the parameters the mean of
//   sqrt(r^2 + 0.02^2),   r = log(predicted / measured)
// Near r = 0 these are squares, further out absolute values: a row that is off by a factor (a
// misconfigured cluster, a slip in a table) pulls no more than one that is off a little, and the
// parameters are such that as many rows come out too fast as too slow.
//
// Over-fitting shows in the left-out error: the rows are dealt into three hands, each hand is
// predicted by the parameters that the other two give.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace stepcast {

// What is searched for: least <= value <= most, all > 0. The search moves in log(value).
struct Parameter {
  std::string name;
  double value = 0;  // where the search begins
  double least = 0, most = 0;
};

// Predicts the times of all rows; `times` has one element a row. Positive and finite.
using Predict = std::function<void(std::span<const double> values, std::span<double> times)>;

// Relative errors (predicted / measured - 1) over some rows.
struct FitError {
  std::size_t count = 0;
  double median_absolute = 0;
  double mean_absolute = 0;
  double p90_absolute = 0;  // 90th percentile
  double bias = 0;          // mean, signed
  double median_bias = 0;
};
// Of ascending values, at least one: between the two nearest, linear. `share` is 0 to 1.
double quantile(std::span<const double> sorted, double share);
// REQUIRES: at least one value.
double median_of(std::vector<double> values);

FitError fit_error(std::span<const double> predicted, std::span<const double> measured);

struct Fit {
  std::vector<double> values;  // in the order of the parameters
  FitError error;              // of the rows that it was made from
  FitError left_out;           // count 0 if there are fewer rows than three a parameter
};

// Subplex (Rowan 1990), as NLopt has it: no derivatives, so waves and tiles may jump.
// Deterministic. REQUIRES: at least one parameter and one row; measured times > 0.
// Cost: up to a few thousand calls of `predict`.
Fit fit(const std::vector<Parameter>& parameters, std::span<const double> measured,
        const Predict& predict);

// The same for rows of several sources, each of which weighs the same however many rows it has.
// Over-fitting shows in whole sources left out: each is predicted by the parameters that all others
// give. `source_of[row]` counts from 0, without gaps.
struct SourceFit {
  std::vector<double> values;
  std::vector<FitError> errors;    // by source, of the fit to all
  std::vector<FitError> left_out;  // by source, of the fit to the others; empty: only one source
};
SourceFit fit_by_source(const std::vector<Parameter>& parameters, std::span<const double> measured,
                        std::span<const std::size_t> source_of, const Predict& predict);

}  // namespace stepcast
