// Topology: what one box holds, as NCCL and nvidia-smi describe it, brought down to what a cluster
// file says: devices, links inside the box, network cards.
//
// NCCL's file (NCCL_TOPO_DUMP_FILE; NVIDIA/nccl src/graph/xml.cc):
//   system > cpu{numaid, arch, vendor} > pci{busid, class, vendor, device, link_speed, link_width}
//     (nested: switches, class 0x0604) > gpu{dev, sm} > nvlink{target, count, tclass}
//                                      > nic > net{name, dev, speed in Mb/s}
// A file for NCCL_TOPO_FILE has only cpu and pci: devices and cards are counted by their class.
// `nvidia-smi topo -m` prints a matrix of devices and cards; NV18 is 18 NVLinks, PIX and PXB are
// behind the same PCIe switches, the rest is farther.
//
// NVLinks are 25 GB/s each way from Volta to Hopper and 50 from Blackwell (NVIDIA's data sheets: 18
// links are 450 and 900 GB/s). A lane of PCIe has its GT/s as gigabits, less its line code's share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/units.h"
#include "sim/hardware/hardware.h"

namespace stepcast {

struct TopologyNic {
  std::string name;
  std::optional<Bandwidth> speed;  // one direction; nothing: not told
  std::optional<Bandwidth> pcie;   // of its slot
  bool near = false;               // behind the same PCIe switches as a device
};

struct TopologyDevice {
  int links = 0;                   // NVLinks (or Infinity Fabric links), to switches and devices
  std::optional<Bandwidth> pcie;   // one direction
};

struct FoundTopology {
  std::vector<TopologyDevice> devices;
  std::vector<TopologyNic> nics;
  bool switched = false;           // links end in NVSwitches
  int nvlink_switches = 0;         // 0 with nvidia-smi, which does not show them
  int pcie_switches = 0;           // as well
  int hosts = 1;                   // boxes in one file (multi-node NVLink)
  bool links_told = true;          // a static file lists none, though there may be some
  bool joined = false;             // links and switches lead from any device to any other
  int sm = 0;                      // 90: Hopper; 0: not told
  std::vector<std::string> pci_ids;       // of the devices, "10de:2330", each once
  std::vector<std::string> cpu_vendors;   // "GenuineIntel", each once
};

// Both throw Error for a file that is of another kind, and for one without devices.
FoundTopology read_nccl_topology(std::string_view text, const std::string& file);
FoundTopology read_smi_topology(std::string_view text, const std::string& file);

// The name of the device file. Throws Error if the topology does not tell it.
std::string device_of_topology(const FoundTopology& topology, const std::string& place);

// {"description", "nodes", "devices_per_node", "fabric"} for read_cluster(); the device is left to
// the caller. Bandwidths are nominal, as there. `words`: what was found, what is not known and left
// to the device's standard box, and what a cluster file cannot say. Throws Error (at `place`) for
// devices that are not joined by links of a known speed.
Json topology_cluster(const FoundTopology& topology, const Device& device, const std::string& place,
                      std::vector<std::string>& words);

}  // namespace stepcast
