// Time: what one kernel or one collective costs, as `stepcast time` says it.
//
// Kernels: device time of one kernel alone on the device, its start included, and what rests on it:
// achieved FLOP/s, share of the data sheet's peak, bytes a second.
// Collectives: a table as nccl-tests prints it. For S bytes over n ranks in t seconds
//   algorithm bandwidth = S / t
//   bus bandwidth       = S / t x f,  f = 2 (n-1)/n  all-reduce
//                                         (n-1)/n    all-gather, reduce-scatter, all-to-all
//                                         1          broadcast, send
// (NVIDIA/nccl-tests, doc/PERFORMANCE.md). S counts as Transfer::bytes does, and nccl-tests too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/cost/cost.h"
#include "sim/hardware/hardware.h"
#include "sim/network/measured.h"
#include "sim/program/op.h"
#include "sim/program/program.h"

namespace stepcast {

// What was given on the command line; what was not is absent or "".
// The --dtype of 8-bit products with a scale for each block (Gemm::block_scales).
inline constexpr std::string_view kBlockScaled = "fp8-block";

struct TimeArguments {
  std::string what;                      // gemm | attention | all-reduce | ...
  std::optional<std::int64_t> m, n, k, batch;
  std::string role, dtype, output;
  bool accumulate = false;
  std::optional<std::int64_t> heads, kv_heads, sequence, head_dim, value_dim;
  bool causal = false, backward = false;
  std::string size, from, to;            // "1 GB"; without any: 8 B to 8 GiB
  std::optional<std::int64_t> ranks;     // the first ones; without: all devices of the cluster
  bool flows = false;                    // also play the messages (tools/time/flows.h)
  std::string device, cluster;
  std::string profile;                   // of a collective: a name or a file
  std::string json;                      // FILE or -
};
int time_command(const TimeArguments& arguments);

// The Op that the arguments describe. Throws Error for one that is missing, out of its limits or
// does not belong to this kind.
Op op_of(const TimeArguments& arguments);

struct KernelTime {
  Op op;
  Cost cost;
  Flops flops;
  Bytes traffic;
  FlopRate peak;      // data sheet, of the Op's dtype
};
// REQUIRES: a Gemm or an Attention.
KernelTime time_kernel(const Op& op, const Device& device);

// "all-reduce", "all_reduce", "AllReduce", "alltoall", "sendrecv", ... nullopt: none of them.
std::optional<TransferKind> transfer_kind(std::string_view name);

struct CollectiveTime {
  Bytes size;
  Seconds time;
  Bandwidth algorithm_bandwidth;
  Bandwidth bus_bandwidth;
  std::string algorithm;        // as TransferChoice has it
  std::string protocol;
  std::optional<Seconds> flows; // of its messages over the topology, if asked for
  int channels = 0;             // 0: not known
  Basis basis = Basis::kDatasheet;
};
// Over the first `ranks` devices of the cluster, one group. REQUIRES: 2 <= ranks <= devices,
// size >= 1 byte.
CollectiveTime time_collective(TransferKind kind, Bytes size, int ranks, const Cluster& cluster);

// The nodes that the first `ranks` devices lie in.
int nodes_of(int ranks, const Cluster& cluster);

}  // namespace stepcast
