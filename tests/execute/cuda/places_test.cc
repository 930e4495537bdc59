// Where sends end only when their receives are under way, all ranks still get to their end: shown
// here for every kind of schedule.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "execute/cuda/places.h"
#include "sim/base/error.h"
#include "tests/support/job_builder.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

std::vector<Plan> pipelines() {
  std::vector<Plan> plans;
  for (const std::int64_t stages : {2, 3, 4}) {
    for (const std::int64_t chunks : {1, 2}) {
      for (const auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b}) {
        for (const bool overlap : {true, false}) {
          for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
            Plan plan = executable_plan(8, 4 * stages);
            plan.pipeline = stages;
            plan.virtual_stages = chunks;
            if (chunks > 1 && schedule == PipelineSchedule::kGpipe) continue;
            plan.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : schedule;
            plan.pipeline_overlap = overlap;
            plan.recompute = recompute;
            plan.compute = Dtype::kBf16;
            plan.master = true;
            plans.push_back(plan);
            plan.tensor = 2;
            plan.sequence_parallel = true;
            plans.push_back(plan);
            if (overlap || chunks > 1) continue;
            plan.p2p_sync = plan.pass_sync = plan.optimizer_sync = true;
            plans.push_back(plan);
            plan.p2p_sync = plan.pass_sync = plan.optimizer_sync = false;
            plan.launch_blocking = true;
            plans.push_back(plan);
          }
        }
      }
    }
  }
  return plans;
}

std::string name_of(const Plan& plan) {
  return "stages " + std::to_string(plan.pipeline) + " chunks " +
         std::to_string(plan.virtual_stages) + " schedule " +
         std::to_string(static_cast<int>(plan.schedule)) + " overlap " +
         std::to_string(plan.pipeline_overlap) + " recompute " +
         std::to_string(static_cast<int>(plan.recompute)) + " tensor " +
         std::to_string(plan.tensor) + " sync " + std::to_string(plan.p2p_sync) +
         " blocking " + std::to_string(plan.launch_blocking);
}

bool waits_for_sends_itself(const Plan& plan) {
  return plan.virtual_stages > 1 && !plan.pipeline_overlap;
}

Job pipeline_job(const Plan& plan) {
  return lowered(llama_model(plan.pipeline * plan.virtual_stages, 16, 4, 2, 24, 61), plan);
}

TEST(DevicePlaces, LetAllRanksGetToTheEndOfEverySchedule) {
  std::size_t stuck_otherwise = 0;
  for (const Plan& plan : pipelines()) {
    if (waits_for_sends_itself(plan)) continue;
    const Job job = pipeline_job(plan);
    const auto places = cuda::plan_places(job);
    for (const std::size_t ahead : {1u, 16u, 1u << 30}) {
      EXPECT_EQ(cuda::stuck_instructions(job, places, ahead), 0u) << name_of(plan);
    }
    // With places that anything may take, a receive waits for a send that waits for a receive.
    std::vector<cuda::StagePlaces> shared;
    for (const Program& program : job.programs) {
      MemoryPlan memory = plan_memory(job, program, kCudaAlignment);
      auto fences = cuda::plan_fences(job, program, memory);
      shared.push_back({std::move(memory), std::move(fences)});
    }
    stuck_otherwise += cuda::stuck_instructions(job, shared, 1u << 30) == 0 ? 0u : 1u;
  }
  EXPECT_GT(stuck_otherwise, 0u);
}

TEST(DevicePlaces, TakeLittleMoreThanSharedOnes) {
  for (const Plan& plan : pipelines()) {
    if (waits_for_sends_itself(plan)) continue;
    const Job job = pipeline_job(plan);
    const auto places = cuda::plan_places(job);
    for (std::size_t stage = 0; stage < places.size(); ++stage) {
      const std::size_t shared = plan_memory(job, job.programs[stage], kCudaAlignment).size;
      EXPECT_LE(places[stage].memory.size, shared + shared / 4) << name_of(plan);
    }
  }
}

// Two stages that each send before they receive: a host that waits for its message to leave does so
// for ever, as the other one does.
TEST(DevicePlaces, FindHostsThatWaitForEachOthersReceives) {
  const auto stuck = [](bool waits) {
    JobBuilder b(2);
    const TensorId x = b.resident("x", {4, 8}), y = b.tensor("y", {4, 8});
    for (const bool first : {true, false}) {
      const BodyId body = b.body("exchange", Phase::kForward);
      const Stream out = first ? Stream::kSendForward : Stream::kSendBackward;
      const Stream in = first ? Stream::kReceiveBackward : Stream::kReceiveForward;
      b.send(x, !first).record(out, 0);
      if (waits) b.add(HostWait{0});
      b.alloc(y).receive(y, first).order(in, Stream::kCompute, 1).wait(Stream::kCompute, 0).free(y);
      b.call(first ? 0 : 1, body, 0);
    }
    EXPECT_EQ(verify(b.job), "");
    std::vector<cuda::StagePlaces> places;
    for (const Program& program : b.job.programs) {
      places.push_back({plan_memory(b.job, program, kCudaAlignment), {}});
    }
    return cuda::stuck_instructions(b.job, places, 1u << 30);
  };
  EXPECT_EQ(stuck(false), 0u);
  EXPECT_GT(stuck(true), 0u);
}

TEST(DevicePlaces, AreRefusedWhereThePlanItselfWaitsForItsSends) {
  for (const Plan& plan : pipelines()) {
    if (!waits_for_sends_itself(plan)) continue;
    EXPECT_THROW(cuda::plan_places(pipeline_job(plan)), Error) << name_of(plan);
  }
}

}  // namespace
}  // namespace stepcast
