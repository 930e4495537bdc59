// The names of the language and the volume of a transfer. O(1) each.

#include "sim/program/program.h"

#include <algorithm>

#include "sim/base/error.h"

namespace stepcast {

std::string_view category_name(Category category) {
  switch (category) {
    case Category::kWeights: return "weights";
    case Category::kGradients: return "gradients";
    case Category::kMasterWeights: return "master_weights";
    case Category::kOptimizer: return "optimizer";
    case Category::kActivations: return "activations";
    case Category::kBuffers: return "buffers";
  }
  return "?";
}

std::string_view stream_name(Stream stream) {
  switch (stream) {
    case Stream::kCompute: return "compute";
    case Stream::kTensor: return "tensor";
    case Stream::kContext: return "context";
    case Stream::kExpert: return "expert";
    case Stream::kData: return "data";
    case Stream::kReplica: return "replica";
    case Stream::kGlobal: return "global";
    case Stream::kSendForward: return "send_forward";
    case Stream::kReceiveForward: return "receive_forward";
    case Stream::kSendBackward: return "send_backward";
    case Stream::kReceiveBackward: return "receive_backward";
    case Stream::kHostCopy: return "host_copy";
  }
  return "?";
}

std::string_view cut_name(Cut cut) {
  switch (cut) {
    case Cut::kWhole: return "whole";
    case Cut::kRows: return "rows";
    case Cut::kColumns: return "columns";
  }
  return "?";
}

std::string_view transfer_name(TransferKind kind) {
  switch (kind) {
    case TransferKind::kAllReduce: return "all_reduce";
    case TransferKind::kAllGather: return "all_gather";
    case TransferKind::kReduceScatter: return "reduce_scatter";
    case TransferKind::kBroadcast: return "broadcast";
    case TransferKind::kAllToAll: return "all_to_all";
    case TransferKind::kSendReceive: return "send_receive";
  }
  return "?";
}

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kRecompute: return "recompute";
    case Phase::kOptimizer: return "optimizer";
  }
  return "?";
}

Bytes sent_bytes(const Transfer& transfer, const Mesh& mesh) {
  const std::int64_t members =
      transfer.ends_only ? std::min(2, mesh.stages()) : mesh.group_size(transfer.axes);
  if (members <= 1) return Bytes(0);
  if (transfer.kind == TransferKind::kSendReceive) return transfer.bytes;
  const std::int64_t passes = transfer.kind == TransferKind::kAllReduce ? 2 : 1;
  // ceil(passes (n-1) S / n) with S = q n + r, so that no product outgrows 64 bits.
  const std::int64_t steps = passes * (members - 1);
  const std::int64_t quotient = transfer.bytes.count / members;
  const std::int64_t remainder = transfer.bytes.count % members;
  return Bytes(steps * quotient + (steps * remainder + members - 1) / members);
}

std::string label_text(const Job& job, Label label) {
  STEPCAST_CHECK(label.name >= 0 && static_cast<std::size_t>(label.name) < job.names.size(),
                 "a label's name is an index into Job::names");
  const std::string& name = job.names[static_cast<std::size_t>(label.name)];
  return label.layer < 0 ? name : "layer" + std::to_string(label.layer) + "." + name;
}

}  // namespace stepcast
