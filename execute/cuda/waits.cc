// One pass over the step. Of each stream it keeps when it was last busy, of each event what its
// stream had done when it was recorded.
#include "execute/cuda/waits.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "sim/base/error.h"
#include "sim/result/recording.h"

namespace stepcast::cuda {

namespace {

Part part_of(Phase phase) {
  if (phase == Phase::kRecompute) return Part::kRecompute;
  return phase == Phase::kOptimizer ? Part::kOptimizer : Part::kCompute;
}

Part part_of(Stream stream) {
  switch (stream) {
    case Stream::kTensor: return Part::kTensor;
    case Stream::kContext: return Part::kContext;
    case Stream::kExpert: return Part::kExpert;
    case Stream::kData:
    case Stream::kReplica: return Part::kData;
    case Stream::kGlobal: return Part::kBubble;
    case Stream::kSendForward:
    case Stream::kSendBackward:
    case Stream::kReceiveForward:
    case Stream::kReceiveBackward: return Part::kPipeline;
    case Stream::kCompute:
    case Stream::kHostCopy: break;
  }
  return Part::kOther;
}

// The last thing that a stream did, up to some moment of issue.
struct Last {
  Stream stream = Stream::kCompute;
  Instant end;
  Duration own;  // of a receive: the message's own time
  bool receives = false;
};

class Attribution {
 public:
  Attribution(const Job& job, const Program& program, std::span<const Span> spans)
      : job_(job), spans_(spans), events_(static_cast<std::size_t>(job.events)) {
    for (int i = 0; i < kStreams; ++i) {
      streams_[static_cast<std::size_t>(i)].stream = static_cast<Stream>(i);
    }
    find_messages(program);
  }

  Breakdown run(const Program& program, Duration step) {
    for (const Call& call : program.schedule) {
      for (const Instruction& i : job_.bodies[static_cast<std::size_t>(call.body)].code) take(i);
    }
    STEPCAST_CHECK(next_ == spans_.size(), "a span each for what takes time");
    // What outlasts the last kernel.
    Last last;
    for (const Last& stream : streams_) last = stream.end > last.end ? stream : last;
    wait_for(last);
    Duration known;
    for (const Duration part : out_) known += part;
    out_[static_cast<std::size_t>(Part::kOther)] += step - known;
    return out_;
  }

 private:
  void find_messages(const Program& program) {
    std::size_t next = 0;
    for (const Call& call : program.schedule) {
      for (const Instruction& i : job_.bodies[static_cast<std::size_t>(call.body)].code) {
        if (!takes_time(i)) continue;
        STEPCAST_CHECK(next < spans_.size(), "a span each for what takes time");
        const Span& span = spans_[next++];
        const auto* receive = std::get_if<Receive>(&i);
        if (receive == nullptr) continue;
        const Duration length = span.end - span.begin;
        const auto [known, fresh] = messages_.emplace(receive->transfer, length);
        if (!fresh) known->second = std::min(known->second, length);
      }
    }
  }

  // The compute stream stood still until another one was as far.
  void wait_for(const Last& last) {
    if (last.end <= clock_) return;
    Duration waited = last.end - clock_;
    clock_ = last.end;
    if (last.receives && waited > last.own) {
      out_[static_cast<std::size_t>(Part::kBubble)] += waited - last.own;
      waited = last.own;
    }
    // Where there is one stage, nobody's cool-down is waited for.
    const bool alone = last.stream == Stream::kGlobal && job_.mesh.stages() == 1;
    out_[static_cast<std::size_t>(alone ? Part::kOther : part_of(last.stream))] += waited;
  }

  // A kernel; what it had to wait for besides was the host, which issued it late.
  void compute(Phase phase, const Span& span) {
    if (span.begin > clock_) {
      out_[static_cast<std::size_t>(Part::kOther)] += span.begin - clock_;
      clock_ = span.begin;
    }
    if (span.end <= clock_) return;
    out_[static_cast<std::size_t>(part_of(phase))] += span.end - clock_;
    clock_ = span.end;
  }

  void take(const Instruction& instruction) {
    match(
        instruction,
        [&](const Compute& c) {
          const Span& span = spans_[next_++];
          compute(c.phase, span);
          busy(Stream::kCompute, span, {}, false);
        },
        [&](const Collective& c) { busy(c.stream, spans_[next_++], {}, false); },
        [&](const Send& s) { busy(s.stream, spans_[next_++], {}, false); },
        [&](const Receive& r) { busy(r.stream, spans_[next_++], messages_.at(r.transfer), true); },
        [&](const Record& r) {
          events_[static_cast<std::size_t>(r.event)] = streams_[static_cast<std::size_t>(r.stream)];
        },
        [&](const Wait& w) {
          if (w.stream != Stream::kCompute) return;
          wait_for(events_[static_cast<std::size_t>(w.event)]);
        },
        [](const auto&) {});
  }

  void busy(Stream stream, const Span& span, Duration own, bool receives) {
    streams_[static_cast<std::size_t>(stream)] = {stream, span.end, own, receives};
  }

  const Job& job_;
  const std::span<const Span> spans_;
  std::map<TransferId, Duration> messages_;  // the shortest receive
  std::array<Last, kStreams> streams_;
  std::vector<Last> events_;
  Instant clock_;  // the compute stream's
  Breakdown out_ = {};
  std::size_t next_ = 0;
};

}  // namespace

Breakdown attribute(const Job& job, const Program& program, std::span<const Span> spans,
                    Duration step) {
  return Attribution(job, program, spans).run(program, step);
}

}  // namespace stepcast::cuda
