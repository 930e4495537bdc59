// Rows of published measurements, mapped to an Op or a Transfer on a shipped device.
//
// What decides is small and stands in a table, of the kinds; a new kind of row is a function and a
// line of kMappers (training runs: runs.cc). A mapper either refuses with a reason or
// gives both times; a measured rate becomes a time by the FLOPs or bytes that its source counts,
// not by those that we would count. Linear in the row.
#include "tools/validate/validate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "tools/time/time.h"
#include "tools/validate/device.h"
#include "tools/validate/fields.h"
#include "tools/validate/runs.h"

namespace stepcast {
namespace {

// ------------------------------------------------------------------------------------- a mapping

// What a mapper gives: a reason, or both times.
struct Mapped {
  std::string reason;
  std::optional<double> predicted, measured;
  std::vector<std::string> assumed;
};

Mapped refused(std::string reason) {
  Mapped mapped;
  mapped.reason = std::move(reason);
  return mapped;
}

// The dtype of a row, as `stepcast time` takes it; "" if it is none that is modelled.
std::string dtype_word(const Json& row, std::vector<std::string>& assumed) {
  const std::string text = lower(text_of(row, "dtype"));
  if (text.empty()) {
    assumed.emplace_back("dtype (bf16)");
    return "bf16";
  }
  if (has(text, "fp16/bf16")) assumed.emplace_back("dtype (bf16 of fp16/bf16)");
  for (const std::string_view other : {"fp4", "tf32", "int8", "fp6"}) {
    if (has(text, other)) return "";
  }
  if (has(text, "fp8") && has(text, "128")) return std::string(kBlockScaled);
  for (const char* word : {"bf16", "fp16", "fp8", "fp32"}) {
    if (has(text, word)) return word;
  }
  return "";
}

// Why the row cannot be mapped, or "".
std::string read_dtype(const Json& row, TimeArguments& a, std::vector<std::string>& assumed) {
  a.dtype = dtype_word(row, assumed);
  return a.dtype.empty() ? fmt::format("dtype {} is not modelled", text_of(row, "dtype")) : "";
}

// Of the row itself, or from a rate and the FLOPs that the source counts.
std::optional<double> measured_seconds(const Json& row, double flops) {
  if (const auto time = number_of(row, "time_us")) return *time * 1e-6;
  if (const auto rate = number_of(row, "achieved_tflops")) return flops / (*rate * 1e12);
  return std::nullopt;
}

// ------------------------------------------------------------------------------------------ gemm

// "4096x8192x1024" as m, n, k.
void read_m_n_k(const std::string& text, TimeArguments& a) {
  const std::size_t first = text.find('x');
  const std::size_t second = first == std::string::npos ? first : text.find('x', first + 1);
  if (second == std::string::npos) return;
  const Json sizes = {{"m", text.substr(0, first)},
                      {"n", text.substr(first + 1, second - first - 1)},
                      {"k", text.substr(second + 1)}};
  a.m = count_of(sizes, "m");
  a.n = count_of(sizes, "n");
  a.k = count_of(sizes, "k");
}

// A grouped product (experts): ng groups of M tokens, N columns out, K columns in, in all stages
// (MooreThreads/SimuMax, simu_tools/efficency_test/test_grouped_gemm_efficiency.py), by
// TransformerEngine's general_grouped_gemm: a kernel each.
void read_group(const Json& params, TimeArguments& a) {
  const auto m = count_of(params, "M"), n = count_of(params, "N"), k = count_of(params, "K");
  const std::string stage = text_of(params, "stage");
  a.batch = count_of(params, "ng");
  a.m = m;
  a.n = n;
  a.k = k;
  if (stage == "bwd_grad_act") {
    std::swap(a.n, a.k);
    a.role = "input-gradient";
  } else if (stage == "bwd_grad_w") {
    a.m = n;
    a.n = k;
    a.k = m;
    a.role = "weight-gradient";
    a.output = text_of(params, "main_grad_dtype");
  }
}

void read_product(const Json& row, TimeArguments& a, std::vector<std::string>& assumed) {
  const Json* params = member(row, "params");
  const Json& sizes = holder_of(row, "m");
  if (const std::string text = text_of(row, "m_n_k"); !text.empty()) {
    read_m_n_k(text, a);
  } else {
    a.m = count_of(sizes, "m");
    a.n = count_of(sizes, "n");
    a.k = count_of(sizes, "k");
  }
  a.batch = row.contains("batch") ? count_of(row, "batch") : count_of(holder_of(row, "b"), "b");
  const std::string layout = params != nullptr ? text_of(*params, "layout") : "";
  if (layout == "NN") a.role = "input-gradient";
  if (layout == "NT") a.role = "weight-gradient";
  if (layout.empty()) assumed.emplace_back("role (forward)");
  a.output = text_of(holder_of(row, "out_dtype"), "out_dtype");
}

Mapped map_gemm(const Json& row, const Device& device) {
  Mapped mapped;
  TimeArguments a;
  a.what = "gemm";
  if (std::string why = read_dtype(row, a, mapped.assumed); !why.empty()) {
    return refused(std::move(why));
  }
  const Json* params = member(row, "params");
  const bool looped = params != nullptr && member(*params, "ng") != nullptr;
  if (looped) {
    read_group(*params, a);
  } else {
    read_product(row, a, mapped.assumed);
  }
  a.accumulate = switch_of(holder_of(row, "accumulate"), "accumulate").value_or(false);
  if (!a.m || !a.n || !a.k) return refused("m, n and k are not stated");
  if (has(text_of(row, "notes"), "best over a scan")) {
    mapped.assumed.emplace_back("shape (the best of a scan, so the rate is an upper bound)");
  }
  Op op = op_of(a);
  Device with = device;
  if (looped) {
    std::get<Gemm>(op).grouped = true;
    with.kernels.fusion.groups = false;
  }
  // By the host's clock: whoever is slower sets the pace; gap_us is what lies between two.
  const Seconds device_time = op_cost(op, with, {.rested = true}).time;
  mapped.predicted = std::max(device_time, issue_time(op, with)).value +
                     number_of(row, "gap_us").value_or(0) * 1e-6;
  mapped.measured = measured_seconds(row, flops(op).value);
  return mapped;
}

// Experts' products by one kernel (deepseek-ai/DeepGEMM README.md), in fp8 with scales in blocks.
Mapped map_grouped(const Json& row, const Device& device) {
  Mapped mapped;
  TimeArguments a;
  a.what = "gemm";
  if (std::string why = read_dtype(row, a, mapped.assumed); !why.empty()) {
    return refused(std::move(why));
  }
  a.m = count_of(row, "m_per_group");
  a.n = count_of(row, "n");
  a.k = count_of(row, "k");
  a.batch = count_of(row, "groups");
  a.output = "bf16";
  if (!a.m || !a.n || !a.k || !a.batch) return refused("groups, m, n and k are not stated");
  mapped.assumed.emplace_back("role (forward)");
  Op op = op_of(a);
  std::get<Gemm>(op).grouped = true;
  std::get<Gemm>(op).block_scales = std::get<Gemm>(op).dtype == Dtype::kFp8;
  mapped.predicted = op_cost(op, device, {.rested = true}).time.value;
  mapped.measured = measured_seconds(row, flops(op).value);
  return mapped;
}

// ------------------------------------------------------------------------------------- attention

// The sizes of FlashAttention's figures, which a bar of them does not repeat: 16k tokens, hidden
// 2,048 (Dao-AILab/flash-attention, README).
void read_figure_sizes(TimeArguments& a, std::vector<std::string>& assumed) {
  constexpr std::int64_t kTokens = 16384, kHidden = 2048;
  if (!a.heads && kHidden % *a.head_dim == 0) {
    a.heads = kHidden / *a.head_dim;
    assumed.emplace_back("heads (hidden 2,048)");
  }
  if (!a.batch && kTokens % *a.sequence == 0) {
    a.batch = kTokens / *a.sequence;
    assumed.emplace_back("batch (16k tokens)");
  }
}

void read_head_dims(const Json& row, TimeArguments& a) {
  a.head_dim = count_of(holder_of(row, "head_dim"), "head_dim");
  if (a.head_dim) return;
  a.head_dim = count_of(holder_of(row, "qk_head_dim"), "qk_head_dim");
  a.value_dim = count_of(holder_of(row, "v_head_dim"), "v_head_dim");
}

bool read_causal(const Json& row, std::vector<std::string>& assumed) {
  if (const auto stated = switch_of(row, "causal")) return *stated;
  assumed.emplace_back("causal");
  return true;
}

// FLOPs as the source counts them: a causal kernel's as half, unless it says otherwise; backward's
// as 2.5 times forward's, however wide the values.
double counted_flops(const Json& row, const Op& op) {
  Attention forward = std::get<Attention>(op);
  const bool whole = text_of(row, "flops_convention").starts_with("full attention counted");
  const double passes = forward.pass == Pass::kForward ? 1 : 2.5;
  forward.pass = Pass::kForward;
  return flops(Op(forward)).value * passes * (whole && forward.causal ? 2 : 1);
}

// The implementation that the row is of, made the usual one of `device`. Why not, if it is of one
// that the device's kernels do not describe and that its usual one does not stand for; else "".
std::string choose_attention(const Json& row, Device& device, std::vector<std::string>& assumed) {
  std::string kernel = text_of(row, "kernel");
  if (kernel.empty() && !text_of(row, "op").empty()) kernel = "sdp";
  if (device.kernels.attention.contains(kernel)) {
    device.kernels.usual_attention = kernel;
    return "";
  }
  if (kernel == "pytorch" || kernel == "standard") {
    return fmt::format("kernel {}: not fused, a chain of kernels", kernel);
  }
  if (kernel == "flash1" || kernel == "triton") {
    return fmt::format("kernel {}: older than what the forecast is of", kernel);
  }
  if (!kernel.empty()) assumed.emplace_back("kernel (the device's usual one)");
  return "";
}

Mapped map_attention(const Json& row, const Device& on) {
  Mapped mapped;
  Device device = on;
  if (std::string why = choose_attention(row, device, mapped.assumed); !why.empty()) {
    return refused(std::move(why));
  }
  TimeArguments a;
  a.what = "attention";
  if (std::string why = read_dtype(row, a, mapped.assumed); !why.empty()) {
    return refused(std::move(why));
  }
  a.sequence = count_of(holder_of(row, "seq_len"), "seq_len");
  read_head_dims(row, a);
  if (!a.sequence || !a.head_dim) return refused("sequence and head dimension are not stated");
  a.batch = count_of(holder_of(row, "batch"), "batch");
  a.heads = count_of(holder_of(row, "head_num"), "head_num");
  if (!a.heads) a.heads = count_of(row, "heads");
  a.kv_heads = count_of(holder_of(row, "kv_head_num"), "kv_head_num");
  const Json* source = member(row, "source");
  if (source != nullptr && has(text_of(*source, "repo"), "flash-attention")) {
    read_figure_sizes(a, mapped.assumed);
  }
  if (!a.heads) return refused("heads are not stated");
  if (!a.batch) return refused("batch is not stated");
  a.causal = read_causal(row, mapped.assumed);

  const std::string direction = text_of(row, "direction"), op_name = text_of(row, "op");
  const bool both = direction == "fwd+bwd";
  const bool backward = both || direction == "bwd" || op_name == "sdp_bwd";
  if (direction.empty() && op_name.empty()) mapped.assumed.emplace_back("direction (forward)");
  double predicted = 0, counted = 0;
  for (const bool pass : {false, true}) {
    if (pass ? !backward : backward && !both) continue;
    a.backward = pass;
    const Op op = op_of(a);
    predicted += op_cost(op, device, {.rested = true}).time.value;
    counted += counted_flops(row, op);
  }
  mapped.predicted = predicted;
  mapped.measured = measured_seconds(row, counted);
  return mapped;
}

// ------------------------------------------------------------------------------------ collective

// Hops over Amazon's EFA, where the row tells it: as in configs/clusters/aws-*.json.
std::optional<Seconds> efa_hop(const Json& row, const Device& device) {
  const std::string words = lower(text_of(row, "inter_node_link") + " " + text_of(row, "gpu"));
  if (!has(words, "efa") && !has(words, "aws")) return std::nullopt;
  const bool first = device.nccl && device.nccl->generation <= NcclGeneration::kAmpere;
  return microseconds(first ? 310 : 90);
}

// Standard boxes, as many of their devices as the row uses if there are several, the row's network.
Cluster cluster_of(const Json& row, int ranks, int nodes, const Device& device,
                   std::vector<std::string>& assumed) {
  const int per_node = nodes == 1 ? std::max(ranks, device.devices_per_node) : ranks / nodes;
  Cluster cluster = standard_cluster(device, nodes, per_node);
  if (has(text_of(row, "notes"), "NVLS off") && cluster.device.nccl) {
    cluster.device.nccl->nvls = false;
  }
  if (nodes == 1) return cluster;
  const auto link = read_link(text_of(row, "inter_node_link"), device.nics_per_node, per_node);
  if (link) {
    cluster.nics_per_node = link->cards;
    cluster.nic_bandwidth = link->rate * device.nic_efficiency;
  } else {
    assumed.emplace_back("inter_node_link (the standard box's)");
  }
  if (const auto hop = efa_hop(row, device)) cluster.nic_latency = *hop;
  return cluster;
}

Mapped map_collective(const Json& row, const Device& device) {
  Mapped mapped;
  // "alltoall (ratio 0.9375 => 16 ranks)": the first word names it.
  const std::string name = text_of(row, "collective");
  const auto kind = transfer_kind(name.substr(0, name.find(' ')));
  if (!kind) return refused(fmt::format("collective \"{}\" is not modelled", name));
  const auto size = count_of(row, "size_bytes");
  if (!size) return refused("size_bytes is not stated");
  const auto ranks = count_of(row, "ranks");
  if (!ranks) return refused("ranks are not stated");
  if (*ranks < 2 || *ranks > kRanksMax) return refused("a group of this many ranks");
  const std::int64_t box = device.devices_per_node;
  std::int64_t nodes = (*ranks + box - 1) / box;
  if (const auto stated = count_of(row, "nodes")) {
    nodes = *stated;
  } else {
    mapped.assumed.push_back(fmt::format("nodes ({})", nodes));
  }
  if (nodes > *ranks || *ranks % nodes != 0) return refused("ranks do not divide among the nodes");

  const int n = static_cast<int>(*ranks);
  const Cluster cluster =
      cluster_of(row, n, static_cast<int>(nodes), device, mapped.assumed);
  mapped.predicted = time_collective(*kind, Bytes(*size), n, cluster).time.value;
  const double bytes = static_cast<double>(*size);
  if (const auto time = number_of(row, "time_us")) {
    mapped.measured = *time * 1e-6;
  } else if (const auto bus = number_of(row, "busbw_GBps")) {
    mapped.measured = bytes * bus_factor(*kind, n) / (*bus * 1e9);
  } else if (const auto algorithm = number_of(row, "algbw_GBps")) {
    mapped.measured = bytes / (*algorithm * 1e9);
  }
  return mapped;
}

// ----------------------------------------------------------------------------------------- a row

struct Mapper {
  std::string_view kind;
  Mapped (*map)(const Json& row, const Device& device);
};
constexpr Mapper kMappers[] = {
    {"gemm", map_gemm},
    {"grouped_gemm", map_grouped},
    {"attention", map_attention},
    {"collective", map_collective}};

std::string source_of(const Json& row) {
  const Json* source = member(row, "source");
  if (source == nullptr) return "not stated";
  if (source->is_string()) return source->get<std::string>();
  if (const std::string repo = text_of(*source, "repo"); !repo.empty()) return repo;
  if (std::string url = text_of(*source, "url"); !url.empty()) {
    for (const std::string_view prefix : {"https://", "github.com/"}) {
      if (url.starts_with(prefix)) url.erase(0, prefix.size());
    }
    for (const std::string_view thread : {"/issues/", "/pull/"}) {
      if (const std::size_t at = url.find(thread); at != std::string::npos) {
        url.replace(at, thread.size(), "#");
      }
    }
    return url;
  }
  // "copy 7 (SkyPilot, Nebius example)": what it is stands in the brackets.
  const std::string note = text_of(*source, "note");
  const std::size_t open = note.find('('), close = note.rfind(')');
  if (open != std::string::npos && close != std::string::npos && close > open + 1) {
    return note.substr(open + 1, close - open - 1);
  }
  return note.empty() ? "not stated" : note;
}

std::string gpu_of(const Json& row) {
  const std::string text = text_of(holder_of(row, "gpu"), "gpu");
  if (!text.empty()) return text;
  const Json* hardware = member(row, "hardware");
  return hardware == nullptr ? "" : text_of(*hardware, "gpu");
}

// What a summary must not mix: kernels, passes, and clusters that were not set up well.
std::string variant_of(const Json& row) {
  const std::string words = lower(text_of(row, "inter_node_link") + " " + text_of(row, "notes"));
  if (has(words, "misconfigured") || has(words, "degraded")) return "degraded";
  const std::string kernel = text_of(row, "kernel");
  return kernel.empty() ? text_of(row, "op") : kernel;
}

Mapped on_device(const Json& row, const std::string& gpu, const Mapper& mapper,
                 const std::vector<Device>& devices) {
  if (gpu.empty()) return refused("gpu is not stated");
  const NamedDevice named = find_device(gpu, devices);
  if (named.device == nullptr) return refused(fmt::format("no device is shipped for {}", gpu));
  if (!named.same_links && mapper.kind == "collective") {
    return refused(fmt::format("no device has the links of {}", gpu));
  }
  Mapped mapped = mapper.map(row, *named.device);
  if (!named.assumed.empty()) mapped.assumed.push_back(named.assumed);
  return mapped;
}

Mapped map_row(const Json& row, const std::string& kind, const std::vector<Device>& devices) {
  if (kind.empty()) return refused("kind is not stated");
  for (const Mapper& mapper : kMappers) {
    if (mapper.kind != kind) continue;
    try {
      Mapped mapped = on_device(row, gpu_of(row), mapper, devices);
      if (mapped.reason.empty() && !mapped.measured) {
        mapped.reason = "neither a time nor a rate is stated";
      }
      return mapped;
    } catch (const Error& error) {  // sizes that no kernel or cluster has
      return refused(error.what());
    }
  }
  return refused(fmt::format("kind {} is not mapped", kind));
}

// A row of another kind, or a doubtful one, keeps what it says that it measured.
void read_measured(const Json& row, ValidationRow& result) {
  const Json* measured = member(row, "measured");
  if (measured != nullptr) {
    result.measured_seconds = number_of(*measured, "step_time_s");
    const Json* extra = member(*measured, "extra");
    const Json nothing;
    if (const auto bytes = number_of(extra != nullptr ? *extra : nothing, "peak_memory_bytes")) {
      result.measured_bytes = *bytes;
    } else if (const auto memory = number_of(*measured, "peak_memory_gib")) {
      result.measured_bytes = *memory * static_cast<double>(gibibytes(1).count);
    }
  } else if (const auto time = number_of(row, "time_us")) {
    result.measured_seconds = *time * 1e-6;
  }
}

// What a row says of itself, the doubts included.
ValidationRow read_row(const Json& row, const std::string& place) {
  ValidationRow result;
  result.id = text_of(row, "id");
  if (result.id.empty()) result.id = place;
  result.source = source_of(row);
  const std::string gpu = gpu_of(row);
  result.gpu = gpu.substr(0, gpu.find(" ("));
  if (member(row, "model") != nullptr && member(row, "parallel") != nullptr) {
    result.kind = "run";
    result.group = text_of(row, "group");
  } else {
    result.kind = text_of(row, "kind");
    result.variant = variant_of(row);
  }
  read_measured(row, result);
  result.reason = doubt(row);
  return result;
}

}  // namespace

std::string doubt(const Json& row) {
  constexpr double kTrustMost = 2;  // 1 is best
  if (switch_of(row, "source_checked") == false) return "its source has not been checked";
  const std::string kind = text_of(row, "kind_of_row");
  if (!kind.empty() && kind != "measured") return fmt::format("not a measurement: {}", kind);
  if (number_of(row, "trust").value_or(0) > kTrustMost) return "its source is not trusted";
  return "";
}

ValidationRow validate_row(const Json& row, const std::string& place,
                           const std::vector<Device>& devices) {
  ValidationRow result = read_row(row, place);
  if (!result.reason.empty()) return result;
  Mapped mapped = map_row(row, result.kind, devices);
  result.reason = std::move(mapped.reason);
  result.covered = result.reason.empty();
  if (!result.covered) return result;
  result.assumed = std::move(mapped.assumed);
  if (result.kind == "collective") result.size = number_of(row, "size_bytes");
  result.predicted_seconds = mapped.predicted;
  result.measured_seconds = mapped.measured;
  return result;
}

ValidationRow validate_row(const Json& row, const std::string& place, const Shipped& shipped,
                           RunForecasts& known) {
  ValidationRow result = read_row(row, place);
  if (result.kind != "run") return validate_row(row, place, shipped.devices);
  result.fitted = shipped.fitted.contains(result.group);
  if (result.reason.empty()) validate_run(row, shipped, known, result);
  return result;
}

}  // namespace stepcast
