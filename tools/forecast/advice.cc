// A search of depth one, or two where one change is not enough: plain enumeration of what an
// engineer would try, with the simulator as the judge. Pairs are tried in the order of the peak
// that they would have if their savings added up. Cost: one forecast a change, bounded by a budget
// of simulated instructions, so that the answer does not depend on the speed of the machine.
//
// A change is written as --set would write it and applied to the resolved what-if. All values are
// absolute, and what a changed key's default would drag along (the global batch) is set too: given
// to --set on the original file, the same text therefore leads to the same forecast.
#include "tools/forecast/advice.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr int kSimulationsMax = 60;
constexpr int kSimulationsMin = 3;
constexpr std::int64_t kInstructionsBudget = 300'000'000;
constexpr std::int64_t kCallCost = 100;  // lowering, verifying, keeping a call, in instructions
constexpr std::size_t kFittingMost = 4;  // suggestions if the plan does not fit
constexpr std::size_t kFasterMost = 3;   // if it does
constexpr double kFasterLeast = 0.02;    // a gain below this is within the forecast's own error

// ---------------------------------------------------------------------------------- the changes

std::string set_text(std::string_view path, std::int64_t value) {
  return fmt::format("{}={}", path, value);
}

// A left-out global batch is micro x data: where that is what stands there, it has to be kept.
void keep_global_batch(const Plan& plan, std::vector<std::string>& sets) {
  if (plan.micro_batches() == 1) sets.push_back(set_text("batch.global", plan.global_batch));
}

void lay_out_again(const Plan& plan, const Model& model, std::int64_t pipeline,
                   std::int64_t virtual_stages, std::vector<std::string>& sets) {
  if (has_to_balance(plan.layout, model, pipeline, virtual_stages)) {
    sets.push_back("parallel.stages=balanced");
  }
}

// Experts' exchanges beside other work, where the plan has that and, cut so, no longer can.
void end_overlap(const Plan& plan, std::int64_t expert, std::int64_t pipeline, bool interleaved,
                 std::vector<std::string>& sets) {
  if (plan.expert_overlap && !can_overlap_experts(expert, pipeline, interleaved)) {
    sets.emplace_back("parallel.expert_overlap=false");
  }
}

std::vector<std::string> degrees(const Plan& plan, const Model& model, std::int64_t tensor,
                                 std::int64_t pipeline, std::int64_t data) {
  std::vector<std::string> sets;
  if (tensor != plan.tensor) {
    sets.push_back(set_text("parallel.tensor", tensor));
    // Tensor ranks share experts, or cut each; and give them different tokens.
    if (model.experts > 0 && (plan.expert_tensor > 1 || plan.expert == 1)) {
      sets.push_back(set_text("parallel.expert_tensor", tensor));
    }
    if (model.experts > 0 && tensor > 1 && !plan.sequence_parallel) {
      sets.emplace_back("parallel.sequence_parallel=true");
    }
  }
  if (pipeline != plan.pipeline) {
    sets.push_back(set_text("parallel.pipeline", pipeline));
    const bool interleaved = plan.schedule == PipelineSchedule::kInterleaved;
    const bool one = pipeline == 1 && interleaved;
    if (one) {
      sets.push_back("parallel.virtual_stages=1");
      sets.push_back("parallel.schedule=1f1b");
    }
    lay_out_again(plan, model, pipeline, one ? 1 : plan.virtual_stages, sets);
    end_overlap(plan, plan.expert, pipeline, interleaved, sets);
  }
  if (data != plan.data) {
    sets.push_back(set_text("parallel.data", data));
    keep_global_batch(plan, sets);
  }
  return sets;
}

void add_degrees(const Plan& plan, const Model& model, std::vector<Change>& changes) {
  const std::int64_t t = plan.tensor, p = plan.pipeline, d = plan.data;
  const auto add = [&](const char* name, std::int64_t tensor, std::int64_t pipeline,
                       std::int64_t data) {
    changes.push_back({name, degrees(plan, model, tensor, pipeline, data)});
  };
  if (d % 2 == 0) add("tensor x 2, data / 2", 2 * t, p, d / 2);
  if (t % 2 == 0) add("tensor / 2, data x 2", t / 2, p, 2 * d);
  if (d % 2 == 0) add("pipeline x 2, data / 2", t, 2 * p, d / 2);
  if (p % 2 == 0) add("pipeline / 2, data x 2", t, p / 2, 2 * d);
  if (t % 2 == 0) add("tensor / 2, pipeline x 2", t / 2, 2 * p, d);
  if (p % 2 == 0) add("tensor x 2, pipeline / 2", 2 * t, p / 2, d);
}

// Context ranks instead of data ranks, and back.
void add_context(const Plan& plan, const Model& model, std::vector<Change>& changes) {
  const bool sliding = model.window > 0 && model.window < plan.attended();
  const auto add = [&](const char* name, std::int64_t context, std::int64_t data) {
    std::vector<std::string> sets = {set_text("parallel.context", context),
                                     set_text("parallel.data", data)};
    if (context > 1 && plan.context == 1 && (model.latent() || sliding)) {  // by heads alone
      sets.emplace_back("parallel.context_exchange=all_to_all");
    }
    keep_global_batch(plan, sets);
    changes.push_back({name, std::move(sets)});
  };
  const bool more = 2 * plan.context <= most_context(plan.sequence_length);
  if (more && plan.data % 2 == 0) add("context x 2, data / 2", 2 * plan.context, plan.data / 2);
  if (plan.context % 2 == 0) add("context / 2, data x 2", plan.context / 2, 2 * plan.data);
  if (plan.context == 1) return;
  constexpr std::tuple<ContextExchange, const char*, const char*> kExchanges[] = {
      {ContextExchange::kRing, "keys and values round a ring", "parallel.context_exchange=ring"},
      {ContextExchange::kAllGather, "keys and values gathered",
       "parallel.context_exchange=all_gather"},
      {ContextExchange::kAllToAll, "heads shared out", "parallel.context_exchange=all_to_all"}};
  for (const auto& [exchange, name, set] : kExchanges) {
    if (exchange != plan.context_exchange) changes.push_back({name, {set}});
  }
}

// Twice or half as many ranks share the experts.
void add_experts(const Plan& plan, const Model& model, std::vector<Change>& changes) {
  const bool interleaved = plan.schedule == PipelineSchedule::kInterleaved;
  const auto add = [&](const char* name, std::int64_t expert) {
    std::vector<std::string> sets = {set_text("parallel.expert", expert)};
    if (expert > 1 && plan.zero > 1) sets.push_back(set_text("sharding.zero", 1));
    end_overlap(plan, expert, plan.pipeline, interleaved, sets);
    changes.push_back({name, std::move(sets)});
  };
  if (model.experts > 0 && model.experts % (2 * plan.expert) == 0) {
    add("expert x 2", 2 * plan.expert);
  }
  if (plan.expert % 2 == 0) add("expert / 2", plan.expert / 2);
  if (plan.expert * plan.expert_tensor == 1) return;
  if (plan.expert_overlap) {
    changes.push_back({"experts' exchanges by themselves", {"parallel.expert_overlap=false"}});
  } else if (can_overlap_experts(plan.expert, plan.pipeline, interleaved)) {
    changes.push_back({"experts' exchanges overlapped", {"parallel.expert_overlap=true"}});
  }
  const bool sent = plan.expert_exchange == ExpertExchange::kAllToAll;
  changes.push_back(
      {sent ? "tokens gathered" : "tokens sent to their experts",
       {sent ? "parallel.expert_exchange=all_gather" : "parallel.expert_exchange=all_to_all"}});
}

void add_pipeline(const Plan& plan, const Model& model, std::vector<Change>& changes) {
  if (plan.pipeline == 1) return;
  const auto interleave = [&](const char* name, std::int64_t chunks) {
    std::vector<std::string> sets = {set_text("parallel.virtual_stages", chunks),
                                     chunks > 1 ? "parallel.schedule=interleaved"
                                                : "parallel.schedule=1f1b"};
    if (chunks > 1 && plan.p2p_sync) sets.emplace_back("host.p2p_sync=false");
    if (chunks > 1 && plan.pass_sync) sets.emplace_back("host.pass_sync=false");
    if (chunks > 1 && plan.launch_blocking) sets.emplace_back("host.launch_blocking=false");
    end_overlap(plan, plan.expert, plan.pipeline, chunks > 1, sets);
    lay_out_again(plan, model, plan.pipeline, chunks, sets);
    changes.push_back({name, std::move(sets)});
  };
  interleave("virtual stages x 2", 2 * plan.virtual_stages);
  if (plan.virtual_stages > 1) interleave("no virtual stages", 1);
  if (plan.schedule == PipelineSchedule::kGpipe) {
    changes.push_back({"1f1b", {"parallel.schedule=1f1b"}});
  }
  if (plan.layout != StageLayout::kBalanced) {
    changes.push_back({"balanced stages", {"parallel.stages=balanced"}});
  }
  if (!plan.pipeline_overlap) {
    std::vector<std::string> sets = {"host.p2p_sync=false", "parallel.pipeline_overlap=true"};
    if (plan.launch_blocking) sets.emplace_back("host.launch_blocking=false");
    changes.push_back({"pipeline overlap", std::move(sets)});
  }
}

void add_memory(const Plan& plan, std::vector<Change>& changes) {
  const std::int64_t copies = plan.context * plan.data;  // of the state, unless it is sharded
  const bool every_layer = plan.recompute == Recompute::kFull && plan.recompute_every == 1 &&
                           plan.recompute_layers == 0;
  if (plan.recompute != Recompute::kNone) {
    changes.push_back({"no recompute", {"recompute=none"}});
  }
  if (plan.recompute != Recompute::kSelective && !plan.fused_attention) {
    changes.push_back({"selective recompute", {"recompute=selective"}});
  }
  if (!every_layer) changes.push_back({"full recompute", {"recompute=full"}});
  if (!plan.fused_attention) changes.push_back({"fused attention", {"attention=fused"}});
  if (!plan.expandable_segments) {
    changes.push_back({"expandable segments", {"allocator.expandable_segments=true"}});
  }
  if (copies > 1 && plan.zero < 3) {
    changes.push_back({"zero + 1", {set_text("sharding.zero", plan.zero + 1)}});
  }
  if (copies > 1 && plan.zero > 0) {
    changes.push_back({"zero - 1", {set_text("sharding.zero", plan.zero - 1)}});
  }
  if (copies > 1 && !plan.overlap) {
    changes.push_back({"sharding overlap", {"sharding.overlap=true"}});
  }
}

void add_batch(const Plan& plan, std::vector<Change>& changes) {
  const auto micro = [&](const char* name, std::int64_t size) {
    std::vector<std::string> sets = {set_text("batch.micro", size)};
    keep_global_batch(plan, sets);
    changes.push_back({name, std::move(sets)});
  };
  if (plan.micro_batch % 2 == 0) micro("micro-batch / 2", plan.micro_batch / 2);
  if (plan.micro_batches() % 2 == 0) micro("micro-batch x 2", 2 * plan.micro_batch);
}

void add_tensor(const Plan& plan, std::vector<Change>& changes) {
  if (plan.tensor == 1) return;
  if (!plan.sequence_parallel) {
    changes.push_back({"sequence parallel", {"parallel.sequence_parallel=true"}});
  }
  if (!plan.tensor_overlap) {
    changes.push_back({"tensor overlap", {"parallel.tensor_overlap=true"}});
  }
  constexpr std::int64_t kPieces = 4;  // Transformer Engine's num_splits
  const bool even = plan.tokens() % kPieces == 0;
  if (plan.sequence_parallel && plan.tensor_overlap && plan.tensor_pieces == 1 && even) {
    changes.push_back({"tensor pieces", {set_text("parallel.tensor_pieces", kPieces)}});
  }
}

void add_host(const Plan& plan, std::vector<Change>& changes) {
  if (plan.launch_blocking) {
    changes.push_back({"launches not waited for", {"host.launch_blocking=false"}});
  }
}

// ----------------------------------------------------------------------------------- the search

struct Tried {
  Change change;
  Plan plan;
  Suggestion result;
  bool fits = false;
};

// `second` after `first`: one value a path, the later one.
std::vector<std::string> merged(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  for (const std::string& set : second) {
    const std::string_view path = std::string_view(set).substr(0, set.find('=') + 1);
    std::erase_if(first, [&](const std::string& old) { return old.starts_with(path); });
    first.push_back(set);
  }
  return first;
}

class Search {
 public:
  Search(const WhatIf& what_if, const Forecast& now)
      : question_(Document{"what-if", what_if.resolved, {}}) {
    std::int64_t each = std::max<std::int64_t>(1, now.report.timeline.instructions);
    for (const Program& program : now.job.programs) {
      each += kCallCost * std::ssize(program.schedule);
    }
    budget_ = static_cast<int>(std::clamp<std::int64_t>(kInstructionsBudget / each, kSimulationsMin,
                                                        kSimulationsMax));
    seen_.insert(what_if.resolved.dump());
  }

  int simulated() const { return simulated_; }
  bool exhausted() const { return simulated_ >= budget_; }

  // Nothing if the change is not legal, was tried already, or the budget is used up.
  std::optional<Tried> attempt(const Change& change) {
    if (exhausted()) return std::nullopt;
    try {
      const WhatIf changed = question_.with(change.sets);
      if (!seen_.insert(changed.resolved.dump()).second) return std::nullopt;
      const Report report = forecast(changed).report;
      ++simulated_;
      const Bytes peak = device_peak(report.footprint);
      return Tried{change, changed.plan, {change.sets, report.timeline.step, peak},
                   peak <= report.capacity};
    } catch (const Error&) {
      return std::nullopt;  // not legal: the next one may be
    }
  }

 private:
  WhatIfFile question_;
  std::set<std::string> seen_;
  int budget_ = 0;
  int simulated_ = 0;
};

struct Pair {
  const Tried* first;
  const Tried* second;
  Bytes estimate;
};

// Each two changes, the second one made again on the plan that the first one leads to.
std::vector<Tried> try_pairs(Search& search, const std::vector<Tried>& singles,
                             const Model& model) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < singles.size(); ++i) {
    for (std::size_t j = i + 1; j < singles.size(); ++j) {
      pairs.push_back({&singles[i], &singles[j], singles[i].result.peak + singles[j].result.peak});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.estimate < b.estimate; });
  std::vector<Tried> tried;
  for (const Pair& pair : pairs) {
    if (search.exhausted()) break;
    for (const Change& next : changes_of(pair.first->plan, model)) {
      if (next.name != pair.second->change.name) continue;
      const Change both{pair.first->change.name + ", " + next.name,
                        merged(pair.first->change.sets, next.sets)};
      if (std::optional<Tried> found = search.attempt(both)) tried.push_back(std::move(*found));
    }
  }
  return tried;
}

// The best of what was tried: it fits, and takes at most `limit`.
std::vector<Suggestion> best(const std::vector<Tried>& tried, Seconds limit, std::size_t most) {
  std::vector<Suggestion> found;
  for (const Tried& one : tried) {
    if (one.fits && to_seconds(one.result.step) <= limit) found.push_back(one.result);
  }
  std::stable_sort(found.begin(), found.end(), [](const Suggestion& a, const Suggestion& b) {
    return a.step != b.step ? a.step < b.step : a.peak < b.peak;
  });
  if (found.size() > most) found.resize(most);
  return found;
}

}  // namespace

bool has_to_balance(StageLayout layout, const Model& model, std::int64_t pipeline,
                    std::int64_t virtual_stages) {
  const bool uneven = virtual_stages > 1 && model.layers % (pipeline * virtual_stages) != 0;
  return layout == StageLayout::kGiven || (layout == StageLayout::kEven && uneven);
}

std::int64_t most_context(std::int64_t sequence_length) {
  constexpr std::int64_t kTokens = 8192;
  return std::max<std::int64_t>(1, sequence_length / kTokens);
}

bool can_overlap_experts(std::int64_t expert, std::int64_t pipeline, bool interleaved) {
  return expert > 1 && (pipeline == 1 || interleaved);
}

std::vector<Change> changes_of(const Plan& plan, const Model& model) {
  std::vector<Change> changes;
  add_memory(plan, changes);
  add_tensor(plan, changes);
  add_batch(plan, changes);
  add_host(plan, changes);
  add_pipeline(plan, model, changes);
  add_degrees(plan, model, changes);
  add_context(plan, model, changes);
  add_experts(plan, model, changes);
  return changes;
}

Advice advise(const WhatIf& what_if, const Forecast& now) {
  Advice advice;
  advice.fits = device_peak(now.report.footprint) <= now.report.capacity;
  Search search(what_if, now);
  std::vector<Tried> tried;
  for (const Change& change : changes_of(what_if.plan, what_if.model)) {
    if (std::optional<Tried> found = search.attempt(change)) tried.push_back(std::move(*found));
  }
  if (advice.fits) {
    const Seconds limit = to_seconds(now.report.timeline.step) * (1 - kFasterLeast);
    advice.suggestions = best(tried, limit, kFasterMost);
  } else {
    const Seconds any(1e30);
    advice.suggestions = best(tried, any, kFittingMost);
    if (advice.suggestions.empty()) {
      std::vector<Tried> pairs = try_pairs(search, tried, what_if.model);
      advice.suggestions = best(pairs, any, kFittingMost);
      tried.insert(tried.end(), pairs.begin(), pairs.end());
    }
    const auto least =
        std::min_element(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
          return a.result.peak < b.result.peak;
        });
    if (advice.suggestions.empty() && least != tried.end()) advice.closest = least->result;
  }
  advice.simulated = search.simulated();
  return advice;
}

}  // namespace stepcast
