// A step as a graph of what must be done before what (Kahn 1962): what is left when nothing more
// can begin is stuck.
#include "execute/cuda/places.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

// The step of one rank of each stage as a graph: what must be done before what.
class Rendezvous {
 public:
  Rendezvous(const Job& job, const std::vector<StagePlaces>& places, std::size_t ahead)
      : job_(job) {
    for (std::size_t stage = 0; stage < places.size(); ++stage) {
      walk(static_cast<int>(stage), places[stage].fences, ahead);
    }
  }

  // How many of the step's instructions never begin.
  std::size_t stuck() const {
    std::vector<std::vector<std::size_t>> next(before_.size());
    std::vector<std::size_t> open(before_.size());
    for (std::size_t i = 0; i < before_.size(); ++i) {
      open[i] = before_[i].size();
      for (const std::size_t earlier : before_[i]) next[earlier].push_back(i);
    }
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i] == 0) ready.push_back(i);
    }
    std::size_t done = 0;
    for (; done < ready.size(); ++done) {
      for (const std::size_t later : next[ready[done]]) {
        if (--open[later] == 0) ready.push_back(later);
      }
    }
    return before_.size() - done;
  }

 private:
  using Nodes = std::vector<std::size_t>;

  std::size_t add() {
    before_.emplace_back();
    return before_.size() - 1;
  }

  // Both ends of a message, and all members of a collective over stages, are one node: they begin
  // when the last of them can.
  std::size_t shared(std::tuple<int, int, int> what, std::size_t count) {
    const auto [known, fresh] = meetings_.emplace(std::pair(what, count), 0);
    if (fresh) known->second = add();
    return known->second;
  }

  std::size_t node_of(int stage, const Instruction& instruction) {
    const int stages = static_cast<int>(job_.programs.size());
    const auto message = [&](int from, int to, Stream lane) {
      const std::tuple what(from * stages + to, static_cast<int>(lane), 0);
      return shared(what, counts_[{stage, what}]++);
    };
    if (const auto* send = std::get_if<Send>(&instruction)) {
      return message(stage, (stage + send->step + stages) % stages, send->stream);
    }
    if (const auto* receive = std::get_if<Receive>(&instruction)) {
      const bool forward = receive->stream == Stream::kReceiveForward;
      return message((stage + receive->step + stages) % stages, stage,
                     forward ? Stream::kSendForward : Stream::kSendBackward);
    }
    const auto* collective = std::get_if<Collective>(&instruction);
    if (collective == nullptr) return add();
    const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective->transfer)];
    if (!transfer.axes.has(Axis::kPipeline)) return add();
    const std::tuple what(-1, static_cast<int>(collective->stream), transfer.ends_only ? 1 : 0);
    return shared(what, counts_[{stage, what}]++);
  }

  void walk(int stage, const std::vector<Fence>& fences, std::size_t ahead) {
    const Program& program = job_.programs[static_cast<std::size_t>(stage)];
    auto fence = fences.begin();        // ascending in `before`
    std::array<Nodes, kStreams> waits;  // what the next work of a stream waits for
    std::vector<Nodes> events(static_cast<std::size_t>(job_.events));
    std::map<std::int64_t, std::size_t> issued;  // by number of the instruction
    Nodes kernels, host;
    std::int64_t number = -1;
    for (const Call& call : program.schedule) {
      for (const Instruction& i : job_.bodies[static_cast<std::size_t>(call.body)].code) {
        ++number;
        if (const auto* record = std::get_if<Record>(&i)) {
          events[static_cast<std::size_t>(record->event)] =
              waits[static_cast<std::size_t>(record->stream)];
        } else if (const auto* wait = std::get_if<Wait>(&i)) {
          Nodes& into = waits[static_cast<std::size_t>(wait->stream)];
          const Nodes& from = events[static_cast<std::size_t>(wait->event)];
          into.insert(into.end(), from.begin(), from.end());
        } else if (std::holds_alternative<Synchronize>(i)) {
          for (const Nodes& of : waits) host.insert(host.end(), of.begin(), of.end());
        } else if (const auto* read = std::get_if<HostWait>(&i)) {
          const Nodes& from = events[static_cast<std::size_t>(read->event)];
          host.insert(host.end(), from.begin(), from.end());
        }
        const int stream = stream_index(i);
        if (stream == kStreams) continue;
        const std::size_t node = node_of(stage, i);
        Nodes& mine = waits[static_cast<std::size_t>(stream)];
        Nodes& before = before_[node];
        before.insert(before.end(), mine.begin(), mine.end());
        before.insert(before.end(), host.begin(), host.end());
        if (kernels.size() >= ahead) before.push_back(kernels[kernels.size() - ahead]);
        for (; fence != fences.end() && fence->before == number; ++fence) {
          before.push_back(issued.at(fence->after));
        }
        mine = {node};
        issued[number] = node;
        if (std::holds_alternative<Compute>(i)) kernels.push_back(node);
      }
    }
  }

  const Job& job_;
  std::vector<Nodes> before_;
  std::map<std::pair<std::tuple<int, int, int>, std::size_t>, std::size_t> meetings_;
  std::map<std::pair<int, std::tuple<int, int, int>>, std::size_t> counts_;
};

}  // namespace

std::size_t stuck_instructions(const Job& job, const std::vector<StagePlaces>& places,
                               std::size_t ahead) {
  return Rendezvous(job, places, ahead).stuck();
}

StagePlaces place_stage(const Job& job, const Program& program, std::size_t hold) {
  MemoryPlan memory = plan_memory(job, program, kCudaAlignment, {true, hold});
  std::vector<Fence> fences = plan_fences(job, program, memory);
  return {std::move(memory), std::move(fences)};
}

std::vector<StagePlaces> plan_places(const Job& job) {
  std::size_t receives = 0;
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) {
      for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
        receives += std::holds_alternative<Receive>(i) ? 1u : 0u;
      }
    }
  }
  for (std::size_t hold = 0;; hold = std::max<std::size_t>(1, 2 * hold)) {
    std::vector<StagePlaces> places;
    for (const Program& program : job.programs) {
      places.push_back(place_stage(job, program, hold));
    }
    if (stuck_instructions(job, places, 1) == 0) return places;
    if (hold > receives) break;
  }
  throw Error("plan",
              "parallel.pipeline_overlap: false makes stages of the interleaved schedule "
              "wait for each other's receives where sends wait for theirs, as NCCL's do; "
              "set it to true, or take schedule \"1f1b\"");
}

}  // namespace stepcast::cuda
