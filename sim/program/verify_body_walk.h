// The walk of one body over the states of its tensors; what stands between two calls. The idea is
// told in verify_lifetimes.cc. Internal to sim/program.
//
// Inside a body, order between streams is kept by vector clocks (Lamport 1978, Fidge 1988, Mattern
// 1989): known[s][w] is how far stream s knows stream w to have come. Record copies the clock of
// its stream, Wait merges it. An access is safe if the stream knows every access it depends on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/program/text.h"
#include "sim/program/verify_parts.h"

namespace stepcast::lifetimes {

using Words = std::vector<std::uint64_t>;
using StreamMask = std::uint16_t;
using Clock = std::array<std::int32_t, kStreams>;  // by stream: the position known; -1: none

inline constexpr std::size_t kCompute = 0;         // Stream::kCompute
inline constexpr std::size_t kNobody = 15;         // the writer of what stood there before the step
inline constexpr std::int32_t kUnknown = -1;

inline std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }
inline std::string_view name_of(std::size_t stream) {
  return stream_name(static_cast<Stream>(stream));
}

struct WordsHash {
  std::size_t operator()(const Words& words) const {
    std::uint64_t hash = words.size();
    for (const std::uint64_t word : words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;  // Fibonacci hashing, word by word
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// Equal contents get equal numbers.
class Interner {
 public:
  int number(Words words) {
    const auto [it, fresh] = numbers_.try_emplace(std::move(words), static_cast<int>(all_.size()));
    if (fresh) all_.push_back(&it->first);
    return it->second;
  }
  const Words& words(int number) const { return *all_[static_cast<std::size_t>(number)]; }

 private:
  std::unordered_map<Words, int, WordsHash> numbers_;
  std::vector<const Words*> all_;  // nodes of the map stay where they are
};

inline bool is_send(std::size_t stream) {
  return stream == static_cast<std::size_t>(Stream::kSendForward) ||
         stream == static_cast<std::size_t>(Stream::kSendBackward);
}

// A live tensor between two calls.
struct Life {
  TensorId tensor = 0;
  StreamMask readers = 0;      // streams that have read it since it was written
  std::size_t writer = kNobody;
  bool written = false;
  bool resident = false;
  bool write_settled = false;  // compute knows the write
  bool reads_settled = false;  // compute knows the reads
};

inline std::uint64_t pack(const Life& life) {
  return static_cast<std::uint64_t>(life.tensor) << 32 |
         static_cast<std::uint64_t>(life.readers) << 16 | life.writer << 8 |
         (life.written ? 1u : 0u) | (life.resident ? 2u : 0u) | (life.write_settled ? 4u : 0u) |
         (life.reads_settled ? 8u : 0u);
}

inline Life unpack(std::uint64_t word) {
  Life life;
  life.tensor = static_cast<TensorId>(word >> 32);
  life.readers = static_cast<StreamMask>(word >> 16 & 0xffffu);
  life.writer = word >> 8 & 0xffu;
  life.written = word & 1u;
  life.resident = word & 2u;
  life.write_settled = word & 4u;
  life.reads_settled = word & 8u;
  return life;
}

// A tensor inside the walk of a body.
struct Local {
  int walk = 0;       // the walk that this entry belongs to
  bool live = false;
  bool resident = false;
  bool written = false;
  bool write_settled = false;  // before this body
  bool reads_settled = false;
  std::size_t writer = kNobody;
  std::int32_t write_position = 0;
  Clock reads{};      // by stream: position of its last read since the write
};

// What a body does to the events of its rank.
struct EventUse {
  std::vector<EventId> imports;  // waited for before the body records them
  std::vector<EventId> records;
};

// The interned numbers of all that a call can find or leave. `sync`: which stream knows which.
struct States {
  int rank = 0, chunk = 0, micro_batch = 0, sync = 0;
};

struct Transition {
  States after;
  std::vector<StreamMask> records;  // by EventUse::records: the streams that the event stands for
};

// Walks one body from one state.
class BodyWalk {
 public:
  BodyWalk(const Job& job, Interner& interner)
      : job_(job), interner_(interner), locals_(job.tensors.size()),
        events_(static_cast<std::size_t>(job.events)) {}

  // The fault of the instruction at `instruction`, or "" and the state after the body.
  // `before`: by event, the streams that its last Record stands for; 0: never recorded.
  std::string walk(const Body& body, const EventUse& use, const States& states,
                   const std::vector<StreamMask>& before, std::size_t& instruction,
                   Transition& out) {
    begin(states);
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      std::string fault = step(body, body.code[i], before);
      if (fault.empty()) continue;
      instruction = i;
      return fault;
    }
    finish(use, out);
    return "";
  }

 private:
  struct Event {
    int walk = 0;
    Clock clock{};
  };

  void begin(const States& states) {
    ++walk_;
    touched_.clear();
    position_.fill(0);
    const Words& sync = interner_.words(states.sync);
    for (std::size_t s = 0; s < kStreams; ++s) {
      for (std::size_t w = 0; w < kStreams; ++w) {
        known_[s][w] = s == w || (sync[s] >> w & 1u) ? 0 : kUnknown;
      }
    }
    for (const int number : {states.rank, states.chunk, states.micro_batch}) {
      for (const std::uint64_t word : interner_.words(number)) load(unpack(word));
    }
  }

  void load(const Life& life) {
    Local& local = fresh(life.tensor);
    local.live = true;
    local.resident = life.resident;
    local.written = life.written;
    local.writer = life.writer;
    local.write_settled = life.write_settled;
    local.reads_settled = life.reads_settled;
    for (std::size_t s = 0; s < kStreams; ++s) {
      if (life.readers >> s & 1u) local.reads[s] = 0;
    }
  }

  Local& fresh(TensorId tensor) {
    Local& local = at(tensor);
    if (local.walk != walk_) touched_.push_back(tensor);
    local = Local{};
    local.walk = walk_;
    local.reads.fill(kUnknown);
    return local;
  }
  Local& at(TensorId tensor) { return locals_[static_cast<std::size_t>(tensor)]; }
  bool live(TensorId tensor) { return at(tensor).walk == walk_ && at(tensor).live; }

  std::string step(const Body& body, const Instruction& instruction,
                   const std::vector<StreamMask>& before) {
    return match(
        instruction, [&](const Compute& c) { return run(body, c.operands, kCompute); },
        [&](const Collective& c) { return run(body, c.operands, index_of(c.stream)); },
        [&](const Send& s) {
          advance(index_of(s.stream));
          return read(s.tensor, index_of(s.stream));
        },
        [&](const Receive& r) {
          advance(index_of(r.stream));
          return write(r.tensor, index_of(r.stream));
        },
        [&](const Alloc& a) { return allocate(a.tensor); },
        [&](const Free& f) { return release(f.tensor); },
        [&](const Record& r) {
          events_[static_cast<std::size_t>(r.event)] = {walk_, known_[index_of(r.stream)]};
          return std::string();
        },
        [&](const Wait& w) { return wait(w, before[static_cast<std::size_t>(w.event)]); },
        [&](const HostWait& w) {
          return check_recorded(w.event, before[static_cast<std::size_t>(w.event)]);
        },
        [](const auto&) { return std::string(); });
  }

  void advance(std::size_t stream) { known_[stream][stream] = ++position_[stream]; }

  std::string run(const Body& body, Operands operands, std::size_t stream) {
    advance(stream);
    const auto begin = body.operands.begin() + operands.first;
    const auto middle = begin + operands.reads;
    std::string fault;
    for (auto it = begin; it < middle && fault.empty(); ++it) fault = read(*it, stream);
    for (auto it = middle; it < middle + operands.writes && fault.empty(); ++it) {
      fault = write(*it, stream);
    }
    return fault;
  }

  std::string check_recorded(EventId id, StreamMask before) const {
    if (events_[static_cast<std::size_t>(id)].walk == walk_ || before != 0) return "";
    std::string fault;
    append(fault, "waits for event ", id, ", which was never recorded");
    return fault;
  }

  // Waiting moves the stream on, if it learns something: who knew it before does not know that.
  std::string wait(const Wait& wait, StreamMask before) {
    const std::size_t stream = index_of(wait.stream);
    const Event& event = events_[static_cast<std::size_t>(wait.event)];
    const bool here = event.walk == walk_;
    std::string fault = check_recorded(wait.event, before);
    if (!fault.empty()) return fault;
    bool learns = false;
    for (std::size_t w = 0; w < kStreams; ++w) {
      const bool known = (static_cast<unsigned>(before) >> w & 1u) != 0;
      const std::int32_t position = here ? event.clock[w] : known ? 0 : kUnknown;
      if (position <= known_[stream][w]) continue;
      known_[stream][w] = position;
      learns = true;
    }
    if (learns) advance(stream);
    return "";
  }

  bool knows_write(std::size_t stream, const Local& local) const {
    if (local.writer == kNobody) return true;
    if (known_[stream][local.writer] >= local.write_position) return true;
    return local.write_position == 0 && local.write_settled && known_[stream][kCompute] >= 0;
  }
  bool knows_read(std::size_t stream, const Local& local, std::size_t reader) const {
    if (known_[stream][reader] >= local.reads[reader]) return true;
    return local.reads[reader] == 0 && local.reads_settled && known_[stream][kCompute] >= 0;
  }

  std::string fault_at(std::string_view does, TensorId tensor, std::string_view why) const {
    std::string fault;
    append(fault, does, ' ', tensor_text(job_, tensor), ' ', why);
    return fault;
  }

  std::string read(TensorId tensor, std::size_t stream) {
    if (!live(tensor)) return fault_at("reads", tensor, "while it is not allocated");
    Local& local = at(tensor);
    if (!local.written) return fault_at("reads", tensor, "before it is written");
    if (!knows_write(stream, local)) {
      std::string why;
      append(why, "on stream ", name_of(stream), ", which has not waited for its write on ",
             name_of(local.writer));
      return fault_at("reads", tensor, why);
    }
    local.reads[stream] = position_[stream];
    return "";
  }

  // "" if `stream` knows of every earlier access.
  // Sends that still read may be left out.
  std::string pending_access(const Local& local, std::size_t stream, bool sends = true) const {
    std::string why;
    if (local.written && !knows_write(stream, local)) {
      append(why, "on stream ", name_of(stream), ", which has not waited for its write on ",
             name_of(local.writer));
      return why;
    }
    for (std::size_t r = 0; r < kStreams; ++r) {
      if (local.reads[r] == kUnknown || knows_read(stream, local, r)) continue;
      if (!sends && is_send(r)) continue;
      append(why, "on stream ", name_of(stream), ", which has not waited for its read on ",
             name_of(r));
      return why;
    }
    return why;
  }

  std::string write(TensorId tensor, std::size_t stream) {
    if (!live(tensor)) return fault_at("writes", tensor, "while it is not allocated");
    Local& local = at(tensor);
    const std::string pending = pending_access(local, stream);
    if (!pending.empty()) return fault_at("writes", tensor, pending);
    local.written = true;
    local.writer = stream;
    local.write_position = position_[stream];
    local.write_settled = local.reads_settled = false;
    local.reads.fill(kUnknown);
    return "";
  }

  std::string allocate(TensorId tensor) {
    if (live(tensor)) {
      return fault_at("allocates", tensor, at(tensor).resident ? "which is resident"
                                                               : "a second time");
    }
    fresh(tensor).live = true;
    return "";
  }

  // The allocator may hand the memory on at once, to work on the compute stream.
  std::string release(TensorId tensor) {
    if (!live(tensor)) return fault_at("frees", tensor, "while it is not allocated");
    Local& local = at(tensor);
    if (local.resident) return fault_at("frees", tensor, "which is resident");
    // What a message still reads is given back when the message has left (record_stream).
    const std::string pending = pending_access(local, kCompute, false);
    if (!pending.empty()) return fault_at("frees", tensor, pending);
    local.live = false;
    return "";
  }

  Life life_of(TensorId tensor) {
    const Local& local = at(tensor);
    Life life;
    life.tensor = tensor;
    life.resident = local.resident;
    life.written = local.written;
    life.writer = local.writer;
    life.write_settled = knows_write(kCompute, local);
    life.reads_settled = true;
    for (std::size_t r = 0; r < kStreams; ++r) {
      if (local.reads[r] == kUnknown) continue;
      life.readers = static_cast<StreamMask>(life.readers | 1u << r);
      if (!knows_read(kCompute, local, r)) life.reads_settled = false;
    }
    return life;
  }

  void finish(const EventUse& use, Transition& out) {
    std::array<Words, 3> scopes;
    for (const TensorId tensor : touched_) {
      if (!live(tensor)) continue;
      const Scope scope = job_.tensors[static_cast<std::size_t>(tensor)].scope;
      scopes[static_cast<std::size_t>(scope)].push_back(pack(life_of(tensor)));
    }
    for (Words& words : scopes) std::sort(words.begin(), words.end());
    Words sync(kStreams, 0);
    for (std::size_t s = 0; s < kStreams; ++s) {
      for (std::size_t w = 0; w < kStreams; ++w) {
        if (known_[s][w] == position_[w]) sync[s] |= std::uint64_t{1} << w;
      }
    }
    out.after.rank = interner_.number(std::move(scopes[0]));
    out.after.chunk = interner_.number(std::move(scopes[1]));
    out.after.micro_batch = interner_.number(std::move(scopes[2]));
    out.after.sync = interner_.number(std::move(sync));
    out.records.clear();
    for (const EventId id : use.records) {
      StreamMask mask = 0;
      for (std::size_t w = 0; w < kStreams; ++w) {
        if (events_[static_cast<std::size_t>(id)].clock[w] == kUnknown) continue;
        mask = static_cast<StreamMask>(mask | 1u << w);
      }
      out.records.push_back(mask);
    }
  }

  const Job& job_;
  Interner& interner_;
  int walk_ = 0;
  std::vector<Local> locals_;   // by tensor
  std::vector<Event> events_;   // by event
  std::vector<TensorId> touched_;
  std::array<Clock, kStreams> known_{};
  Clock position_{};
};

}  // namespace stepcast::lifetimes
