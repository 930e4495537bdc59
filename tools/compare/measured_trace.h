// A trace of PyTorch's profiler (Kineto): Chrome's trace events, one JSON object a file with
// "traceEvents", or their bare list. Read are
//   steps      "ProfilerStep#N" of the host (cat user_annotation)
//   kernels    cat kernel, gpu_memcpy, gpu_memset; pid is the device, ts and dur are microseconds
//   launches   cat cuda_runtime, cuda_driver: by "correlation", they say which step a kernel is of
//   groups     "Process Group Description", "Process Group Ranks", "Group size", "Global rank
//              start", "Global rank stride" of a collective's kernel, or else of the
//              record_param_comms with its "External id"
//   memory     "[memory]" of a device: "Total Allocated", "Total Reserved"
// The duration of a collective's kernel includes waiting for its slowest peer.
//
// What `simulate --trace` and `execute --trace` write is read in the same way; there a kernel
// carries its op and phase, which say its kind better than a name does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"

namespace stepcast {

enum class KernelKind : std::uint8_t {
  kGemm,
  kAttention,
  kNorm,
  kPointwise,
  kGather,
  kLoss,
  kOptimizer,
  kCopy,
  kOther,
  kCommunication
};
inline constexpr std::size_t kKernelKinds = 10;
std::string_view kernel_kind_name(KernelKind kind);  // "gemm", ...

KernelKind kind_of_op(const Op& op, Phase phase);

// By words in the names that PyTorch, cuBLAS, cuDNN, FlashAttention, Transformer Engine, Apex,
// Triton, hipBLASLt, NCCL and RCCL give their kernels.
KernelKind kind_of_name(std::string_view name);

struct TraceGroup {
  std::string description;  // "mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP", "data+replica"
  std::vector<int> ranks;   // empty or its beginning where the trace does not tell all
  int size = 0;             // 0: not told
  bool operator==(const TraceGroup&) const = default;
};

struct TraceKernel {
  double begin = 0, end = 0;  // seconds
  KernelKind kind = KernelKind::kOther;
  int step = -1;   // index into TraceRank::steps; -1: of none
  int group = -1;  // index into TraceFile::groups; -1: not told
  bool point_to_point = false;
};

struct TraceStep {
  std::int64_t number = 0;
  double begin = 0, seconds = 0;
};

struct TraceRank {
  int rank = 0;
  std::vector<TraceStep> steps;                         // ascending
  std::vector<TraceKernel> kernels;                     // by begin
  std::optional<double> allocated_peak, reserved_peak;  // bytes
};

struct TraceFile {
  std::string name;
  std::vector<TraceRank> ranks;
  std::vector<TraceGroup> groups;
  std::optional<int> world_size;
};

// Raw control characters inside strings, which some versions write, are read as spaces: `text` is
// changed. Throws Error (place: FILE:LINE) for other invalid JSON and for a trace without steps or
// kernels.
TraceFile read_trace(std::string& text, const std::string& name);

enum class JsonForm { kReport, kGolden, kTrace, kOther };

// By the keys of the outermost object. Changes `text` as read_trace does. Throws Error (place:
// FILE:LINE) where it is no valid JSON.
JsonForm json_form(std::string& text, const std::string& name);

}  // namespace stepcast
