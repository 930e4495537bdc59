// Interleaved 1F1B as in Megatron-LM: virtual micro-batches are counted in the order (group, chunk,
// micro-batch of the group); the k-th forward and the k-th backward are the k-th entries of that
// order, backward with the chunks reversed. Stage i warms up with 2 (p - 1 - i) + (v - 1) G
// forwards, G the largest group's size, and alternates from there.
#include "models/schedule.h"

#include <algorithm>

#include "sim/base/error.h"

namespace stepcast {

namespace {

struct Entry {
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
};

// Groups of at least p micro-batches, as equal as can be, larger ones first. A group smaller than p
// would leave stages waiting for it; a large one costs memory, so they are made as small as
// possible.
std::vector<std::int32_t> group_sizes(std::int32_t stages, std::int32_t micro_batches) {
  const std::int32_t groups = std::max(1, micro_batches / stages);
  std::vector<std::int32_t> sizes(static_cast<std::size_t>(groups), micro_batches / groups);
  for (std::int32_t i = 0; i < micro_batches % groups; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<Entry> interleaved_order(const std::vector<std::int32_t>& groups, std::int32_t chunks) {
  std::vector<Entry> order;
  std::int32_t first = 0;
  for (std::int32_t size : groups) {
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
      for (std::int32_t i = 0; i < size; ++i) order.push_back({chunk, first + i});
    }
    first += size;
  }
  return order;
}

std::vector<Slot> alternate(const std::vector<Entry>& order, std::int32_t chunks,
                            std::int32_t warm_up) {
  const auto total = static_cast<std::int32_t>(order.size());
  std::vector<Slot> slots;
  slots.reserve(2 * order.size());
  const auto forward = [&](std::int32_t k) {
    const Entry& e = order[static_cast<std::size_t>(k)];
    slots.push_back({false, e.chunk, e.micro_batch});
  };
  const auto backward = [&](std::int32_t k) {
    const Entry& e = order[static_cast<std::size_t>(k)];
    slots.push_back({true, chunks - 1 - e.chunk, e.micro_batch});
  };
  for (std::int32_t k = 0; k < warm_up; ++k) forward(k);
  for (std::int32_t k = warm_up; k < total; ++k) {
    forward(k);
    slots.back().alternates = true;
    backward(k - warm_up);
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) backward(k);
  return slots;
}

}  // namespace

std::vector<std::vector<Slot>> pipeline_schedule(PipelineSchedule schedule, std::int32_t stages,
                                                 std::int32_t chunks, std::int32_t micro_batches,
                                                 std::int32_t ahead) {
  STEPCAST_CHECK(stages >= 1 && chunks >= 1 && micro_batches >= 1, "a schedule needs work");
  const std::vector<std::int32_t> groups = group_sizes(stages, micro_batches);
  const std::vector<Entry> order = interleaved_order(groups, chunks);
  const auto total = static_cast<std::int32_t>(order.size());
  std::vector<std::vector<Slot>> all;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    std::int32_t warm_up = total;
    if (schedule == PipelineSchedule::k1f1b) warm_up = stages - 1 - stage + ahead;
    if (schedule == PipelineSchedule::kInterleaved) {
      warm_up = 2 * (stages - 1 - stage) + (chunks - 1) * groups.front() + ahead;
    }
    warm_up = std::min(total, warm_up);
    all.push_back(alternate(order, chunks, warm_up));
  }
  return all;
}

}  // namespace stepcast
