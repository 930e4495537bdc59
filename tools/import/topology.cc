// A box as a cluster file says it, and the matrix of `nvidia-smi topo -m`. Links become a bandwidth
// only where their speed is known; what is not known is left to the device's standard box and said
// so. Cost: linear in the text.
#include "tools/import/topology.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/import/import.h"

namespace stepcast {
namespace {

constexpr int kLinksOfADevice = 18;  // the most that any has: Hopper and Blackwell
constexpr Bandwidth kNvLink = Bandwidth(25e9), kNvLink5 = Bandwidth(50e9);  // one, each way
constexpr int kBlackwell = 100, kHopper = 90, kAmpere = 80, kVolta = 70;    // sm

// ------------------------------------------------------------------------------ nvidia-smi topo -m

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    const char c = i < line.size() ? line[i] : ' ';
    if (c == '\x1b') {  // underlined on a terminal: ESC [ 4 m
      while (i < line.size() && line[i] != 'm') ++i;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  return words;
}

bool is_gpu(std::string_view word) {
  return word.starts_with("GPU") && word.size() > 3 &&
         word.find_first_not_of("0123456789", 3) == std::string_view::npos;
}

bool is_nic(std::string_view word) {
  const bool numbered = word.starts_with("NIC") && word.size() > 3 &&
                        word.find_first_not_of("0123456789", 3) == std::string_view::npos;
  return numbered || word.starts_with("mlx5_") || word.starts_with("mlx4_");
}

// "NV18": 18; nullopt: no NVLinks.
std::optional<int> nvlinks(std::string_view word) {
  if (!word.starts_with("NV")) return std::nullopt;
  int count = 0;
  const auto [end, trouble] = std::from_chars(word.data() + 2, word.data() + word.size(), count);
  const bool whole = trouble == std::errc() && end == word.data() + word.size();
  return whole && count > 0 && count <= kLinksOfADevice ? std::optional(count) : std::nullopt;
}

bool is_cell(std::string_view word) {
  static constexpr std::string_view kCells[] = {"X", "SYS", "NODE", "PHB", "PXB", "PIX", "N/A"};
  return nvlinks(word) || std::find(std::begin(kCells), std::end(kCells), word) != std::end(kCells);
}

struct Matrix {
  std::vector<std::string> columns;              // GPU0 ..., NIC0 ...
  std::vector<std::vector<std::string>> gpus;    // the cells of each GPU's row
};

Matrix read_matrix(std::string_view text, const std::string& file) {
  Matrix matrix;
  int line = 0;
  for (std::size_t at = 0; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::vector<std::string> words = words_of(text.substr(at, end - at));
    at = end + 1;
    if (words.empty() || !(is_gpu(words[0]) || is_nic(words[0]))) continue;
    const bool head = words.size() == 1 || !is_cell(words[1]);
    if (head && matrix.columns.empty()) {
      for (std::string& word : words) {
        if (!is_gpu(word) && !is_nic(word)) break;  // CPU Affinity ...
        matrix.columns.push_back(std::move(word));
      }
    } else if (is_gpu(words[0]) && !matrix.columns.empty()) {
      const std::size_t count = matrix.columns.size();
      const bool whole =
          words.size() > count &&
          std::all_of(words.begin() + 1, words.begin() + 1 + static_cast<std::ptrdiff_t>(count),
                      is_cell);
      if (!whole) {
        throw Error(fmt::format("{}:{}", file, line + 1),
                    fmt::format("the row of {} does not have the {} cells of the header; was it "
                                "cut?", words[0], count));
      }
      matrix.gpus.emplace_back(words.begin() + 1,
                               words.begin() + 1 + static_cast<std::ptrdiff_t>(count));
    }
  }
  return matrix;
}

bool reaches_all(const Matrix& matrix, std::size_t gpus) {
  std::vector<char> seen(gpus, 0);
  std::vector<std::size_t> next = {0};
  seen[0] = 1;
  std::size_t count = 0;
  while (!next.empty()) {
    const std::size_t at = next.back();
    next.pop_back();
    ++count;
    for (std::size_t peer = 0; peer < gpus; ++peer) {
      if (seen[peer] || !nvlinks(matrix.gpus[at][peer])) continue;
      seen[peer] = 1;
      next.push_back(peer);
    }
  }
  return count == gpus;
}

// ------------------------------------------------------------------------------------ the cluster

std::optional<Bandwidth> link_speed(const FoundTopology& topology, const Device& device) {
  if (topology.sm >= kBlackwell) return kNvLink5;
  if (topology.sm >= kVolta) return kNvLink;
  if (topology.sm > 0 || !device.nccl) return std::nullopt;
  return device.nccl->generation == NcclGeneration::kBlackwell ? kNvLink5 : kNvLink;
}

void check_generation(const FoundTopology& topology, const Device& device,
                      const std::string& place) {
  if (topology.sm < kVolta || !device.nccl) return;
  const NcclGeneration found = topology.sm >= kBlackwell ? NcclGeneration::kBlackwell
                               : topology.sm >= kHopper  ? NcclGeneration::kHopper
                               : topology.sm >= kAmpere  ? NcclGeneration::kAmpere
                                                         : NcclGeneration::kVolta;
  if (found == device.nccl->generation) return;
  throw Error(place, fmt::format("its devices are sm {}, but {} is of another generation; give "
                                 "--device", topology.sm, device.name));
}

Json node_bandwidth(const FoundTopology& topology, const Device& device, const std::string& place,
                    std::vector<std::string>& words) {
  const auto fewest = std::min_element(
      topology.devices.begin(), topology.devices.end(),
      [](const TopologyDevice& a, const TopologyDevice& b) { return a.links < b.links; });
  const int links = fewest->links;
  if (topology.devices.size() == 1) {
    words.emplace_back("one device: node_bandwidth stays that of its standard box, unused");
    return Json();
  }
  if (!topology.links_told) {
    words.push_back(fmt::format("a static file, which lists no NVLinks: node_bandwidth stays that "
                                "of the standard box of {}; a dump (NCCL_TOPO_DUMP_FILE) has them",
                                device.name));
    return Json();
  }
  if (topology.joined && links > 0) {
    const bool even = std::all_of(topology.devices.begin(), topology.devices.end(),
                                  [&](const TopologyDevice& d) { return d.links == links; });
    if (!even) words.push_back(fmt::format("links differ: all devices count as having {}", links));
    if (const std::optional<Bandwidth> one = link_speed(topology, device)) {
      return exact_bandwidth(*one * links);
    }
    words.push_back(fmt::format("{} links a device of no known speed: node_bandwidth is that of "
                                "the standard box of {}", links, device.name));
    return Json();
  }
  Bandwidth slowest;
  for (const TopologyDevice& one : topology.devices) {
    if (!one.pcie) {
      throw Error(place, "its devices are not all joined by NVLinks, and it does not tell the "
                         "speed of PCIe: import a dump of NCCL (NCCL_TOPO_DUMP_FILE), or write the "
                         "cluster file with a fabric.node_bandwidth");
    }
    if (slowest == Bandwidth() || *one.pcie < slowest) slowest = *one.pcie;
  }
  words.push_back(fmt::format("NVLinks do not join all devices: node_bandwidth is PCIe's, {}; the "
                              "efficiency and, where NCCL serves, the link figures stay those of "
                              "{}", exact_bandwidth(slowest), device.name));
  return exact_bandwidth(slowest);
}

// The cards that training uses: those behind the devices' switches if there are any, and of those
// the fastest.
void set_nics(const FoundTopology& topology, Json& fabric, std::vector<std::string>& words) {
  std::vector<TopologyNic> nics = topology.nics;
  const auto keep = [&](auto wanted, std::string_view what) {
    const auto left = std::stable_partition(nics.begin(), nics.end(), wanted);
    if (left == nics.begin() || left == nics.end()) return;
    std::vector<std::string> names;
    for (auto nic = left; nic != nics.end(); ++nic) names.push_back(nic->name);
    words.push_back(fmt::format("left out, {}: {}", what, fmt::join(names, ", ")));
    nics.erase(left, nics.end());
  };
  keep([](const TopologyNic& nic) { return nic.near; }, "far from every device");
  Bandwidth fastest;
  for (const TopologyNic& nic : nics) fastest = std::max(fastest, nic.speed.value_or(Bandwidth()));
  keep([&](const TopologyNic& nic) { return nic.speed.value_or(Bandwidth()) == fastest; },
       "slower than others");
  if (nics.empty()) {
    words.emplace_back("no network cards: those of the device's standard box stay, as a cluster "
                       "file cannot say none");
    return;
  }
  fabric["nics_per_node"] = nics.size();
  if (fastest == Bandwidth()) {
    words.emplace_back("the cards' speed is not told: nic_bandwidth stays that of the device's "
                       "standard box");
    return;
  }
  Bandwidth speed = fastest;
  for (const TopologyNic& nic : nics) {
    if (nic.pcie && *nic.pcie < speed) speed = *nic.pcie;
  }
  if (speed < fastest) {
    words.push_back(fmt::format("the cards' PCIe slots are slower than they: nic_bandwidth is {}, "
                                "not {}", exact_bandwidth(speed), exact_bandwidth(fastest)));
  }
  fabric["nic_bandwidth"] = exact_bandwidth(speed);
}

std::string summary(const FoundTopology& t) {
  std::string text = fmt::format("{} {}", t.devices.size(),
                                 t.devices.size() == 1 ? "device" : "devices");
  if (t.sm > 0) text += fmt::format(" (sm {})", t.sm);
  if (t.devices.front().links > 0) {
    text += fmt::format(", {} links each", t.devices.front().links);
    if (t.nvlink_switches > 0) {
      text += fmt::format(" to {} NVSwitches", t.nvlink_switches);
    } else if (t.switched) {
      text += " to NVSwitches";
    }
  }
  text += fmt::format(", {} network {}", t.nics.size(), t.nics.size() == 1 ? "card" : "cards");
  if (t.pcie_switches > 0) text += fmt::format(", {} PCIe switches", t.pcie_switches);
  if (!t.cpu_vendors.empty()) text += fmt::format(", CPU {}", fmt::join(t.cpu_vendors, " and "));
  return text;
}

}  // namespace

FoundTopology read_smi_topology(std::string_view text, const std::string& file) {
  const Matrix matrix = read_matrix(text, file);
  const auto gpus = static_cast<std::size_t>(
      std::count_if(matrix.columns.begin(), matrix.columns.end(),
                    [](const std::string& column) { return is_gpu(column); }));
  if (gpus == 0) {
    throw Error(file, "has no matrix of devices: give what `nvidia-smi topo -m` prints");
  }
  if (!std::all_of(matrix.columns.begin(),
                   matrix.columns.begin() + static_cast<std::ptrdiff_t>(gpus), is_gpu)) {
    throw Error(file, "has cards before devices in its header, as nvidia-smi never prints it");
  }
  if (matrix.gpus.size() != gpus) {
    throw Error(file, fmt::format("has {} devices in its header and {} rows of them; was it cut?",
                                  gpus, matrix.gpus.size()));
  }
  FoundTopology topology;
  topology.joined = reaches_all(matrix, gpus);
  for (std::size_t i = gpus; i < matrix.columns.size(); ++i) {
    TopologyNic nic;
    nic.name = matrix.columns[i];
    for (const std::vector<std::string>& row : matrix.gpus) {
      nic.near = nic.near || row[i] == "PIX" || row[i] == "PXB";
    }
    topology.nics.push_back(std::move(nic));
  }
  for (const std::vector<std::string>& row : matrix.gpus) {
    int sum = 0, most = 0;
    for (std::size_t peer = 0; peer < gpus; ++peer) {
      const int count = nvlinks(row[peer]).value_or(0);
      sum += count;
      most = std::max(most, count);
    }
    // More than a device has: each link leads to all peers, through switches.
    const bool switched = sum > kLinksOfADevice;
    topology.switched = topology.switched || switched;
    topology.devices.push_back({switched ? most : sum, {}});
  }
  return topology;
}

std::string device_of_topology(const FoundTopology& topology, const std::string& place) {
  if (topology.pci_ids.size() == 1) {
    const KnownProduct* known = known_pci_device(topology.pci_ids.front());
    if (known != nullptr) return std::string(known->device);
  }
  throw Error(place, fmt::format("does not tell which device it is{}: give --device NAME "
                                 "(`stepcast list devices`)",
                                 topology.sm > 0 ? fmt::format(" (sm {})", topology.sm) : ""));
}

Json topology_cluster(const FoundTopology& topology, const Device& device, const std::string& place,
                      std::vector<std::string>& words) {
  STEPCAST_CHECK(!topology.devices.empty(), "a topology with devices");
  check_generation(topology, device, place);
  words.push_back(fmt::format("{}: {}", place, summary(topology)));
  Json fabric = Json::object();
  const Json bandwidth = node_bandwidth(topology, device, place, words);
  if (!bandwidth.is_null()) fabric["node_bandwidth"] = bandwidth;
  set_nics(topology, fabric, words);
  if (topology.hosts > 1) {
    words.push_back(fmt::format("{} hosts in one file: they count as one box", topology.hosts));
  }
  if (device.nccl && topology.cpu_vendors.size() == 1) {
    const bool intel = topology.cpu_vendors.front() == "GenuineIntel";
    const bool amd = topology.cpu_vendors.front() == "AuthenticAMD";
    if ((intel || amd) && intel != (device.nccl->host == HostCpu::kIntel)) {
      words.push_back(fmt::format("the CPU is not the one that {} assumes (nccl.host): NCCL's "
                                  "choices differ a little", device.name));
    }
  }
  words.emplace_back("not in a cluster file: which card is near which device (a box's cards are "
                     "shared evenly), PCIe switches, CPUs; latencies and efficiencies are the "
                     "device's");
  return {{"description", summary(topology)},
          {"nodes", 1},
          {"devices_per_node", topology.devices.size()},
          {"fabric", std::move(fabric)}};
}

}  // namespace stepcast
