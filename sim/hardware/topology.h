// Topology: the cluster as a graph, and the ways through it.
//
// Vertices are devices, the box's switch (NVSwitches together), PCIe switches, CPUs, their
// memories, NICs, leaf switches and spines. Links have a direction; each has a capacity and a
// latency. What carries traffic spread evenly over several wires (the NVLinks of a device, the
// cables from a leaf to a spine) is one link.
//
//   node3/device5 -- node3/switch            device links (NVLink, xGMI, a bridge)
//   node3/device5 -- node3/pcie2 -- node3/cpu0 -- node3/memory0,  cpu0 -- cpu1
//   node3/nic5    -- node3/pcie2             where there are no PCIe switches: -- node3/cpu0
//   node3/nic5    -- leaf0 -- spine1         with rails: leaf5, of NIC 5 of the first nodes
//
// All nodes are the same box, up to slow links. One box is laid out and searched for each kind of
// node there is, and the fabric above is a formula; so a cluster of 16,384 devices costs what one
// of 8 does, and a route is put together from the two. Links are numbered through: those of node 0,
// of node 1, ..., then the leaves' uplinks.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/hardware/hardware.h"

namespace stepcast {

enum class VertexKind : std::uint8_t {
  kDevice, kSwitch, kPcieSwitch, kCpu, kMemory, kNic, kLeaf, kSpine
};
enum class LinkKind : std::uint8_t { kDevice, kPcie, kSocket, kMemory, kNetwork };
std::string_view link_kind_name(LinkKind kind);  // "device link", "PCIe", ...

struct Vertex {
  VertexKind kind = VertexKind::kDevice;
  int node = -1;   // -1 for leaves and spines
  int index = 0;   // among its kind in the node, or in the fabric

  bool operator==(const Vertex&) const = default;
};
std::string vertex_name(const Vertex& vertex);  // "node3/nic2", "node3/switch", "leaf0"
// False if `name` is not of that form; whether the cluster has such a vertex is not judged.
bool parse_vertex(std::string_view name, Vertex& vertex);

// Slow links with their ends looked up, in their order. Throws Error for a name that is none.
struct LinkSpeed {
  Vertex from, to;
  double speed = 0;
};
std::vector<LinkSpeed> link_speeds(const Cluster& cluster);
double speed_between(std::span<const LinkSpeed> speeds, const Vertex& a, const Vertex& b);

// One direction. The other is the link's number ^ 1.
struct Link {
  Vertex from, to;
  LinkKind kind = LinkKind::kDevice;
  Bandwidth capacity;  // 0: dead; infinite where the cluster does not say
  Seconds latency;     // added up: node_latency in a box, nic_latency across
};

// Spans of link numbers, one after another.
struct Routes {
  std::vector<std::int32_t> offsets = {0};
  std::vector<std::int32_t> links;

  std::size_t size() const { return offsets.size() - 1; }
  std::span<const std::int32_t> operator[](std::size_t i) const {
    return std::span(links).subspan(static_cast<std::size_t>(offsets[i]),
                                    static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
  }
  void end_route() { offsets.push_back(static_cast<std::int32_t>(links.size())); }
};

inline constexpr int kBoxDevicesMax = 512;  // of a box that is laid out

// One node, laid out and searched. Links are numbered from 0.
struct BoxGraph {
  std::vector<Vertex> vertices;
  std::vector<Link> links;
  // By device, then device: the way of the least cost, where a device link costs far less than a
  // PCIe link and that less than the way between sockets. Without peer-to-peer, what does not go
  // over device links goes to the host's memory and from there on. Empty from a device to itself.
  Routes devices;
  // By device, then NIC: to the leaf, through that NIC. Empty where there is no way.
  Routes out;
  // The NICs that a device uses: its own that live, or if none does, the nearest that does.
  std::vector<std::vector<int>> nics;
};

// Throws Error if the box is larger than kBoxDevicesMax, if a device cannot reach another, or, in a
// cluster of several nodes, no NIC that lives. Cost: a search from each device and memory.
BoxGraph box_graph(const Cluster& cluster, int node);

// The nodes that have a slow link of their own (NIC to leaf included), ascending.
std::vector<int> uneven_nodes(const Cluster& cluster);

// Whether links of a box can be the bottleneck that node_bandwidth and the NICs are not: a box
// without a switch, without peer-to-peer, or with slow links.
bool needs_box_graph(const Cluster& cluster);

// Whether a device reaches its neighbours' NICs over device links (NCCL's PXN).
bool relays(const Cluster& cluster);

// The NICs next to a device, [first, last): NICs are shared out evenly among the devices.
std::pair<int, int> own_nics(const Cluster& cluster, int device);

// The fat tree above the boxes.
int rails(const Cluster& cluster);        // leaves that a set of nodes stands on
int leaf_nodes(const Cluster& cluster);   // nodes on each set of leaves
int leaves(const Cluster& cluster);
int leaf_of(const Cluster& cluster, int node, int nic);
bool has_spines(const Cluster& cluster);  // more leaves than one
// One leaf to all its spines, or to one of them, each direction.
Bandwidth uplink(const Cluster& cluster, int leaf);
Bandwidth uplink(const Cluster& cluster, int leaf, int spine);
// Leaves with an uplink that is slow, ascending.
std::vector<int> uneven_leaves(const Cluster& cluster);

class Topology {
 public:
  // Throws Error as box_graph() does. Cost: a box for each node with slow links, and one more.
  explicit Topology(const Cluster& cluster);

  const BoxGraph& box(int node) const;
  std::int32_t links() const { return links_; }
  Link link(std::int32_t number) const;
  std::vector<double> capacities() const;  // bytes a second, by link

  // Appends the links from one device to another; ranks are laid on devices in their order. Across
  // nodes: out by the source's first NIC; with rails by the NIC of the target's rail, which the
  // box's switch leads to (NCCL's PXN); from leaf to leaf by the spine of the target's NIC number
  // modulo the spines (D-mod-K routing, Zahavi 2012), or the next that lives. Throws Error if none
  // does.
  void append_route(int source, int target, std::vector<std::int32_t>& links) const;
  Routes routes(std::span<const std::pair<int, int>> pairs) const;

 private:
  void append_fabric(int from_leaf, int to_leaf, int target_nic,
                     std::vector<std::int32_t>& links) const;

  Cluster cluster_;
  std::vector<BoxGraph> boxes_;     // [0] is the even one
  std::map<int, std::size_t> uneven_;
  std::int32_t box_links_ = 0;
  std::int32_t links_ = 0;
};

// Throws Error with `place` if a slow link is none of the cluster's, or cuts off a device.
void check_slow_links(const Cluster& cluster, const std::string& place);

}  // namespace stepcast
