// NCCL's topology file. One walk over its elements; which devices the links join is a union of
// sets. Linear in the file, as its nesting is limited.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>
#include <pugixml.hpp>

#include "sim/base/error.h"
#include "tools/import/topology.h"

namespace stepcast {
namespace {

constexpr int kDepthMost = 64;
constexpr std::size_t kDevicesMost = 4096;
constexpr int kLinksMost = 1024;

std::string_view attribute(const pugi::xml_node& node, const char* name) {
  return node.attribute(name).value();
}

bool has_class(const pugi::xml_node& node, std::string_view begin,
               const char* name = "class") {
  return attribute(node, name).starts_with(begin);
}

// "0x10de" and "0x2330" as "10de:2330"; "" if either is missing.
std::string pci_id(const pugi::xml_node& pci) {
  const auto digits = [](std::string_view text) {
    return text.starts_with("0x") ? text.substr(2) : std::string_view();
  };
  const std::string_view vendor = digits(attribute(pci, "vendor"));
  const std::string_view device = digits(attribute(pci, "device"));
  return vendor.empty() || device.empty() ? "" : fmt::format("{}:{}", vendor, device);
}

// One direction, of "32.0 GT/s PCIe" and "16" lanes. Virtual machines have no width.
std::optional<Bandwidth> pcie_bandwidth(const pugi::xml_node& pci) {
  const std::string_view speed = attribute(pci, "link_speed");
  const int width = pci.attribute("link_width").as_int(0);
  double transfers = 0;
  const auto [end, trouble] = std::from_chars(speed.data(), speed.data() + speed.size(), transfers);
  if (trouble != std::errc() || !(transfers > 0 && transfers < 1000) || width < 1 || width > 64 ||
      std::string_view(end).find("GT/s") == std::string_view::npos) {
    return std::nullopt;
  }
  const double code = transfers < 8 ? 8.0 / 10 : 128.0 / 130;  // PCI Express base specification
  return Bandwidth(transfers * 1e9 / 8 * width * code);
}

// The set that each name is in; names join when a link is met.
class Sets {
 public:
  int of(const std::string& name) {
    const auto [found, fresh] = index_.emplace(name, static_cast<int>(parent_.size()));
    if (fresh) parent_.push_back(found->second);
    return root(found->second);
  }
  void join(const std::string& a, const std::string& b) {
    const int one = of(a), other = of(b);
    parent_[static_cast<std::size_t>(one)] = other;
  }

 private:
  int root(int i) {
    while (parent_[static_cast<std::size_t>(i)] != i) {
      int& up = parent_[static_cast<std::size_t>(i)];
      up = parent_[static_cast<std::size_t>(up)];
      i = up;
    }
    return i;
  }
  std::map<std::string, int> index_;
  std::vector<int> parent_;
};

class TopologyReader : public pugi::xml_tree_walker {
 public:
  explicit TopologyReader(const std::string& file) : file_(file) {}

  bool for_each(pugi::xml_node& node) override {
    if (depth() > kDepthMost) throw Error(file_, "is nested deeper than any machine");
    const std::string_view name = node.name();
    if (name == "cpu") read_cpu(node);
    if (name == "pci") read_pci(node);
    if (name == "net") read_net(node);
    return true;
  }

  FoundTopology finish() {
    FoundTopology& t = topology_;
    if (t.nics.empty()) t.nics = std::move(slots_);  // a static file
    for (std::size_t i = 0; i < t.nics.size(); ++i) {
      const std::string& above = i < nic_switches_.size() ? nic_switches_[i] : slot_switches_[i];
      t.nics[i].near = !above.empty() && device_switches_.contains(above);
    }
    t.nvlink_switches = static_cast<int>(switches_.size());
    t.switched = !switches_.empty();
    t.hosts = std::max(1, static_cast<int>(hosts_.size()));
    std::set<int> sets;
    for (const std::string& id : device_ids_) sets.insert(sets_.of(id));
    t.joined = sets.size() == 1;
    t.links_told = gpus_ > 0;
    return std::move(t);
  }

 private:
  static void insert_once(std::vector<std::string>& list, std::string_view text) {
    if (text.empty() || std::find(list.begin(), list.end(), text) != list.end()) return;
    list.emplace_back(text);
  }

  // The outermost PCIe switch above a node: what is below it reaches each other without the CPU.
  static std::string switch_above(pugi::xml_node node) {
    std::string outermost;
    for (; node; node = node.parent()) {
      if (std::string_view(node.name()) == "pci" && has_class(node, "0x0604")) {
        outermost = attribute(node, "busid");
      }
    }
    return outermost;
  }

  void read_cpu(const pugi::xml_node& cpu) {
    insert_once(topology_.cpu_vendors, attribute(cpu, "vendor"));
    if (const std::string_view host = attribute(cpu, "host_hash"); !host.empty()) {
      hosts_.emplace(host);
    }
  }

  void read_pci(const pugi::xml_node& pci) {
    const pugi::xml_node gpu = pci.child("gpu");
    if (gpu || has_class(pci, "0x0302")) {
      read_device(pci, gpu);
    } else if (has_class(pci, "0x0604")) {
      ++topology_.pcie_switches;
    } else if (has_class(pci, "0x0200") || has_class(pci, "0x0207")) {
      slots_.push_back({std::string(attribute(pci, "busid")), {}, pcie_bandwidth(pci), false});
      slot_switches_.push_back(switch_above(pci));
    }
  }

  void read_device(const pugi::xml_node& pci, const pugi::xml_node& gpu) {
    if (device_ids_.size() == kDevicesMost) throw Error(file_, "has more devices than any machine");
    TopologyDevice device;
    device.pcie = pcie_bandwidth(pci);
    if (gpu) ++gpus_;
    const std::string id(attribute(pci, "busid"));
    device_ids_.push_back(id);
    sets_.of(id);
    device_switches_.insert(switch_above(pci));
    insert_once(topology_.pci_ids, pci_id(pci));
    for (const pugi::xml_node& link : gpu.children()) {
      const std::string_view name = link.name();
      if (name != "nvlink" && name != "xgmi") continue;
      const int count = link.attribute("count").as_int(0);
      if (count < 1 || count > kLinksMost) continue;
      const std::string target(attribute(link, "target"));
      device.links += count;
      if (has_class(link, "0x0680", "tclass")) switches_.insert(target);
      sets_.join(id, target);
    }
    const int sm = gpu.attribute("sm").as_int(0);
    if (sm > 0 && topology_.sm > 0 && sm != topology_.sm) {
      throw Error(file_, fmt::format("has devices of two kinds, sm {} and {}; a box of a cluster "
                                     "file has one", topology_.sm, sm));
    }
    if (sm > 0) topology_.sm = sm;
    topology_.devices.push_back(device);
  }

  void read_net(const pugi::xml_node& net) {
    TopologyNic nic;
    nic.name = attribute(net, "name");
    const double speed = net.attribute("speed").as_double(0);  // Mb/s
    if (speed > 0 && speed < 1e9) nic.speed = Bandwidth(speed * 1e6 / 8);
    nic.pcie = pcie_bandwidth(net.parent().parent());
    topology_.nics.push_back(std::move(nic));
    nic_switches_.push_back(switch_above(net));
  }

  const std::string& file_;
  FoundTopology topology_;
  int gpus_ = 0;                                         // <gpu> elements
  Sets sets_;
  std::vector<std::string> device_ids_;
  std::set<std::string> device_switches_, switches_, hosts_;
  std::vector<TopologyNic> slots_;                       // cards by their class alone
  std::vector<std::string> slot_switches_, nic_switches_;
};

}  // namespace

FoundTopology read_nccl_topology(std::string_view text, const std::string& file) {
  pugi::xml_document document;
  const pugi::xml_parse_result result = document.load_buffer(text.data(), text.size());
  if (!result) {
    const auto line = std::count(
        text.begin(),
        text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                           static_cast<std::size_t>(std::max<std::ptrdiff_t>(result.offset, 0)),
                           text.size())),
        '\n');
    throw Error(fmt::format("{}:{}", file, line + 1), fmt::format("is no XML: {}",
                                                                  result.description()));
  }
  if (document.child("graphs")) {
    throw Error(file, "is a graph file (NCCL_GRAPH_DUMP_FILE): give the topology file, that of "
                      "NCCL_TOPO_DUMP_FILE");
  }
  const pugi::xml_node system = document.child("system");
  if (!system) throw Error(file, "has no <system>: not a topology file of NCCL");
  TopologyReader reader(file);
  pugi::xml_node root = system;
  root.traverse(reader);
  FoundTopology topology = reader.finish();
  if (topology.devices.empty()) throw Error(file, "has no devices (<gpu>, or class 0x0302)");
  return topology;
}

}  // namespace stepcast
