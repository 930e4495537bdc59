// Links that are alike are one line: same kinds of ends, same capacity. Routes are those of
// sim/hardware/topology.h, by which the simulation counts its loads.
#include "tools/commands/cluster_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/base/json.h"
#include "sim/hardware/topology.h"
#include "tools/forecast/table.h"

namespace stepcast {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string bandwidth_text(Bandwidth bandwidth) {
  if (std::isinf(bandwidth.value)) return "no limit";
  if (!(bandwidth.value > 0)) return "dead";
  return fmt::format("{:.1f} GB/s", bandwidth.value * 1e-9);
}

std::string counted(int count, std::string_view one) {
  const bool hisses = one.ends_with("ch") || one.ends_with('x');
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : hisses ? "es" : "s");
}

std::string device_section(const Cluster& c) {
  const Device& d = c.device;
  Rows rows = {{"memory", format_binary_bytes(d.memory), ""},
               {"memory bandwidth", bandwidth_text(d.memory_bandwidth),
                fmt::format("{:.0f} % achievable", 100 * d.kernels.memory)}};
  for (const auto& [dtype, rate] : d.matrix_rate) {
    rows.push_back({fmt::format("{} products", dtype_name(dtype)),
                    fmt::format("{:.0f} TFLOP/s", rate.value * 1e-12),
                    fmt::format("{:.0f} % achievable", 100 * d.kernels.matrix.efficiency)});
  }
  rows.push_back({"inside a box", bandwidth_text(c.node_bandwidth),
                  fmt::format("achievable, each direction; {} a hop",
                              format_seconds(c.node_latency))});
  if (c.nics_per_node > 0) {
    rows.push_back({"between boxes", bandwidth_text(c.nic_bandwidth),
                    fmt::format("achievable, each of {} NICs; {} a hop", c.nics_per_node,
                                format_seconds(c.nic_latency))});
  }
  return align(rows, "lrl");
}

std::string links_text(BoxLinks links) {
  switch (links) {
    case BoxLinks::kSwitch: return "through switches";
    case BoxLinks::kDirect: return "by a link to each other";
    case BoxLinks::kPairs: return "by bridges in pairs, by PCIe beyond";
    case BoxLinks::kPcie: return "by PCIe";
  }
  return "";
}

// "device" of "node0/device5".
std::string kind_text(const Vertex& vertex) {
  std::string name = vertex_name(vertex);
  name.erase(0, name.find('/') + 1);
  return name.substr(0, name.find_first_of("0123456789"));
}

std::string box_section(const Cluster& c, const BoxGraph& box) {
  std::string text = fmt::format(
      "\nbox: {}, {}, {}, {}; devices reach each other {}{}\n",
      counted(c.devices_per_node, "device"), counted(c.nics_per_node, "NIC"),
      counted(c.box.sockets, "socket"), counted(c.box.pcie_switches, "PCIe switch"),
      links_text(c.box.links),
      c.box.peer_to_peer ? "" : ", over PCIe only through the host's memory");
  using Key = std::tuple<LinkKind, std::string, double>;
  std::map<Key, int> alike;
  for (std::size_t i = 0; i < box.links.size(); i += 2) {
    const Link& link = box.links[i];
    ++alike[{link.kind, kind_text(link.from) + " - " + kind_text(link.to), link.capacity.value}];
  }
  Rows rows;
  for (const auto& [key, count] : alike) {
    const auto& [kind, ends, capacity] = key;
    rows.push_back({"  " + ends, fmt::format("{} x", count), bandwidth_text(Bandwidth(capacity)),
                    std::string(link_kind_name(kind))});
  }
  return text + align(rows, "lrrl");
}

std::string fabric_section(const Cluster& c) {
  if (c.nodes == 1) return "";
  std::string text = fmt::format("\nfabric: {} on {}", counted(c.nodes, "box"),
                                 counted(leaves(c), "leaf switch"));
  if (c.rails) text += fmt::format(", {} rails", rails(c));
  if (!has_spines(c)) return text + "\n";
  text += fmt::format(", {} boxes a leaf, {}, oversubscribed {:g} to 1\n", leaf_nodes(c),
                      counted(c.spines, "spine"), c.oversubscription);
  Rows rows = {{"  leaf - spine", fmt::format("{} x", leaves(c) * c.spines),
                bandwidth_text(uplink(c, 0, 0)), "network"}};
  return text + align(rows, "lrrl");
}

std::string slow_section(const Cluster& c) {
  if (c.slow_links.empty()) return "";
  Rows rows;
  for (const SlowLink& link : c.slow_links) {
    rows.push_back({fmt::format("  {} - {}", link.from, link.to),
                    link.speed > 0 ? fmt::format("at {:g} of its speed", link.speed) : "dead"});
  }
  return "\nslow links\n" + align(rows, "ll");
}

std::string route_text(const Topology& topology, const Cluster& c, std::string_view what, int from,
                       int to) {
  const int per_node = c.devices_per_node;
  std::vector<std::int32_t> route;
  topology.append_route(from, to, route);
  std::string way = vertex_name({VertexKind::kDevice, from / per_node, from % per_node});
  Link narrow;
  Seconds latency;
  for (std::size_t i = 0; i < route.size(); ++i) {
    const Link link = topology.link(route[i]);
    way += " - " + vertex_name(link.to);
    latency += link.latency;
    if (i == 0 || link.capacity < narrow.capacity) narrow = link;
  }
  return fmt::format("  {}: {}, {}, at most by {} - {}\n    {}\n", what,
                     bandwidth_text(narrow.capacity), format_seconds(latency),
                     vertex_name(narrow.from), vertex_name(narrow.to), way);
}

std::string routes_section(const Topology& topology, const Cluster& c) {
  const int per_node = c.devices_per_node;
  std::string text;
  const auto add = [&](std::string_view what, int to) {
    text += route_text(topology, c, what, 0, to);
  };
  if (per_node > 1) add("in a box, neighbours", 1);
  if (per_node > 2) add("in a box, farthest", per_node - 1);
  if (c.nodes > 1 && leaf_nodes(c) > 1) {
    add("on one leaf", per_node);
    if (c.rails && per_node > 1) add("from rail to rail", per_node + 1);
  }
  if (leaf_nodes(c) < c.nodes) add("across spines", leaf_nodes(c) * per_node);
  return text.empty() ? "" : "\nroutes, of one message alone\n" + text;
}

}  // namespace

std::string cluster_text(const Cluster& c) {
  std::string text = fmt::format("{}: {} x {} {} ({})\n\n", c.name, c.nodes, c.devices_per_node,
                                 c.device.name, c.device.description);
  text += device_section(c);
  for (const auto& [device, factor] : c.slow_devices) {
    text += fmt::format("device {} computes {} times as long\n", device, factor);
  }
  if (c.devices_per_node > kBoxDevicesMax) return text;  // the table says it all
  const Topology topology(c);
  Cluster even = c;
  even.slow_links.clear();
  text += box_section(c, box_graph(even, 0));
  text += fabric_section(c);
  text += slow_section(c);
  return text + routes_section(topology, c);
}

}  // namespace stepcast
