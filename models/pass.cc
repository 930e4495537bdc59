// Passes, written down once for bodies of all blocks and of some. Cost: linear in the blocks.
#include "models/pass.h"

#include <algorithm>

namespace stepcast {

namespace {

// [begin, end) of the layers that are run again together, or of one that is not.
struct LayerGroup {
  std::size_t begin = 0, end = 0;
};

std::vector<LayerGroup> layer_groups(const std::vector<PassBlock>& blocks) {
  std::vector<LayerGroup> groups;
  for (std::size_t j = 0; j < blocks.size(); ++j) {
    if (!blocks[j].numbered) continue;
    if (groups.empty() || !blocks[j].checkpointed || blocks[j].group_begins) {
      groups.push_back({j, j + 1});
    } else {
      groups.back().end = j + 1;
    }
  }
  return groups;
}

bool has(const PassStep& step, PassAction action) {
  return std::find(step.actions.begin(), step.actions.end(), action) != step.actions.end();
}

// Backward goes through the blocks from the last to the first, so do those that are not passed.
std::vector<PassStep> with_others(std::vector<PassStep> passed, std::size_t blocks) {
  std::vector<PassStep> steps;
  std::size_t left = blocks;  // blocks below have not had their turn
  const auto up_to = [&](std::size_t block) {
    for (; left > block + 1; --left) steps.push_back({left - 1, {PassAction::kReduce}});
  };
  for (PassStep& step : passed) {
    const bool backward = has(step, PassAction::kBackward);
    const std::size_t block = step.block;
    if (backward) up_to(block);
    steps.push_back(std::move(step));
    if (backward) left = block;
  }
  for (; left > 0; --left) steps.push_back({left - 1, {PassAction::kReduce}});
  return steps;
}

}  // namespace

std::vector<Visit> ring_visits(const std::vector<PassBlock>& blocks, std::size_t layers) {
  const std::vector<LayerGroup> groups = layer_groups(blocks);
  const auto add = [&](const LayerGroup& group, Visit& visit) {
    visit.push_back(group.begin);
    if (group.end - group.begin > 1) visit.push_back(group.end - 1);
  };
  std::vector<Visit> visits;
  for (std::size_t g = 0; g < groups.size();) {
    Visit& visit = visits.emplace_back();
    const std::size_t first = g;
    while (visit.size() < layers && g < groups.size()) add(groups[g++], visit);
    // The last ones are too few: with those before them.
    for (std::size_t back = first; visit.size() < layers && back > 0;) add(groups[--back], visit);
  }
  if (visits.empty()) visits.emplace_back();
  for (Visit& visit : visits) {
    for (std::size_t j = 0; j < blocks.size(); ++j) {
      if (!blocks[j].numbered) visit.push_back(j);
    }
    std::sort(visit.begin(), visit.end());
  }
  return visits;
}

std::vector<PassStep> forward_steps(const std::vector<PassBlock>& blocks, const Visit& visit,
                                    bool others) {
  std::vector<PassStep> steps;
  std::size_t next = 0;
  for (std::size_t j = 0; j < blocks.size(); ++j) {
    if (next < visit.size() && visit[next] == j) {
      ++next;
      const bool inside = blocks[j].checkpointed && !blocks[j].group_begins;
      steps.push_back({j, {inside ? PassAction::kForwardDrop : PassAction::kForward}});
    } else if (others) {
      steps.push_back({j, {}});
    }
  }
  return steps;
}

std::vector<PassStep> backward_steps(const std::vector<PassBlock>& blocks, const Visit& visit,
                                     bool others) {
  using enum PassAction;
  std::vector<PassStep> steps;
  for (std::size_t end = visit.size(); end > 0;) {
    std::size_t begin = end - 1;
    if (blocks[visit[begin]].checkpointed) {
      while (!blocks[visit[begin]].group_begins) --begin;
      for (std::size_t j = begin; j + 1 < end; ++j) steps.push_back({visit[j], {kRecompute}});
      steps.push_back({visit[end - 1], {kRecomputeLast, kBackward}});
      for (std::size_t j = end - 1; j > begin; --j) steps.push_back({visit[j - 1], {kBackward}});
    } else {
      steps.push_back({visit[begin], {kBackward}});
    }
    end = begin;
  }
  return others ? with_others(std::move(steps), blocks.size()) : steps;
}

}  // namespace stepcast
