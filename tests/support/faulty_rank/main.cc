// faulty_rank none|nan|hang|die: one process of a small run under mpirun, of two pipeline stages
// with a process each. On rank 1 the kernel 40 goes wrong.
#include <cstdio>

#include <fmt/format.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/mpi.h"
#include "sim/base/error.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/toy_network.h"
#include "tests/support/train.h"

namespace stepcast {
namespace {

int run(const Job& job, Fault fault, Progress& progress) {
  const MpiSession session;
  ExecuteOptions options = train_options(5);
  options.poison = false;
  options.check_numbers = true;
  const auto corpus = make_language(job.batch.vocabulary, 7);
  const auto transport = session.transport();
  auto backend = make_cpu_backend(1);
  if (session.rank() == 1) backend = make_faulty_backend(std::move(backend), fault, 40);
  try {
    run_rank(job, options, *corpus, *backend, *transport, progress);
  } catch (const Error& error) {
    std::fputs(fmt::format("stepcast: {}\n", error.what()).c_str(), stderr);
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace stepcast

int main(int argc, char** argv) {
  using namespace stepcast;
  Plan plan = executable_plan(8, 4);
  plan.pipeline = 2;
  const Job job = lowered(gpt_model(2, 16, 4, 61, 12), plan);
  const Fault fault = fault_named(argc > 1 ? argv[1] : "none");
  return run_watched(job, [&](Progress& progress) { return run(job, fault, progress); });
}
