// What ranks did, held against what the Job says that they would.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "execute/execute.h"
#include "sim/engine/simulate.h"

namespace stepcast {

// The memory is what account() says, what was sent is what count_traffic() says, to the byte, and
// all ranks saw the same losses.
inline void expect_as_counted(const Job& job, const std::vector<RankRun>& runs) {
  const Footprint memory = account(job);
  const Traffic traffic = count_traffic(job);
  for (const RankRun& run : runs) {
    const auto stage = static_cast<std::size_t>(job.mesh.stage(run.rank));
    EXPECT_EQ(run.peak.count, memory.stages[stage].peak.count) << "rank " << run.rank;
    EXPECT_EQ(run.at_peak, memory.stages[stage].at_peak);
    EXPECT_EQ(run.resident, memory.stages[stage].resident);
    EXPECT_EQ(run.sent, traffic.stages[stage]) << "rank " << run.rank;
    EXPECT_EQ(run.losses, runs[0].losses);
  }
}

}  // namespace stepcast
