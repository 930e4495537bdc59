// Each source weighs the same: a row's weight is one over the rows of its source in the class, so
// that a table of a thousand small runs does not drown one of eight large ones. The cost: sorting.
#include "tools/validate/error_classes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "tools/validate/summary.h"

namespace stepcast {
namespace {

constexpr double kLowest = 0.1, kHighest = 0.9;

struct Weighted {
  double error = 0, weight = 0;
};

// The first error that at least `share` of the weight does not exceed.
double weighted_quantile(const std::vector<Weighted>& sorted, double share) {
  double sum = 0;
  for (const Weighted& one : sorted) {
    sum += one.weight;
    if (sum >= share - 1e-9) return one.error;
  }
  return sorted.back().error;
}

ErrorClass class_of(const std::vector<const ValidationRow*>& rows) {
  std::map<std::string, int> of_source;
  for (const ValidationRow* row : rows) ++of_source[label_of(*row)];
  ErrorClass one;
  one.runs = static_cast<int>(rows.size());
  one.sources = static_cast<int>(of_source.size());
  std::vector<Weighted> errors;
  for (const ValidationRow* row : rows) {
    const double weight = 1.0 / (one.sources * of_source.at(label_of(*row)));
    errors.push_back({*relative_error(*row), weight});
    one.bias += weight * errors.back().error;
    one.mean_absolute += weight * std::abs(errors.back().error);
  }
  std::stable_sort(errors.begin(), errors.end(),
                   [](const Weighted& a, const Weighted& b) { return a.error < b.error; });
  one.low = weighted_quantile(errors, kLowest);
  one.high = weighted_quantile(errors, kHighest);
  return one;
}

}  // namespace

std::vector<ErrorClass> error_classes(const std::vector<ValidationRow>& rows) {
  std::map<std::pair<std::string, std::string>, std::vector<const ValidationRow*>> members;
  for (const ValidationRow& row : rows) {
    if (!row.covered || !row.run || !relative_error(row) || row.variant == "unsteady") continue;
    for (const std::string& device : {std::string(), row.run->device}) {
      members[{device, row.run->kind}].push_back(&row);
      if (!is_kind_apart(row.run->kind)) members[{device, ""}].push_back(&row);
    }
  }
  std::vector<ErrorClass> classes;
  for (const auto& [key, those] : members) {
    if (static_cast<int>(those.size()) < kClassLeast) continue;
    classes.push_back(class_of(those));
    std::tie(classes.back().device, classes.back().kind) = key;
  }
  return classes;
}

}  // namespace stepcast
