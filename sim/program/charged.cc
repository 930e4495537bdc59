// Whose account: the axes in the order in which they claim a transfer.
#include "sim/program/charged.h"

namespace stepcast {

Axis charged_axis(Stream stream, const Transfer& transfer) {
  if (stream == Stream::kContext) return Axis::kContext;  // heads for tokens, too
  if (stream == Stream::kExpert || transfer.kind == TransferKind::kAllToAll) return Axis::kExpert;
  for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kReplica}) {
    if (transfer.axes.has(axis)) return axis;
  }
  if (transfer.axes.has(Axis::kExpert)) return Axis::kData;
  return transfer.axes.has(Axis::kContext) ? Axis::kContext : Axis::kTensor;
}

}  // namespace stepcast
