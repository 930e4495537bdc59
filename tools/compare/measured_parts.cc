// A sweep over the begins and ends of a step's kernels: at each moment the device computes, or else
// communicates on the first of the axes that are busy, or else idles. Kernels of one group's
// collective are matched over ranks by their order in the step. n log n in the kernels.
#include "tools/compare/measured_parts.h"

#include <algorithm>
#include <cctype>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

AxisSet busy_axes(AxisSet set, const Mesh& mesh) {
  AxisSet busy;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (set.has(axis) && mesh.degree(axis) > 1) busy = busy | AxisSet(axis);
  }
  return busy.empty() ? set : busy;
}

std::optional<AxisSet> axes_of_ranks(const TraceGroup& group, const Mesh& mesh) {
  AxisSet set;
  if (group.ranks.size() < 2) return std::nullopt;
  for (const int rank : group.ranks) {
    if (rank >= mesh.ranks()) return std::nullopt;
    for (int i = 0; i < kAxes; ++i) {
      const auto axis = static_cast<Axis>(i);
      const bool differs =
          mesh.coordinate(rank, axis) != mesh.coordinate(group.ranks.front(), axis);
      if (differs) set = set | AxisSet(axis);
    }
  }
  if (set.empty() || static_cast<int>(group.ranks.size()) > mesh.group_size(set)) {
    return std::nullopt;
  }
  return set;
}

constexpr std::array kAxisWords = {
    std::pair{std::string_view("tensor"), Axis::kTensor},
    std::pair{std::string_view("tp"), Axis::kTensor},
    std::pair{std::string_view("context"), Axis::kContext},
    std::pair{std::string_view("cp"), Axis::kContext},
    std::pair{std::string_view("expert"), Axis::kExpert},
    std::pair{std::string_view("ep"), Axis::kExpert},
    std::pair{std::string_view("data"), Axis::kData},
    std::pair{std::string_view("dp"), Axis::kData},
    std::pair{std::string_view("fsdp"), Axis::kData},
    std::pair{std::string_view("shard"), Axis::kData},
    std::pair{std::string_view("replica"), Axis::kReplica},
    std::pair{std::string_view("replicate"), Axis::kReplica},
    std::pair{std::string_view("pipeline"), Axis::kPipeline},
    std::pair{std::string_view("pp"), Axis::kPipeline},
    std::pair{std::string_view("embedding"), Axis::kPipeline}};  // of the first and last stage

std::optional<AxisSet> axes_of_words(std::string_view description, const Mesh& mesh) {
  AxisSet set;
  std::string word;
  const auto take = [&] {
    for (const auto& [name, axis] : kAxisWords) {
      if (word == name) set = set | AxisSet(axis);
    }
    word.clear();
  };
  for (const char c : description) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      take();
    }
  }
  take();
  if (set.empty()) return std::nullopt;
  return busy_axes(set, mesh);
}

std::optional<AxisSet> axes_of_size(int size, const Mesh& mesh) {
  std::optional<AxisSet> found;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (mesh.degree(axis) != size || size < 2) continue;
    if (found) return std::nullopt;
    found = AxisSet(axis);
  }
  return found;
}

AxisSet replicas_as_data(AxisSet set) {
  AxisSet out;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (set.has(axis)) out = out | AxisSet(axis == Axis::kReplica ? Axis::kData : axis);
  }
  return out;
}

std::string axes_text(AxisSet set) { return axis_set_name(replicas_as_data(set)); }

// The only axis that has more than one rank: of a group that says nothing of itself.
std::optional<AxisSet> only_axis(const Mesh& mesh) {
  std::optional<AxisSet> found;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (mesh.degree(axis) < 2) continue;
    if (found) return std::nullopt;
    found = AxisSet(axis);
  }
  return found;
}

// ------------------------------------------------------------------------------ taking apart

struct Edge {
  double at = 0;
  int lane = 0;    // 0: compute; from 1 on: communication, in the order of its axes' names
  int change = 0;  // +1 begins, -1 ends
};

// Adds one step of one rank, weighted.
void add_step(const PlacedRank& rank, std::size_t step, double weight, StepParts& parts) {
  std::map<std::string, int> lanes;
  for (const PlacedKernel& kernel : rank.kernels) {
    if (kernel.kind == KernelKind::kCommunication) lanes.emplace(kernel.axes, 0);
  }
  std::vector<std::string> names;
  for (auto& [name, lane] : lanes) {
    names.push_back(name);
    lane = static_cast<int>(names.size());
  }
  std::vector<Edge> edges;
  for (const PlacedKernel& kernel : rank.kernels) {
    if (kernel.step != static_cast<int>(step) || kernel.end <= kernel.begin) continue;
    const bool moves = kernel.kind == KernelKind::kCommunication;
    const int lane = moves ? lanes.at(kernel.axes) : 0;
    edges.push_back({kernel.begin, lane, 1});
    edges.push_back({kernel.end, lane, -1});
    if (moves) continue;  // transfer and skew need the other ranks
    parts.kernels[static_cast<std::size_t>(kernel.kind)] += weight * (kernel.end - kernel.begin);
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.at, a.change, a.lane) < std::tie(b.at, b.change, b.lane);
  });
  std::vector<int> running(names.size() + 1, 0);
  std::vector<double> seconds(names.size() + 1, 0);
  double before = 0;
  for (const Edge& edge : edges) {
    const auto busy = std::find_if(running.begin(), running.end(), [](int n) { return n > 0; });
    if (busy != running.end()) {
      seconds[static_cast<std::size_t>(busy - running.begin())] += edge.at - before;
    }
    running[static_cast<std::size_t>(edge.lane)] += edge.change;
    before = edge.at;
  }
  double idle = rank.steps[step] - seconds[0];
  for (std::size_t i = 0; i < names.size(); ++i) {
    parts.exposed[names[i]] += weight * seconds[i + 1];
    idle -= seconds[i + 1];
  }
  parts.idle += weight * std::max(idle, 0.0);
  parts.step += weight * rank.steps[step];
}

// A collective of one group: all of its members' kernels.
using CollectiveKey = std::tuple<std::string, int, int, int>;  // axes, group, step, ordinal

// Each rank's collectives, in its order.
template <class Visit>
void for_each_transfer(const PlacedRank& rank, std::size_t first, Visit visit) {
  std::map<std::tuple<std::string, int, int>, int> next;
  for (const PlacedKernel& kernel : rank.kernels) {
    if (kernel.kind != KernelKind::kCommunication || kernel.step < static_cast<int>(first)) {
      continue;
    }
    const bool matched = kernel.group >= 0 && !kernel.point_to_point;
    const int ordinal = matched ? next[{kernel.axes, kernel.group, kernel.step}]++ : -1;
    visit(kernel, CollectiveKey{kernel.axes, kernel.group, kernel.step, ordinal});
  }
}

struct Least {
  double seconds = 0;
  int ranks = 0;
};

void add_transfers(const std::vector<PlacedRank>& ranks, const std::vector<double>& weights,
                   std::size_t first, StepParts& parts) {
  std::map<CollectiveKey, Least> least;
  for (const PlacedRank& rank : ranks) {
    for_each_transfer(rank, first, [&](const PlacedKernel& kernel, const CollectiveKey& key) {
      if (std::get<3>(key) < 0) return;
      Least& one = least[key];
      const double seconds = kernel.end - kernel.begin;
      one.seconds = one.ranks == 0 ? seconds : std::min(one.seconds, seconds);
      ++one.ranks;
    });
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for_each_transfer(ranks[i], first, [&](const PlacedKernel& kernel, const CollectiveKey& key) {
      const double seconds = kernel.end - kernel.begin;
      const auto found = least.find(key);
      const bool several = found != least.end() && found->second.ranks > 1;
      const double transfer = several ? found->second.seconds : seconds;
      parts.transfer[kernel.axes] += weights[i] * transfer;
      if (several) parts.skew[kernel.axes] += weights[i] * (seconds - transfer);
    });
  }
}

PlacedRank placed(const TraceRank& traced, const TraceFile& file, const Mesh& mesh) {
  if (traced.rank >= mesh.ranks()) {
    throw Error(file.name, fmt::format("is of rank {}, but the forecast has {} ranks", traced.rank,
                                       mesh.ranks()));
  }
  std::vector<std::optional<AxisSet>> axes;
  for (const TraceGroup& group : file.groups) axes.push_back(axes_of_group(group, mesh));
  PlacedRank rank;
  rank.rank = traced.rank;
  for (const TraceStep& step : traced.steps) rank.steps.push_back(step.seconds);
  for (const TraceKernel& kernel : traced.kernels) {
    if (kernel.step < 0) continue;
    PlacedKernel one{kernel.begin, kernel.end, kernel.kind,          kernel.step,
                     "",           -1,         kernel.point_to_point};
    if (kernel.kind == KernelKind::kCommunication) {
      const auto set =
          kernel.group >= 0 ? axes[static_cast<std::size_t>(kernel.group)] : only_axis(mesh);
      one.axes = set ? axes_text(*set) : std::string(kUnknownAxis);
      if (set) one.group = mesh.group_index(traced.rank, *set);
    }
    rank.kernels.push_back(std::move(one));
  }
  return rank;
}

}  // namespace

std::optional<AxisSet> axes_of_group(const TraceGroup& group, const Mesh& mesh) {
  const bool whole = static_cast<int>(group.ranks.size()) >= group.size;
  std::optional<AxisSet> set = whole ? axes_of_ranks(group, mesh) : std::nullopt;
  if (!set) set = axes_of_words(group.description, mesh);
  if (!set) set = axes_of_ranks(group, mesh);
  if (!set) set = axes_of_size(group.size, mesh);
  return set;
}

std::vector<PlacedRank> placed_ranks(const std::vector<TraceFile>& traces, const Mesh& mesh) {
  std::vector<PlacedRank> ranks;
  std::set<int> seen;
  for (const TraceFile& file : traces) {
    if (file.world_size && *file.world_size != mesh.ranks()) {
      throw Error(file.name, fmt::format("is of a run on {} ranks, the forecast of one on {}: two "
                                         "different questions",
                                         *file.world_size, mesh.ranks()));
    }
    for (const TraceRank& traced : file.ranks) {
      if (!seen.insert(traced.rank).second) {
        throw Error(file.name, fmt::format("is of rank {}, as another file is; its distributedInfo "
                                           "tells the rank",
                                           traced.rank));
      }
      ranks.push_back(placed(traced, file, mesh));
      if (ranks.back().steps.size() != ranks.front().steps.size()) {
        throw Error(file.name,
                    "marks another number of steps than the first trace; trace the same "
                    "steps on every rank");
      }
    }
  }
  return ranks;
}

std::vector<PlacedRank> placed_ranks(const Job& job, const Trace& trace) {
  std::map<std::int32_t, PlacedRank> ranks;
  Instant end;
  for (const Span& span : trace.spans) {
    end = later(end, span.end);
    PlacedRank& rank = ranks[span.rank];
    rank.rank = span.rank;
    PlacedKernel kernel;
    kernel.begin = to_seconds(span.begin - Instant{}).value;
    kernel.end = to_seconds(span.end - Instant{}).value;
    const auto communicates = [&](TransferId id) {
      const Transfer& transfer = job.transfers.at(static_cast<std::size_t>(id));
      kernel.kind = KernelKind::kCommunication;
      kernel.axes = axes_text(transfer.axes);
      kernel.group = job.mesh.group_index(span.rank, transfer.axes);
      kernel.point_to_point = transfer.kind == TransferKind::kSendReceive;
    };
    const Body& body = job.bodies.at(static_cast<std::size_t>(span.body));
    match(
        body.code.at(static_cast<std::size_t>(span.instruction)),
        [&](const Compute& c) {
          kernel.kind = kind_of_op(job.ops.at(static_cast<std::size_t>(c.op)), c.phase);
        },
        [&](const Collective& c) { communicates(c.transfer); },
        [&](const Send& s) { communicates(s.transfer); },
        [&](const Receive& r) { communicates(r.transfer); }, [](const auto&) {});
    rank.kernels.push_back(std::move(kernel));
  }
  std::vector<PlacedRank> out;
  for (auto& [number, rank] : ranks) {
    rank.steps = {to_seconds(end - Instant{}).value};
    std::stable_sort(
        rank.kernels.begin(), rank.kernels.end(),
        [](const PlacedKernel& a, const PlacedKernel& b) { return a.begin < b.begin; });
    out.push_back(std::move(rank));
  }
  return out;
}

std::set<int> stages_of(const std::vector<PlacedRank>& ranks, const Mesh& mesh) {
  std::set<int> stages;
  for (const PlacedRank& rank : ranks) stages.insert(mesh.stage(rank.rank));
  return stages;
}

StepParts step_parts(const std::vector<PlacedRank>& ranks, const Mesh& mesh,
                     const std::set<int>& stages, std::size_t first) {
  std::map<int, int> ranks_of_stage;
  for (const PlacedRank& rank : ranks) {
    if (stages.contains(mesh.stage(rank.rank))) ++ranks_of_stage[mesh.stage(rank.rank)];
  }
  StepParts parts;
  std::vector<double> weights;
  for (const PlacedRank& rank : ranks) {
    STEPCAST_CHECK(first < rank.steps.size(), "no step counts");
    const auto found = ranks_of_stage.find(mesh.stage(rank.rank));
    const double steps = static_cast<double>(rank.steps.size() - first);
    const double share =
        found == ranks_of_stage.end()
            ? 0
            : 1 / (steps * found->second * static_cast<double>(ranks_of_stage.size()));
    weights.push_back(share);
    if (share == 0) continue;
    for (std::size_t step = first; step < rank.steps.size(); ++step) {
      add_step(rank, step, share, parts);
    }
  }
  add_transfers(ranks, weights, first, parts);
  return parts;
}

}  // namespace stepcast
