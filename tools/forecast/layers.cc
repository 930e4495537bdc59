// The layout is asked of the one who decides it (models/stages.h). Linear in the layers.
#include "tools/forecast/layers.h"

#include "models/stages.h"
#include "models/transformer.h"

namespace stepcast {

std::vector<std::int64_t> layers_of_chunks(const Model& model, const Plan& plan) {
  const Network network = transformer(model, plan);
  std::vector<std::int64_t> layers;
  for (const auto& part : lay_out(network, plan)) {
    std::int64_t count = 0;
    for (std::int32_t i = part.first; i < part.last; ++i) {
      const std::int32_t kind = network.chain[static_cast<std::size_t>(i)];
      count += network.kinds[static_cast<std::size_t>(kind)].numbered ? 1 : 0;
    }
    layers.push_back(count);
  }
  return layers;
}

}  // namespace stepcast
