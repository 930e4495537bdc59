// Messages and collectives between stages, by running all programs together without time. A stage
// runs until it meets an empty channel, a collective whose other members are not there yet, or a
// Synchronize while a message of its own is not yet being received; each event that may free a
// stage puts it back on the work-list. A HostWait counts as over when the receives before it are:
// that a message behind which its event stands leaves, too, is not proved here, as little as of
// compute that waits for one. As sends never block and channels are FIFO, the outcome does not
// depend on the order in which stages are run (the programs are a Kahn process network, Kahn 1974;
// waiting for an empty channel is reading its acknowledgements), so one run proves all. Cost:
// O(calls + messages).

#include <array>
#include <deque>
#include <vector>

#include "sim/program/text.h"
#include "sim/program/verify_parts.h"

namespace stepcast {

namespace {

enum class Kind : std::uint8_t { kSend, kReceive, kCollective, kSynchronize };

// What a body has to say to other stages.
struct Exchange {
  std::size_t instruction = 0;
  Kind kind = Kind::kSend;
  TransferId transfer = 0;
  bool backward = false;  // Send, Receive: which of the two channels
};

struct Message {
  TransferId transfer = 0;
  Call call;
  std::size_t call_index = 0;
  std::size_t instruction = 0;
};

struct Cursor {
  std::size_t call = 0;
  std::size_t exchange = 0;  // in the body of the call
  bool waits = false;        // at a collective
  bool sending = false;      // at a Synchronize
};

// The members of one kind of group that have arrived at a collective.
struct Meeting {
  std::size_t arrived = 0;
  std::size_t first = 0;  // the stage that came first
  TransferId transfer = 0;
};

class MessageWalk {
 public:
  explicit MessageWalk(const Job& job)
      : job_(job), stages_(job.programs.size()), cursors_(stages_), channels_(stages_) {
    for (const Body& body : job.bodies) exchanges_.push_back(exchanges_of(body));
  }

  std::string run() {
    for (std::size_t stage = stages_; stage-- > 0;) ready_.push_back(stage);
    while (!ready_.empty()) {
      const std::size_t stage = ready_.back();
      ready_.pop_back();
      std::string fault = run_stage(stage);
      if (!fault.empty()) return fault;
    }
    return end_fault();
  }

 private:
  using Channels = std::array<std::deque<Message>, 2>;  // that a stage sends into, by direction

  std::vector<Exchange> exchanges_of(const Body& body) const {
    std::vector<Exchange> list;
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      match(
          body.code[i],
          [&](const Send& s) {
            list.push_back({i, Kind::kSend, s.transfer, s.stream == Stream::kSendBackward});
          },
          [&](const Receive& r) {
            list.push_back(
                {i, Kind::kReceive, r.transfer, r.stream == Stream::kReceiveBackward});
          },
          [&](const Collective& c) {
            const Transfer& t = job_.transfers[static_cast<std::size_t>(c.transfer)];
            if (stages_ > 1 && t.axes.has(Axis::kPipeline)) {
              list.push_back({i, Kind::kCollective, c.transfer, false});
            }
          },
          [&](const Synchronize&) {
            if (stages_ > 1) list.push_back({i, Kind::kSynchronize, 0, false});
          },
          [](const auto&) {});
    }
    return list;
  }

  const Transfer& transfer(TransferId id) const {
    return job_.transfers[static_cast<std::size_t>(id)];
  }
  const Call& call(std::size_t stage, std::size_t index) const {
    return job_.programs[stage].schedule[index];
  }
  bool finished(std::size_t stage) const {
    return cursors_[stage].call == job_.programs[stage].schedule.size();
  }
  std::size_t next(std::size_t stage) const { return (stage + 1) % stages_; }
  std::size_t previous(std::size_t stage) const { return (stage + stages_ - 1) % stages_; }

  // REQUIRES: the stage's cursor stands on an exchange.
  const Exchange& exchange(std::size_t stage) const {
    const Cursor& cursor = cursors_[stage];
    const auto body = static_cast<std::size_t>(call(stage, cursor.call).body);
    return exchanges_[body][cursor.exchange];
  }
  std::string place(std::size_t stage) const {
    return place_text(job_, stage, cursors_[stage].call, exchange(stage).instruction);
  }

  std::string run_stage(std::size_t stage) {
    Cursor& cursor = cursors_[stage];
    if (cursor.waits) return "";  // woken by a message; only the meeting lets it go on
    const std::vector<Call>& schedule = job_.programs[stage].schedule;
    for (; cursor.call < schedule.size(); ++cursor.call, cursor.exchange = 0) {
      const auto body = static_cast<std::size_t>(schedule[cursor.call].body);
      while (cursor.exchange < exchanges_[body].size()) {
        bool blocked = false;
        std::string fault = step(stage, exchanges_[body][cursor.exchange], blocked);
        if (!fault.empty() || blocked) return fault;
        ++cursor.exchange;
      }
    }
    return "";
  }

  std::string step(std::size_t stage, const Exchange& e, bool& blocked) {
    switch (e.kind) {
      case Kind::kSend: return send(stage, e);
      case Kind::kReceive: return receive(stage, e, blocked);
      case Kind::kCollective: return meet(stage, e, blocked);
      case Kind::kSynchronize:
        blocked = cursors_[stage].sending = sends(stage);
        return "";
    }
    return "";
  }

  // Whether a message of the stage is on its way.
  bool sends(std::size_t stage) const {
    return !channels_[stage][0].empty() || !channels_[stage][1].empty();
  }

  std::string send(std::size_t stage, const Exchange& e) {
    const std::size_t index = cursors_[stage].call;
    channels_[stage][e.backward].push_back(
        {e.transfer, call(stage, index), index, e.instruction});
    const std::size_t to = e.backward ? previous(stage) : next(stage);
    if (to != stage && channels_[stage][e.backward].size() == 1) ready_.push_back(to);
    return "";
  }

  // The chunk at which a message from `chunk` of a stage arrives: the same one, except where the
  // pipeline wraps around from its last stage to the first (or back).
  std::int32_t hop(std::size_t from, std::int32_t chunk, bool backward) const {
    if (backward) return from == 0 ? chunk - 1 : chunk;
    return from + 1 == stages_ ? chunk + 1 : chunk;
  }

  std::string receive(std::size_t stage, const Exchange& e, bool& blocked) {
    const std::size_t from = e.backward ? next(stage) : previous(stage);
    std::deque<Message>& channel = channels_[from][e.backward];
    if (channel.empty()) {
      blocked = true;
      return "";
    }
    const Message message = channel.front();
    channel.pop_front();
    if (cursors_[from].sending && !sends(from)) ready_.push_back(from);
    const Call& here = call(stage, cursors_[stage].call);
    std::string fault;
    if (transfer(message.transfer).bytes != transfer(e.transfer).bytes) {
      append(fault, "of ", transfer(e.transfer).bytes.count, " bytes meets a message of ",
             transfer(message.transfer).bytes.count);
    } else if (message.call.micro_batch != here.micro_batch) {
      append(fault, "meets a message of micro-batch ", message.call.micro_batch);
    } else if (hop(from, message.call.chunk, e.backward) != here.chunk) {
      append(fault, "meets a message of chunk ", message.call.chunk);
    }
    if (fault.empty()) return "";
    std::string line = place(stage);
    append(line, "this receive ", fault, ", sent at ",
           place_text(job_, from, message.call_index, message.instruction));
    line.resize(line.size() - 2);  // the place's colon
    return line;
  }

  std::string meet(std::size_t stage, const Exchange& e, bool& blocked) {
    const bool ends = transfer(e.transfer).ends_only;
    if (ends && stage != 0 && stage + 1 != stages_) {
      return place(stage) + "a collective of the first and the last stage only";
    }
    Meeting& meeting = meetings_[ends];
    if (meeting.arrived == 0) {
      meeting.first = stage;
      meeting.transfer = e.transfer;
    } else if (!(transfer(meeting.transfer) == transfer(e.transfer))) {
      std::string line = place(stage);
      append(line, "collective @", e.transfer, " meets @", meeting.transfer, " at ",
             place(meeting.first));
      line.resize(line.size() - 2);
      return line;
    }
    if (++meeting.arrived < (ends ? std::size_t{2} : stages_)) {
      cursors_[stage].waits = true;
      blocked = true;
      return "";
    }
    meeting = Meeting{};
    for (std::size_t other = 0; other < stages_; ++other) {
      if (other == stage || !cursors_[other].waits) continue;
      if (transfer(exchange(other).transfer).ends_only != ends) continue;
      cursors_[other].waits = false;
      ++cursors_[other].exchange;
      ready_.push_back(other);
    }
    return "";
  }

  std::string end_fault() const {
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      if (finished(stage)) continue;
      const Exchange& e = exchange(stage);
      std::string line = place(stage);
      if (e.kind == Kind::kCollective) {
        append(line, "deadlock: the other stages never come to this collective");
        return line;
      }
      if (e.kind == Kind::kSynchronize) {
        append(line, "deadlock: a message sent before it is never received");
        return line;
      }
      const std::size_t from = e.backward ? next(stage) : previous(stage);
      append(line, finished(from) ? "this receive meets no send of stage "
                                  : "deadlock: this receive waits forever for stage ",
             static_cast<std::int64_t>(from));
      return line;
    }
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      for (const std::deque<Message>& channel : channels_[stage]) {
        if (channel.empty()) continue;
        return place_text(job_, stage, channel.front().call_index, channel.front().instruction) +
               "this send meets no receive";
      }
    }
    return "";
  }

  const Job& job_;
  std::size_t stages_;
  std::vector<Cursor> cursors_;
  std::vector<Channels> channels_;
  std::vector<std::vector<Exchange>> exchanges_;  // by body
  std::array<Meeting, 2> meetings_;               // of all stages; of the ends
  std::vector<std::size_t> ready_;
};

}  // namespace

std::string verify_messages(const Job& job) { return MessageWalk(job).run(); }

}  // namespace stepcast
