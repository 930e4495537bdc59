// For each kernel the transfers of every other stream that overlap it, by binary search. Cost:
// linear in the spans, times the streams and the logarithm, plus the overlapping pairs.
#include "calibrate/alone.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace stepcast {

namespace {

const Instruction& instruction_of(const Job& job, const Span& span) {
  return job.bodies[static_cast<std::size_t>(span.body)]
      .code[static_cast<std::size_t>(span.instruction)];
}

// What moves bytes beside kernels; a Receive mostly waits.
const Transfer* transfer_of(const Job& job, const Span& span) {
  TransferId id = -1;
  const Instruction& instruction = instruction_of(job, span);
  if (const auto* c = std::get_if<Collective>(&instruction)) id = c->transfer;
  if (const auto* s = std::get_if<Send>(&instruction)) id = s->transfer;
  return id < 0 ? nullptr : &job.transfers[static_cast<std::size_t>(id)];
}

double length(const Span& span) { return static_cast<double>((span.end - span.begin).picoseconds); }

}  // namespace

std::vector<Span> spans_alone(const Job& job, std::span<const Span> spans, const FindBeside& find) {
  std::array<std::vector<std::size_t>, kStreams> transfers;  // indices, by stream
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].stream == Stream::kCompute || transfer_of(job, spans[i]) == nullptr) continue;
    transfers[static_cast<std::size_t>(spans[i].stream)].push_back(i);
  }
  std::vector<double> cost(spans.size(), 0.0);  // of each span, in picoseconds of overlap
  for (std::size_t k = 0; k < spans.size(); ++k) {
    const auto* compute = std::get_if<Compute>(&instruction_of(job, spans[k]));
    if (compute == nullptr) continue;
    const std::string_view kernel = beside_kernel(job.ops[static_cast<std::size_t>(compute->op)]);
    for (const std::vector<std::size_t>& stream : transfers) {
      auto at = std::partition_point(stream.begin(), stream.end(),
                                     [&](std::size_t i) { return spans[i].end <= spans[k].begin; });
      for (; at != stream.end() && spans[*at].begin < spans[k].end; ++at) {
        const BesidePoint* point = find(kernel, *transfer_of(job, spans[*at]));
        if (point == nullptr) continue;
        const Duration overlap =
            std::min(spans[k].end, spans[*at].end) - std::max(spans[k].begin, spans[*at].begin);
        const auto shared = static_cast<double>(overlap.picoseconds);
        cost[k] += std::max(0.0, point->kernel_factor - 1) * shared;
        cost[*at] += std::max(0.0, point->collective_factor - 1) * shared;
      }
    }
  }
  std::vector<Span> out(spans.begin(), spans.end());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double whole = length(out[i]);
    if (!(whole > 0) || cost[i] == 0) continue;
    const double alone = whole / (1 + cost[i] / whole);
    out[i].end = out[i].begin + Duration(static_cast<std::int64_t>(std::llround(alone)));
  }
  return out;
}

}  // namespace stepcast
