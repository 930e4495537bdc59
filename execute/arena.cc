// First fit over a sorted map of what is taken: within a factor of log of the best for any order of
// requests (Robson 1974), and near it where lives nest, as those of a training step do.
#include "execute/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {

namespace {

class Layout {
 public:
  std::size_t take(std::size_t size) {
    std::size_t at = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin - at >= size) break;
      at = end;
    }
    taken_.emplace(at, at + size);
    size_ = std::max(size_, at + size);
    return at;
  }
  void give(std::size_t at) { taken_.erase(at); }
  std::size_t size() const { return size_; }

 private:
  std::map<std::size_t, std::size_t> taken_;  // begin, end
  std::size_t size_ = 0;
};

// By TensorId: whether some Message (Send, Receive) of the program carries it.
template <class Message>
std::vector<bool> carried_by(const Job& job, const Program& program) {
  std::vector<bool> found(job.tensors.size(), false);
  for (const Call& call : program.schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      const auto* message = std::get_if<Message>(&i);
      if (message != nullptr) found[static_cast<std::size_t>(message->tensor)] = true;
    }
  }
  return found;
}

class Planner {
 public:
  Planner(const Job& job, const Program& program, std::size_t alignment, MessagePlaces messages)
      : job_(job),
        program_(program),
        alignment_(alignment),
        messages_(messages),
        sent_(carried_by<Send>(job, program)),
        received_(carried_by<Receive>(job, program)) {}

  MemoryPlan run() {
    for (const Resident& resident : program_.residents) {
      for (const TensorId id : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
        plan_.residents.push_back(layout_.take(size_of(id)));
      }
    }
    for (const Call& call : program_.schedule) {
      for (const Instruction& i : job_.bodies[static_cast<std::size_t>(call.body)].code) {
        if (const auto* alloc = std::get_if<Alloc>(&i)) {
          take(call, alloc->tensor);
        } else if (const auto* free = std::get_if<Free>(&i)) {
          give(call, free->tensor);
        } else if (std::holds_alternative<Receive>(i)) {
          ++receives_;
          for (; !held_.empty() && held_.front().first <= receives_; held_.pop_front()) {
            layout_.give(held_.front().second);
          }
        }
      }
    }
    for (const std::size_t i : behind_allocs_) plan_.allocs[i] += layout_.size();
    plan_.size = layout_.size() + behind_.size();
    return std::move(plan_);
  }

 private:
  struct Instance {
    TensorId tensor;
    std::int32_t chunk, micro_batch;
    auto operator<=>(const Instance&) const = default;
  };

  std::size_t size_of(TensorId id) const {
    const Bytes bytes = job_.tensors[static_cast<std::size_t>(id)].bytes();
    return (static_cast<std::size_t>(bytes.count) + alignment_ - 1) / alignment_ * alignment_;
  }
  Instance instance(const Call& call, TensorId id) const {
    const Scope scope = job_.tensors[static_cast<std::size_t>(id)].scope;
    return {id, scope == Scope::kRank ? -1 : call.chunk,
            scope == Scope::kMicroBatch ? call.micro_batch : -1};
  }
  bool behind(TensorId id) const {
    return messages_.apart && received_[static_cast<std::size_t>(id)];
  }

  void take(const Call& call, TensorId id) {
    if (behind(id)) behind_allocs_.push_back(plan_.allocs.size());
    plan_.allocs.push_back((behind(id) ? behind_ : layout_).take(size_of(id)));
    live_[instance(call, id)] = plan_.allocs.back();
  }

  void give(const Call& call, TensorId id) {
    const auto it = live_.find(instance(call, id));
    STEPCAST_CHECK(it != live_.end(), "a verified Job frees what it allocated");
    if (behind(id)) {
      behind_.give(it->second);
    } else if (messages_.hold > 0 && sent_[static_cast<std::size_t>(id)]) {
      held_.emplace_back(receives_ + messages_.hold, it->second);
    } else {
      layout_.give(it->second);
    }
    live_.erase(it);
  }

  const Job& job_;
  const Program& program_;
  const std::size_t alignment_;
  const MessagePlaces messages_;
  const std::vector<bool> sent_, received_;
  MemoryPlan plan_;
  Layout layout_, behind_;
  std::map<Instance, std::size_t> live_;
  std::vector<std::size_t> behind_allocs_;  // indices into plan_.allocs
  std::size_t receives_ = 0;
  std::deque<std::pair<std::size_t, std::size_t>> held_;  // until how many receives, the place
};

}  // namespace

MemoryPlan plan_memory(const Job& job, const Program& program, std::size_t alignment,
                       MessagePlaces messages) {
  return Planner(job, program, alignment, messages).run();
}

Arena::Arena(MemoryPlan plan)
    : plan_(std::move(plan)),
      memory_(
          static_cast<std::byte*>(std::aligned_alloc(kHostAlignment, plan_.size + kHostAlignment)),
          [](std::byte* memory) { std::free(memory); }) {
  if (memory_ == nullptr) {
    throw Error("execute", fmt::format("a rank needs {} bytes, which this machine does not give; "
                                       "use fewer ranks or a smaller micro-batch",
                                       plan_.size));
  }
  std::memset(memory_.get(), 0, plan_.size);
}

Arena::Arena(MemoryPlan plan, std::byte* memory)
    : plan_(std::move(plan)), memory_(memory, [](std::byte*) {}) {}

void Arena::count(const Tensor& tensor) {
  live_ += tensor.bytes();
  by_category_[static_cast<std::size_t>(tensor.category)] += tensor.bytes();
  if (live_ <= peak_) return;
  peak_ = live_;
  at_peak_ = by_category_;
}

std::byte* Arena::resident(std::size_t index, const Tensor& tensor) {
  count(tensor);
  return memory_.get() + plan_.residents.at(index);
}

std::byte* Arena::allocate(const Tensor& tensor) {
  count(tensor);
  return memory_.get() + plan_.allocs.at(next_++);
}

void Arena::free(const Tensor& tensor) {
  live_ -= tensor.bytes();
  by_category_[static_cast<std::size_t>(tensor.category)] -= tensor.bytes();
}

}  // namespace stepcast
