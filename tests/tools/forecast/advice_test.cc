#include "tools/forecast/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/base/error.h"
#include "tests/tools/small_whatif.h"

namespace stepcast {
namespace {

Bytes device_peak(const Report& report) {
  Bytes most;
  for (const StageMemory& stage : report.footprint.stages) {
    most = std::max(most, stage.device_total());
  }
  return most;
}

struct Advised {
  Forecast now;
  Advice advice;
};

Advised advised(const std::vector<std::string>& sets, std::string_view text = kSmallWhatIf) {
  const WhatIf what_if = small_what_if(sets, text);
  Forecast now = forecast(what_if);
  Advice advice = advise(what_if, now);
  return {std::move(now), std::move(advice)};
}

// What is printed, given to --set after what was given already.
void expect_reproducible(const Advice& advice, const std::vector<std::string>& sets,
                         std::string_view text = kSmallWhatIf) {
  for (const Suggestion& suggestion : advice.suggestions) {
    std::vector<std::string> all = sets;
    all.insert(all.end(), suggestion.sets.begin(), suggestion.sets.end());
    SCOPED_TRACE(::testing::PrintToString(all));
    const Report again = forecast(small_what_if(all, text)).report;
    EXPECT_EQ(again.timeline.step, suggestion.step);
    EXPECT_EQ(device_peak(again), suggestion.peak);
  }
}

// A long sequence and unfused attention: the scores alone are more than 40 GB.
const std::vector<std::string>& large() {
  static const std::vector<std::string> sets = {
      "model.positions=16384", "batch.sequence_length=16384", "batch.micro=1", "attention=unfused"};
  return sets;
}

TEST(Advice, SuggestsWhatFitsTheFastestFirst) {
  const Advised result = advised(large());
  ASSERT_FALSE(result.advice.fits);
  ASSERT_FALSE(result.advice.suggestions.empty());
  EXPECT_LE(result.advice.suggestions.size(), 4u);
  Duration before;
  for (const Suggestion& suggestion : result.advice.suggestions) {
    EXPECT_LE(suggestion.peak, result.now.report.capacity);
    EXPECT_GE(suggestion.step, before);
    before = suggestion.step;
  }
  const std::vector<std::string> fused = {"attention=fused"};
  EXPECT_EQ(result.advice.suggestions.front().sets, fused);
  EXPECT_FALSE(result.advice.closest);
}

TEST(Advice, IsReproducedByItsOverridesWhereThePlanDoesNotFit) {
  expect_reproducible(advised(large()).advice, large());
}

// Full recompute in every step: leaving it out is faster, and there is room.
TEST(Advice, SuggestsWhatIsFasterIfThePlanFits) {
  const std::vector<std::string> sets = {"recompute=full"};
  const Advised result = advised(sets);
  ASSERT_TRUE(result.advice.fits);
  ASSERT_FALSE(result.advice.suggestions.empty());
  EXPECT_LE(result.advice.suggestions.size(), 3u);
  const double step = to_seconds(result.now.report.timeline.step).value;
  for (const Suggestion& suggestion : result.advice.suggestions) {
    EXPECT_LE(to_seconds(suggestion.step).value, 0.98 * step);
    EXPECT_LE(suggestion.peak, result.now.report.capacity);
  }
  expect_reproducible(result.advice, sets);
}

// By itself, and not to a host that does not wait.
TEST(Advice, LetsTheHostGoAheadOfLaunches) {
  const auto offered = [](const std::vector<std::string>& sets) {
    const WhatIf what_if = small_what_if(sets);
    const std::vector<Change> changes = changes_of(what_if.plan, what_if.model);
    return std::any_of(changes.begin(), changes.end(), [](const Change& change) {
      return change.sets == std::vector<std::string>{"host.launch_blocking=false"};
    });
  };
  EXPECT_TRUE(offered({"host.launch_blocking=true", "parallel.pipeline_overlap=false"}));
  EXPECT_FALSE(offered({"parallel.pipeline_overlap=false"}));
}

// The file leaves out the data degree and the global batch, whose defaults follow from what the
// advice changes: the batch must stay what it was.
TEST(Advice, IsReproducedByItsOverridesWhereTheFileLeavesMuchOut) {
  std::string text(kSmallWhatIf);
  const auto drop = [&text](std::string_view part) {
    ASSERT_NE(text.find(part), std::string::npos);
    text.erase(text.find(part), part.size());
  };
  drop(", \"data\": 4");
  drop(", \"global\": 64");
  const Advised result = advised({"recompute=full"}, text);
  ASSERT_FALSE(result.advice.suggestions.empty());
  expect_reproducible(result.advice, {"recompute=full"}, text);
  const WhatIf what_if = small_what_if({}, text);
  for (const Change& change : changes_of(what_if.plan, what_if.model)) {
    try {
      EXPECT_EQ(small_what_if(change.sets, text).plan.global_batch, what_if.plan.global_batch)
          << change.name;
    } catch (const Error&) {  // not legal
    }
  }
}

// A device of too little memory for any plan: two changes are tried, and the best is told.
TEST(Advice, SaysHowFarTheClosestIsIfNothingFits) {
  const WhatIf what_if = small_what_if();
  Forecast now = forecast(what_if);
  WhatIf tight = what_if;
  tight.resolved["model"]["hidden"] = 16384;
  tight.resolved["model"]["head_dim"] = 2048;
  tight.resolved["model"]["ffn"] = 65536;
  tight.resolved["model"]["layers"] = 64;
  tight = read_what_if(parse_json(tight.resolved.dump(), "tight.json"), ".");
  now = forecast(tight);
  const Advice advice = advise(tight, now);
  ASSERT_FALSE(advice.fits);
  EXPECT_TRUE(advice.suggestions.empty());
  ASSERT_TRUE(advice.closest);
  EXPECT_GT(advice.closest->peak, now.report.capacity);
  EXPECT_LT(advice.closest->peak, device_peak(now.report));
  EXPECT_LE(advice.simulated, 60);
  EXPECT_GT(advice.closest->sets.size(), 1u);
}

TEST(Advice, HoldsThePlansRanksAndBatch) {
  const WhatIf what_if = small_what_if();
  int legal = 0;
  for (const Change& change : changes_of(what_if.plan, what_if.model)) {
    try {
      const Plan plan = small_what_if(change.sets).plan;
      EXPECT_EQ(plan.ranks(), what_if.plan.ranks()) << change.name;
      EXPECT_EQ(plan.global_batch, what_if.plan.global_batch) << change.name;
      EXPECT_NE(plan, what_if.plan) << change.name;
      ++legal;
    } catch (const Error&) {
    }
  }
  EXPECT_GE(legal, 8);
}

// Tensor ranks of a model with experts share them or cut each: what a change needs besides goes
// with it.
TEST(Advice, ChangesWhoSharesExperts) {
  const auto legal = [](std::vector<std::string> sets, std::string_view name) {
    for (const char* set :
         {"model.experts=4", "model.experts_per_token=2", "model.expert_ffn=512"}) {
      sets.emplace_back(set);
    }
    const WhatIf what_if = small_what_if(sets);
    for (const Change& change : changes_of(what_if.plan, what_if.model)) {
      if (change.name != name) continue;
      sets.insert(sets.end(), change.sets.begin(), change.sets.end());
      return small_what_if(sets).plan;
    }
    ADD_FAILURE() << "no change is called " << name;
    return what_if.plan;
  };
  const std::vector<std::string> cut = {"parallel.tensor=2", "parallel.data=2",
                                        "parallel.expert_tensor=2",
                                        "parallel.sequence_parallel=true"};
  EXPECT_EQ(legal({}, "tensor x 2, data / 2").expert_tensor, 2);
  EXPECT_EQ(legal(cut, "tensor x 2, pipeline / 2").expert_tensor, 4);
  EXPECT_EQ(legal(cut, "tensor / 2, data x 2").expert_tensor, 1);
  EXPECT_EQ(legal({"sharding.zero=3"}, "expert x 2").expert, 2);
  EXPECT_EQ(legal({"parallel.expert=4"}, "expert / 2").expert, 2);
}

}  // namespace
}  // namespace stepcast
