// Traffic: a body's bytes are counted once, then multiplied by its calls. Cost: linear in the text
// of the bodies plus the number of calls.
#include <vector>

#include "sim/engine/simulate.h"
#include "sim/program/charged.h"

namespace stepcast {
namespace {

using ByAxis = std::array<Bytes, kAxes>;

ByAxis sent_by_body(const Job& job, const Body& body) {
  ByAxis sent = {};
  const auto add = [&](TransferId id, Axis axis) {
    sent[static_cast<std::size_t>(axis)] +=
        sent_bytes(job.transfers[static_cast<std::size_t>(id)], job.mesh);
  };
  for (const Instruction& instruction : body.code) {
    if (const auto* send = std::get_if<Send>(&instruction)) add(send->transfer, Axis::kPipeline);
    if (const auto* collective = std::get_if<Collective>(&instruction)) {
      const Transfer& transfer = job.transfers[static_cast<std::size_t>(collective->transfer)];
      if (transfer.axes.empty()) continue;
      add(collective->transfer, charged_axis(collective->stream, transfer));
    }
  }
  return sent;
}

}  // namespace

Traffic count_traffic(const Job& job) {
  std::vector<ByAxis> bodies;
  bodies.reserve(job.bodies.size());
  for (const Body& body : job.bodies) bodies.push_back(sent_by_body(job, body));
  Traffic traffic;
  for (const Program& program : job.programs) {
    ByAxis sum = {};
    std::vector<std::int64_t> calls(job.bodies.size(), 0);
    for (const Call& call : program.schedule) ++calls[static_cast<std::size_t>(call.body)];
    for (std::size_t b = 0; b < calls.size(); ++b) {
      for (std::size_t axis = 0; axis < sum.size(); ++axis) sum[axis] += bodies[b][axis] * calls[b];
    }
    traffic.stages.push_back(sum);
  }
  return traffic;
}

}  // namespace stepcast
