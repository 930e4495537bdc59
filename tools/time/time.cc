// `stepcast time`: one kernel or one collective, priced by the same functions as a whole step.
//
// The flags of all kinds stand in one struct; each kind says which are its own, so that a flag of
// another kind is an error, not a silent nothing. O(1) for a kernel; a collective's table doubles
// its size from row to row (as nccl-tests -f 2), so it has at most 63 rows.
#include "tools/time/time.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "sim/cost/gemm.h"
#include "sim/network/network.h"
#include "tools/base/files.h"
#include "tools/forecast/table.h"
#include "tools/time/flows.h"
#include "tools/whatif/devices.h"
#include "tools/whatif/references.h"

namespace stepcast {
namespace {

constexpr Limits kSize = {1, std::int64_t{1} << 24};  // of one dimension
constexpr Limits kCount = {1, 1 << 20};               // of batches and heads
constexpr double kElementsMax = 1e15;                 // of one operand: bytes stay below 2^63

// ------------------------------------------------------------------------------------ arguments

struct Given {
  const char* flag;
  bool given;
  std::string_view kinds;  // of which it may be: g(emm), a(ttention), c(ollective)
};

std::vector<Given> given_flags(const TimeArguments& a) {
  return {{"--m", a.m.has_value(), "g"},
          {"--n", a.n.has_value(), "g"},
          {"--k", a.k.has_value(), "g"},
          {"--batch", a.batch.has_value(), "ga"},
          {"--role", !a.role.empty(), "g"},
          {"--dtype", !a.dtype.empty(), "ga"},
          {"--output", !a.output.empty(), "g"},
          {"--accumulate", a.accumulate, "g"},
          {"--heads", a.heads.has_value(), "a"},
          {"--kv-heads", a.kv_heads.has_value(), "a"},
          {"--sequence", a.sequence.has_value(), "a"},
          {"--head-dim", a.head_dim.has_value(), "a"},
          {"--value-dim", a.value_dim.has_value(), "a"},
          {"--causal", a.causal, "a"},
          {"--backward", a.backward, "a"},
          {"--size", !a.size.empty(), "c"},
          {"--from", !a.from.empty(), "c"},
          {"--to", !a.to.empty(), "c"},
          {"--ranks", a.ranks.has_value(), "c"},
          {"--flows", a.flows, "c"},
          {"--profile", !a.profile.empty(), "c"}};
}

// Throws for a flag that is of another kind.
void check_flags(const TimeArguments& arguments, char kind) {
  const std::vector<Given> flags = given_flags(arguments);
  for (const Given& flag : flags) {
    if (!flag.given || flag.kinds.find(kind) != std::string_view::npos) continue;
    std::vector<std::string> own;
    for (const Given& other : flags) {
      if (other.kinds.find(kind) != std::string_view::npos) own.emplace_back(other.flag);
    }
    throw Error("time", fmt::format("{} is not a flag of {}; it has {}", flag.flag, arguments.what,
                                    fmt::join(own, ", ")));
  }
}

std::int64_t size_of(std::string_view flag, std::optional<std::int64_t> value,
                     std::optional<std::int64_t> otherwise, Limits limits) {
  if (!value) {
    if (otherwise) return *otherwise;
    throw Error("time", fmt::format("{} is missing", flag));
  }
  if (*value < limits.least || *value > limits.most) {
    throw Error(flag, fmt::format("must be {} to {}, is {}", limits.least, limits.most, *value));
  }
  return *value;
}

template <class Enum>
Enum word_of(std::string_view flag, const std::string& word, Enum otherwise,
             const std::vector<std::pair<std::string, Enum>>& words) {
  if (word.empty()) return otherwise;
  std::string plain = word;
  std::replace(plain.begin(), plain.end(), '_', '-');
  std::vector<std::string> names;
  for (const auto& [name, value] : words) {
    if (name == plain) return value;
    names.push_back(name);
  }
  throw Error(flag, fmt::format("must be one of {}, is \"{}\"{}", fmt::join(names, ", "), word,
                                did_you_mean(plain, names)));
}

Dtype dtype_of(std::string_view flag, const std::string& word, Dtype otherwise) {
  return word_of<Dtype>(flag, word, otherwise,
                        {{"bf16", Dtype::kBf16},
                         {"fp16", Dtype::kFp16},
                         {"fp32", Dtype::kFp32},
                         {"fp8", Dtype::kFp8}});
}

Gemm gemm_of(const TimeArguments& a) {
  check_flags(a, 'g');
  Gemm gemm;
  gemm.m = size_of("--m", a.m, {}, kSize);
  gemm.n = size_of("--n", a.n, {}, kSize);
  gemm.k = size_of("--k", a.k, {}, kSize);
  gemm.batch = size_of("--batch", a.batch, 1, kCount);
  gemm.role = word_of<GemmRole>("--role", a.role, GemmRole::kForward,
                                {{"forward", GemmRole::kForward},
                                 {"input-gradient", GemmRole::kInputGradient},
                                 {"weight-gradient", GemmRole::kWeightGradient}});
  gemm.block_scales = a.dtype == kBlockScaled;
  gemm.dtype = gemm.block_scales ? Dtype::kFp8 : dtype_of("--dtype", a.dtype, Dtype::kBf16);
  // The matrix units write wider than they read in fp8.
  const Dtype output = gemm.dtype == Dtype::kFp8 ? Dtype::kBf16 : gemm.dtype;
  gemm.output = dtype_of("--output", a.output, output);
  gemm.accumulate = a.accumulate;
  const double longest = static_cast<double>(std::max({gemm.m, gemm.n, gemm.k}));
  if (longest * longest * static_cast<double>(gemm.batch) > kElementsMax) {
    throw Error("time", "the product is larger than any memory; give smaller sizes");
  }
  return gemm;
}

Attention attention_of(const TimeArguments& a) {
  check_flags(a, 'a');
  Attention attention;
  attention.pass = a.backward ? Pass::kBackward : Pass::kForward;
  attention.batch = size_of("--batch", a.batch, 1, kCount);
  attention.heads = size_of("--heads", a.heads, {}, kCount);
  attention.kv_heads = size_of("--kv-heads", a.kv_heads, attention.heads, kCount);
  attention.queries = size_of("--sequence", a.sequence, {}, kSize);
  attention.keys = attention.queries;
  attention.head_dim = size_of("--head-dim", a.head_dim, {}, {1, 1 << 16});
  attention.value_dim = size_of("--value-dim", a.value_dim, attention.head_dim, {1, 1 << 16});
  if (attention.value_dim == attention.head_dim) attention.value_dim = 0;
  attention.causal = a.causal;
  attention.dtype = dtype_of("--dtype", a.dtype, Dtype::kBf16);
  if (attention.heads % attention.kv_heads != 0) {
    throw Error("--kv-heads", fmt::format("{} heads cannot be shared by {} key-value heads",
                                          attention.heads, attention.kv_heads));
  }
  const double elements = static_cast<double>(attention.batch * attention.heads) *
                          static_cast<double>(attention.queries *
                                              std::max(attention.head_dim, attention.value_dim));
  if (elements > kElementsMax) {
    throw Error("time", "the queries are larger than any memory; give smaller sizes");
  }
  return attention;
}

Cluster named_cluster(const std::string& name) {
  constexpr std::string_view kPlace = "--cluster";
  const Json question{{"cluster", name}};
  const Document document = parse_json(question.dump(), kPlace);
  try {
    return find_cluster(Object(document), ".");
  } catch (const Error& error) {
    if (!error.where().starts_with(kPlace)) throw;
    throw Error(kPlace, error.message());
  }
}

Device named_device(const std::string& name) {
  return load_device(find_config("devices", name, "--device"));
}

// One standard box for --device, the cluster for --cluster; what --profile says of it.
Cluster cluster_of(const TimeArguments& a) {
  if (a.device.empty() == a.cluster.empty()) {
    throw Error("time", a.device.empty() ? "give --device NAME or --cluster NAME"
                                         : "give --device or --cluster, not both");
  }
  Cluster cluster;
  if (a.device.empty()) {
    cluster = named_cluster(a.cluster);
  } else {
    const Device device = named_device(a.device);
    cluster = standard_cluster(device, 1, device.devices_per_node);
  }
  if (!a.profile.empty()) {
    use_profile(cluster, find_profile(a.profile, "--profile", "."), "--profile");
  }
  return cluster;
}

// --------------------------------------------------------------------------------------- output

std::string rate_text(double value, std::string_view unit) {
  return fmt::format("{:.4g} {}", value, unit);
}

Json kernel_json(const KernelTime& kernel, const std::string& device) {
  const double seconds = kernel.cost.time.value;
  return {{"format", "stepcast.time/1"},
          {"op", to_text(kernel.op)},
          {"device", device},
          {"seconds", seconds},
          {"basis", basis_name(kernel.cost.basis)},
          {"flops", kernel.flops.value},
          {"flops_per_second", kernel.flops.value / seconds},
          {"peak_flops_per_second", kernel.peak.value},
          {"peak_fraction", kernel.flops.value / seconds / kernel.peak.value},
          {"traffic_bytes", kernel.traffic.count},
          {"bytes_per_second", static_cast<double>(kernel.traffic.count) / seconds}};
}

std::string kernel_table(const KernelTime& kernel, const Device& device) {
  const double seconds = kernel.cost.time.value;
  const double rate = kernel.flops.value / seconds;
  const double bytes = static_cast<double>(kernel.traffic.count) / seconds;
  std::vector<std::vector<std::string>> rows = {
      {"time", format_seconds(kernel.cost.time),
       fmt::format("basis: {}", basis_name(kernel.cost.basis))},
      {"rate", rate_text(rate * 1e-12, "TFLOP/s"),
       fmt::format("{:.1f} % of the data sheet's {:.4g}", 100 * rate / kernel.peak.value,
                   kernel.peak.value * 1e-12)},
      {"memory", rate_text(bytes * 1e-9, "GB/s"),
       fmt::format("{:.1f} % of the data sheet's {:.4g}",
                   100 * bytes / device.memory_bandwidth.value,
                   device.memory_bandwidth.value * 1e-9)},
      {"work", format_count(kernel.flops.value) + " FLOPs",
       fmt::format("{} of operands, each once", format_bytes(kernel.traffic))}};
  if (const Gemm* gemm = std::get_if<Gemm>(&kernel.op)) {
    const GemmFill fill = gemm_fill(*gemm, device);
    rows.push_back({"tiles", fmt::format("{} of {}x{}", fill.tiles, fill.tile_rows,
                                         fill.tile_columns),
                    fmt::format("split-k {}, {} waves, {:.1f} % of their area and {:.1f} % of the "
                                "{} multiprocessors busy",
                                fill.split, fill.waves, 100 * fill.tile_efficiency,
                                100 * fill.wave_efficiency, device.multiprocessors)});
  }
  return fmt::format("{} on {}\n\n{}", to_text(kernel.op), device.name, align(rows, "lrl"));
}

Json collective_json(TransferKind kind, int ranks, const Cluster& cluster,
                     const std::vector<CollectiveTime>& times) {
  Json rows = Json::array();
  for (const CollectiveTime& one : times) {
    rows.push_back({{"size_bytes", one.size.count},
                    {"seconds", one.time.value},
                    {"algorithm_bytes_per_second", one.algorithm_bandwidth.value},
                    {"bus_bytes_per_second", one.bus_bandwidth.value},
                    {"algorithm", one.algorithm},
                    {"protocol", one.protocol},
                    {"channels", one.channels},
                    {"basis", basis_name(one.basis)}});
    if (one.flows) rows.back()["flows_seconds"] = one.flows->value;
  }
  return {{"format", "stepcast.time/1"},
          {"collective", transfer_name(kind)},
          {"cluster", cluster.name},
          {"ranks", ranks},
          {"nodes", nodes_of(ranks, cluster)},
          {"rows", std::move(rows)}};
}

std::string collective_table(TransferKind kind, int ranks, const Cluster& cluster,
                             const std::vector<CollectiveTime>& times) {
  std::vector<std::vector<std::string>> rows = {
      {"size", "bytes", "time us", "algbw GB/s", "busbw GB/s", "algorithm", "protocol",
       "basis"}};
  for (const CollectiveTime& one : times) {
    rows.push_back({format_binary_bytes(one.size), fmt::format("{}", one.size.count),
                    fmt::format("{:.2f}", one.time.value * 1e6),
                    fmt::format("{:.2f}", one.algorithm_bandwidth.value * 1e-9),
                    fmt::format("{:.2f}", one.bus_bandwidth.value * 1e-9), one.algorithm,
                    one.protocol, std::string(basis_name(one.basis))});
    if (one.flows) rows.back().push_back(fmt::format("{:.2f}", one.flows->value * 1e6));
  }
  if (!times.empty() && times.front().flows) rows.front().emplace_back("flows us");
  return fmt::format("{} over {} ranks in {} of {}\n\n{}", transfer_name(kind), ranks,
                     nodes_of(ranks, cluster) == 1
                         ? "one node"
                         : fmt::format("{} nodes", nodes_of(ranks, cluster)),
                     cluster.name, align(rows, "rrrrrlllr"));
}

void print(const TimeArguments& arguments, const Json& json, const std::string& table) {
  if (!arguments.json.empty()) write_file(arguments.json, json.dump(2) + "\n");
  if (arguments.json != kStdout) write_file("-", table);
}

// -------------------------------------------------------------------------------------- commands

std::vector<Bytes> sizes_of(const TimeArguments& a) {
  if (!a.size.empty() && (!a.from.empty() || !a.to.empty())) {
    throw Error("time", "give --size, or --from and --to, not both");
  }
  const std::string from = !a.size.empty() ? a.size : a.from.empty() ? "8 B" : a.from;
  const std::string to = !a.size.empty() ? a.size : a.to.empty() ? "8 GiB" : a.to;
  const char* first_flag = a.size.empty() ? "--from" : "--size";
  const Bytes first = parse_bytes(from, first_flag);
  const Bytes last = parse_bytes(to, a.size.empty() ? "--to" : "--size");
  // Every sum of bytes and hops on the way stays far from 2^63.
  constexpr Bytes kMost = Bytes(std::int64_t{1} << 50);
  if (first < Bytes(1)) throw Error(first_flag, "must be at least 1 B");
  if (last > kMost) throw Error(a.size.empty() ? "--to" : "--size", "must be at most 1 PiB");
  if (first > last) {
    throw Error("--from", fmt::format("{} is more than --to {}", from, to));
  }
  std::vector<Bytes> sizes;
  for (Bytes size = first; size <= last; size = size * 2) sizes.push_back(size);
  return sizes;
}

int collective_command(const TimeArguments& a, TransferKind kind) {
  check_flags(a, 'c');
  const Cluster cluster = cluster_of(a);
  if (cluster.devices() < 2) throw Error("time", cluster.name + " has one device only");
  const auto ranks = static_cast<int>(
      size_of("--ranks", a.ranks, cluster.devices(), {2, cluster.devices()}));
  std::vector<CollectiveTime> times;
  for (const Bytes size : sizes_of(a)) {
    times.push_back(time_collective(kind, size, ranks, cluster));
    if (a.flows) times.back().flows = play_collective(kind, size, ranks, cluster);
  }
  print(a, collective_json(kind, ranks, cluster, times),
        collective_table(kind, ranks, cluster, times));
  return 0;
}

int kernel_command(const TimeArguments& a) {
  const Op op = op_of(a);
  const Device device = cluster_of(a).device;
  const KernelTime kernel = time_kernel(op, device);
  print(a, kernel_json(kernel, device.name), kernel_table(kernel, device));
  return 0;
}

Axis axis_of(TransferKind kind) {
  return kind == TransferKind::kSendReceive ? Axis::kPipeline : Axis::kData;
}

Mesh mesh_of(TransferKind kind, int ranks) {
  Mesh mesh;
  mesh.degree(axis_of(kind)) = ranks;
  return mesh;
}

}  // namespace

// ---------------------------------------------------------------------------------- the library

Op op_of(const TimeArguments& arguments) {
  return arguments.what == "gemm" ? Op(gemm_of(arguments)) : Op(attention_of(arguments));
}

KernelTime time_kernel(const Op& op, const Device& device) {
  const Gemm* gemm = std::get_if<Gemm>(&op);
  const Attention* attention = std::get_if<Attention>(&op);
  STEPCAST_CHECK(gemm != nullptr || attention != nullptr, "only matrix work has a peak rate");
  const Dtype dtype = gemm != nullptr ? gemm->dtype : attention->dtype;
  return {op, op_cost(op, device, {.rested = true}), flops(op), traffic(op),
          matrix_rate(dtype, device)};
}

std::optional<TransferKind> transfer_kind(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  static constexpr std::pair<std::string_view, TransferKind> kNames[] = {
      {"allreduce", TransferKind::kAllReduce},   {"allgather", TransferKind::kAllGather},
      {"reducescatter", TransferKind::kReduceScatter}, {"broadcast", TransferKind::kBroadcast},
      {"alltoall", TransferKind::kAllToAll},     {"send", TransferKind::kSendReceive},
      {"sendrecv", TransferKind::kSendReceive},  {"sendreceive", TransferKind::kSendReceive}};
  for (const auto& [known, kind] : kNames) {
    if (known == plain) return kind;
  }
  return std::nullopt;
}

CollectiveTime time_collective(TransferKind kind, Bytes size, int ranks, const Cluster& cluster) {
  STEPCAST_CHECK(ranks >= 2 && ranks <= cluster.devices() && size >= Bytes(1),
                 "a collective of at least a byte and two ranks");
  Transfer transfer;
  transfer.kind = kind;
  transfer.axes = axis_of(kind);
  transfer.bytes = size;
  CollectiveTime result;
  result.size = size;
  const TransferChoice choice = choose_transfer(transfer, mesh_of(kind, ranks), cluster);
  result.time = choice.time;
  result.algorithm = choice.algorithm;
  result.protocol = choice.protocol;
  result.channels = choice.channels;
  result.basis = choice.basis;
  result.algorithm_bandwidth = Bandwidth(static_cast<double>(size.count) / result.time.value);
  result.bus_bandwidth = result.algorithm_bandwidth * bus_factor(kind, ranks);
  return result;
}

int nodes_of(int ranks, const Cluster& cluster) {
  return (ranks + cluster.devices_per_node - 1) / cluster.devices_per_node;
}

int time_command(const TimeArguments& arguments) {
  if (arguments.what == "gemm" || arguments.what == "attention") return kernel_command(arguments);
  if (const std::optional<TransferKind> kind = transfer_kind(arguments.what)) {
    return collective_command(arguments, *kind);
  }
  const std::vector<std::string> kinds = {"gemm",      "attention",  "all-reduce", "all-gather",
                                          "reduce-scatter", "broadcast", "all-to-all", "send"};
  throw Error("time", fmt::format("\"{}\" is nothing to time{}; there are {}", arguments.what,
                                  did_you_mean(arguments.what, kinds), fmt::join(kinds, ", ")));
}

}  // namespace stepcast
