// Errors of rows, summed up. A group is what one bench measured on one machine, so that a good
// number of one source cannot hide a bad one of another; runs are ordered only among plans for the
// same work on the same cluster, since any order across models is easy. Kendall's tau costs n^2 a
// group, all else is linear.
#include "tools/validate/summary.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "tools/forecast/fidelity.h"
#include "tools/validate/runs.h"

namespace stepcast {
namespace {

constexpr double kNear = 0.05, kClose = 0.10;
constexpr std::size_t kCutLeast = 3;  // two plans are in the right order by chance every other time

using Pointers = std::vector<const ValidationRow*>;

double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

std::optional<double> tau_of(const Pointers& rows) {
  std::vector<double> predicted, measured;
  for (const ValidationRow* row : rows) {
    predicted.push_back(*row->predicted_seconds);
    measured.push_back(*row->measured_seconds);
  }
  return kendall_tau_b(predicted, measured);
}

std::map<std::string, Pointers> cuts_of(const Pointers& timed) {
  std::map<std::string, Pointers> cuts;
  for (const ValidationRow* row : timed) {
    if (row->run) cuts[row->run->cut].push_back(row);
  }
  std::erase_if(cuts, [](const auto& cut) { return cut.second.size() < kCutLeast; });
  return cuts;
}

std::optional<double> order_of(const Pointers& timed) {
  if (timed.empty() || !timed.front()->run) return tau_of(timed);
  double sum = 0, weight = 0;
  for (const auto& [key, members] : cuts_of(timed)) {
    const auto tau = tau_of(members);
    if (!tau) continue;
    sum += *tau * static_cast<double>(members.size());
    weight += static_cast<double>(members.size());
  }
  return weight > 0 ? std::optional(sum / weight) : std::nullopt;
}

void add_memory(const ValidationRow& row, std::vector<double>& peaks,
                std::vector<double>& residents, std::vector<double>& stages) {
  if (const auto error = memory_relative_error(row)) peaks.push_back(*error);
  if (!row.run) return;
  const RunDetails& run = *row.run;
  if (run.predicted_resident && run.measured_resident) {
    residents.push_back(*run.predicted_resident / *run.measured_resident - 1);
  }
  for (const StageBytes& stage : run.stages) {
    stages.push_back(stage.predicted / stage.measured - 1);
  }
}

// All but the names.
ValidationSummary summary_of(const Pointers& rows) {
  ValidationSummary summary;
  summary.rows = static_cast<int>(rows.size());
  Pointers timed;
  std::vector<double> times, peaks, residents, stages;
  for (const ValidationRow* row : rows) {
    if (!row->covered) continue;
    add_memory(*row, peaks, residents, stages);
    const auto error = relative_error(*row);
    if (!error) continue;
    times.push_back(*error);
    timed.push_back(row);
  }
  summary.time = summarise_errors(times);
  summary.memory = summarise_errors(peaks);
  summary.resident = summarise_errors(residents);
  summary.stages = summarise_errors(stages);
  for (const ValidationRow* row : timed) {
    if (!row->run) continue;
    for (std::size_t i = 0; i < kParts; ++i) {
      summary.parts[i] +=
          row->run->seconds[i] / *row->predicted_seconds / static_cast<double>(timed.size());
    }
  }
  summary.kendall_tau = order_of(timed);
  return summary;
}

// The mean of one kind of error over the sources that have any.
ErrorSummary mean_errors(const std::vector<ValidationSummary>& sources,
                         ErrorSummary ValidationSummary::*errors) {
  ErrorSummary mean;
  double n = 0;
  for (const ValidationSummary& source : sources) {
    const ErrorSummary& one = source.*errors;
    if (one.count == 0) continue;
    ++n;
    mean.count += one.count;
    mean.mean_absolute += one.mean_absolute;
    mean.median_absolute += one.median_absolute;
    mean.p90_absolute += one.p90_absolute;
    mean.signed_bias += one.signed_bias;
    mean.within_5_percent += one.within_5_percent;
    mean.within_10_percent += one.within_10_percent;
  }
  if (n == 0) return mean;
  for (double* value : {&mean.mean_absolute, &mean.median_absolute, &mean.p90_absolute,
                        &mean.signed_bias, &mean.within_5_percent, &mean.within_10_percent}) {
    *value /= n;
  }
  return mean;
}

// A refused plan names its numbers; what is counted is the rule that it breaks.
std::string rule_of(const std::string& reason) {
  if (!reason.starts_with("what-if")) return reason;
  std::string rule;
  for (const char c : reason) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) rule += c;
    if (digit && (rule.empty() || rule.back() != 'N')) rule += 'N';
  }
  return rule;
}

using Counts = std::map<std::pair<std::string, std::string>, int>;

std::vector<Reason> most_frequent(const Counts& counts) {
  std::vector<Reason> reasons;
  for (const auto& [key, count] : counts) reasons.push_back({key.first, key.second, count});
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const Reason& a, const Reason& b) { return a.rows > b.rows; });
  return reasons;
}

}  // namespace

ErrorSummary summarise_errors(const std::vector<double>& errors) {
  ErrorSummary summary;
  summary.count = static_cast<int>(errors.size());
  if (errors.empty()) return summary;
  std::vector<double> absolute;
  double near = 0, close = 0;
  const double n = static_cast<double>(errors.size());
  for (const double error : errors) {
    absolute.push_back(std::abs(error));
    if (absolute.back() <= kNear) ++near;
    if (absolute.back() <= kClose) ++close;
  }
  summary.mean_absolute = std::accumulate(absolute.begin(), absolute.end(), 0.0) / n;
  summary.median_absolute = median_of(absolute);
  summary.signed_bias = std::accumulate(errors.begin(), errors.end(), 0.0) / n;
  summary.within_5_percent = near / n;
  summary.within_10_percent = close / n;
  std::sort(absolute.begin(), absolute.end());
  summary.p90_absolute = quantile(absolute, 0.9);
  return summary;
}

std::optional<double> kendall_tau_b(const std::vector<double>& x, const std::vector<double>& y) {
  STEPCAST_CHECK(x.size() == y.size(), "as many x as y");
  double balance = 0, tied_x = 0, tied_y = 0, pairs = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double in_x = sign_of(x[i] - x[j]), in_y = sign_of(y[i] - y[j]);
      balance += in_x * in_y;
      if (in_x == 0) ++tied_x;
      if (in_y == 0) ++tied_y;
      ++pairs;
    }
  }
  const double scale = std::sqrt((pairs - tied_x) * (pairs - tied_y));
  return scale > 0 ? std::optional(balance / scale) : std::nullopt;
}

std::vector<ValidationSummary> summarise(const std::vector<ValidationRow>& rows) {
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;
  std::map<Key, Pointers> groups;
  for (const ValidationRow& row : rows) {
    groups[{row.kind, row.source, row.group, row.gpu, row.variant}].push_back(&row);
  }
  std::vector<ValidationSummary> summaries;
  for (const auto& [key, members] : groups) {
    ValidationSummary& summary = summaries.emplace_back(summary_of(members));
    std::tie(summary.kind, summary.source, summary.group, summary.gpu, summary.variant) = key;
  }
  return summaries;
}

std::vector<ValidationSummary> summarise_by(
    const std::vector<ValidationRow>& rows,
    const std::function<std::string(const ValidationRow&)>& name_of) {
  std::map<std::string, Pointers> groups;
  for (const ValidationRow& row : rows) {
    if (const std::string name = name_of(row); !name.empty()) groups[name].push_back(&row);
  }
  std::vector<ValidationSummary> summaries;
  for (const auto& [name, members] : groups) {
    summaries.push_back(summary_of(members));
    summaries.back().name = name;
    summaries.back().fitted = std::any_of(members.begin(), members.end(),
                                          [](const ValidationRow* row) { return row->fitted; });
  }
  return summaries;
}

std::vector<ValidationSummary> unseen(std::vector<ValidationSummary> sources) {
  std::erase_if(sources, [](const ValidationSummary& one) { return one.fitted; });
  return sources;
}

ValidationSummary mean_of(const std::vector<ValidationSummary>& sources) {
  ValidationSummary mean;
  mean.time = mean_errors(sources, &ValidationSummary::time);
  mean.memory = mean_errors(sources, &ValidationSummary::memory);
  mean.resident = mean_errors(sources, &ValidationSummary::resident);
  mean.stages = mean_errors(sources, &ValidationSummary::stages);
  double timed = 0, ordered = 0, tau = 0;
  for (const ValidationSummary& one : sources) {
    mean.rows += one.rows;
    if (one.time.count > 0) ++timed;
    for (std::size_t i = 0; i < kParts; ++i) mean.parts[i] += one.parts[i];
    if (!one.kendall_tau) continue;
    ++ordered;
    tau += *one.kendall_tau;
  }
  for (double& part : mean.parts) part /= std::max(timed, 1.0);
  if (ordered > 0) mean.kendall_tau = tau / ordered;
  return mean;
}

bool ordinary_run(const ValidationRow& row) { return row.kind == "run" && row.variant.empty(); }

std::string label_of(const ValidationRow& row) {
  return row.group.empty() ? row.source : row.group;
}

std::vector<ValidationSummary> runs_by_source(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) ? label_of(row) : "";
  });
}

std::vector<ValidationSummary> launch_bound_runs(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return row.kind == "run" && row.variant == kLaunchBound ? label_of(row) : "";
  });
}

std::vector<ValidationSummary> unsteady_runs(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return row.kind == "run" && row.variant == "unsteady" ? label_of(row) : "";
  });
}

std::vector<ValidationSummary> runs_by_gpu(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) && row.covered ? row.gpu : "";
  });
}

std::vector<ValidationSummary> runs_by_plan(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) {
    return ordinary_run(row) && row.covered ? row.run->plan : "";
  });
}

std::vector<ValidationSummary> runs_by_work(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) -> std::string {
    if (!row.run || row.variant == "unsteady") return "";
    const double launches = row.run->layer_launches;
    if (launches < kLayerKernels) return "  0 to 24";
    if (launches < 96) return " 24 to 96";
    if (launches < 384) return " 96 to 384";
    return "384 and more";
  });
}

std::vector<ValidationSummary> collectives_by_size(const std::vector<ValidationRow>& rows) {
  return summarise_by(rows, [](const ValidationRow& row) -> std::string {
    if (!row.size || *row.size < 1 || row.variant == "degraded") return "";
    constexpr const char* kDecades[] = {"from 1 B",    "from 10 B",  "from 100 B", "from 1 kB",
                                        "from 10 kB",  "from 100 kB", "from 1 MB",  "from 10 MB",
                                        "from 100 MB", "from 1 GB",   "from 10 GB"};
    const auto decade = static_cast<std::size_t>(std::log10(*row.size) + 1e-9);
    // The index sorts; it is cut off before it is shown.
    return fmt::format("{}\n{:02}\n{}", row.gpu, decade,
                       kDecades[std::min(decade, std::size(kDecades) - 1)]);
  });
}

std::pair<std::string, std::string> gpu_and_size(const std::string& name) {
  return {name.substr(0, name.find('\n')), name.substr(name.rfind('\n') + 1)};
}

std::vector<Reason> reasons_of(const std::vector<ValidationRow>& rows) {
  Counts counts;
  for (const ValidationRow& row : rows) {
    if (!row.covered) ++counts[{row.kind, rule_of(row.reason)}];
  }
  return most_frequent(counts);
}

std::vector<Reason> assumptions_of(const std::vector<ValidationRow>& rows) {
  Counts counts;
  for (const ValidationRow& row : rows) {
    if (!row.covered || row.kind != "run") continue;
    std::set<std::string> once;
    for (const std::string& one : row.assumed) once.insert(one.substr(0, one.find(" (")));
    for (const std::string& one : once) ++counts[{row.kind, one}];
  }
  return most_frequent(counts);
}

std::vector<MissSummary> misses_of(const std::vector<ValidationRow>& rows) {
  std::map<std::string, MissSummary> causes;
  std::map<std::string, std::map<std::string, int>> sources;
  for (const ValidationRow& row : rows) {
    const auto error = relative_error(row);
    if (!row.covered || !ordinary_run(row) || !error || std::abs(*error) <= kMiss) continue;
    MissSummary& one = causes[row.cause];
    one.cause = row.cause.empty() ? "not understood" : row.cause;
    ++(*error < 0 ? one.too_fast : one.too_slow);
    ++sources[row.cause][label_of(row)];
  }
  std::vector<MissSummary> misses;
  for (auto& [cause, one] : causes) {
    for (const auto& [source, count] : sources[cause]) {
      one.sources += fmt::format("{}{} {}", one.sources.empty() ? "" : ", ", source, count);
    }
    misses.push_back(std::move(one));
  }
  std::stable_sort(misses.begin(), misses.end(), [](const MissSummary& a, const MissSummary& b) {
    return a.too_fast + a.too_slow > b.too_fast + b.too_slow;
  });
  return misses;
}

namespace {

// Of two plans whose logarithms of time lie d apart, forecasts with errors of standard deviation s
// find the order with probability Phi(d / (s sqrt 2)): a pair counts 2 Phi - 1 = erf(d / (2 s)).
double tau_of_good(const Pointers& members) {
  double sum = 0, pairs = 0;
  for (auto a = members.begin(); a != members.end(); ++a) {
    for (auto b = members.begin(); b != a; ++b, ++pairs) {
      const double apart = std::log(*(*a)->measured_seconds / *(*b)->measured_seconds);
      sum += std::erf(std::abs(apart) / (2 * kGoodError));
    }
  }
  return sum / pairs;
}

}  // namespace

std::vector<CutSummary> summarise_cuts(const std::vector<ValidationRow>& rows) {
  Pointers timed;
  for (const ValidationRow& row : rows) {
    if (row.variant == "unsteady") continue;
    if (row.covered && row.run && relative_error(row)) timed.push_back(&row);
  }
  const auto predicted = [](const auto* a, const auto* b) {
    return *a->predicted_seconds < *b->predicted_seconds;
  };
  const auto measured = [](const auto* a, const auto* b) {
    return *a->measured_seconds < *b->measured_seconds;
  };
  std::vector<CutSummary> summaries;
  for (const auto& [key, members] : cuts_of(timed)) {
    const ValidationRow& first = *members.front();
    CutSummary& cut = summaries.emplace_back();
    cut.source = first.group.empty() ? first.source : first.group;
    cut.name = first.run->cut_name;
    cut.launch_bound = std::any_of(members.begin(), members.end(),
                                   [](const auto* row) { return row->variant == kLaunchBound; });
    cut.count = static_cast<int>(members.size());
    cut.kendall_tau = tau_of(members);
    cut.tau_of_good = tau_of_good(members);
    const auto* choice = *std::min_element(members.begin(), members.end(), predicted);
    const auto [best, worst] = std::minmax_element(members.begin(), members.end(), measured);
    cut.regret = *choice->measured_seconds / *(*best)->measured_seconds - 1;
    cut.spread = *(*worst)->measured_seconds / *(*best)->measured_seconds;
    cut.best_at = 1 + static_cast<int>(std::count_if(
                          members.begin(), members.end(), [&predicted, best_row = *best](
                              const auto* row) { return predicted(row, best_row); }));
  }
  std::stable_sort(summaries.begin(), summaries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.source, b.count, a.name) < std::tie(b.source, a.count, b.name);
  });
  return summaries;
}

}  // namespace stepcast
