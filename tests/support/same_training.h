// A plan's training against one rank's.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/as_counted.h"
#include "tests/support/train.h"
#include "tests/support/training_cases.h"

namespace stepcast {

// Beside the run stand the other readers of the same Job: the arena's peak is what account() says,
// and what was sent is what count_traffic() says, to the byte.
inline void expect_training_of_one_rank(const TrainingCase& one) {
  const Job job = lowered(one.model(one.layers), one.plan);
  ASSERT_EQ(verify(job), "");
  const std::vector<RankRun> runs = train(job, train_options(kTrainingSteps));

  const std::vector<double>& expected = losses_of_one_rank(one);
  ASSERT_EQ(runs[0].losses.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(runs[0].losses[i], expected[i], 1e-4 * expected[i]) << "step " << i;
  }
  EXPECT_LT(expected.back(), 0.95 * expected.front());

  expect_as_counted(job, runs);
}

}  // namespace stepcast
