// Two passes: the first finds, for every message and every meeting, when its parties turned to it;
// the second subtracts. Partners are told by their order, as verify() has proved that it agrees:
// the k-th Send of a channel meets its k-th Receive, the k-th collective of a group all members'.
#include "sim/result/recording.h"

#include <map>
#include <tuple>

#include "sim/base/error.h"

namespace stepcast {
namespace {

// The stream of the Sends that a receive's stream takes.
Stream lane_of(Stream stream) {
  if (stream == Stream::kReceiveForward) return Stream::kSendForward;
  if (stream == Stream::kReceiveBackward) return Stream::kSendBackward;
  return stream;
}

struct Meeting {
  Instant last_entry, last_end;
};

class Recorder {
 public:
  Recorder(const Job& job, std::span<const Marks> marks) : job_(job), marks_(marks) {
    STEPCAST_CHECK(!marks.empty() && std::ssize(marks) == job.mesh.ranks(), "all ranks' marks");
    begin_ = marks.front().begin;
    for (const Marks& rank : marks) begin_ = rank.begin < begin_ ? rank.begin : begin_;
  }

  Recording run() {
    for (const Marks& rank : marks_) note(rank);
    Recording recording;
    Instant end = begin_;
    for (const Marks& rank : marks_) {
      recording.durations.push_back(durations(rank));
      std::vector<Duration>& whole = recording.whole.emplace_back();
      for (std::size_t at = 0; at < rank.ends.size(); ++at) {
        whole.push_back(rank.ends[at] - entry(rank, at));
      }
      if (!rank.ends.empty()) end = later(end, rank.ends.back());
    }
    recording.step = end - begin_;
    return recording;
  }

 private:
  using Channel = std::tuple<std::int32_t, std::int32_t, Stream>;  // from, to, the sender's stream
  using Key = std::tuple<std::uint8_t, bool, int>;                 // axes, ends only, group

  const Program& program(const Marks& rank) const {
    return job_.programs[static_cast<std::size_t>(job_.mesh.stage(rank.rank))];
  }
  Instant entry(const Marks& rank, std::size_t at) const {
    return at == 0 ? begin_ : rank.ends[at - 1];
  }
  int partner(const Marks& rank, int step) const {
    return job_.mesh.neighbour(rank.rank, Axis::kPipeline, step);
  }
  Key key(const Marks& rank, const Collective& collective) const {
    const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective.transfer)];
    return {transfer.axes.bits, transfer.ends_only,
            job_.mesh.group_index(rank.rank, transfer.axes)};
  }

  void note(const Marks& rank) {
    std::map<Key, std::size_t> met;
    std::size_t count = 0;
    for_each_timed(
        job_, program(rank),
        [&](const Call&, std::size_t, const Instruction& what, std::size_t at) {
          ++count;
          STEPCAST_CHECK(at < rank.ends.size(), "a mark for each instruction that takes time");
          if (const auto* send = std::get_if<Send>(&what)) {
            sent_[{rank.rank, partner(rank, send->step), send->stream}].push_back(entry(rank, at));
          } else if (const auto* collective = std::get_if<Collective>(&what)) {
            const Key group = key(rank, *collective);
            std::vector<Meeting>& meetings = meetings_[group];
            const std::size_t ordinal = met[group]++;
            if (meetings.size() <= ordinal) meetings.resize(ordinal + 1);
            Meeting& meeting = meetings[ordinal];
            meeting.last_entry = later(meeting.last_entry, entry(rank, at));
            meeting.last_end = later(meeting.last_end, rank.ends[at]);
          }
        });
    STEPCAST_CHECK(count == rank.ends.size(), "a mark for each instruction that takes time");
  }

  std::vector<Duration> durations(const Marks& rank) const {
    std::vector<Duration> result;
    result.reserve(rank.ends.size());
    std::map<Key, std::size_t> met;
    std::map<Channel, std::size_t> received;
    for_each_timed(job_, program(rank),
                   [&](const Call&, std::size_t, const Instruction& what, std::size_t at) {
                     if (const auto* collective = std::get_if<Collective>(&what)) {
                       const Key group = key(rank, *collective);
                       const Meeting& meeting = meetings_.at(group)[met[group]++];
                       result.push_back(meeting.last_end - meeting.last_entry);
                       return;
                     }
                     Instant from = entry(rank, at);
                     if (const auto* receive = std::get_if<Receive>(&what)) {
                       const Channel channel = {partner(rank, receive->step), rank.rank,
                                                lane_of(receive->stream)};
                       from = later(from, sent_.at(channel).at(received[channel]++));
                     }
                     result.push_back(rank.ends[at] - from);
                   });
    return result;
  }

  const Job& job_;
  const std::span<const Marks> marks_;
  Instant begin_;
  std::map<Channel, std::vector<Instant>> sent_;  // entries of its Sends
  std::map<Key, std::vector<Meeting>> meetings_;
};

}  // namespace

bool takes_time(const Instruction& instruction) {
  return std::holds_alternative<Compute>(instruction) ||
         std::holds_alternative<Collective>(instruction) ||
         std::holds_alternative<Send>(instruction) || std::holds_alternative<Receive>(instruction);
}

Recording record(const Job& job, std::span<const Marks> marks) {
  return Recorder(job, marks).run();
}

}  // namespace stepcast
