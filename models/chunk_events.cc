// The events of a rank that chunks use, and the body that sets the first of them.
#include "models/chunk.h"

namespace stepcast {

int events_used(const Plan& plan) {
  const int ring = plan.effective_zero() == 3 ? static_cast<int>(plan.prefetch) + 1 : 1;
  if (plan.expert_overlap) return kBackwardDone + kTensorDones;
  return kFirstRing + 2 * ring;
}

BodyId write_begin(Tables& tables, const Plan& plan) {
  BodyWriter body(tables, "begin", Phase::kForward);
  const int ring = (plan.overlap ? static_cast<int>(plan.prefetch) : 0) + 1;
  for (int i = 0; i < ring; ++i) {
    body.add(Record{Stream::kCompute, static_cast<EventId>(kFirstRing + ring + i)});
  }
  return body.finish();
}

}  // namespace stepcast
