// First fit over a sorted map of what is taken: within a factor of log of the best for any order of
// requests (Robson 1974), and near it where lives nest, as those of a training step do.
#include "execute/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
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

}  // namespace

MemoryPlan plan_memory(const Job& job, const Program& program, std::size_t alignment) {
  MemoryPlan plan;
  Layout layout;
  const auto size_of = [&](TensorId id) {
    const Bytes bytes = job.tensors[static_cast<std::size_t>(id)].bytes();
    return (static_cast<std::size_t>(bytes.count) + alignment - 1) / alignment * alignment;
  };
  for (const Resident& resident : program.residents) {
    for (const TensorId id : job.resident_sets[static_cast<std::size_t>(resident.set)]) {
      plan.residents.push_back(layout.take(size_of(id)));
    }
  }
  struct Instance {
    TensorId tensor;
    std::int32_t chunk, micro_batch;
    auto operator<=>(const Instance&) const = default;
  };
  std::map<Instance, std::size_t> live;
  for (const Call& call : program.schedule) {
    const auto instance = [&](TensorId id) {
      const Scope scope = job.tensors[static_cast<std::size_t>(id)].scope;
      return Instance{id, scope == Scope::kRank ? -1 : call.chunk,
                      scope == Scope::kMicroBatch ? call.micro_batch : -1};
    };
    for (const Instruction& instruction : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (const auto* alloc = std::get_if<Alloc>(&instruction)) {
        plan.allocs.push_back(layout.take(size_of(alloc->tensor)));
        live[instance(alloc->tensor)] = plan.allocs.back();
      } else if (const auto* free = std::get_if<Free>(&instruction)) {
        const auto it = live.find(instance(free->tensor));
        STEPCAST_CHECK(it != live.end(), "a verified Job frees what it allocated");
        layout.give(it->second);
        live.erase(it);
      }
    }
  }
  plan.size = layout.size();
  return plan;
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
