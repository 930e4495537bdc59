// Names, the fat tree, numbering and checks; the box itself is in topology.cc.
//
// Above the boxes nothing is searched: from leaf to leaf there is one spine to choose. D-mod-K
// routing (E. Zahavi, "Fat-trees routing and node ordering providing contention free traffic for
// MPI global collectives", 2012) takes it from the target alone, so that what goes to different
// NICs goes by different spines. Cost of a route: its length, and for a slow link a look through
// the list of them.
#include "sim/hardware/topology.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr std::array<std::string_view, 8> kVertexNames = {"device", "switch", "pcie", "cpu",
                                                          "memory", "nic",    "leaf", "spine"};

bool in_fabric(const Vertex& vertex) {
  return vertex.kind == VertexKind::kLeaf || vertex.kind == VertexKind::kSpine;
}

// The node that a slow link is in; -1 for an uplink.
int node_of(const LinkSpeed& speed) {
  return in_fabric(speed.from) ? speed.to.node : speed.from.node;
}

std::vector<int> sorted_set(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace

// -------------------------------------------------------------------------------------- the names

std::string_view link_kind_name(LinkKind kind) {
  switch (kind) {
    case LinkKind::kDevice: return "device link";
    case LinkKind::kPcie: return "PCIe";
    case LinkKind::kSocket: return "between sockets";
    case LinkKind::kMemory: return "host memory";
    case LinkKind::kNetwork: return "network";
  }
  STEPCAST_CHECK(false, "a kind of link out of range");
}

std::string vertex_name(const Vertex& vertex) {
  std::string name(kVertexNames[static_cast<std::size_t>(vertex.kind)]);
  if (vertex.kind != VertexKind::kSwitch) name += fmt::format("{}", vertex.index);
  return in_fabric(vertex) ? name : fmt::format("node{}/{}", vertex.node, name);
}

bool parse_vertex(std::string_view name, Vertex& vertex) {
  const auto number = [](std::string_view& text, int& value) {
    const auto [stop, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (trouble != std::errc() || value < 0 || text.starts_with('-')) return false;
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    return true;
  };
  Vertex found;
  const bool inside = name.starts_with("node");
  if (inside) {
    name.remove_prefix(4);
    if (!number(name, found.node) || !name.starts_with('/')) return false;
    name.remove_prefix(1);
  }
  for (std::size_t kind = 0; kind < kVertexNames.size(); ++kind) {
    if (!name.starts_with(kVertexNames[kind])) continue;
    found.kind = static_cast<VertexKind>(kind);
    name.remove_prefix(kVertexNames[kind].size());
    if (in_fabric(found) == inside) return false;
    if (found.kind != VertexKind::kSwitch && !number(name, found.index)) return false;
    if (!name.empty()) return false;
    vertex = found;
    return true;
  }
  return false;
}

std::vector<LinkSpeed> link_speeds(const Cluster& cluster) {
  std::vector<LinkSpeed> speeds;
  for (const SlowLink& slow : cluster.slow_links) {
    LinkSpeed one{{}, {}, slow.speed};
    for (const auto& [name, vertex] : {std::pair(&slow.from, &one.from),
                                       std::pair(&slow.to, &one.to)}) {
      if (parse_vertex(*name, *vertex)) continue;
      throw Error("slow_links", fmt::format("\"{}\" names no end of a link; write \"node3/nic2\", "
                                            "\"node0/device5\", \"node0/switch\", \"leaf0\", ...",
                                            *name));
    }
    speeds.push_back(one);
  }
  return speeds;
}

double speed_between(std::span<const LinkSpeed> speeds, const Vertex& a, const Vertex& b) {
  for (const LinkSpeed& s : speeds) {
    if ((s.from == a && s.to == b) || (s.from == b && s.to == a)) return s.speed;
  }
  return 1;
}

std::vector<int> uneven_nodes(const Cluster& cluster) {
  std::vector<int> nodes;
  for (const LinkSpeed& speed : link_speeds(cluster)) {
    if (node_of(speed) >= 0) nodes.push_back(node_of(speed));
  }
  return sorted_set(std::move(nodes));
}

bool needs_box_graph(const Cluster& cluster) {
  return cluster.box.links != BoxLinks::kSwitch || !cluster.box.peer_to_peer ||
         !uneven_nodes(cluster).empty();
}

bool relays(const Cluster& cluster) {
  return cluster.box.links == BoxLinks::kSwitch || cluster.box.links == BoxLinks::kDirect;
}

std::pair<int, int> own_nics(const Cluster& cluster, int device) {
  const std::int64_t nics = cluster.nics_per_node, devices = cluster.devices_per_node;
  const std::int64_t first = device * nics / devices;
  const std::int64_t last = std::max(first + 1, (device + 1) * nics / devices);
  return {static_cast<int>(first), static_cast<int>(std::min(last, nics))};
}

// ------------------------------------------------------------------------------------- the fabric

int rails(const Cluster& cluster) { return cluster.rails ? std::max(1, cluster.nics_per_node) : 1; }

int leaf_nodes(const Cluster& cluster) {
  return cluster.nodes_per_leaf > 0 ? std::min(cluster.nodes_per_leaf, cluster.nodes)
                                    : cluster.nodes;
}

int leaves(const Cluster& cluster) {
  return (cluster.nodes + leaf_nodes(cluster) - 1) / leaf_nodes(cluster) * rails(cluster);
}

int leaf_of(const Cluster& cluster, int node, int nic) {
  return node / leaf_nodes(cluster) * rails(cluster) + (cluster.rails ? nic : 0);
}

bool has_spines(const Cluster& cluster) { return leaves(cluster) > 1; }

Bandwidth uplink(const Cluster& cluster, int leaf, int spine) {
  const double below = static_cast<double>(leaf_nodes(cluster)) * cluster.nics_per_node /
                       rails(cluster);
  const Bandwidth even = cluster.nic_bandwidth * (below / cluster.oversubscription /
                                                  cluster.spines);
  if (cluster.slow_links.empty()) return even;
  return even * speed_between(link_speeds(cluster), {VertexKind::kLeaf, -1, leaf},
                         {VertexKind::kSpine, -1, spine});
}

Bandwidth uplink(const Cluster& cluster, int leaf) {
  Bandwidth sum;
  for (int spine = 0; spine < cluster.spines; ++spine) sum += uplink(cluster, leaf, spine);
  return sum;
}

std::vector<int> uneven_leaves(const Cluster& cluster) {
  std::vector<int> found;
  for (const LinkSpeed& speed : link_speeds(cluster)) {
    if (node_of(speed) >= 0) continue;
    found.push_back(speed.from.kind == VertexKind::kLeaf ? speed.from.index : speed.to.index);
  }
  return sorted_set(std::move(found));
}

// -------------------------------------------------------------------------------------- the whole

Topology::Topology(const Cluster& cluster) : cluster_(cluster) {
  const std::vector<int> uneven = uneven_nodes(cluster);
  Cluster even = cluster;
  even.slow_links.clear();
  boxes_.push_back(box_graph(even, 0));
  for (const int node : uneven) {
    uneven_[node] = boxes_.size();
    boxes_.push_back(box_graph(cluster, node));
  }
  box_links_ = static_cast<std::int32_t>(boxes_.front().links.size());
  const std::int64_t uplinks =
      has_spines(cluster) ? std::int64_t{2} * leaves(cluster) * cluster.spines : 0;
  const std::int64_t all = std::int64_t{box_links_} * cluster.nodes + uplinks;
  if (all > INT32_MAX) throw Error("cluster", fmt::format("{} links are too many", all));
  links_ = static_cast<std::int32_t>(all);
}

const BoxGraph& Topology::box(int node) const {
  const auto found = uneven_.find(node);
  return boxes_[found == uneven_.end() ? 0 : found->second];
}

Link Topology::link(std::int32_t number) const {
  STEPCAST_CHECK(number >= 0 && number < links_, "a link of this cluster");
  const std::int32_t first_uplink = box_links_ * cluster_.nodes;
  if (number < first_uplink) {
    const int node = number / box_links_;
    Link link = box(node).links[static_cast<std::size_t>(number % box_links_)];
    for (Vertex* end : {&link.from, &link.to}) {  // the even box is laid out as node 0
      if (end->kind == VertexKind::kLeaf) {
        const Vertex& nic = end == &link.from ? link.to : link.from;
        end->index = leaf_of(cluster_, node, nic.index);
      } else {
        end->node = node;
      }
    }
    return link;
  }
  const std::int32_t pair = (number - first_uplink) / 2;
  const Vertex leaf{VertexKind::kLeaf, -1, pair / cluster_.spines};
  const Vertex spine{VertexKind::kSpine, -1, pair % cluster_.spines};
  Link link{leaf, spine, LinkKind::kNetwork, uplink(cluster_, leaf.index, spine.index), Seconds()};
  if (number & 1) std::swap(link.from, link.to);
  return link;
}

std::vector<double> Topology::capacities() const {
  std::vector<double> all;
  all.reserve(static_cast<std::size_t>(links_));
  for (int node = 0; node < cluster_.nodes; ++node) {
    for (const Link& link : box(node).links) all.push_back(link.capacity.value);
  }
  for (auto number = static_cast<std::int32_t>(all.size()); number < links_; ++number) {
    all.push_back(link(number).capacity.value);
  }
  return all;
}

void Topology::append_fabric(int from_leaf, int to_leaf, int target_nic,
                             std::vector<std::int32_t>& links) const {
  if (from_leaf == to_leaf) return;
  const std::int32_t first = box_links_ * cluster_.nodes;
  for (int i = 0; i < cluster_.spines; ++i) {
    const int spine = (target_nic + i) % cluster_.spines;
    if (!(uplink(cluster_, from_leaf, spine).value > 0)) continue;
    if (!(uplink(cluster_, to_leaf, spine).value > 0)) continue;
    links.push_back(first + 2 * (from_leaf * cluster_.spines + spine));
    links.push_back(first + 2 * (to_leaf * cluster_.spines + spine) + 1);
    return;
  }
  throw Error("slow_links", fmt::format("leaf{} and leaf{} reach no spine in common; give one of "
                                        "their uplinks a speed above 0", from_leaf, to_leaf));
}

void Topology::append_route(int source, int target, std::vector<std::int32_t>& links) const {
  const int per_node = cluster_.devices_per_node, nics = cluster_.nics_per_node;
  STEPCAST_CHECK(source >= 0 && source < cluster_.devices() && target >= 0 &&
                     target < cluster_.devices(), "devices of this cluster");
  const int from_node = source / per_node, to_node = target / per_node;
  const int a = source % per_node, b = target % per_node;
  const BoxGraph& from = box(from_node);
  const BoxGraph& to = box(to_node);
  if (from_node == to_node) {
    for (const std::int32_t link : from.devices[static_cast<std::size_t>(a * per_node + b)]) {
      links.push_back(from_node * box_links_ + link);
    }
    return;
  }
  const auto out_of = [&](const BoxGraph& box, int device, int nic) {
    return box.out[static_cast<std::size_t>(device * nics + nic)];
  };
  const int in = to.nics[static_cast<std::size_t>(b)].front();
  int out = from.nics[static_cast<std::size_t>(a)].front();
  if (cluster_.rails && relays(cluster_) && !out_of(from, a, in).empty()) out = in;
  for (const std::int32_t link : out_of(from, a, out)) {
    links.push_back(from_node * box_links_ + link);
  }
  append_fabric(leaf_of(cluster_, from_node, out), leaf_of(cluster_, to_node, in),
                to_node * nics + in, links);
  const std::span<const std::int32_t> back = out_of(to, b, in);
  for (std::size_t i = back.size(); i-- > 0;) links.push_back(to_node * box_links_ + (back[i] ^ 1));
}

Routes Topology::routes(std::span<const std::pair<int, int>> pairs) const {
  Routes routes;
  for (const auto& [source, target] : pairs) {
    append_route(source, target, routes.links);
    routes.end_route();
  }
  return routes;
}

// ------------------------------------------------------------------------------------- the checks

namespace {

// Whether the cluster has such a link.
bool exists(const Cluster& cluster, const LinkSpeed& speed) {
  Vertex a = speed.from, b = speed.to;
  if (in_fabric(a)) std::swap(a, b);
  if (in_fabric(a)) {  // both
    if (a.kind == VertexKind::kSpine) std::swap(a, b);
    return has_spines(cluster) && a.kind == VertexKind::kLeaf && b.kind == VertexKind::kSpine &&
           a.index < leaves(cluster) && b.index < cluster.spines;
  }
  if (a.node >= cluster.nodes) return false;
  if (!in_fabric(b) && a.node != b.node) return false;
  Cluster even = cluster;
  even.slow_links.clear();
  const std::vector<Link> links = box_graph(even, a.node).links;
  return std::any_of(links.begin(), links.end(),
                     [&](const Link& link) { return link.from == a && link.to == b; });
}

// Every two sets of leaves that are to meet have a spine in common.
void check_uplinks(const Cluster& cluster) {
  if (!has_spines(cluster)) return;
  const std::vector<int> uneven = uneven_leaves(cluster);
  const auto lives = [&](int leaf, int spine) { return uplink(cluster, leaf, spine).value > 0; };
  for (const int leaf : uneven) {
    for (int other = 0; other < leaves(cluster); ++other) {
      const bool even = !std::binary_search(uneven.begin(), uneven.end(), other);
      bool meet = other == leaf;
      for (int spine = 0; spine < cluster.spines && !meet; ++spine) {
        meet = lives(leaf, spine) && (even || lives(other, spine));
      }
      if (meet) continue;
      throw Error("slow_links",
                  fmt::format("leaf{} and leaf{} reach no spine in common; give one of their "
                              "uplinks a speed above 0", leaf, other));
    }
  }
}

std::vector<LinkSpeed> named_speeds(const Cluster& cluster, const std::string& place) {
  try {
    return link_speeds(cluster);
  } catch (const Error& error) {
    throw Error(place, error.message());
  }
}

}  // namespace

void check_slow_links(const Cluster& cluster, const std::string& place) {
  const std::vector<LinkSpeed> speeds = named_speeds(cluster, place);
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    const auto what = fmt::format("{} to {}", vertex_name(speeds[i].from),
                                  vertex_name(speeds[i].to));
    if (!exists(cluster, speeds[i])) {
      throw Error(fmt::format("{}[{}]", place, i),
                  fmt::format("the cluster has no link {}; `stepcast show cluster` names them",
                              what));
    }
  }
  try {
    for (const int node : uneven_nodes(cluster)) box_graph(cluster, node);
    check_uplinks(cluster);
  } catch (const Error& error) {
    throw Error(place, error.message());
  }
}

}  // namespace stepcast
