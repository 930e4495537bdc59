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

std::vector<Visit> ring_visits(const std::vector<PassBlock>& blocks) {
  const std::vector<LayerGroup> groups = layer_groups(blocks);
  std::vector<Visit> layers;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = groups[g];
    if (group.end - group.begin > 1) {
      layers.push_back({group.begin, group.end - 1});
    } else if (g + 1 < groups.size() && groups[g + 1].end - groups[g + 1].begin == 1) {
      layers.push_back({group.begin, groups[++g].begin});
    } else if (g > 0 && groups[g - 1].end - groups[g - 1].begin == 1) {
      layers.push_back({groups[g - 1].begin, group.begin});  // the odd one, with its neighbour
    } else {
      layers.push_back({group.begin});
    }
  }
  if (layers.empty()) layers.emplace_back();
  for (Visit& visit : layers) {
    for (std::size_t j = 0; j < blocks.size(); ++j) {
      if (!blocks[j].numbered) visit.push_back(j);
    }
    std::sort(visit.begin(), visit.end());
  }
  return layers;
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
