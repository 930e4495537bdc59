#include "tools/validate/summary.h"

#include <cmath>

#include <gmock/gmock.h>

#include "tests/support/validation.h"
#include "tools/validate/tables.h"

namespace stepcast {
namespace {

ValidationRow run(const std::string& cut, double predicted, double measured) {
  ValidationRow row = covered("a", predicted, measured);
  row.kind = "run";
  row.run = RunDetails();
  row.run->cut = row.run->cut_name = cut;
  row.run->seconds[static_cast<std::size_t>(Part::kCompute)] = 0.75 * predicted;
  row.run->seconds[static_cast<std::size_t>(Part::kBubble)] = 0.25 * predicted;
  return row;
}

TEST(KendallTauB, IsOneForTheSameOrderAndMinusOneForTheOpposite) {
  EXPECT_DOUBLE_EQ(*kendall_tau_b({1, 2, 3, 10}, {0.1, 0.2, 0.4, 0.5}), 1);
  EXPECT_DOUBLE_EQ(*kendall_tau_b({4, 3, 2, 1}, {0.1, 0.2, 0.4, 0.5}), -1);
}

// x = 1 2 2 3, y = 1 3 2 2. The six pairs, by the signs of their differences in x and y:
//   (1,2) + +   concordant        (2,3) 0 -   tied in x
//   (1,3) + +   concordant        (2,4) + -   discordant
//   (1,4) + +   concordant        (3,4) + 0   tied in y
// C = 3, D = 1, one tie each: tau-b = (3 - 1) / sqrt((6 - 1)(6 - 1)) = 0.4. (tau-a would be 2/6.)
TEST(KendallTauB, LeavesTiesOutOfBothScales) {
  EXPECT_DOUBLE_EQ(*kendall_tau_b({1, 2, 2, 3}, {1, 3, 2, 2}), 0.4);
}

// One tie, in y only: C = 5, D = 0: 5 / sqrt(6 * 5).
TEST(KendallTauB, IsBelowOneWhereOnlyOneSideTies) {
  EXPECT_DOUBLE_EQ(*kendall_tau_b({1, 2, 3, 4}, {1, 2, 2, 4}), 5 / std::sqrt(30.0));
}

TEST(KendallTauB, SaysNothingWhereNothingCanBeOrdered) {
  EXPECT_FALSE(kendall_tau_b({}, {}).has_value());
  EXPECT_FALSE(kendall_tau_b({1}, {2}).has_value());
  EXPECT_FALSE(kendall_tau_b({1, 1, 1}, {1, 2, 3}).has_value());
}

// -4 %, +30 %, 0 and -10 %: mean of the absolute ones 11 %, median (4 + 10) / 2 = 7 %, bias 4 %.
TEST(ErrorSummary, CountsSizesAndSigns) {
  const ErrorSummary all = summarise_errors({-0.04, 0.30, 0, -0.10});
  EXPECT_EQ(all.count, 4);
  EXPECT_NEAR(all.mean_absolute, 0.11, 1e-12);
  EXPECT_NEAR(all.median_absolute, 0.07, 1e-12);
  EXPECT_NEAR(all.signed_bias, 0.04, 1e-12);
  EXPECT_DOUBLE_EQ(all.within_5_percent, 0.5);
  EXPECT_DOUBLE_EQ(all.within_10_percent, 0.75);
  EXPECT_DOUBLE_EQ(summarise_errors({0.1, -0.3, 0.2}).median_absolute, 0.2);
  EXPECT_EQ(summarise_errors({}).count, 0);
}

// Errors -10 %, +30 %, 0 and -40 %. Predicted order 0.9 1.3 3 2.4 of measured 1 1 3 4: of six pairs
// one is tied in the measured, one is wrong and four are right: (4 - 1) / sqrt(6 * 5).
TEST(ValidationSummary, KeepsEachSourceOnItsOwn) {
  ValidationRow uncovered;
  uncovered.source = "b";
  uncovered.kind = "gemm";
  const std::vector<ValidationSummary> all =
      summarise({covered("a", 0.9, 1), covered("a", 1.3, 1), covered("a", 3, 3), uncovered,
                 covered("a", 2.4, 4)});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].source, "a");
  EXPECT_EQ(all[0].time.count, 4);
  EXPECT_NEAR(all[0].time.mean_absolute, 0.2, 1e-12);
  EXPECT_NEAR(all[0].time.signed_bias, -0.05, 1e-12);
  EXPECT_DOUBLE_EQ(*all[0].kendall_tau, 3 / std::sqrt(30.0));
  EXPECT_EQ(all[1].rows, 1);
  EXPECT_EQ(all[1].time.count, 0);
  EXPECT_FALSE(all[1].kendall_tau.has_value());
}

// Cut x is in the right order (tau 1, 3 rows), cut y in the opposite one (tau -1, 4 rows), z is too
// small to count: (3 - 4) / 7. Across cuts nothing is compared: x's are all slower than forecast.
TEST(ValidationSummary, OrdersRunsOnlyAmongPlansForTheSameWork) {
  const std::vector<ValidationRow> rows = {
      run("x", 1, 101), run("x", 2, 102), run("x", 3, 103), run("y", 4, 14), run("y", 5, 13),
      run("y", 6, 12),  run("y", 7, 11),  run("z", 8, 2),   run("z", 9, 1)};
  const std::vector<ValidationSummary> all = summarise(rows);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_DOUBLE_EQ(*all[0].kendall_tau, -1.0 / 7);
  EXPECT_DOUBLE_EQ(all[0].parts[static_cast<std::size_t>(Part::kCompute)], 0.75);
  EXPECT_DOUBLE_EQ(all[0].parts[static_cast<std::size_t>(Part::kBubble)], 0.25);
}

// Of y, the forecast picks the plan that measured 14 where 11 was to be had: 27 % lost.
TEST(CutSummary, TellsWhatFollowingTheForecastCosts) {
  const std::vector<CutSummary> cuts =
      summarise_cuts({run("y", 4, 14), run("y", 5, 13), run("y", 6, 12), run("y", 7, 11),
                      run("x", 1, 101), run("x", 2, 102), run("x", 3, 202)});
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].name, "y");
  EXPECT_EQ(cuts[0].count, 4);
  EXPECT_DOUBLE_EQ(*cuts[0].kendall_tau, -1);
  EXPECT_GT(cuts[0].tau_of_good, 0.98);  // 8 % apart and more
  EXPECT_DOUBLE_EQ(cuts[0].regret, 14.0 / 11 - 1);
  EXPECT_DOUBLE_EQ(cuts[1].regret, 0);
  EXPECT_DOUBLE_EQ(cuts[1].spread, 2);
  // Two pairs are far apart; 101 and 102 are in order with probability 0.636: (2 + 0.273) / 3.
  EXPECT_NEAR(cuts[1].tau_of_good, 0.7575, 1e-3);
}

// 10 % and 30 % weigh the same although one is of three rows and the other of one.
TEST(ValidationSummary, GivesEachSourceTheSameWeight) {
  const auto by_source = summarise_by(
      {covered("a", 1.1, 1), covered("a", 2.2, 2), covered("a", 3.3, 3), covered("b", 0.7, 1)},
      [](const ValidationRow& row) { return row.source; });
  ASSERT_EQ(by_source.size(), 2u);
  const ValidationSummary mean = mean_of(by_source);
  EXPECT_EQ(mean.time.count, 4);
  EXPECT_NEAR(mean.time.mean_absolute, 0.2, 1e-12);
  EXPECT_NEAR(mean.time.signed_bias, -0.1, 1e-12);
}

// Source a was fitted to, b and c were not: 30 % and 10 %, of equal weight.
TEST(ValidationSummary, TellsApartWhatNoFitSaw) {
  std::vector<ValidationRow> rows = {covered("a", 1, 1), covered("b", 0.7, 1), covered("b", 1.3, 1),
                                     covered("c", 1.1, 1)};
  rows[0].fitted = true;
  const auto by_source =
      summarise_by(rows, [](const ValidationRow& row) { return row.source; });
  const ValidationSummary others = mean_of(unseen(by_source));
  EXPECT_EQ(others.time.count, 3);
  EXPECT_NEAR(others.time.mean_absolute, 0.2, 1e-12);
  const ReportTable table = runs_table("source", by_source, true);
  EXPECT_EQ(table.cells.back().front(), "those that no fit saw");
  EXPECT_EQ(runs_table("source", unseen(by_source), true).cells.back().front(),
            "each weighs the same");
}

TEST(ValidationSummary, LeavesOutWhatHasNoName) {
  const auto one = summarise_by(
      {covered("a", 1, 1), covered("b", 1, 1)},
      [](const ValidationRow& row) { return row.source == "a" ? "x" : ""; });
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].rows, 1);
}

// Peaks 12 of 10 and 27 of 30; at rest 5 of 4.
TEST(ValidationSummary, SumsUpMemoryWithOrWithoutATime) {
  ValidationRow row = run("x", 1, 1);
  row.predicted_bytes = 27;
  row.measured_bytes = 30;
  row.measured_seconds.reset();
  row.run->stages = {{0, 12, 10}, {1, 27, 30}};
  row.run->predicted_resident = 5;
  row.run->measured_resident = 4;
  const ValidationSummary s = summarise({row}).at(0);
  EXPECT_EQ(s.time.count, 0);
  EXPECT_NEAR(s.memory.signed_bias, -0.1, 1e-12);
  EXPECT_EQ(s.stages.count, 2);
  EXPECT_NEAR(s.stages.mean_absolute, 0.15, 1e-12);
  EXPECT_NEAR(s.resident.signed_bias, 0.25, 1e-12);
}

}  // namespace
}  // namespace stepcast
