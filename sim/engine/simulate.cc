// simulate(): compile, walk, name the ranks.
//
// Folding. Where no rank is slow, all ranks of a stage do the same at the same time: by induction
// over the walk their registers are equal, so a collective among them begins when any one is ready,
// and a message or a collective across stages meets the same times at every coordinate. So a mesh
// whose other axes have degree 1 has the same times; its collectives inside a stage meet nobody.
#include "sim/engine/simulate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/engine/compile.h"
#include "sim/engine/walk.h"

namespace stepcast {
namespace {

constexpr double kLongestStep = 8.64e18;    // picoseconds: 100 days
constexpr std::int64_t kSpansMax = 20'000'000;  // 48 bytes each

Mesh pipeline_alone(const Mesh& mesh) {
  Mesh folded;
  folded.order = mesh.order;
  folded.degree(Axis::kPipeline) = mesh.stages();
  return folded;
}

// The step is at most all work of all stages one after the other; it must fit a Duration. The sum
// is made in floating point, where nothing overflows.
void check_length(const Job& job, const Prices& prices) {
  double slowest = 1;
  for (double factor : prices.slow) slowest = std::max(slowest, factor);
  double beside = 1;  // all streams busy all the time
  for (const Beside& b : prices.beside) {
    double most = 1;
    for (const double factor : b.ops) most = std::max(most, factor);
    for (const double factor : b.transfers) most = std::max(most, factor);
    beside += most - 1;
  }
  std::vector<double> of_body;
  for (const Body& body : job.bodies) {
    double sum = is_pass(body) ? static_cast<double>(prices.pass.picoseconds) : 0;
    const auto add = [&](Duration d) { sum += beside * static_cast<double>(d.picoseconds); };
    for (const Instruction& instruction : body.code) {
      if (const auto* c = std::get_if<Compute>(&instruction)) {
        sum += slowest * beside *
               static_cast<double>(prices.ops[static_cast<std::size_t>(c->op)].picoseconds);
      } else if (const auto* t = std::get_if<Collective>(&instruction)) {
        add(prices.transfers[static_cast<std::size_t>(t->transfer)]);
      } else if (const auto* s = std::get_if<Send>(&instruction)) {
        add(prices.transfers[static_cast<std::size_t>(s->transfer)]);
      } else if (const auto* r = std::get_if<Receive>(&instruction)) {
        if (prices.one_stream) add(prices.receives[static_cast<std::size_t>(r->transfer)]);
      } else {
        continue;
      }
      add(std::max(prices.issue + std::max(prices.groups, prices.route),
                   prices.fill.value_or(Duration())));
    }
    of_body.push_back(sum);
  }
  auto longest = static_cast<double>(prices.graph.picoseconds);
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) {
      longest += of_body[static_cast<std::size_t>(call.body)];
    }
  }
  if (longest > kLongestStep) {
    throw Error("cluster", "the step may take longer than 100 days, which is more than can be "
                           "counted; check rates, latencies and slow devices");
  }
}

void check_trace(const Job& job, const Code& code, const Mesh& mesh) {
  double spans = 0;
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) {
      spans += static_cast<double>(code.timed[static_cast<std::size_t>(call.body)]);
    }
  }
  spans *= mesh.ranks() / mesh.stages();
  if (spans > kSpansMax) {
    throw Error("trace", "up to " + std::to_string(static_cast<std::int64_t>(spans)) +
                             " spans are too many, at most " + std::to_string(kSpansMax) +
                             "; trace folded ranks, or fewer micro-batches");
  }
}

}  // namespace

Timeline simulate(const Job& job, const Prices& prices, const SimulateOptions& options) {
  check_length(job, prices);
  if (options.ranks == Ranks::kAll) {
    const Code code = compile(job, prices, job.mesh, false);
    if (options.trace) check_trace(job, code, job.mesh);
    return walk(job, code, job.mesh, prices.slow, {.trace = options.trace});
  }
  STEPCAST_CHECK(prices.slow.empty(), "a rank stands for its stage only where none is slow");
  const Mesh folded = pipeline_alone(job.mesh);
  const Code code = compile(job, prices, folded, options.memoise && !options.trace);
  if (options.trace) check_trace(job, code, folded);
  Timeline timeline = walk(job, code, folded, {}, {.trace = options.trace});
  // The first rank of a stage has all its other coordinates 0.
  const int stride = job.mesh.stride(Axis::kPipeline);
  for (RankTime& time : timeline.ranks) time.rank *= stride;
  for (Span& span : timeline.trace.spans) span.rank *= stride;
  return timeline;
}

Timeline simulate(const Job& job, const Recording& recording, bool trace) {
  Prices prices;
  prices.ops.resize(job.ops.size());
  prices.basis.assign(job.ops.size(), Basis::kMeasured);
  prices.transfers.resize(job.transfers.size());
  prices.receives.resize(job.transfers.size());
  prices.one_stream = true;
  const Code code = compile(job, prices, job.mesh, false);
  if (trace) check_trace(job, code, job.mesh);
  WalkOptions options;
  options.trace = trace;
  options.recording = &recording;
  return walk(job, code, job.mesh, {}, options);
}

}  // namespace stepcast
