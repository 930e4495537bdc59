// The box: layout and search.
//
// Routes are shortest paths (Dijkstra 1959, by Boost.Graph), with costs that make the search prefer
// what NCCL's does (NVIDIA/nccl src/graph/paths.cc, the order of PATH_NVL, PATH_PIX, PATH_PXN,
// PATH_PHB, PATH_SYS): device links before PCIe, PCIe before the way between sockets. Searched is
// one box at a time, never the cluster, so a search costs microseconds. Links that are dead are not
// in the search; those that are slow are, as they are in NCCL, which does not see that either.
#include "sim/hardware/topology.h"

#include <algorithm>
#include <array>

#include <cstdlib>
#include <limits>
#include <tuple>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

// By LinkKind.
constexpr std::array<double, 5> kCosts = {1, 10, 30, 10, 0};

// The i-th of `things`, shared out evenly in their order among `holders`.
int share_of(int i, int things, int holders) {
  return static_cast<int>(static_cast<std::int64_t>(i) * holders / things);
}

Bandwidth or_unlimited(Bandwidth bandwidth) {
  return bandwidth.value > 0 ? bandwidth : Bandwidth(std::numeric_limits<double>::infinity());
}

// ------------------------------------------------------------------------------------ the layout

// A box's vertices and links; `ends` are the vertices' numbers by link.
struct Layout {
  BoxGraph box;
  std::vector<std::pair<int, int>> ends;
  int devices, memories, nics;  // number of the first of each
};

class LayoutWriter {
 public:
  LayoutWriter(const Cluster& cluster, int node)
      : cluster_(cluster), node_(node), speeds_(link_speeds(cluster)) {}

  Layout write() {
    const Box& b = cluster_.box;
    const int devices = cluster_.devices_per_node, nics = cluster_.nics_per_node;
    layout_.devices = add(VertexKind::kDevice, devices);
    const int cpus = add(VertexKind::kCpu, b.sockets);
    layout_.memories = add(VertexKind::kMemory, b.sockets);
    const int switches = add(VertexKind::kPcieSwitch, b.pcie_switches);
    layout_.nics = add(VertexKind::kNic, nics);
    add_device_links();
    const Bandwidth pcie = or_unlimited(b.pcie_bandwidth);
    const bool by_pcie = b.links == BoxLinks::kPcie || b.links == BoxLinks::kPairs;
    const Seconds slot = by_pcie ? cluster_.node_latency / 2 : Seconds();
    const auto add_slots = [&](int first, int count, Seconds latency) {
      for (int i = 0; i < count; ++i) {
        const int at = b.pcie_switches > 0 ? switches + share_of(i, count, b.pcie_switches)
                                           : cpus + share_of(i, count, b.sockets);
        join(first + i, at, LinkKind::kPcie, pcie, latency);
      }
    };
    add_slots(layout_.devices, devices, slot);
    add_slots(layout_.nics, nics, Seconds());
    for (int i = 0; i < b.pcie_switches; ++i) {
      join(switches + i, cpus + share_of(i, b.pcie_switches, b.sockets), LinkKind::kPcie, pcie, {});
    }
    for (int i = 0; i < b.sockets; ++i) {
      join(cpus + i, layout_.memories + i, LinkKind::kMemory, or_unlimited(b.host_bandwidth), {});
      for (int j = i + 1; j < b.sockets; ++j) {
        join(cpus + i, cpus + j, LinkKind::kSocket, or_unlimited(b.socket_bandwidth), {});
      }
    }
    for (int i = 0; i < nics; ++i) {
      layout_.box.vertices.push_back({VertexKind::kLeaf, -1, leaf_of(cluster_, node_, i)});
      join(layout_.nics + i, static_cast<int>(layout_.box.vertices.size()) - 1, LinkKind::kNetwork,
           cluster_.nic_bandwidth, cluster_.nic_latency / 2);
    }
    return std::move(layout_);
  }

 private:
  int add(VertexKind kind, int count) {
    const auto first = static_cast<int>(layout_.box.vertices.size());
    for (int i = 0; i < count; ++i) layout_.box.vertices.push_back({kind, node_, i});
    return first;
  }

  void join(int a, int b, LinkKind kind, Bandwidth capacity, Seconds latency) {
    const Vertex& from = layout_.box.vertices[static_cast<std::size_t>(a)];
    const Vertex& to = layout_.box.vertices[static_cast<std::size_t>(b)];
    const double speed = speed_between(speeds_, from, to);
    if (speed < 1) capacity = speed > 0 ? capacity * speed : Bandwidth();
    layout_.box.links.push_back({from, to, kind, capacity, latency});
    layout_.box.links.push_back({to, from, kind, capacity, latency});
    layout_.ends.emplace_back(a, b);
    layout_.ends.emplace_back(b, a);
  }

  void add_device_links() {
    const int n = cluster_.devices_per_node;
    const Bandwidth all = cluster_.node_bandwidth;
    const Seconds latency = cluster_.node_latency;
    if (n == 1) return;
    switch (cluster_.box.links) {
      case BoxLinks::kSwitch: {
        const int hub = add(VertexKind::kSwitch, 1);
        for (int i = 0; i < n; ++i) join(i, hub, LinkKind::kDevice, all, latency / 2);
        return;
      }
      case BoxLinks::kDirect:
        for (int i = 0; i < n; ++i) {
          for (int j = i + 1; j < n; ++j) join(i, j, LinkKind::kDevice, all / (n - 1), latency);
        }
        return;
      case BoxLinks::kPairs:
        for (int i = 0; i + 1 < n; i += 2) join(i, i + 1, LinkKind::kDevice, all, latency);
        return;
      case BoxLinks::kPcie: return;
    }
  }

  const Cluster& cluster_;
  int node_;
  std::vector<LinkSpeed> speeds_;
  Layout layout_{};
};

// ------------------------------------------------------------------------------------ the search

struct Arc {
  double cost = 0;
  std::int32_t link = 0;
};
using Graph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Arc>;

// The shortest paths from one vertex.
struct Tree {
  std::vector<std::int32_t> arrival;  // by vertex: the last link of its path; -1: none
  std::vector<double> cost;
};

class Search {
 public:
  explicit Search(const Layout& layout)
      : layout_(layout), graph_(layout.box.vertices.size()),
        slots_(layout.box.vertices.size(), -1) {
    for (std::size_t i = 0; i < layout.box.links.size(); ++i) {
      const Link& link = layout.box.links[i];
      // Out to the leaf and in again is no way through a box.
      if (link.kind == LinkKind::kNetwork || !(link.capacity.value > 0)) continue;
      const int to = layout.ends[i].second;
      if (link.kind == LinkKind::kPcie && link.to.kind == VertexKind::kDevice) {
        slots_[static_cast<std::size_t>(to)] = static_cast<std::int32_t>(i);
      } else if (link.kind != LinkKind::kPcie || link.from.kind != VertexKind::kDevice) {
        add_arc(static_cast<std::int32_t>(i));
      }
    }
  }

  // With `relays`, over device links and out by another device's slot, too.
  Tree from(int source, bool relays) {
    for (std::size_t v = 0; v < slots_.size(); ++v) {
      if (slots_[v] >= 0 && (relays || static_cast<int>(v) == source)) add_arc(slots_[v] ^ 1);
    }
    Tree tree = shortest(source);
    for (std::size_t v = 0; v < slots_.size(); ++v) {
      if (slots_[v] < 0) continue;
      const int above = layout_.ends[static_cast<std::size_t>(slots_[v])].first;
      boost::remove_edge(v, static_cast<std::size_t>(above), graph_);
    }
    return tree;
  }

  Tree shortest(int source) const {
    const std::size_t count = layout_.box.vertices.size();
    std::vector<boost::graph_traits<Graph>::edge_descriptor> edges(count);
    Tree tree;
    tree.arrival.assign(count, -1);
    tree.cost.assign(count, 0);
    const auto index = boost::get(boost::vertex_index, graph_);
    const auto edge_of = boost::make_iterator_property_map(edges.begin(), index);
    boost::dijkstra_shortest_paths(
        graph_, static_cast<std::size_t>(source),
        boost::weight_map(boost::get(&Arc::cost, graph_))
            .distance_map(boost::make_iterator_property_map(tree.cost.begin(), index))
            .visitor(boost::make_dijkstra_visitor(
                boost::record_edge_predecessors(edge_of, boost::on_edge_relaxed()))));
    for (std::size_t v = 0; v < count; ++v) {
      const bool reached = tree.cost[v] < std::numeric_limits<double>::max();
      if (reached && static_cast<int>(v) != source) tree.arrival[v] = graph_[edges[v]].link;
    }
    return tree;
  }

  // Appends the path to `target`; false, and nothing appended, if there is none.
  bool append(const Tree& tree, int target, std::vector<std::int32_t>& links) const {
    const std::size_t before = links.size();
    const std::int32_t slot = slots_[static_cast<std::size_t>(target)];
    bool by_slot = false;
    if (slot >= 0) {
      const int above = layout_.ends[static_cast<std::size_t>(slot)].first;
      by_slot = tree.cost[static_cast<std::size_t>(above)] + kCosts[1] <
                tree.cost[static_cast<std::size_t>(target)];
      if (by_slot) target = above;
    }
    for (int at = target; tree.arrival[static_cast<std::size_t>(at)] >= 0;) {
      const std::int32_t link = tree.arrival[static_cast<std::size_t>(at)];
      links.push_back(link);
      at = layout_.ends[static_cast<std::size_t>(link)].first;
    }
    std::reverse(links.begin() + static_cast<std::ptrdiff_t>(before), links.end());
    if (by_slot) links.push_back(slot);
    return links.size() > before;
  }

 private:
  void add_arc(std::int32_t number) {
    const auto i = static_cast<std::size_t>(number);
    const auto [from, to] = layout_.ends[i];
    const auto kind = static_cast<std::size_t>(layout_.box.links[i].kind);
    boost::add_edge(static_cast<std::size_t>(from), static_cast<std::size_t>(to),
                    Arc{kCosts[kind], number}, graph_);
  }

  const Layout& layout_;
  Graph graph_;
  // By vertex: the link down to a device, which is in no graph: it is a way's last or none. What
  // came over PCIe to one device does not go on to another, and a device's own way begins with its
  // own slot.
  std::vector<std::int32_t> slots_;
};

class BoxSearcher {
 public:
  BoxSearcher(const Cluster& cluster, int node)
      : cluster_(cluster), node_(node), layout_(LayoutWriter(cluster, node).write()),
        search_(layout_) {}

  BoxGraph search() {
    for (int i = 0; i < cluster_.devices_per_node; ++i) {
      trees_.push_back(search_.from(layout_.devices + i, false));
      out_trees_.push_back(relays(cluster_) ? search_.from(layout_.devices + i, true)
                                            : trees_.back());
    }
    for (int i = 0; i < cluster_.box.sockets && !cluster_.box.peer_to_peer; ++i) {
      memory_trees_.push_back(search_.shortest(layout_.memories + i));
    }
    for (int i = 0; i < cluster_.devices_per_node; ++i) {
      for (int j = 0; j < cluster_.devices_per_node; ++j) add_way(i, j);
      for (int nic = 0; nic < cluster_.nics_per_node; ++nic) add_way_out(i, nic);
      layout_.box.nics.push_back(nics_of(i));
      if (cluster_.nodes > 1 && layout_.box.nics.back().empty()) {
        fail(i, "no network", "its way to every NIC, or of every NIC to its leaf");
      }
    }
    return std::move(layout_.box);
  }

 private:
  [[noreturn]] void fail(int device, std::string_view reaches, std::string_view dead) const {
    throw Error("slow_links",
                fmt::format("{} reaches {}: {} is dead; give one of its links a speed above 0",
                            vertex_name({VertexKind::kDevice, node_, device}), reaches, dead));
  }

  bool only_device_links(std::span<const std::int32_t> links) const {
    return std::all_of(links.begin(), links.end(), [&](std::int32_t i) {
      return layout_.box.links[static_cast<std::size_t>(i)].kind == LinkKind::kDevice;
    });
  }

  // From a device to `target`; true if there is a way.
  bool append_way(const std::vector<Tree>& trees, int device, int target,
                  std::vector<std::int32_t>& links) const {
    const Tree& tree = trees[static_cast<std::size_t>(device)];
    const std::size_t before = links.size();
    if (!search_.append(tree, target, links)) return false;
    if (cluster_.box.peer_to_peer || only_device_links(std::span(links).subspan(before))) {
      return true;
    }
    links.resize(before);  // by the memory of the device's own socket
    const int socket = share_of(device, cluster_.devices_per_node, cluster_.box.sockets);
    if (!search_.append(tree, layout_.memories + socket, links)) return false;
    if (search_.append(memory_trees_[static_cast<std::size_t>(socket)], target, links)) return true;
    links.resize(before);
    return false;
  }

  void add_way(int from, int to) {
    Routes& routes = layout_.box.devices;
    const std::size_t before = routes.links.size();
    if (from != to && !append_way(trees_, from, layout_.devices + to, routes.links)) {
      fail(from, vertex_name({VertexKind::kDevice, node_, to}) + " no more", "every way");
    }
    // What PCIe carries is not known; the box's switch would be taken for as fast dead as alive.
    if (!only_device_links(std::span(routes.links).subspan(before)) &&
        !(cluster_.box.pcie_bandwidth.value > 0)) {
      throw Error("box.pcie_bandwidth",
                  fmt::format("is needed: {} and {} reach each other over PCIe only",
                              vertex_name({VertexKind::kDevice, node_, from}),
                              vertex_name({VertexKind::kDevice, node_, to})));
    }
    routes.end_route();
  }

  void add_way_out(int device, int nic) {
    Routes& routes = layout_.box.out;
    const std::size_t wire = layout_.box.links.size() - 2 * static_cast<std::size_t>(
                                                            cluster_.nics_per_node - nic);
    if (layout_.box.links[wire].capacity.value > 0 &&
        append_way(out_trees_, device, layout_.nics + nic, routes.links)) {
      routes.links.push_back(static_cast<std::int32_t>(wire));
    }
    routes.end_route();
  }

  std::vector<int> nics_of(int device) const {
    const int all = cluster_.nics_per_node;
    const Routes& out = layout_.box.out;
    const auto lives = [&](int nic) {
      return !out[static_cast<std::size_t>(device * all + nic)].empty();
    };
    const auto [first, last] = own_nics(cluster_, device);
    std::vector<int> own;
    for (int nic = first; nic < last; ++nic) {
      if (lives(nic)) own.push_back(nic);
    }
    if (!own.empty()) return own;
    const Tree& tree = out_trees_[static_cast<std::size_t>(device)];
    const int home = first;
    int nearest = -1;
    const auto distance = [&](int nic) {
      return std::tuple(tree.cost[static_cast<std::size_t>(layout_.nics + nic)],
                        std::abs(nic - home), nic);
    };
    for (int nic = 0; nic < all; ++nic) {
      if (lives(nic) && (nearest < 0 || distance(nic) < distance(nearest))) nearest = nic;
    }
    return nearest < 0 ? own : std::vector<int>{nearest};
  }

  const Cluster& cluster_;
  int node_;
  Layout layout_;
  Search search_;
  std::vector<Tree> trees_, out_trees_, memory_trees_;  // out: to NICs
};

}  // namespace

BoxGraph box_graph(const Cluster& cluster, int node) {
  if (cluster.devices_per_node > kBoxDevicesMax) {
    throw Error("devices_per_node", fmt::format("a box of {} devices is too large to be laid out; "
                                                "at most {} are allowed with slow links or PCIe",
                                                cluster.devices_per_node, kBoxDevicesMax));
  }
  return BoxSearcher(cluster, node).search();
}

}  // namespace stepcast
