// The event loop. No queue of events by time: a rank is walked until it needs something of another
// rank that is not there yet, and put on the worklist again by the one who brings it. Times follow
// from what is read, not from when the loop comes by, so the order of the worklist does not matter
// (ranks are a Kahn process network: deterministic processes, blocking reads; Kahn 1974).
//
// Why this ends. verify() has proved that the stages' programs run to their end with every Receive
// and every collective across stages blocking. Let all ranks of a stage walk in lockstep with their
// stage: a collective inside a stage then finds its members at the same instruction, a message or a
// collective across stages finds its partners where the proof has them. So one complete order
// exists; by the network's determinism no other order gets stuck.
//
// Cost: O(instructions), a few nanoseconds each. Memory: a register file a rank (12 bytes a
// register), its RankTime, and the messages in flight. The worklist is last in, first out: the
// members of a tensor group are walked in turn while their registers are in the cache.
#include "sim/engine/walk.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/engine/beside.h"
#include "sim/engine/mailboxes.h"
#include "sim/engine/memo.h"

namespace stepcast {
namespace {

// A group on its way to meet. As its members wait for each other in program order, it has one
// meeting at a time.
struct Group {
  Instant latest;
  std::int32_t arrived = 0;
  std::int32_t waiting = -1;  // the first of a list of ranks, by Rank::next
};

struct Rank {
  std::int32_t at = 0;       // index into Code::micros
  std::int32_t call = 0;     // index into its stage's schedule
  std::int32_t stage = 0;
  std::int32_t next = -1;    // in the list of its Group
  std::int32_t awaits = -1;  // the channel kind of the message that it waits for
  Duration bubble;           // up to its pipeline_end
  std::size_t recorded = 0;  // instances issued, where a recording says what each takes
};

// One kind of meeting, with its groups' places.
struct Meeting {
  std::int32_t members = 0;
  std::vector<std::int32_t> group;  // of each rank, index into Walk::groups_
};

// The rank that is being walked.
struct Here {
  std::int32_t index = 0;
  Instant* clocks = nullptr;
  std::int32_t* causes = nullptr;
  RankTime* time = nullptr;

  Duration& part(Part p) const { return time->breakdown[static_cast<std::size_t>(p)]; }
};

class Walk {
 public:
  Walk(const Job& job, const Code& code, const Mesh& mesh, std::span<const double> slow,
       const WalkOptions& options);
  Timeline run();

 private:
  Here locate(std::int32_t index);
  Rank& rank(std::int32_t index) { return ranks_[static_cast<std::size_t>(index)]; }
  const Program& program(const Rank& r) const {
    return job_.programs[static_cast<std::size_t>(r.stage)];
  }
  std::int32_t entry(const Rank& r) const {
    const Call& call = program(r).schedule[static_cast<std::size_t>(r.call)];
    return code_.entries[static_cast<std::size_t>(call.body) +
                         (call.micro_batch > 0 ? code_.later : 0)];
  }

  std::int32_t take();
  void advance(std::int32_t index);
  Instant issue(const Here& here, const Micro& micro);
  Duration duration(const Here& here, const Micro& micro);
  Instant moved(const Here& here, const Micro& micro, Instant begin);
  void compute(const Here& here, const Micro& micro);
  void work(const Here& here, const Micro& micro, Instant begin, Instant end);
  void send(const Here& here, const Micro& micro);
  bool receive(const Here& here, const Micro& micro);
  bool meet(const Here& here, const Micro& micro);
  void wait(const Here& here, const Micro& micro);
  void synchronize(const Here& here);
  bool end_call(const Here& here);
  void explain(const Here& here, Duration gap, std::int32_t cause);
  void keep_span(const Here& here, const Micro& micro, Instant begin, Instant end);

  Timeline finish();
  void finish_rank(const Here& here);
  void sort_spans();

  const Job& job_;
  const Code& code_;
  const std::span<const double> slow_;
  const bool trace_;
  const Recording* const recording_;
  std::uint64_t lottery_;

  std::vector<Rank> ranks_;
  std::vector<Instant> clocks_;         // (ranks, registers)
  std::vector<std::int32_t> causes_;    // (ranks, registers)
  std::vector<std::int32_t> worklist_;
  std::vector<Meeting> meetings_;       // by kind
  std::vector<Group> groups_;           // of all kinds
  std::vector<std::int32_t> hops_;      // (channel kinds, stages): receiver - sender
  std::vector<std::int32_t> last_pipeline_call_;  // by stage: the last forward or backward call
  Mailboxes mail_;
  Memo memo_;
  Timeline timeline_;
};

Walk::Walk(const Job& job, const Code& code, const Mesh& mesh, std::span<const double> slow,
           const WalkOptions& options)
    : job_(job),
      code_(code),
      slow_(slow),
      trace_(options.trace),
      recording_(options.recording),
      lottery_(options.shuffle),
      mail_(code.channels.size() * static_cast<std::size_t>(mesh.ranks())), memo_(code) {
  const auto count = static_cast<std::size_t>(mesh.ranks());
  STEPCAST_CHECK(slow.empty() || slow.size() == count, "one factor a rank");
  STEPCAST_CHECK(code.segments.empty() || (slow.empty() && !trace_ && recording_ == nullptr),
                 "segments hide durations");
  STEPCAST_CHECK(recording_ == nullptr || recording_->durations.size() == count,
                 "a recording of all ranks");
  STEPCAST_CHECK(job.programs.size() == static_cast<std::size_t>(mesh.stages()),
                 "one program a stage");
  for (const Program& p : job.programs) {
    std::int32_t last = -1;
    for (std::size_t c = 0; c < p.schedule.size(); ++c) {
      const Body& body = job.bodies[static_cast<std::size_t>(p.schedule[c].body)];
      if (body.phase != Phase::kOptimizer) last = static_cast<std::int32_t>(c);
    }
    last_pipeline_call_.push_back(last);
  }
  for (const MeetingKind& kind : code.meetings) {
    Meeting meeting;
    meeting.members = kind.members;
    const auto first = static_cast<std::int32_t>(groups_.size());
    for (std::int32_t r = 0; r < mesh.ranks(); ++r) {
      meeting.group.push_back(first + mesh.group_index(r, kind.axes));
    }
    groups_.resize(groups_.size() + count / static_cast<std::size_t>(mesh.group_size(kind.axes)));
    meetings_.push_back(std::move(meeting));
  }
  const int stages = mesh.stages(), stride = mesh.stride(Axis::kPipeline);
  for (const ChannelKind& kind : code.channels) {
    for (int s = 0; s < stages; ++s) {
      hops_.push_back(((s + kind.step) % stages - s) * stride);
    }
  }
  ranks_.resize(count);
  timeline_.ranks.resize(count);
  clocks_.resize(count * code.registers());
  causes_.reserve(count * code.registers());
  worklist_.reserve(count);
  for (std::int32_t r = 0; r < mesh.ranks(); ++r) {
    rank(r).stage = mesh.stage(r);
    rank(r).at = entry(rank(r));
    timeline_.ranks[static_cast<std::size_t>(r)].rank = r;
    causes_.insert(causes_.end(), code.first_causes.begin(), code.first_causes.end());
    locate(r).clocks[kHostRegister] += code.graph;
  }
  for (std::int32_t r = mesh.ranks() - 1; r >= 0; --r) worklist_.push_back(r);
}

Here Walk::locate(std::int32_t index) {
  const auto r = static_cast<std::size_t>(index);
  return {index, &clocks_[r * code_.registers()], &causes_[r * code_.registers()],
          &timeline_.ranks[r]};
}

std::int32_t Walk::take() {
  if (lottery_ != 0) {  // xorshift64 (Marsaglia 2003)
    lottery_ ^= lottery_ << 13;
    lottery_ ^= lottery_ >> 7;
    lottery_ ^= lottery_ << 17;
    std::swap(worklist_[lottery_ % worklist_.size()], worklist_.back());
  }
  const std::int32_t index = worklist_.back();
  worklist_.pop_back();
  return index;
}

// When the host has issued one more instruction and its stream is free.
inline Instant Walk::issue(const Here& here, const Micro& micro) {
  here.clocks[kHostRegister] += code_.host[micro.host];
  return later(here.clocks[micro.stream], here.clocks[kHostRegister]);
}

// Of the instance that the rank is at.
inline Duration Walk::duration(const Here& here, const Micro& micro) {
  if (recording_ == nullptr) [[likely]]
    return micro.duration;
  return recording_->durations[static_cast<std::size_t>(here.index)].at(
      rank(here.index).recorded++);
}

// The end of a transfer that begins at `begin`.
inline Instant Walk::moved(const Here& here, const Micro& micro, Instant begin) {
  if (recording_ != nullptr) return begin + duration(here, micro);
  return transfer_end(code_, here.clocks, micro, begin);
}

inline void Walk::keep_span(const Here& here, const Micro& micro, Instant begin, Instant end) {
  if (!trace_) [[likely]] return;
  const Rank& r = rank(here.index);
  const Call& call = program(r).schedule[static_cast<std::size_t>(r.call)];
  const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
  const Stream stream = match(
      body.code[static_cast<std::size_t>(micro.instruction)],
      [](const Collective& i) { return i.stream; }, [](const Send& i) { return i.stream; },
      [](const Receive& i) { return i.stream; }, [](const auto&) { return Stream::kCompute; });
  timeline_.trace.spans.push_back({here.index, call.body,
                                   static_cast<std::int32_t>(micro.instruction), call.chunk,
                                   call.micro_batch, stream, begin, end});
}

inline void Walk::compute(const Here& here, const Micro& micro) {
  const Instant begin = issue(here, micro);
  Duration time = duration(here, micro);
  if (!slow_.empty()) {
    const double factor = slow_[static_cast<std::size_t>(here.index)];
    time = Duration(std::llround(static_cast<double>(time.picoseconds) * factor));
  }
  here.part(Part::kOther) += begin - here.clocks[kComputeRegister];
  here.part(micro.part) += time;
  here.time->basis[static_cast<std::size_t>(micro.detail)] += time;
  const Instant end =
      kernel_end(code_, here.clocks, micro.other, begin, time, here.time->breakdown);
  here.clocks[kComputeRegister] = end;
  keep_span(here, micro, begin, end);
}

// Anything but a kernel. On the compute stream its time is nobody's but its own.
inline void Walk::work(const Here& here, const Micro& micro, Instant begin, Instant end) {
  Instant& clock = here.clocks[micro.stream];
  if (micro.stream == kComputeRegister) {
    here.part(micro.part) += end - clock;
  } else if (begin > clock) {
    here.clocks[micro.stream + 1] = begin;
  }
  clock = end;
  keep_span(here, micro, begin, end);
}

inline void Walk::send(const Here& here, const Micro& micro) {
  const Instant begin = issue(here, micro);
  const Instant end = moved(here, micro, begin);
  work(here, micro, begin, end);
  const auto kind = static_cast<std::size_t>(micro.other);
  const auto stage = static_cast<std::size_t>(rank(here.index).stage);
  const std::int32_t to = here.index + hops_[kind * job_.programs.size() + stage];
  mail_.push(kind * ranks_.size() + static_cast<std::size_t>(to), code_.one_stream ? begin : end);
  if (rank(to).awaits == micro.other) {
    rank(to).awaits = -1;
    worklist_.push_back(to);
  }
}

inline bool Walk::receive(const Here& here, const Micro& micro) {
  Instant arrival;
  const auto kind = static_cast<std::size_t>(micro.other);
  const std::size_t channel = kind * ranks_.size() + static_cast<std::size_t>(here.index);
  if (!mail_.pop(channel, arrival)) return false;
  const Instant ready = issue(here, micro);
  Instant& clock = here.clocks[micro.stream];
  if (code_.one_stream) {
    const Instant begin = later(ready, arrival), end = begin + duration(here, micro);
    here.part(Part::kBubble) += begin - clock;
    here.part(Part::kPipeline) += end - begin;
    clock = end;
    keep_span(here, micro, begin, end);
    return true;
  }
  const Instant end = later(ready, arrival);
  if (micro.stream == kComputeRegister) explain(here, end - clock, micro.detail);
  clock = end;
  here.causes[micro.stream] = micro.detail;
  keep_span(here, micro, later(ready, arrival - micro.duration), end);
  return true;
}

// The last member to arrive ends the meeting for all.
inline bool Walk::meet(const Here& here, const Micro& micro) {
  const Meeting& meeting = meetings_[static_cast<std::size_t>(micro.other)];
  Group& group =
      groups_[static_cast<std::size_t>(meeting.group[static_cast<std::size_t>(here.index)])];
  group.latest = later(group.latest, issue(here, micro));
  if (++group.arrived < meeting.members) {
    rank(here.index).next = group.waiting;
    group.waiting = here.index;
    return false;
  }
  const Instant begin = group.latest;
  Instant end = moved(here, micro, begin);
  for (std::int32_t other = group.waiting; other >= 0; other = rank(other).next) {
    end = later(end, moved(locate(other), micro, begin));
  }
  for (std::int32_t other = group.waiting; other >= 0; other = rank(other).next) {
    std::int32_t& at = rank(other).at;
    work(locate(other), code_.micros[static_cast<std::size_t>(at)], begin, end);
    ++at;
    worklist_.push_back(other);
  }
  work(here, micro, begin, end);
  group = Group();
  return true;
}

inline void Walk::explain(const Here& here, Duration gap, std::int32_t cause) {
  const Cause& why = code_.causes[static_cast<std::size_t>(cause)];
  const Duration wire = std::min(gap, why.wire);
  here.part(Part::kPipeline) += wire;
  here.part(why.part) += gap - wire;
}

inline void Walk::wait(const Here& here, const Micro& micro) {
  Instant& clock = here.clocks[micro.stream];
  const auto event = static_cast<std::size_t>(micro.other);
  if (here.clocks[event] <= clock) return;
  if (micro.stream == kComputeRegister) {
    explain(here, here.clocks[event] - clock, here.causes[event]);
  } else {
    here.clocks[micro.stream + 1] = here.clocks[event];  // waiting is not being busy
  }
  clock = here.clocks[event];
}

// The host's clock alone moves. What that costs shows where the next instruction is issued late.
void Walk::synchronize(const Here& here) {
  Instant& host = here.clocks[kHostRegister];
  for (const std::int32_t reg : code_.stream_registers) host = later(host, here.clocks[reg]);
}

// On to the next call; false at the end of the program.
inline bool Walk::end_call(const Here& here) {
  Rank& r = rank(here.index);
  if (r.call == last_pipeline_call_[static_cast<std::size_t>(r.stage)]) {
    here.time->pipeline_end = here.clocks[kComputeRegister];
    r.bubble = here.part(Part::kBubble);
  }
  if (static_cast<std::size_t>(++r.call) == program(r).schedule.size()) return false;
  r.at = entry(r);
  return true;
}

// Walks a rank until it must wait, or to its end.
void Walk::advance(std::int32_t index) {
  const Here here = locate(index);
  const Micro* const first = code_.micros.data();
  const Micro* at = first + rank(index).at;
  const auto park = [&] { rank(index).at = static_cast<std::int32_t>(at - first); };
  for (;; ++at) {
    switch (at->kind) {
      case MicroKind::kCompute: compute(here, *at); break;
      case MicroKind::kLocal: {
        const Instant begin = issue(here, *at);
        work(here, *at, begin, moved(here, *at, begin));
        break;
      }
      case MicroKind::kMeet:
        if (!meet(here, *at)) return park();
        break;
      case MicroKind::kSend: send(here, *at); break;
      case MicroKind::kReceive:
        if (!receive(here, *at)) {
          rank(index).awaits = at->other;
          return park();
        }
        break;
      case MicroKind::kRecord:
        here.clocks[at->other] = here.clocks[at->stream];
        here.causes[at->other] = here.causes[at->stream];
        break;
      case MicroKind::kWait: wait(here, *at); break;
      case MicroKind::kSynchronize: synchronize(here); break;
      case MicroKind::kHostWait:
        here.clocks[kHostRegister] = later(here.clocks[kHostRegister], here.clocks[at->other]);
        break;
      case MicroKind::kPass: here.clocks[kHostRegister] += at->duration; break;
      case MicroKind::kSegment:
        if (memo_.recall(at->other, here.clocks, here.causes, here.time->breakdown)) {
          const Segment& segment = code_.segments[static_cast<std::size_t>(at->other)];
          for (std::size_t b = 0; b < segment.basis.size(); ++b) {
            here.time->basis[b] += segment.basis[b];
          }
          at = first + segment.end;
        }
        break;
      case MicroKind::kSegmentEnd:
        memo_.remember(at->other, here.clocks, here.time->breakdown);
        break;
      case MicroKind::kEnd:
        if (!end_call(here)) return;
        at = first + rank(index).at - 1;
        break;
    }
  }
}

Timeline Walk::run() {
  while (!worklist_.empty()) advance(take());
  return finish();
}

// The end of a rank's own work, and the wait for the stream that ends last.
void Walk::finish_rank(const Here& here) {
  const Rank& r = rank(here.index);
  STEPCAST_CHECK(static_cast<std::size_t>(r.call) == program(r).schedule.size(),
                 "a job that verifies runs to its end");
  auto last = static_cast<std::size_t>(code_.stream_registers.front());
  for (const std::int32_t reg : code_.stream_registers) {
    if (here.clocks[last] < here.clocks[reg]) last = static_cast<std::size_t>(reg);
  }
  here.time->end = here.clocks[last];
  explain(here, here.time->end - here.clocks[kComputeRegister], here.causes[last]);
}

Timeline Walk::finish() {
  Instant end, pipeline_end;
  Duration busiest(-1);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const Here here = locate(static_cast<std::int32_t>(r));
    finish_rank(here);
    end = later(end, here.time->end);
    const Duration busy = here.part(Part::kCompute) + here.part(Part::kRecompute) +
                          here.part(Part::kOptimizer);
    const RankTime& slowest = timeline_.ranks[static_cast<std::size_t>(timeline_.slowest)];
    if (busy > busiest || (busy == busiest && here.time->end > slowest.end)) {
      busiest = busy;
      timeline_.slowest = here.index;
    }
    pipeline_end = later(pipeline_end, here.time->pipeline_end);
  }
  timeline_.step = end - Instant();
  std::vector<std::int64_t> timed;  // by stage
  for (const Program& p : job_.programs) {
    std::int64_t sum = 0;
    for (const Call& call : p.schedule) sum += code_.timed[static_cast<std::size_t>(call.body)];
    timed.push_back(sum);
  }
  double idle = 0;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    RankTime& time = timeline_.ranks[r];
    time.breakdown[static_cast<std::size_t>(Part::kOther)] += end - time.end;
    const Duration waits = ranks_[r].bubble + (pipeline_end - time.pipeline_end);
    if (pipeline_end > Instant()) idle += to_seconds(waits) / to_seconds(pipeline_end - Instant());
    timeline_.instructions += timed[static_cast<std::size_t>(ranks_[r].stage)];
  }
  timeline_.bubble_fraction = idle / static_cast<double>(ranks_.size());
  if (trace_) sort_spans();
  return std::move(timeline_);
}

// By rank, each in its order of issue: a counting sort, as the loop has kept that order.
void Walk::sort_spans() {
  std::vector<std::size_t> first(ranks_.size() + 1, 0);
  for (const Span& span : timeline_.trace.spans) ++first[static_cast<std::size_t>(span.rank) + 1];
  for (std::size_t r = 1; r < first.size(); ++r) first[r] += first[r - 1];
  std::vector<Span> sorted(timeline_.trace.spans.size());
  for (const Span& span : timeline_.trace.spans) {
    sorted[first[static_cast<std::size_t>(span.rank)]++] = span;
  }
  timeline_.trace.spans = std::move(sorted);
}

}  // namespace

Timeline walk(const Job& job, const Code& code, const Mesh& mesh, std::span<const double> slow,
              const WalkOptions& options) {
  return Walk(job, code, mesh, slow, options).run();
}

}  // namespace stepcast
