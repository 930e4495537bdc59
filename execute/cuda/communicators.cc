// One pass over the bodies. The edges of a ring are coloured by turns; the last of an odd ring
// needs a third colour (the chromatic index of an odd cycle).
#include "execute/cuda/communicators.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

std::string name_of(AxisSet axes, bool ends_only) {
  if (ends_only) return "ends";
  std::string out;
  for (int i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!axes.has(axis)) continue;
    if (!out.empty()) out += '+';
    out += axis_name(axis);
  }
  return out;
}

int degree_of(const Mesh& mesh, AxisSet axes) {
  int degree = 1;
  for (int i = 0; i < kAxes; ++i) {
    if (axes.has(static_cast<Axis>(i)))
      degree *= static_cast<int>(mesh.degree(static_cast<Axis>(i)));
  }
  return degree;
}

// Which stages send in a direction.
std::vector<bool> senders(const Job& job, int direction) {
  std::vector<bool> out(job.programs.size(), false);
  for (std::size_t stage = 0; stage < job.programs.size(); ++stage) {
    std::set<BodyId> bodies;
    for (const Call& call : job.programs[stage].schedule) bodies.insert(call.body);
    for (const BodyId body : bodies) {
      for (const Instruction& i : job.bodies[static_cast<std::size_t>(body)].code) {
        const auto* send = std::get_if<Send>(&i);
        if (send != nullptr && send->step == direction) out[stage] = true;
      }
    }
  }
  return out;
}

std::vector<Split> plan_collectives(const Job& job, int rank) {
  std::set<std::tuple<std::uint8_t, bool, Stream>> groups;
  for (const Body& body : job.bodies) {
    for (const Instruction& i : body.code) {
      const auto* collective = std::get_if<Collective>(&i);
      if (collective == nullptr) continue;
      const Transfer& t = job.transfers[static_cast<std::size_t>(collective->transfer)];
      groups.insert({t.axes.bits, t.ends_only, collective->stream});
    }
  }
  std::vector<Split> out;
  for (const auto& [bits, ends_only, stream] : groups) {
    Split split;
    split.axes.bits = bits;
    split.ends_only = ends_only;
    split.stream = stream;
    split.name = name_of(split.axes, ends_only);
    if (degree_of(job.mesh, split.axes) == 1) continue;  // everybody by themselves
    const Group group = group_of(job.mesh, rank, split.axes, ends_only);
    const bool member =
        std::find(group.members.begin(), group.members.end(), rank) != group.members.end();
    if (member) {
      split.color = group.members.front();  // no two groups share a rank
      split.key = static_cast<int>(group.index);
      split.members = static_cast<int>(group.members.size());
    }
    out.push_back(split);
  }
  return out;
}

void plan_hops(const Job& job, int rank, int direction, std::vector<Split>& out) {
  const int stages = job.mesh.stages();
  const std::vector<bool> sends = senders(job, direction);
  if (std::find(sends.begin(), sends.end(), true) == sends.end()) return;
  const int stage = job.mesh.stage(rank);
  for (int round = 0; round < (stages % 2 == 0 ? 2 : 3); ++round) {
    Split split;
    split.direction = direction;
    split.round = round;
    split.name = (direction > 0 ? "forward " : "backward ") + std::to_string(round);
    const int previous = (stage - direction + stages) % stages;
    const bool from_here =
        sends[static_cast<std::size_t>(stage)] && hop_round(stage, stages) == round;
    const bool to_here =
        sends[static_cast<std::size_t>(previous)] && hop_round(previous, stages) == round;
    STEPCAST_CHECK(!(from_here && to_here), "a rank takes part in one hop a round");
    if (from_here || to_here) {
      // A sender of one hop a round: its rank names the pair.
      split.color = from_here ? rank : job.mesh.neighbour(rank, Axis::kPipeline, -direction);
      split.key = from_here ? 0 : 1;
      split.members = 2;
    }
    out.push_back(split);
  }
}

}  // namespace

int hop_round(int stage, int stages) {
  return stages % 2 == 1 && stage == stages - 1 ? 2 : stage % 2;
}

std::vector<Split> plan_communicators(const Job& job, int rank) {
  std::vector<Split> out = plan_collectives(job, rank);
  if (job.mesh.stages() > 1) {
    plan_hops(job, rank, 1, out);
    plan_hops(job, rank, -1, out);
  }
  return out;
}

std::size_t split_of(const std::vector<Split>& splits, Stream stream, const Transfer& transfer) {
  const auto found = std::find_if(splits.begin(), splits.end(), [&](const Split& split) {
    return split.direction == 0 && split.stream == stream &&
           split.axes.bits == transfer.axes.bits && split.ends_only == transfer.ends_only;
  });
  STEPCAST_CHECK(found != splits.end(), "every collective of the Job has a communicator");
  return static_cast<std::size_t>(found - splits.begin());
}

std::size_t split_of_hop(const std::vector<Split>& splits, int direction, int from_stage,
                         int stages) {
  const int round = hop_round(from_stage, stages);
  const auto found = std::find_if(splits.begin(), splits.end(), [&](const Split& split) {
    return split.direction == direction && split.round == round;
  });
  STEPCAST_CHECK(found != splits.end(), "every hop of the Job has a communicator");
  return static_cast<std::size_t>(found - splits.begin());
}

}  // namespace stepcast::cuda
