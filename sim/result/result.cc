// Names of the parts of a step. A switch without a default: the compiler names a forgotten part.
#include "sim/result/result.h"

#include "sim/base/error.h"

namespace stepcast {

std::string_view part_name(Part part) {
  switch (part) {
    case Part::kCompute: return "compute";
    case Part::kRecompute: return "recompute";
    case Part::kBubble: return "bubble";
    case Part::kTensor: return "tensor_exposed";
    case Part::kContext: return "context_exposed";
    case Part::kExpert: return "expert_exposed";
    case Part::kPipeline: return "pipeline_exposed";
    case Part::kData: return "data_exposed";
    case Part::kOptimizer: return "optimizer";
    case Part::kOther: return "other";
  }
  STEPCAST_CHECK(false, "unknown part");
}

}  // namespace stepcast
