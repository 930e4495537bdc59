// Two passes: the shortest span of each meeting, then what every instance takes. A meeting is told
// by who meets and by how often they have met before, on one stream.
#include "execute/cuda/recorded.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "execute/transport.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

// Axes, or a direction; the first member, or the sender; the stream; the number of the meeting.
using Meeting = std::tuple<int, int, int, std::int64_t>;

// A message is one of its sender's stream.
Stream senders_stream(Stream stream) {
  if (stream == Stream::kReceiveForward) return Stream::kSendForward;
  return stream == Stream::kReceiveBackward ? Stream::kSendBackward : stream;
}

template <class Function>
void for_meetings(const Job& job, int rank, Function function) {
  std::map<std::tuple<int, int, int>, std::int64_t> met;
  const auto next = [&](int kind, int first, Stream stream) {
    const std::tuple key(kind, first, static_cast<int>(stream));
    return Meeting(kind, first, static_cast<int>(stream), met[key]++);
  };
  std::map<std::pair<std::uint8_t, bool>, int> firsts;
  const Program& program = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))];
  for_each_timed(job, program, [&](const Call&, std::size_t, const Instruction& i, std::size_t at) {
    if (const auto* c = std::get_if<Collective>(&i)) {
      const Transfer& t = job.transfers[static_cast<std::size_t>(c->transfer)];
      const auto [found, fresh] = firsts.emplace(std::pair(t.axes.bits, t.ends_only), 0);
      if (fresh) {
        found->second = group_of(job.mesh, rank, t.axes, t.ends_only).members.front();
      }
      const int kind = 2 * t.axes.bits + (t.ends_only ? 1 : 0);
      function(at, next(kind, found->second, c->stream));
    } else if (const auto* s = std::get_if<Send>(&i)) {
      function(at, next(-2 - s->step, rank, s->stream));
    } else if (const auto* r = std::get_if<Receive>(&i)) {
      const int from = job.mesh.neighbour(rank, Axis::kPipeline, r->step);
      function(at, next(-2 + r->step, from, senders_stream(r->stream)));
    }
  });
}

}  // namespace

Recording record_spans(const Job& job, std::span<const std::vector<Span>> spans, Duration step) {
  Recording out;
  out.step = step;
  std::map<Meeting, Duration> shortest;
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    std::vector<Duration>& durations = out.durations.emplace_back();
    for (const Span& span : spans[rank]) durations.push_back(span.end - span.begin);
    for_meetings(job, static_cast<int>(rank), [&](std::size_t at, const Meeting& meeting) {
      STEPCAST_CHECK(at < durations.size(), "a span each for what takes time");
      const auto [known, fresh] = shortest.emplace(meeting, durations[at]);
      if (!fresh) known->second = std::min(known->second, durations[at]);
    });
  }
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    for_meetings(job, static_cast<int>(rank), [&](std::size_t at, const Meeting& meeting) {
      out.durations[rank][at] = shortest.at(meeting);
    });
  }
  out.whole = out.durations;  // streams wait, not ranks: nothing else belongs to an instruction
  return out;
}

}  // namespace stepcast::cuda
