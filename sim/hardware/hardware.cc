// Device and cluster files. The formats are described in configs/README.md; sim/base/json.h brings
// the units and the places of errors. Cost: linear in the file.
#include "sim/hardware/hardware.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/hardware/topology.h"

namespace stepcast {
namespace {

constexpr std::array<Dtype, 4> kMatrixDtypes = {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16,
                                                Dtype::kFp8};
// Every key that a device file may give a source for.
constexpr std::array<const char*, 32> kSourceKeys = {
    "die", "memory", "context_memory", "blas_workspace", "memory_bandwidth", "memory_efficiency",
    "matrix_rate", "fp8_layouts", "matrix_efficiency", "vector_rate", "integer_rate",
    "multiprocessors", "spread", "cache", "launch", "pass", "kernel_start", "streams",
    "attention_forward_efficiency", "attention_backward_efficiency", "devices_per_node",
    "node_bandwidth", "node_bandwidth_efficiency", "node_latency", "nics_per_node",
    "nic_bandwidth", "nic_efficiency", "nic_latency", "box", "nccl", "description", "name"};

constexpr int kNicsMax = 1024;
constexpr int kPcieSwitchesMax = 1024;
constexpr int kSocketsMax = 64;
constexpr int kCoresMax = 1 << 16;
constexpr int kSpinesMax = 4096;
constexpr double kOversubscriptionMax = 1000;

// NVIDIA/nccl src/graph/tuning.cc, Simple protocol, ring hop over PCIe.
constexpr Seconds kPcieHop{5.7e-6};
constexpr double kSpreadMax = 0.2;  // beyond it the slowest of a million would be half as fast
constexpr double kSlowMax = 1e6;    // a device that is a million times slower is a fault, not slow

// The kRanksMax of sim/program/mesh.h, which this floor does not include.
constexpr std::int64_t kDevicesMax = std::int64_t{1} << 20;

// A share of a nominal rate: above 0, at most 1.
double share(const Object& object, const char* key) {
  if (!object.has(key)) object.fail(key, "is required: a number above 0, at most 1");
  return object.number(key, 1, 1e-6, 1);
}

// As share(), with a default.
double share(const Object& object, const char* key, double otherwise) {
  return object.number(key, otherwise, 1e-6, 1);
}

void require_positive(const Object& object, const char* key, double value) {
  if (!(value > 0) || !std::isfinite(value)) object.fail(key, "must be greater than zero");
}

void require_not_negative(const Object& object, const char* key, double value) {
  if (!(value >= 0) || !std::isfinite(value)) object.fail(key, "must not be negative");
}

Bandwidth positive_bandwidth(const Object& object, const char* key) {
  const Bandwidth value = object.bandwidth(key);
  require_positive(object, key, value.value);
  return value;
}

Seconds latency(const Object& object, const char* key) {
  const Seconds value = object.seconds(key);
  require_not_negative(object, key, value.value);
  return value;
}

std::map<Dtype, FlopRate> read_matrix_rates(const Object& root) {
  const Object object = root.object("matrix_rate");
  std::map<Dtype, FlopRate> rates;
  for (const Dtype dtype : kMatrixDtypes) {
    const std::string key(dtype_name(dtype));
    if (!object.has(key)) {
      object.touch(key);
      continue;
    }
    const FlopRate rate = object.flop_rate(key);
    require_positive(object, key.c_str(), rate.value);
    rates[dtype] = rate;
  }
  object.done();
  if (rates.empty()) {
    root.fail("matrix_rate", "needs the rate of at least one of fp32, bf16, fp16, fp8");
  }
  return rates;
}

std::map<std::string, std::string> read_sources(const Object& root) {
  const Object object = root.object("sources");
  std::map<std::string, std::string> sources;
  for (const char* key : kSourceKeys) {
    const std::string source = object.string(key, "");
    if (!source.empty()) sources[key] = source;
  }
  object.done();
  return sources;
}

// The keys of a box; what is left out is `standard`'s.
Box read_box(const Object& object, const Box& standard) {
  Box box = standard;
  box.links = object.word("links", standard.links,
                          {{"switch", BoxLinks::kSwitch}, {"direct", BoxLinks::kDirect},
                           {"pairs", BoxLinks::kPairs}, {"pcie", BoxLinks::kPcie}});
  box.peer_to_peer = object.boolean("peer_to_peer", standard.peer_to_peer);
  box.sockets = static_cast<int>(object.integer("sockets", standard.sockets, {1, kSocketsMax}));
  box.pcie_switches = static_cast<int>(
      object.integer("pcie_switches", standard.pcie_switches, {0, kPcieSwitchesMax}));
  const double was = standard.pcie_efficiency;
  box.pcie_efficiency = share(object, "pcie_efficiency", was);
  box.pcie_bandwidth = object.has("pcie_bandwidth") ? positive_bandwidth(object, "pcie_bandwidth")
                                                    : standard.pcie_bandwidth / was;
  box.pcie_bandwidth = box.pcie_bandwidth * box.pcie_efficiency;
  for (const auto& [key, value] : {std::pair("socket_bandwidth", &box.socket_bandwidth),
                                   std::pair("host_bandwidth", &box.host_bandwidth)}) {
    if (object.has(key)) *value = positive_bandwidth(object, key);
    object.touch(key);
  }
  object.touch("pcie_bandwidth");
  box.cores = static_cast<int>(object.integer("cores", standard.cores, {0, kCoresMax}));
  object.done();
  const bool by_pcie = box.links == BoxLinks::kPcie || box.links == BoxLinks::kPairs;
  if ((by_pcie || !box.peer_to_peer) && !(box.pcie_bandwidth.value > 0)) {
    object.fail("pcie_bandwidth", fmt::format("is needed, such as \"32 GB/s\": this box moves its "
                                              "bytes over PCIe (links \"{}\", peer_to_peer {})",
                                              box_links_name(box.links), box.peer_to_peer));
  }
  return box;
}

void read_standard_box(const Object& root, Device& device) {
  device.devices_per_node = static_cast<int>(root.integer("devices_per_node", {1, kDevicesMax}));
  device.node_bandwidth = positive_bandwidth(root, "node_bandwidth");
  device.node_bandwidth_efficiency = share(root, "node_bandwidth_efficiency");
  device.node_latency = latency(root, "node_latency");
  device.nics_per_node = static_cast<int>(root.integer("nics_per_node", {1, kNicsMax}));
  device.nic_bandwidth = positive_bandwidth(root, "nic_bandwidth");
  device.nic_efficiency = share(root, "nic_efficiency");
  device.nic_latency = latency(root, "nic_latency");
  device.box = read_box(root.object("box"), Box());
}

// Nothing if left out: no figure is published.
std::optional<Bytes> bytes_if_any(const Object& object, const char* key) {
  const Bytes value = object.bytes(key, Bytes(0));
  require_not_negative(object, key, static_cast<double>(value.count));
  return object.has(key) ? std::optional(value) : std::nullopt;
}

std::optional<NcclDevice> read_nccl(const Object& root) {
  if (!root.has("nccl")) {
    root.touch("nccl");
    return std::nullopt;
  }
  const Object object = root.object("nccl");
  for (const char* key : {"generation", "host"}) {
    if (!object.has(key)) object.string(key);  // says that it is required
  }
  NcclDevice nccl;
  nccl.generation = object.word("generation", nccl.generation,
                                {{"volta", NcclGeneration::kVolta},
                                 {"ampere", NcclGeneration::kAmpere},
                                 {"hopper", NcclGeneration::kHopper},
                                 {"blackwell", NcclGeneration::kBlackwell}});
  nccl.host = object.word("host", nccl.host, {{"intel", HostCpu::kIntel}, {"amd", HostCpu::kAmd}});
  nccl.link_bandwidth = positive_bandwidth(object, "link_bandwidth");
  nccl.nvls = object.boolean("nvls", false);
  nccl.code = bytes_if_any(object, "code").value_or(Bytes(0));
  if (nccl.nvls && nccl.generation < NcclGeneration::kHopper) {
    object.fail("nvls", "NVLink SHARP came with the Hopper generation");
  }
  object.done();
  return nccl;
}

// Part of a box of direct links has fewer of them.
Bandwidth standard_bandwidth(const Device& device, BoxLinks links, int devices_per_node) {
  const int all = device.devices_per_node;
  if (links != BoxLinks::kDirect || devices_per_node < 2 || devices_per_node >= all) {
    return device.node_bandwidth;
  }
  return device.node_bandwidth * (devices_per_node - 1.0) / (all - 1.0);
}

// Part of a standard box keeps its devices' share of the NICs, but at least one.
int standard_nics(const Device& device, int devices_per_node) {
  const std::int64_t scaled = static_cast<std::int64_t>(device.nics_per_node) * devices_per_node /
                              device.devices_per_node;
  return static_cast<int>(std::clamp<std::int64_t>(scaled, 1, kNicsMax));
}

// The fat tree: rails, leaves, spines.
void read_tree(const Object& fabric, Cluster& cluster) {
  cluster.rails = fabric.boolean("rails", false);
  cluster.nodes_per_leaf =
      static_cast<int>(fabric.integer("nodes_per_leaf", 0, {0, kDevicesMax}));
  cluster.oversubscription = fabric.number("oversubscription", 1, 1, kOversubscriptionMax);
  cluster.spines = static_cast<int>(fabric.integer("spines", 1, {1, kSpinesMax}));
  if (cluster.oversubscription > 1 && cluster.nodes_per_leaf == 0) {
    fabric.fail("oversubscription", "is of the leaves' uplinks: give nodes_per_leaf, too, the "
                                    "number of nodes on a leaf switch, such as 32");
  }
}

void read_fabric(const Object& fabric, const Device& device, Cluster& cluster) {
  const BoxLinks links = cluster.box.links;
  const bool pcie = links == BoxLinks::kPcie;
  const bool new_links = links != device.box.links && (pcie || links == BoxLinks::kPairs);
  const Seconds hop = new_links ? kPcieHop : device.node_latency;
  if (fabric.has("node_bandwidth")) positive_bandwidth(fabric, "node_bandwidth");
  if (fabric.has("nic_bandwidth")) positive_bandwidth(fabric, "nic_bandwidth");
  const Bandwidth node = fabric.bandwidth(
      "node_bandwidth", standard_bandwidth(device, links, cluster.devices_per_node));
  const Bandwidth nic = fabric.bandwidth("nic_bandwidth", device.nic_bandwidth);
  cluster.node_bandwidth =
      node * share(fabric, "node_bandwidth_efficiency", device.node_bandwidth_efficiency);
  if (pcie && new_links && !fabric.has("node_bandwidth")) {
    cluster.node_bandwidth = cluster.box.pcie_bandwidth;  // there is nothing faster in the box
  }
  cluster.nic_bandwidth = nic * share(fabric, "nic_efficiency", device.nic_efficiency);
  cluster.node_latency = fabric.seconds("node_latency", hop);
  cluster.nic_latency = fabric.seconds("nic_latency", device.nic_latency);
  require_not_negative(fabric, "node_latency", cluster.node_latency.value);
  require_not_negative(fabric, "nic_latency", cluster.nic_latency.value);
  cluster.nics_per_node =
      static_cast<int>(fabric.integer("nics_per_node", cluster.nics_per_node, {0, kNicsMax}));
  if (cluster.nics_per_node == 0 && cluster.nodes > 1) {
    fabric.fail("nics_per_node", fmt::format("{} nodes without NICs cannot reach each other; give "
                                             "at least 1, or one node", cluster.nodes));
  }
  read_tree(fabric, cluster);
  fabric.done();
}

void read_slow_devices(const Object& object, Cluster& cluster) {
  const std::size_t count = object.array_size("slow_devices");
  for (std::size_t i = 0; i < count; ++i) {
    const Object slow = object.element("slow_devices", i);
    const int device = static_cast<int>(slow.integer("device", {0, cluster.devices() - 1}));
    if (!slow.has("factor")) slow.fail("factor", "is required: a number of at least 1");
    const double factor = slow.number("factor", 1, 1, kSlowMax);
    slow.done();
    if (!cluster.slow_devices.emplace(device, factor).second) {
      slow.fail("device", fmt::format("device {} is named twice", device));
    }
  }
}

void read_slow_links(const Object& object, Cluster& cluster) {
  const std::size_t count = object.array_size("slow_links");
  for (std::size_t i = 0; i < count; ++i) {
    const Object slow = object.element("slow_links", i);
    SlowLink link{slow.string("from"), slow.string("to"), 0};
    if (!slow.has("speed")) slow.fail("speed", "is required: 0 (dead) to 1, what is left");
    link.speed = slow.number("speed", 1, 0, 1);
    slow.done();
    cluster.slow_links.push_back(std::move(link));
  }
  if (count > 0) check_slow_links(cluster, object.place("slow_links"));
  if (!needs_box_graph(cluster)) return;
  try {
    box_graph(cluster, 0);
  } catch (const Error& error) {
    object.fail("devices_per_node", error.message());
  }
}

}  // namespace

std::string_view box_links_name(BoxLinks links) {
  switch (links) {
    case BoxLinks::kSwitch: return "switch";
    case BoxLinks::kDirect: return "direct";
    case BoxLinks::kPairs: return "pairs";
    case BoxLinks::kPcie: return "pcie";
  }
  STEPCAST_CHECK(false, "links of a box out of range");
}

Device read_device(const Document& document) {
  const Object root(document);
  Device device;
  device.name = root.string("name");
  device.description = root.string("description", "");
  device.die = root.string("die", "");
  if (device.die == device.name) root.fail("die", "must be another device, which has a profile");
  device.memory = root.bytes("memory");
  require_positive(root, "memory", static_cast<double>(device.memory.count));
  device.context_memory = bytes_if_any(root, "context_memory");
  device.blas_workspace = bytes_if_any(root, "blas_workspace");
  device.memory_bandwidth = positive_bandwidth(root, "memory_bandwidth");
  device.kernels.memory = share(root, "memory_efficiency");
  device.matrix_rate = read_matrix_rates(root);
  device.fp8_transposes = root.word("fp8_layouts", true, {{"tn", true}, {"any", false}});
  device.kernels.matrix.efficiency = share(root, "matrix_efficiency");
  device.vector_rate = root.flop_rate("vector_rate");
  require_positive(root, "vector_rate", device.vector_rate.value);
  if (root.has("integer_rate")) {
    device.integer_rate = root.flop_rate("integer_rate");
    require_positive(root, "integer_rate", device.integer_rate->value);
  }
  device.multiprocessors = static_cast<int>(root.integer("multiprocessors", {1, 1 << 20}));
  device.spread = root.number("spread", 0, 0, kSpreadMax);
  device.cache = root.bytes("cache");
  require_not_negative(root, "cache", static_cast<double>(device.cache.count));
  device.launch = latency(root, "launch");
  if (root.has("pass")) device.pass = latency(root, "pass");
  device.kernel_start = latency(root, "kernel_start");
  device.one_stream = root.word("streams", false, {{"many", false}, {"one", true}});
  AttentionKernels attention;
  attention.forward = share(root, "attention_forward_efficiency");
  attention.backward = share(root, "attention_backward_efficiency");
  device.kernels.attention["generic"] = attention;
  device.kernels.usual_attention = "generic";
  read_standard_box(root, device);
  device.nccl = read_nccl(root);
  device.sources = read_sources(root);
  root.done();
  return device;
}

Cluster standard_cluster(const Device& device, int nodes, int devices_per_node) {
  const std::string name = fmt::format("{}-{}x{}", device.name, nodes, devices_per_node);
  if (nodes < 1 || devices_per_node < 1) {
    throw Error(name, "a cluster has at least one node of one device");
  }
  if (static_cast<std::int64_t>(nodes) * devices_per_node > kDevicesMax) {
    throw Error(name, fmt::format("a cluster has at most {} devices", kDevicesMax));
  }
  Cluster cluster;
  cluster.name = name;
  cluster.device = device;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  cluster.node_bandwidth = standard_bandwidth(device, device.box.links, devices_per_node) *
                           device.node_bandwidth_efficiency;
  cluster.node_latency = device.node_latency;
  cluster.nics_per_node = standard_nics(device, devices_per_node);
  cluster.nic_bandwidth = device.nic_bandwidth * device.nic_efficiency;
  cluster.nic_latency = device.nic_latency;
  cluster.box = device.box;
  return cluster;
}

bool split_cluster_name(std::string_view name, std::string& device, int& nodes,
                        int& devices_per_node) {
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || dash == 0) return false;
  const std::string_view shape = name.substr(dash + 1);
  const std::size_t cross = shape.find('x');
  if (cross == std::string_view::npos) return false;

  const auto read = [](std::string_view digits, int& value) {
    if (digits.empty() || digits.front() == '-') return false;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (stop != end) return false;
    // Too large to hold is too large a cluster: let standard_cluster say so.
    if (error == std::errc::result_out_of_range) value = static_cast<int>(kDevicesMax) + 1;
    return true;
  };
  int node_count = 0, device_count = 0;
  if (!read(shape.substr(0, cross), node_count)) return false;
  if (!read(shape.substr(cross + 1), device_count)) return false;
  device = std::string(name.substr(0, dash));
  nodes = node_count;
  devices_per_node = device_count;
  return true;
}

Cluster read_cluster(const Object& object, const Device& device) {
  object.string("device");  // already read by the caller
  const auto nodes = object.integer("nodes", 1, {1, kDevicesMax});
  const auto devices =
      object.integer("devices_per_node", device.devices_per_node, {1, kDevicesMax});
  if (nodes * devices > kDevicesMax) {
    object.fail("nodes", fmt::format("{} nodes of {} devices are {}; at most {} are allowed",
                                     nodes, devices, nodes * devices, kDevicesMax));
  }
  Cluster cluster = standard_cluster(device, static_cast<int>(nodes), static_cast<int>(devices));
  cluster.name = object.string("name", cluster.name);
  for (const char* key : {"description", "source"}) object.touch(key);
  cluster.box = read_box(object.object("box"), device.box);
  read_fabric(object.object("fabric"), device, cluster);
  read_slow_devices(object, cluster);
  read_slow_links(object, cluster);
  object.done();
  return cluster;
}

}  // namespace stepcast
