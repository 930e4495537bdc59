// Sifting is one pass over all candidates, in parallel; ranking walks the simulated ones from the
// fastest on, a few forecasts at a time, whose results are judged in order. A batch has the same
// length on any number of threads, so that no result depends on how many there are.
#include "tools/search/explore.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "tools/base/parallel.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

constexpr std::size_t kBatch = 8;  // forecasts between two judgements
constexpr std::size_t kNearestForecast = 64;
constexpr std::size_t kNearestShown = 3;
constexpr std::size_t kProgressEvery = 64;  // candidates

enum class Fate : std::uint8_t { kRefused, kTooLarge, kSimulated };

struct Sifted {
  std::size_t cluster = 0, candidate = 0;
  Fate fate = Fate::kRefused;
  Bytes least;
  Duration step;
};

// "parallel.tensor" of "plan.json:7: parallel.tensor" and of "--set parallel.tensor".
std::string key_of(const Error& error) {
  return error.where().substr(error.where().rfind(' ') + 1);
}

class Exploration {
 public:
  Exploration(const std::vector<ClusterPlans>& clusters, const ExploreOptions& options)
      : clusters_(clusters),
        options_(options),
        threads_(options.threads > 0 ? options.threads : threads_at_hand()),
        fitting_(clusters.size()) {}

  Findings run() {
    const WhatIf& common = clusters_.front().question.common();
    findings_.capacity = common.cluster.device.memory;
    findings_.limit =
        std::min(findings_.capacity, common.expect_peak_memory.value_or(findings_.capacity));
    sift();
    rank();
    mark();
    find_nearest();
    return std::move(findings_);
  }

 private:
  void refuse(std::size_t index, const Error& error) {
    const std::scoped_lock lock(mutex_);
    auto& [count, first, example] = refusals_[key_of(error)];
    if (count++ == 0 || index < first) {
      first = index;
      example = error.message();
    }
  }

  void sift_one(std::size_t index) {
    Sifted& one = sifted_[index];
    const ClusterPlans& cluster = clusters_[one.cluster];
    try {
      const WhatIf what_if = cluster.question.with(cluster.candidates[one.candidate]);
      const Outline found = outline(what_if, findings_.limit);
      one.least = found.least;
      one.fate = found.step ? Fate::kSimulated : Fate::kTooLarge;
      if (found.step) one.step = *found.step;
    } catch (const Error& error) {
      refuse(index, error);
    }
    if (!options_.progress) return;
    const std::scoped_lock lock(mutex_);
    if (++done_ % kProgressEvery == 0 || done_ == sifted_.size()) {
      options_.progress(done_, sifted_.size());
    }
  }

  void sift() {
    for (std::size_t c = 0; c < clusters_.size(); ++c) {
      for (std::size_t i = 0; i < clusters_[c].candidates.size(); ++i) {
        sifted_.push_back({c, i, Fate::kRefused, Bytes(0), Duration()});
      }
    }
    in_parallel(sifted_.size(), threads_, [&](std::size_t i, std::size_t) { sift_one(i); });
    findings_.candidates = std::ssize(sifted_);
    for (auto& [key, seen] : refusals_) {
      findings_.refusals.push_back({key, std::get<0>(seen), std::get<2>(seen)});
    }
    std::stable_sort(findings_.refusals.begin(), findings_.refusals.end(),
                     [](const Refusal& a, const Refusal& b) { return a.count > b.count; });
    const auto count = [&](Fate fate) {
      return std::count_if(sifted_.begin(), sifted_.end(),
                           [&](const Sifted& one) { return one.fate == fate; });
    };
    findings_.refused = count(Fate::kRefused);
    findings_.too_large = count(Fate::kTooLarge);
    findings_.simulated = count(Fate::kSimulated);
  }

  // Those of one fate, by `key`; what was read first goes first among equals.
  template <class Key>
  std::vector<Sifted> sorted(Fate fate, Key key) const {
    std::vector<Sifted> found;
    std::copy_if(sifted_.begin(), sifted_.end(), std::back_inserter(found),
                 [&](const Sifted& one) { return one.fate == fate; });
    std::stable_sort(found.begin(), found.end(),
                     [&](const Sifted& a, const Sifted& b) { return key(a) < key(b); });
    return found;
  }

  std::vector<RankedPlan> forecast_all(const std::vector<Sifted>& some) const {
    std::vector<RankedPlan> plans(some.size());
    in_parallel(some.size(), threads_, [&](std::size_t i, std::size_t) {
      const ClusterPlans& cluster = clusters_[some[i].cluster];
      plans[i] = ranked_plan(cluster, cluster.candidates[some[i].candidate], options_.errors);
    });
    return plans;
  }

  bool needed(const Sifted& one) const {
    if (fitting_[one.cluster] < options_.top) return true;
    const double cost =
        to_seconds(one.step).value * static_cast<double>(clusters_[one.cluster].devices);
    return std::none_of(fit_.begin(), fit_.end(), [&](const RankedPlan& plan) {
      return plan.step <= one.step && plan.device_seconds() <= cost && plan.peak <= one.least;
    });
  }

  void judge(const Sifted& one, RankedPlan plan) {
    if (!needed(one)) {
      ++findings_.not_needed;
      return;
    }
    STEPCAST_CHECK(plan.step == one.step && plan.peak >= one.least, "an outline is of its plan");
    if (plan.peak > findings_.limit) {
      ++findings_.too_fragmented;
      misfits_.push_back(std::move(plan));
      return;
    }
    ++findings_.fit;
    ++fitting_[one.cluster];
    if (fitting_[one.cluster] <= options_.top) {
      plan.rank = static_cast<std::int32_t>(fitting_[one.cluster]);
    }
    fit_.push_back(std::move(plan));
  }

  void rank() {
    const std::vector<Sifted> order =
        sorted(Fate::kSimulated, [](const Sifted& one) { return std::tuple(one.step, one.least); });
    for (std::size_t at = 0; at < order.size();) {
      std::vector<Sifted> batch;
      for (; at < order.size() && batch.size() < kBatch; ++at) {
        if (needed(order[at])) {
          batch.push_back(order[at]);
        } else {
          ++findings_.not_needed;
        }
      }
      std::vector<RankedPlan> plans = forecast_all(batch);
      for (std::size_t i = 0; i < batch.size(); ++i) judge(batch[i], std::move(plans[i]));
    }
  }

  void mark() {
    for (RankedPlan& plan : fit_) {
      plan.pareto = std::none_of(fit_.begin(), fit_.end(), [&](const RankedPlan& other) {
        const auto key = [](const RankedPlan& p) {
          return std::tuple(p.step, p.peak, p.device_seconds());
        };
        return other.step <= plan.step && other.peak <= plan.peak &&
               other.device_seconds() <= plan.device_seconds() && key(other) != key(plan);
      });
      // Plans are in order of step time.
      const auto first = std::find_if(fit_.begin(), fit_.end(), [&](const RankedPlan& other) {
        return other.devices == plan.devices;
      });
      plan.tie = plan.low <= first->high;
    }
    std::erase_if(fit_, [](const RankedPlan& plan) { return plan.rank == 0 && !plan.pareto; });
    std::stable_sort(fit_.begin(), fit_.end(), [](const RankedPlan& a, const RankedPlan& b) {
      return a.devices < b.devices;
    });
    findings_.plans = std::move(fit_);
  }

  void find_nearest() {
    const std::size_t most = findings_.fit > 0 ? 1 : kNearestShown;
    const auto sort_misfits = [&] {
      std::stable_sort(misfits_.begin(), misfits_.end(),
                       [](const RankedPlan& a, const RankedPlan& b) { return a.peak < b.peak; });
    };
    sort_misfits();
    std::vector<Sifted> order =
        sorted(Fate::kTooLarge, [](const Sifted& one) { return one.least; });
    if (order.size() > kNearestForecast) order.resize(kNearestForecast);
    for (std::size_t at = 0; at < order.size(); at += kBatch) {
      const bool enough = misfits_.size() >= most;
      if (enough && misfits_[most - 1].peak <= order[at].least) break;
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end =
          order.begin() + static_cast<std::ptrdiff_t>(std::min(at + kBatch, order.size()));
      for (RankedPlan& plan : forecast_all({begin, end})) misfits_.push_back(std::move(plan));
      sort_misfits();
    }
    if (misfits_.size() > most) misfits_.resize(most);
    findings_.nearest = std::move(misfits_);
  }

  const std::vector<ClusterPlans>& clusters_;
  const ExploreOptions& options_;
  std::size_t threads_;
  std::vector<Sifted> sifted_;
  std::mutex mutex_;  // of the next two
  std::map<std::string, std::tuple<std::int64_t, std::size_t, std::string>> refusals_;
  std::size_t done_ = 0;
  std::vector<std::size_t> fitting_;  // found, of each cluster
  std::vector<RankedPlan> fit_, misfits_;
  Findings findings_;
};

}  // namespace

RankedPlan ranked_plan(const ClusterPlans& cluster, const std::vector<std::string>& sets,
                       const std::vector<ErrorClass>& errors) {
  ForecastOptions options;
  options.errors = errors;
  const Report report = forecast(cluster.question.with(sets), options).report;
  RankedPlan plan;
  plan.devices = cluster.devices;
  plan.sets = cluster.sets;
  plan.sets.insert(plan.sets.end(), sets.begin(), sets.end());
  plan.config = report.config;
  plan.step = report.timeline.step;
  plan.low = report.low;
  plan.high = report.high;
  plan.range_from = report.range_from;
  plan.tokens_per_second_per_device = report.tokens_per_second_per_device;
  plan.mfu = report.mfu;
  plan.bubble_fraction = report.timeline.bubble_fraction;
  plan.peak = device_peak(report.footprint);
  return plan;
}

Findings explore(const std::vector<ClusterPlans>& clusters, const ExploreOptions& options) {
  return Exploration(clusters, options).run();
}

}  // namespace stepcast
