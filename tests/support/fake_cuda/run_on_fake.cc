// Linked into tests_fake_cuda only: there run_cuda_threads is the one compiled for the host.
#include "tests/support/fake_cuda/run_on_fake.h"

#include <cmath>
#include <exception>
#include <map>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/engine/simulate.h"

namespace stepcast {

FakeRun run_on_fake(const Job& job, const ExecuteOptions& options, fake::MachineOptions machine,
                    const CudaOptions& cuda) {
  FakeRun out;
  machine.devices = job.mesh.ranks();
  fake::start(machine);
  const auto corpus = make_language(job.batch.vocabulary, 7);
  try {
    out.runs = run_cuda_threads(job, options, *corpus, cuda);
  } catch (const Error& error) {
    out.error = error.what();
  } catch (const std::exception& error) {
    out.error = std::string("not an Error: ") + error.what();
  }
  out.complaints = fake::complaints();
  out.leaks = fake::leaks();
  return out;
}

namespace {

std::string difference(const Job& job, const std::vector<double>& expected, const CudaRun& one,
                       double tolerance) {
  const RankRun& run = one.run;
  if (run.losses.size() != expected.size()) return "another number of losses";
  std::string out;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // A NaN is near nothing.
    if (std::abs(run.losses[i] - expected[i]) <= tolerance * expected[i]) continue;
    out += fmt::format("step {}: loss {}, not {}\n", i, run.losses[i], expected[i]);
  }
  const auto stage = static_cast<std::size_t>(job.mesh.stage(run.rank));
  const StageMemory memory = account(job).stages[stage];
  if (run.peak != memory.peak || run.at_peak != memory.at_peak) out += "another peak of memory\n";
  if (run.resident != memory.resident) out += "other residents\n";
  if (run.sent != count_traffic(job).stages[stage]) out += "other bytes sent\n";
  for (const MemoryItem& item : one.memory) {
    if (item.bytes.count < 0) out += item.name + ": less than no memory\n";
  }
  return out;
}

}  // namespace

std::string differences(const Job& job, const ExecuteOptions& options, const FakeRun& run,
                        double tolerance) {
  std::string out = run.error;
  const std::vector<double> expected = train(job, options)[0].losses;
  for (const CudaRun& one : run.runs) {
    const std::string what = difference(job, expected, one, tolerance);
    if (!what.empty()) out += fmt::format("rank {}:\n{}", one.run.rank, what);
  }
  for (const std::string& complaint : run.complaints) out += "complaint: " + complaint + "\n";
  for (const std::string& leak : run.leaks) out += "left over: " + leak + "\n";
  return out;
}

Plan mixed_plan(std::int64_t sequence, std::int64_t global) {
  Plan plan = executable_plan(sequence, global);
  plan.compute = Dtype::kBf16;
  plan.master = true;
  return plan;
}

}  // namespace stepcast
