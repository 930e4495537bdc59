// Loads are added up in one array for each box or set of leaves that is looked at, over the routes
// that sim/hardware/topology.h compiled; a box of 8 has some 60 links, and a route 2 to 8. Cost:
// the routes' lengths times the ranks looked at, for all-to-all times the group's members in a
// box.
//
// Direct links (xGMI) are different: rings are laid on all of them at once, one on each, so that a
// device's bandwidth in a group is the sum of its links to the group's others (RCCL, as in
// https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html: 7 links of
// 48 GB/s each for 8 devices).
#include "sim/network/links.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/topology.h"

namespace stepcast {
namespace {

constexpr int kPartsSeen = 16;  // boxes, or sets of leaves, looked at where they are not all alike

struct Member {
  int base, rank;

  auto operator<=>(const Member&) const = default;
};

// A group's members within the ranks looked at, in order.
using Run = std::span<const Member>;

class GroupReader {
 public:
  GroupReader(const Mesh& mesh, AxisSet axes, bool ends_only) : mesh_(mesh), ends_only_(ends_only) {
    std::int64_t stride = 1;
    for (const Axis axis : mesh.order) {
      const std::int64_t degree = mesh.degree(axis);
      if (axes.has(axis) && degree > 1) steps_.push_back({degree, stride});
      stride *= degree;
      if (axes.has(axis)) ranks_ *= static_cast<int>(degree);
    }
    if (ends_only && ranks_ > 1) ranks_ = 2;
  }

  int ranks() const { return ranks_; }  // in a group

  // How many of the stretches of `unit` ranks have to be looked at to see all that there are.
  int windows(std::int64_t unit) const {
    const std::int64_t all = (mesh_.ranks() + unit - 1) / unit;
    for (const Step step : steps_) {
      for (const std::int64_t edge : {step.stride, step.stride * step.degree}) {
        if (edge % unit != 0 && unit % edge != 0) {
          return static_cast<int>(std::min<std::int64_t>(all, kPartsSeen));
        }
      }
    }
    // Alike, but of the groups of ends only the first stage's and the last's take part.
    return static_cast<int>(ends_only_ ? std::min<std::int64_t>(all, kPartsSeen) : 1);
  }

  std::vector<Member> members(std::int64_t begin, std::int64_t end) const {
    std::vector<Member> found;
    for (std::int64_t rank = begin; rank < std::min<std::int64_t>(end, mesh_.ranks()); ++rank) {
      std::int64_t base = rank;
      bool takes_part = true;
      for (const Step step : steps_) {
        const std::int64_t at = rank / step.stride % step.degree;
        base -= at * step.stride;
        if (ends_only_ && at != 0 && at != step.degree - 1) takes_part = false;
      }
      if (takes_part) found.push_back({static_cast<int>(base), static_cast<int>(rank)});
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  template <class Visit>
  static void for_each_run(const std::vector<Member>& members, Visit visit) {
    for (std::size_t i = 0; i < members.size();) {
      std::size_t end = i;
      while (end < members.size() && members[end].base == members[i].base) ++end;
      visit(Run(members).subspan(i, end - i));
      i = end;
    }
  }

 private:
  struct Step {
    std::int64_t degree, stride;
  };
  const Mesh& mesh_;
  bool ends_only_;
  std::vector<Step> steps_;
  int ranks_ = 1;
};

void add(std::span<const std::int32_t> route, double load, bool both, std::vector<double>& loads) {
  for (const std::int32_t link : route) {
    loads[static_cast<std::size_t>(link)] += load;
    if (both) loads[static_cast<std::size_t>(link ^ 1)] += load;
  }
}

void limit(Bandwidth& bandwidth, double capacity, double load) {
  bandwidth = std::min(bandwidth, Bandwidth(capacity / load));
}

// ------------------------------------------------------------------------------------- in a box

class BoxLoads {
 public:
  BoxLoads(const Cluster& cluster, int node)
      : cluster_(cluster), first_(node * cluster.devices_per_node), box_(box_graph(cluster, node)),
        ring_(box_.links.size()), out_(box_.links.size()), exchange_(box_.links.size()) {}

  // The groups' members in this box; groups have n of them in all.
  void count(const std::vector<Member>& members, int n, LinkLimits& limits) {
    for (std::vector<double>* loads : {&ring_, &out_, &exchange_}) {
      std::fill(loads->begin(), loads->end(), 0);
    }
    GroupReader::for_each_run(members, [&](Run run) {
      add_ring(run, n, limits);
      add_exchange(run, n);
    });
    for (std::size_t i = 0; i < box_.links.size(); ++i) {
      const double capacity = box_.links[i].capacity.value;
      limits.exchange = std::max(limits.exchange, is_even_nic(i) ? 0 : exchange_[i] / capacity);
      if (ring_[i] > 0) limit(limits.inside, capacity, ring_[i] + out_[i]);
      if (out_[i] > 0 && !is_even_nic(i)) limit(limits.across, capacity, ring_[i] + out_[i]);
    }
  }

  void look_at(int node) { first_ = node * cluster_.devices_per_node; }

 private:
  int local(const Member& member) const { return member.rank - first_; }

  // The wire of a NIC with nothing amiss: place() has counted how many share the NICs. Where a dead
  // one's load goes to others, they are not even.
  bool is_even_nic(std::size_t link) const {
    return box_.links[link].kind == LinkKind::kNetwork && !shifted_ &&
           box_.links[link].capacity == cluster_.nic_bandwidth;
  }

  std::span<const std::int32_t> way(int from, int to) const {
    return box_.devices[static_cast<std::size_t>(from * cluster_.devices_per_node + to)];
  }

  // A device's share of what leaves the box, and as much that comes in.
  void add_out(int device, double load, std::vector<double>& loads) {
    const std::vector<int>& nics = box_.nics[static_cast<std::size_t>(device)];
    const auto [first, last] = own_nics(cluster_, device);
    if (static_cast<int>(nics.size()) != last - first || nics.front() != first) shifted_ = true;
    for (const int nic : nics) {
      add(box_.out[static_cast<std::size_t>(device * cluster_.nics_per_node + nic)],
          load / static_cast<double>(nics.size()), true, loads);
    }
  }

  void add_ring(Run run, int n, LinkLimits& limits) {
    const auto q = static_cast<int>(run.size());
    const double edge = q < n ? (q - 1.0) / q : 1;  // the edge that takes its turn outside
    for (std::size_t i = 0; i < run.size() && q > 1; ++i) {
      const int from = local(run[i]);
      if (cluster_.box.links == BoxLinks::kDirect) {
        limits.inside = std::min(limits.inside, direct_links(from, run));
      } else {
        add(way(from, local(run[(i + 1) % run.size()])), edge, false, ring_);
      }
    }
    for (const Member& member : run) {
      if (q < n) add_out(local(member), 1.0 / q, out_);
    }
  }

  // What a device has to the others of its group: its direct links that live, else its way round.
  Bandwidth direct_links(int from, Run run) const {
    Bandwidth sum, round;
    for (const Member& other : run) {
      const auto route = way(from, local(other));
      Bandwidth least(std::numeric_limits<double>::infinity());
      for (const std::int32_t link : route) {
        least = std::min(least, box_.links[static_cast<std::size_t>(link)].capacity);
      }
      if (route.size() == 1) sum += least;
      if (route.size() > 1) round = std::max(round, least);
    }
    return std::max(sum, round);
  }

  void add_exchange(Run run, int n) {
    const auto q = static_cast<double>(run.size());
    for (const Member& from : run) {
      for (const Member& to : run) {
        if (from.rank != to.rank) add(way(local(from), local(to)), 1.0 / n, false, exchange_);
      }
      if (q < n) add_out(local(from), (n - q) / n, exchange_);
    }
  }

  const Cluster& cluster_;
  int first_;
  BoxGraph box_;
  std::vector<double> ring_, out_, exchange_;
  bool shifted_ = false;  // a device goes by another's NIC
};

void limit_boxes(const GroupReader& groups, const Mesh& mesh, const Cluster& cluster,
                 LinkLimits& limits) {
  const int per_node = cluster.devices_per_node;
  const auto members = [&](int node) {
    const std::int64_t begin = std::int64_t{node} * per_node;
    return groups.members(begin, begin + per_node);
  };
  const std::vector<int> uneven = uneven_nodes(cluster);
  if (cluster.box.links != BoxLinks::kSwitch || !cluster.box.peer_to_peer) {
    Cluster even = cluster;
    even.slow_links.clear();
    BoxLoads loads(even, 0);
    for (int node = 0; node < groups.windows(per_node); ++node) {
      loads.look_at(node);
      loads.count(members(node), groups.ranks(), limits);
    }
  }
  for (const int node : uneven) {
    if (std::int64_t{node} * per_node >= mesh.ranks()) continue;
    BoxLoads(cluster, node).count(members(node), groups.ranks(), limits);
  }
}

// -------------------------------------------------------------------------------- above the boxes

// The leaves that node set `set` stands on.
void limit_uplinks(const std::vector<Member>& members, int n, int set, const Cluster& cluster,
                   LinkLimits& limits) {
  const int leaves_of_set = rails(cluster);
  std::vector<double> ring(static_cast<std::size_t>(leaves_of_set)), exchange(ring.size());
  GroupReader::for_each_run(members, [&](Run run) {
    const auto q = static_cast<double>(run.size());
    if (run.size() == static_cast<std::size_t>(n)) return;  // never leaves them
    for (const Member& member : run) {
      const auto [first, last] = own_nics(cluster, member.rank % cluster.devices_per_node);
      const double nics = last - first;
      for (int nic = first; nic < last; ++nic) {
        const auto rail = static_cast<std::size_t>(cluster.rails ? nic : 0);
        ring[rail] += 1 / q / nics;
        exchange[rail] += (n - q) / n / nics;
      }
    }
  });
  for (int rail = 0; rail < leaves_of_set; ++rail) {
    const auto i = static_cast<std::size_t>(rail);
    if (ring[i] == 0) continue;
    const double capacity = uplink(cluster, set * leaves_of_set + rail).value;
    limit(limits.across, capacity, ring[i]);
    limits.exchange = std::max(limits.exchange, exchange[i] / capacity);
  }
}

bool uplinks_matter(const Cluster& cluster) {
  return cluster.nodes_per_leaf > 0 && cluster.nodes_per_leaf < cluster.nodes &&
         (cluster.oversubscription > 1 || !uneven_leaves(cluster).empty());
}

void limit_fabric(const GroupReader& groups, const Mesh& mesh, const Cluster& cluster,
                  LinkLimits& limits) {
  const std::int64_t unit = std::int64_t{leaf_nodes(cluster)} * cluster.devices_per_node;
  const auto look_at = [&](int set) {
    limit_uplinks(groups.members(set * unit, (set + 1) * unit), groups.ranks(), set, cluster,
                  limits);
  };
  if (cluster.oversubscription > 1) {
    for (int set = 0; set < groups.windows(unit); ++set) look_at(set);
  }
  for (const int leaf : uneven_leaves(cluster)) {
    const int set = leaf / rails(cluster);
    if (set * unit < mesh.ranks()) look_at(set);
  }
}

}  // namespace

bool has_link_limits(const Cluster& cluster) {
  return needs_box_graph(cluster) || uplinks_matter(cluster);
}

LinkLimits link_limits(const Mesh& mesh, AxisSet axes, bool ends_only, const Cluster& cluster) {
  LinkLimits limits;
  const bool boxes = needs_box_graph(cluster), fabric = uplinks_matter(cluster);
  if (!boxes && !fabric) return limits;
  const GroupReader groups(mesh, axes, ends_only);
  if (groups.ranks() == 1) return limits;
  if (boxes) limit_boxes(groups, mesh, cluster, limits);
  if (fabric) limit_fabric(groups, mesh, cluster, limits);
  return limits;
}

// ------------------------------------------------------------------------------------ one message

namespace {

// Who sends to whom, when all ranks at `coordinate` of the axis send to the next.
std::vector<std::pair<int, int>> messages(const Mesh& mesh, Axis axis, int coordinate) {
  const int stride = mesh.stride(axis), degree = mesh.degree(axis);
  std::vector<std::pair<int, int>> found;
  for (int outer = 0; outer < mesh.ranks(); outer += stride * degree) {
    for (int inner = 0; inner < stride; ++inner) {
      const int rank = outer + coordinate * stride + inner;
      found.emplace_back(rank, mesh.neighbour(rank, axis, 1));
    }
  }
  return found;
}

// What a message gets inside a box and across, by the closed forms: all share what they share.
LinkLimits plain_limits(const std::vector<std::pair<int, int>>& pairs, const Cluster& cluster) {
  const int per_node = cluster.devices_per_node;
  LinkLimits limits;
  std::vector<int> out(static_cast<std::size_t>(cluster.nodes)), in(out.size());
  int most = 0;
  for (const auto& [from, to] : pairs) {
    if (from / per_node == to / per_node) {
      limits.inside = cluster.node_bandwidth;
      continue;
    }
    most = std::max({most, ++out[static_cast<std::size_t>(from / per_node)],
                     ++in[static_cast<std::size_t>(to / per_node)]});
  }
  if (most == 0) return limits;
  Placement one;
  one.ranks = one.nodes = 2;
  one.groups_per_node = most;
  limits.across = bus_bandwidth(one, cluster);
  return limits;
}

// The same over the graph's links: each message over all NICs of its two devices.
class MessageLoads {
 public:
  explicit MessageLoads(const Cluster& cluster)
      : cluster_(cluster), per_node_(cluster.devices_per_node), even_(cluster) {
    even_.slow_links.clear();
    for (const int node : uneven_nodes(cluster)) boxes_.emplace(node, Loads(cluster, node));
    all_boxes_ = cluster.box.links != BoxLinks::kSwitch || !cluster.box.peer_to_peer;
    if (all_boxes_) pattern_.emplace_back(even_, 0);
    up_.resize(static_cast<std::size_t>(leaves(cluster)));
    down_.resize(up_.size());
  }

  void add_message(int from, int to) {
    const int a = from / per_node_, b = to / per_node_;
    if (a == b) {
      if (Loads* loads = box_of(a)) loads->add_way(from % per_node_, to % per_node_, per_node_);
      return;
    }
    if (Loads* loads = box_of(a)) loads->add_nics(from % per_node_, cluster_, true);
    if (Loads* loads = box_of(b)) loads->add_nics(to % per_node_, cluster_, false);
    const int in = own_nics(cluster_, to % per_node_).first;
    const int out = relays(cluster_) ? in : own_nics(cluster_, from % per_node_).first;
    const int leaf_a = leaf_of(cluster_, a, out), leaf_b = leaf_of(cluster_, b, in);
    if (leaf_a == leaf_b) return;
    up_[static_cast<std::size_t>(leaf_a)] += 1;
    down_[static_cast<std::size_t>(leaf_b)] += 1;
  }

  void limit_by(LinkLimits& limits) const {
    for (const auto& [node, loads] : boxes_) loads.limit_by(cluster_, limits);
    for (std::size_t leaf = 0; leaf < up_.size(); ++leaf) {
      const double load = std::max(up_[leaf], down_[leaf]);
      if (load == 0) continue;
      limit(limits.across, uplink(cluster_, static_cast<int>(leaf)).value, load);
    }
  }

 private:
  struct Loads {
    BoxGraph box;
    std::vector<double> inside, across;

    Loads(const Cluster& cluster, int node)
        : box(box_graph(cluster, node)), inside(box.links.size()), across(box.links.size()) {}

    void add_way(int from, int to, int per_node) {
      add(box.devices[static_cast<std::size_t>(from * per_node + to)], 1, false, inside);
    }
    void add_nics(int device, const Cluster& cluster, bool out) {
      const std::vector<int>& nics = box.nics[static_cast<std::size_t>(device)];
      for (const int nic : nics) {
        for (const std::int32_t link :
             box.out[static_cast<std::size_t>(device * cluster.nics_per_node + nic)]) {
          across[static_cast<std::size_t>(out ? link : link ^ 1)] +=
              1 / static_cast<double>(nics.size());
        }
      }
    }
    void limit_by(const Cluster& cluster, LinkLimits& limits) const {
      for (std::size_t i = 0; i < box.links.size(); ++i) {
        const Link& link = box.links[i];
        const double load = inside[i] + across[i];
        // Without slow links the closed form has counted who shares the NICs.
        const bool even = link.kind == LinkKind::kNetwork && cluster.slow_links.empty();
        if (inside[i] > 0) limit(limits.inside, link.capacity.value, load);
        if (across[i] > 0 && !even) limit(limits.across, link.capacity.value, load);
      }
    }
  };

  // Null where the closed forms say it all.
  Loads* box_of(int node) {
    const auto found = boxes_.find(node);
    if (found != boxes_.end()) return &found->second;
    if (!all_boxes_) return nullptr;
    return &boxes_.emplace(node, pattern_.front()).first->second;
  }

  const Cluster& cluster_;
  int per_node_;
  Cluster even_;
  bool all_boxes_ = false;
  std::vector<Loads> pattern_;  // an even box, unloaded
  std::map<int, Loads> boxes_;
  std::vector<double> up_, down_;
};

}  // namespace

Seconds send_time(const Mesh& mesh, Axis axis, int coordinate, Bytes bytes,
                  const Cluster& cluster) {
  STEPCAST_CHECK(coordinate >= 0 && coordinate < mesh.degree(axis), "a coordinate of the axis");
  if (mesh.ranks() > cluster.devices()) place(mesh, axis, false, cluster);  // says so
  if (mesh.degree(axis) == 1) return Seconds();
  const std::vector<std::pair<int, int>> pairs = messages(mesh, axis, coordinate);
  LinkLimits limits = plain_limits(pairs, cluster);
  if (has_link_limits(cluster)) {
    MessageLoads loads(cluster);
    for (const auto& [from, to] : pairs) loads.add_message(from, to);
    loads.limit_by(limits);
  }
  Seconds time;
  const auto finite = [](Bandwidth b) { return b.value < std::numeric_limits<double>::infinity(); };
  if (finite(limits.inside)) time = std::max(time, bytes / limits.inside + cluster.node_latency);
  if (finite(limits.across)) time = std::max(time, bytes / limits.across + cluster.nic_latency);
  return time;
}

}  // namespace stepcast
