// A thin layer over run_threads().
#include "tests/support/train.h"

#include "execute/cpu/cpu_backend.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"

namespace stepcast {

Plan executable_plan(std::int64_t sequence, std::int64_t global) {
  Plan plan;
  plan.sequence_length = sequence;
  plan.global_batch = global;
  plan.compute = plan.gradients = Dtype::kFp32;
  plan.master = false;
  return plan;
}

ExecuteOptions train_options(std::int64_t steps) {
  ExecuteOptions options;
  options.steps = steps;
  options.optimizer.rate = 5e-3;
  options.initial_deviation = 0.1;
  options.poison = true;
  return options;
}

std::vector<RankRun> train(const Job& job, const ExecuteOptions& options) {
  STEPCAST_CHECK(verify(job).empty(), verify(job));
  STEPCAST_CHECK(executable(job).empty(), executable(job));
  const auto corpus = make_language(job.batch.vocabulary, 7);
  return run_threads(job, options, *corpus, [] { return make_cpu_backend(1); });
}

Job lowered(const Model& model, const Plan& plan) {
  check_plan(plan, model);
  return lower(transformer(model, plan), plan);
}

}  // namespace stepcast
