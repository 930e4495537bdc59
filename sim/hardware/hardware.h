// Hardware: a device and a cluster of them, as read from data sheets and site descriptions.
//
// Everything here is a fact with a source (the JSON files under configs/ name it) or a stated
// assumption. How fast a given kernel runs on a device is sim/cost's business, how fast a
// collective is sim/network's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/hardware/kernels.h"
#include "sim/program/op.h"

namespace stepcast {

// What NCCL's tuner asks of a device: sim/network/nccl.h chooses by it.
enum class NcclGeneration : std::uint8_t { kVolta, kAmpere, kHopper, kBlackwell };
enum class HostCpu : std::uint8_t { kIntel, kAmd };
struct NcclDevice {
  NcclGeneration generation = NcclGeneration::kAmpere;
  Bandwidth link_bandwidth;              // what NCCL counts all NVLinks of a device for
  bool nvls = false;                     // NVSwitches that reduce (NVLink SHARP)
  HostCpu host = HostCpu::kIntel;        // of the standard box
  Bytes code = Bytes(0);                 // of the library, once loaded; 0: not published
};

// How the devices of a box reach each other.
enum class BoxLinks : std::uint8_t {
  kSwitch,  // through switches that give every pair node_bandwidth (NVSwitch)
  kDirect,  // a link to every other device of the box; node_bandwidth is their sum (xGMI)
  kPairs,   // devices 2k and 2k+1 by a bridge of node_bandwidth (NVLink bridge), others by PCIe
  kPcie     // by PCIe alone
};
std::string_view box_links_name(BoxLinks links);  // "switch", ...

// What is in a box besides devices and NICs. Devices are shared out evenly, in their order, among
// the PCIe switches, these among the sockets, NICs the same way. Bandwidths are achievable, each
// direction; 0: not known, and never the bottleneck.
struct Box {
  BoxLinks links = BoxLinks::kSwitch;
  // Devices and NICs reach each other over PCIe without passing the host's memory.
  bool peer_to_peer = true;
  int sockets = 1;
  int pcie_switches = 0;       // 0: every slot is a port of a CPU
  Bandwidth pcie_bandwidth;    // a slot, and a PCIe switch's way to its CPU
  double pcie_efficiency = 1;  // already in it; for a cluster that names a nominal one of its own
  Bandwidth socket_bandwidth;  // between two CPUs
  Bandwidth host_bandwidth;    // a CPU's memory
  // Of devices that are the box's own cores: how many there are. Ranks beyond them take turns. 0:
  // every device computes by itself.
  int cores = 0;

  bool operator==(const Box&) const = default;
};

// One kind of device. Rates are dense (no structured sparsity) and per direction.
struct Device {
  std::string name;                       // "h100-sxm"
  std::string description;                // "NVIDIA H100 SXM5 80 GB"
  // The device that has the same die, "" for none: what a profile knows of that one's kernels is
  // true of this one's, too (use_die() of sim/hardware/profile.h).
  std::string die;
  Bytes memory;                           // capacity as the framework reports it
  std::optional<Bytes> context_memory;    // driver context and loaded kernels; none: not published
  std::optional<Bytes> blas_workspace;    // of the matrix product library, for each host thread
  Bandwidth memory_bandwidth;             // data sheet
  std::map<Dtype, FlopRate> matrix_rate;  // data sheet peak of the matrix units, by input dtype
  // 8-bit products read both operands along k only, so others must be transposed first (Hopper).
  bool fp8_transposes = true;
  FlopRate vector_rate;                   // fp32, outside the matrix units
  // The same of 32-bit integers, a multiply-add as two; none: half of vector_rate, as NVIDIA has it
  // since its devices of 2020 but for the A100 (white papers: 64 INT32 to 128 FP32 units).
  std::optional<FlopRate> integer_rate;
  int multiprocessors = 0;                // SMs or CUs
  // Devices of one kind are not equally fast where power or heat sets the clock: the standard
  // deviation of the time that they take over its mean. The kernels' rates are the mean one's.
  double spread = 0;
  Bytes cache;                            // last-level cache
  Seconds launch;                         // host time to issue one kernel
  Seconds pass;                           // and, before its kernels, to begin one forward or
                                          // backward pass of a micro-batch
  Seconds route;                          // and, beside a router's kernel in either of them, for
                                          // all else that sends tokens to experts. Of the what-if
  // A step is one CUDA graph, launched whole: the host takes graph_launch for it, and nothing for
  // kernels and passes. Of the what-if; no file of a device says it.
  bool graphs = false;
  Seconds graph_launch;
  Seconds kernel_start;                   // device time before a kernel's first useful cycle
  // It does everything in order of issue on one queue, communication too, as a processor does whose
  // cores both compute and copy: nothing overlaps.
  bool one_stream = false;
  // From the file's memory_efficiency, matrix_efficiency and attention_*_efficiency (there named
  // "generic"), until a profile knows better.
  Kernels kernels;
  std::map<std::string, std::string> sources;  // key -> where its number comes from

  // The device's standard box, from which "h100-sxm-128x8" is built.
  int devices_per_node = 8;
  Bandwidth node_bandwidth;              // one device to its node's others, each direction
  double node_bandwidth_efficiency = 1;  // measured bus bandwidth over nominal
  Seconds node_latency;                  // one hop inside a node
  int nics_per_node = 8;
  Bandwidth nic_bandwidth;               // data sheet, each direction
  double nic_efficiency = 1;
  Seconds nic_latency;                   // one hop between nodes
  Box box;
  std::optional<NcclDevice> nccl;        // none: its collectives are not NCCL's
};

struct Profile;  // sim/hardware/profile.h

// One link that is not what it should be, both directions. The ends are named as in
// sim/hardware/topology.h: "node3/nic2" and "leaf0", "node0/device5" and "node0/switch".
struct SlowLink {
  std::string from;
  std::string to;
  double speed = 0;                      // share of its bandwidth that is left; 0: dead

  bool operator==(const SlowLink&) const = default;
};

// Nodes of equal boxes on a fat tree of two tiers. Every `nodes_per_leaf` nodes stand on leaf
// switches of their own: one, or with `rails` one for each NIC number (rail-optimised). Leaves
// reach each other through spines; a leaf's uplinks carry 1 / oversubscription of what the NICs
// below it do.
struct Cluster {
  std::string name;
  Device device;
  int nodes = 1;
  int devices_per_node = 8;
  // Of the fabric; taken from the device's standard box where the file does not say.
  Bandwidth node_bandwidth;              // achievable (efficiency applied)
  Seconds node_latency;
  int nics_per_node = 8;
  Bandwidth nic_bandwidth;               // achievable, one NIC
  Seconds nic_latency;
  Box box;
  bool rails = false;
  int nodes_per_leaf = 0;                // 0: one leaf for all, which never is the bottleneck
  double oversubscription = 1;
  int spines = 1;                        // each leaf's uplinks are shared out evenly among them
  std::map<int, double> slow_devices;    // device -> its compute times this factor (>= 1)
  std::vector<SlowLink> slow_links;
  std::shared_ptr<const Profile> profile;  // measured times, which go first; null: none

  int devices() const { return nodes * devices_per_node; }
};

// Reads a device file (configs/devices/NAME.json). Throws Error.
Device read_device(const Document& document);

// Standard boxes: nodes x devices_per_node. A box of fewer (or more) devices than the standard has
// its devices' share of the NICs, at least one. Throws Error (limit: kRanksMax devices).
Cluster standard_cluster(const Device& device, int nodes, int devices_per_node);

// Splits "h100-sxm-128x8" into device name, nodes and devices a node; false if not of that form.
// Counts are not judged here (standard_cluster does); the outputs are set only on success.
bool split_cluster_name(std::string_view name, std::string& device, int& nodes,
                        int& devices_per_node);

// Reads a cluster object: {"device": NAME, "nodes": N, "devices_per_node": D,
//   "fabric": {"node_bandwidth": "450 GB/s", "node_bandwidth_efficiency": 0.81,
//              "node_latency": "3 us", "nics_per_node": 8, "nic_bandwidth": "400 Gb/s",
//              "nic_efficiency": 0.93, "nic_latency": "10 us",
//              "rails": true, "nodes_per_leaf": 32, "oversubscription": 2, "spines": 4},
//   "box": {"links": "switch", "peer_to_peer": true, "sockets": 2, "pcie_switches": 4,
//           "pcie_bandwidth": "63 GB/s", "pcie_efficiency": 0.76, "socket_bandwidth": "40 GB/s",
//           "host_bandwidth": "100 GB/s", "cores": 64},
//   "slow_devices": [{"device": 17, "factor": 1.3}],
//   "slow_links": [{"from": "node3/nic2", "to": "leaf0", "speed": 0.5}]}
// and, for people, "name", "description", "source". All but "device" may be left out: one standard
// box. Bandwidths are nominal; the efficiencies, the device's unless given, are applied to them.
// `device` is the device it names, already read. Throws Error for an unknown key, a device beyond
// the cluster or named twice, a factor below 1, more than kRanksMax devices, several nodes without
// NICs, an oversubscription below 1, a box of PCIe without its bandwidth, a slow link that the
// cluster does not have.
Cluster read_cluster(const Object& object, const Device& device);

}  // namespace stepcast
