// The lives of tensors, by abstract interpretation with memoised transitions. What a call does
// depends only on its body and on the state in which it finds the tensors of its rank, of its chunk
// and of its micro-batch, and the streams. States are interned, so that (body, states) -> states is
// a table: each body is walked once per distinct state, and a schedule of 512 micro-batches, which
// finds the same few states again and again, costs one look-up a call.
//
// Between calls a clock shrinks to one bit: s knows all that w has done (position 0 of the next
// call), or counts as knowing nothing. An event that was recorded in an earlier call stands for all
// earlier calls of the streams that its Record knew. That is a shade too kind to an event that is
// waited for long after its Record (of passes in parts, to those of the other pass's exchange that
// was begun since), and exact where events are recorded anew in each call.

#include "sim/program/verify_body_walk.h"

#include <map>
#include <optional>

namespace stepcast {

namespace {

using namespace lifetimes;

// The event that an instruction makes a stream or the host wait for.
std::optional<EventId> awaited(const Instruction& instruction) {
  if (const Wait* w = std::get_if<Wait>(&instruction)) return w->event;
  if (const HostWait* w = std::get_if<HostWait>(&instruction)) return w->event;
  return std::nullopt;
}

// Walks the schedules, call by call, over the table of transitions.
class LifetimeWalk {
 public:
  explicit LifetimeWalk(const Job& job) : job_(job), bodies_(job, interner_) {
    for (const Body& body : job.bodies) use_.push_back(event_use(body));
  }

  std::string run_stage(std::size_t stage) {
    begin(stage);
    const std::vector<Call>& schedule = job_.programs[stage].schedule;
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      std::string fault = run_call(stage, i);
      if (!fault.empty()) return fault;
    }
    return leak(stage);
  }

 private:
  EventUse event_use(const Body& body) const {
    EventUse use;
    std::vector<bool> recorded(static_cast<std::size_t>(job_.events));
    std::vector<bool> imported(static_cast<std::size_t>(job_.events));
    for (const Instruction& instruction : body.code) {
      if (const Record* r = std::get_if<Record>(&instruction)) {
        const auto event = static_cast<std::size_t>(r->event);
        if (!recorded[event]) use.records.push_back(r->event);
        recorded[event] = true;
      } else if (const std::optional<EventId> waited = awaited(instruction)) {
        const auto event = static_cast<std::size_t>(*waited);
        if (!recorded[event] && !imported[event]) use.imports.push_back(*waited);
        imported[event] = true;
      }
    }
    return use;
  }

  void begin(std::size_t stage) {
    std::map<std::int32_t, Words> chunks;
    std::map<std::int32_t, Words> micro_batches;  // by chunk
    Words rank;
    for (const Resident& resident : job_.programs[stage].residents) {
      for (const TensorId tensor : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
        const Life life = {tensor, 0, kNobody, true, true, true, true};
        const Scope scope = job_.tensors[static_cast<std::size_t>(tensor)].scope;
        Words& words = scope == Scope::kRank    ? rank
                       : scope == Scope::kChunk ? chunks[resident.chunk]
                                                : micro_batches[resident.chunk];
        words.push_back(pack(life));
      }
    }
    rank_ = state(std::move(rank));
    chunks_.clear();
    micro_base_.clear();
    micro_batches_.clear();
    empty_ = state({});
    for (auto& [chunk, words] : chunks) chunks_[chunk] = state(std::move(words));
    for (auto& [chunk, words] : micro_batches) micro_base_[chunk] = state(std::move(words));
    Words sync(kStreams);
    for (std::size_t s = 0; s < kStreams; ++s) sync[s] = (1u << kStreams) - 1;  // nothing done yet
    sync_ = interner_.number(std::move(sync));
    recorded_.assign(static_cast<std::size_t>(job_.events), 0);
  }

  int state(Words words) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return interner_.number(std::move(words));
  }

  static std::uint64_t instance(const Call& call) {
    return static_cast<std::uint64_t>(call.chunk) << 32 |
           static_cast<std::uint64_t>(call.micro_batch);
  }
  static int find(const std::unordered_map<std::int32_t, int>& states, std::int32_t chunk,
                  int otherwise) {
    const auto it = states.find(chunk);
    return it == states.end() ? otherwise : it->second;
  }

  std::string run_call(std::size_t stage, std::size_t index) {
    const Call& call = job_.programs[stage].schedule[index];
    const auto body = static_cast<std::size_t>(call.body);
    const int base = find(micro_base_, call.chunk, empty_);
    const auto micro = micro_batches_.find(instance(call));
    const States before = {rank_, find(chunks_, call.chunk, empty_),
                           micro == micro_batches_.end() ? base : micro->second, sync_};
    key_.assign({body, static_cast<std::uint64_t>(before.rank),
                 static_cast<std::uint64_t>(before.chunk),
                 static_cast<std::uint64_t>(before.micro_batch),
                 static_cast<std::uint64_t>(before.sync)});
    for (const EventId event : use_[body].imports) {
      key_.push_back(recorded_[static_cast<std::size_t>(event)]);
    }
    auto known = transitions_.find(key_);
    if (known == transitions_.end()) {
      Transition transition;
      std::size_t instruction = 0;
      const std::string fault = bodies_.walk(job_.bodies[body], use_[body], before, recorded_,
                                             instruction, transition);
      if (!fault.empty()) return place_text(job_, stage, index, instruction) + fault;
      known = transitions_.emplace(key_, std::move(transition)).first;
    }
    const Transition& done = known->second;
    rank_ = done.after.rank;
    chunks_[call.chunk] = done.after.chunk;
    sync_ = done.after.sync;
    if (done.after.micro_batch == base) {
      micro_batches_.erase(instance(call));  // keeps the table as small as what is in flight
    } else {
      micro_batches_[instance(call)] = done.after.micro_batch;
    }
    for (std::size_t i = 0; i < done.records.size(); ++i) {
      recorded_[static_cast<std::size_t>(use_[body].records[i])] = done.records[i];
    }
    return "";
  }

  std::string leak_in(std::size_t stage, int state, std::string_view where) const {
    for (const std::uint64_t word : interner_.words(state)) {
      const Life life = unpack(word);
      if (life.resident) continue;
      std::string fault;
      append(fault, "stage ", static_cast<std::int64_t>(stage), where, ": ",
             tensor_text(job_, life.tensor), " is still allocated at the end of the step");
      return fault;
    }
    return "";
  }

  std::string leak(std::size_t stage) const {
    std::string fault = leak_in(stage, rank_, "");
    const std::map<std::int32_t, int> chunks(chunks_.begin(), chunks_.end());
    for (const auto& [chunk, state] : chunks) {
      if (!fault.empty()) break;
      fault = leak_in(stage, state, ", chunk " + std::to_string(chunk));
    }
    const std::map<std::uint64_t, int> micro_batches(micro_batches_.begin(), micro_batches_.end());
    for (const auto& [key, state] : micro_batches) {
      if (!fault.empty()) break;
      fault = leak_in(stage, state, ", chunk " + std::to_string(key >> 32) + ", micro-batch " +
                                        std::to_string(key & 0xffffffffu));
    }
    return fault;
  }

  const Job& job_;
  Interner interner_;
  BodyWalk bodies_;
  std::vector<EventUse> use_;  // by body
  std::unordered_map<Words, Transition, WordsHash> transitions_;
  Words key_;

  // The stage that is being walked.
  int rank_ = 0, sync_ = 0, empty_ = 0;
  std::unordered_map<std::int32_t, int> chunks_, micro_base_;
  std::unordered_map<std::uint64_t, int> micro_batches_;  // that differ from their chunk's base
  std::vector<StreamMask> recorded_;                      // by event; 0: never
};

}  // namespace

std::string verify_lifetimes(const Job& job) {
  LifetimeWalk walk(job);
  for (std::size_t stage = 0; stage < job.programs.size(); ++stage) {
    std::string fault = walk.run_stage(stage);
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace stepcast
