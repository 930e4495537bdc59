// Vector clocks (Fidge 1988, Mattern 1989) over the streams: of each stream, up to which
// instruction of each other one it has waited for.
#include "execute/cuda/fences.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

using Moments = std::array<std::int64_t, kStreams>;  // the last instruction, by stream; -1: none

Moments never() {
  Moments moments;
  moments.fill(-1);
  return moments;
}
void join(Moments& into, const Moments& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct Instance {
  TensorId tensor;
  std::int32_t chunk, micro_batch;
  auto operator<=>(const Instance&) const = default;
};

struct Living {
  std::size_t begin = 0, end = 0;
  Moments uses = never();
  Moments before = never();  // last uses of what lay there; until the first use of this one
  bool fresh = true;
};

struct Gone {
  std::size_t end = 0;
  Moments uses = never();
};

class Planner {
 public:
  Planner(const Job& job, const MemoryPlan& places) : job_(job), places_(places) {
    clocks_.fill(never());
    events_.resize(static_cast<std::size_t>(job.events), never());
  }

  std::vector<Fence> run(const Program& program) {
    for (const Call& call : program.schedule) {
      call_ = call;
      const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
      for (const Instruction& instruction : body.code) {
        step(body, instruction);
        ++number_;
      }
    }
    return std::move(fences_);
  }

 private:
  const Tensor& tensor(TensorId id) const { return job_.tensors[static_cast<std::size_t>(id)]; }
  Instance instance(TensorId id) const {
    const Scope scope = tensor(id).scope;
    return {id, scope == Scope::kRank ? -1 : call_.chunk,
            scope == Scope::kMicroBatch ? call_.micro_batch : -1};
  }
  static std::size_t at(Stream stream) { return static_cast<std::size_t>(stream); }

  void step(const Body& body, const Instruction& instruction) {
    match(
        instruction, [&](const Compute& c) { work(body, c.operands, Stream::kCompute); },
        [&](const Collective& c) { work(body, c.operands, c.stream); },
        [&](const Send& s) {
          work({&s.tensor, 1}, s.stream);
        },
        [&](const Receive& r) {
          work({&r.tensor, 1}, r.stream);
        },
        [&](const Alloc& a) { allocate(a.tensor); }, [&](const Free& f) { release(f.tensor); },
        [&](const Record& r) {
          events_[static_cast<std::size_t>(r.event)] = clocks_[at(r.stream)];
        },
        [&](const Wait& w) {
          join(clocks_[at(w.stream)], events_[static_cast<std::size_t>(w.event)]);
        },
        [](const auto&) {});
  }

  void work(const Body& body, Operands operands, Stream stream) {
    work({body.operands.data() + operands.first,
          static_cast<std::size_t>(operands.reads + operands.writes)},
         stream);
  }

  void work(std::span<const TensorId> operands, Stream stream) {
    Moments& clock = clocks_[at(stream)];
    Moments wanted = never();
    for (const TensorId id : operands) {
      const auto found = living_.find(instance(id));
      if (found == living_.end()) continue;  // a resident keeps its place
      Living& living = found->second;
      if (living.fresh) join(wanted, living.before);
      living.fresh = false;
      living.uses[at(stream)] = number_;
    }
    for (std::size_t other = 0; other < wanted.size(); ++other) {
      if (other == at(stream) || wanted[other] <= clock[other]) continue;
      fences_.push_back({wanted[other], number_});
      join(clock, history_.at(wanted[other]));
    }
    clock[at(stream)] = number_;
    history_.emplace(number_, clock);
  }

  void allocate(TensorId id) {
    Living living;
    living.begin = places_.allocs[next_++];
    living.end = living.begin + static_cast<std::size_t>(tensor(id).bytes().count);
    for (auto it = gone_.begin(); it != gone_.end() && it->first < living.end;) {
      const auto [begin, gone] = *it;
      if (gone.end <= living.begin) {
        ++it;
        continue;
      }
      join(living.before, gone.uses);
      it = gone_.erase(it);
      // What sticks out on either side still lies there.
      if (begin < living.begin) gone_.emplace(begin, Gone{living.begin, gone.uses});
      if (gone.end > living.end) it = gone_.emplace(living.end, gone).first;
    }
    living_.insert_or_assign(instance(id), living);
  }

  void release(TensorId id) {
    const auto found = living_.find(instance(id));
    STEPCAST_CHECK(found != living_.end(), "a verified Job frees what it allocated");
    const Living& living = found->second;
    Moments uses = living.uses;
    if (living.fresh) join(uses, living.before);
    if (living.end > living.begin) gone_.emplace(living.begin, Gone{living.end, uses});
    living_.erase(found);
  }

  const Job& job_;
  const MemoryPlan& places_;
  Call call_;
  std::array<Moments, kStreams> clocks_;
  std::vector<Moments> events_;
  std::map<std::int64_t, Moments> history_;  // a stream's clock when it had issued an instruction
  std::map<Instance, Living> living_;
  std::map<std::size_t, Gone> gone_;  // by begin; disjoint
  std::size_t next_ = 0;
  std::int64_t number_ = 0;
  std::vector<Fence> fences_;
};

}  // namespace

std::vector<Fence> plan_fences(const Job& job, const Program& program, const MemoryPlan& places) {
  return Planner(job, places).run(program);
}

int stream_index(const Instruction& instruction) {
  return match(
      instruction, [](const Compute&) { return static_cast<int>(Stream::kCompute); },
      [](const Collective& i) { return static_cast<int>(i.stream); },
      [](const Send& i) { return static_cast<int>(i.stream); },
      [](const Receive& i) { return static_cast<int>(i.stream); },
      [](const auto&) { return kStreams; });
}

}  // namespace stepcast::cuda
