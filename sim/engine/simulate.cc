// simulate(): compile, walk, name the ranks.
//
// Folding. Where no rank is slow, all ranks of a stage do the same at the same time: by induction
// over the walk their registers are equal, so a collective among them begins when any one is ready,
// and a message or a collective across stages meets the same times at every coordinate. So a mesh
// whose other axes have degree 1 has the same times; its collectives inside a stage meet nobody.
#include "sim/engine/simulate.h"

#include "sim/base/error.h"
#include "sim/engine/compile.h"
#include "sim/engine/walk.h"

namespace stepcast {
namespace {

Mesh pipeline_alone(const Mesh& mesh) {
  Mesh folded;
  folded.order = mesh.order;
  folded.degree(Axis::kPipeline) = mesh.stages();
  return folded;
}

}  // namespace

Timeline simulate(const Job& job, const Prices& prices, const SimulateOptions& options) {
  if (options.ranks == Ranks::kAll) {
    const Code code = compile(job, prices, job.mesh, false);
    return walk(job, code, job.mesh, prices.slow, {options.trace});
  }
  STEPCAST_CHECK(prices.slow.empty(), "a rank stands for its stage only where none is slow");
  const Mesh folded = pipeline_alone(job.mesh);
  const Code code = compile(job, prices, folded, options.memoise && !options.trace);
  Timeline timeline = walk(job, code, folded, {}, {options.trace});
  // The first rank of a stage has all its other coordinates 0.
  const int stride = job.mesh.stride(Axis::kPipeline);
  for (RankTime& time : timeline.ranks) time.rank *= stride;
  for (Span& span : timeline.trace.spans) span.rank *= stride;
  return timeline;
}

}  // namespace stepcast
