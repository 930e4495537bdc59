// Probes as JSON, both ways. Cost: linear in the lists, plus the square of their lengths to find
// what is there twice (a handful).
#include "sim/hardware/probes.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "sim/hardware/hardware.h"
#include "sim/hardware/profile.h"
#include "sim/hardware/size_text.h"

namespace stepcast {

namespace {

constexpr std::int64_t kSpansCountedMost = 1'000'000'000'000;
constexpr double kFactorLeast = 0.1, kFactorMost = 1000;  // beyond these it is a slip

struct LaunchKey {
  const char* key;
  Timing LaunchCosts::*member;
};
constexpr LaunchKey kLaunchKeys[] = {{"issue", &LaunchCosts::issue},
                                     {"gap", &LaunchCosts::gap},
                                     {"graph_issue", &LaunchCosts::graph_issue},
                                     {"graph_gap", &LaunchCosts::graph_gap}};

std::string name_of(const Object& object, std::string_view key,
                    const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const std::string& name : names) words.emplace_back(name, name);
  object.at(key);  // says that it is required
  return object.word<std::string>(key, "", words);
}

MemoryPoint read_memory(const Object& object) {
  MemoryPoint point;
  point.kernel = name_of(object, "kernel", memory_kernel_names());
  point.bytes = read_size(object);
  point.time = read_timing(object);
  object.done();
  return point;
}

LaunchCosts read_launch(const Object& object) {
  LaunchCosts launch;
  for (const auto& [key, member] : kLaunchKeys) {
    object.at(key);
    const Object timing = object.object(key);
    launch.*member = read_timing(timing);
    timing.done();
  }
  object.done();
  return launch;
}

BesidePoint read_beside(const Object& object) {
  BesidePoint point;
  point.kernel = name_of(object, "kernel", beside_kernel_names());
  point.collective = name_of(object, "collective", collective_names());
  read_group(object, point);
  point.bytes = read_size(object);
  for (const char* key : {"kernel_factor", "collective_factor"}) object.at(key);
  point.kernel_factor = object.number("kernel_factor", 1, kFactorLeast, kFactorMost);
  point.collective_factor = object.number("collective_factor", 1, kFactorLeast, kFactorMost);
  point.samples = object.integer("samples", 1, {1, kSpansCountedMost});
  object.done();
  return point;
}

bool same(const MemoryPoint& a, const MemoryPoint& b) {
  return a.kernel == b.kernel && a.bytes == b.bytes;
}
bool same(const BesidePoint& a, const BesidePoint& b) {
  return a.kernel == b.kernel && a.collective == b.collective && a.ranks == b.ranks &&
         a.nodes == b.nodes && a.groups_per_node == b.groups_per_node;
}

template <class Point, class Read>
std::vector<Point> read_points(const Object& root, std::string_view key, Read read) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < root.array_size(key); ++i) {
    const Object object = root.element(key, i);
    Point point = read(object);
    const bool known = std::any_of(points.begin(), points.end(),
                                   [&](const Point& other) { return same(point, other); });
    if (known) object.fail("", "is there twice");
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace

const std::vector<std::string>& memory_kernel_names() {
  static const std::vector<std::string> names = {"copy", "add"};
  return names;
}

const std::vector<std::string>& beside_kernel_names() {
  static const std::vector<std::string> names = {"product", "memory"};
  return names;
}

std::string_view beside_kernel(const Op& op) {
  return std::holds_alternative<Gemm>(op) || std::holds_alternative<Attention>(op) ? "product"
                                                                                   : "memory";
}

const BesidePoint* find_beside(const Probes& probes, std::string_view kernel,
                               std::string_view collective, int ranks, int nodes,
                               int groups_per_node) {
  for (const BesidePoint& point : probes.beside) {
    if (point.kernel == kernel && point.collective == collective && point.ranks == ranks &&
        point.nodes == nodes && point.groups_per_node == groups_per_node) {
      return &point;
    }
  }
  return nullptr;
}

Probes read_probes(const Object& root) {
  Probes probes;
  probes.memory = read_points<MemoryPoint>(root, "memory", read_memory);
  root.touch("launch");
  if (root.has("launch")) probes.launch = read_launch(root.object("launch"));
  probes.beside = read_points<BesidePoint>(root, "beside", read_beside);
  return probes;
}

void write_probes(const Probes& probes, Json& json) {
  for (const MemoryPoint& point : probes.memory) {
    Json one{{"kernel", point.kernel}, {"bytes", size_text(point.bytes)}};
    write_timing(point.time, one);
    json["memory"].push_back(std::move(one));
  }
  if (probes.launch) {
    for (const auto& [key, member] : kLaunchKeys) {
      write_timing(*probes.launch.*member, json["launch"][key]);
    }
  }
  for (const BesidePoint& point : probes.beside) {
    json["beside"].push_back({{"kernel", point.kernel},
                              {"collective", point.collective},
                              {"ranks", point.ranks},
                              {"nodes", point.nodes},
                              {"groups_per_node", point.groups_per_node},
                              {"bytes", size_text(point.bytes)},
                              {"kernel_factor", point.kernel_factor},
                              {"collective_factor", point.collective_factor},
                              {"samples", point.samples}});
  }
}

void use_probes(const Probes& probes, Basis basis, Device& device) {
  // Of the largest size of each kernel, which no cache holds; the kernels' mean.
  double sum = 0, kernels = 0;
  for (const std::string& name : memory_kernel_names()) {
    const MemoryPoint* largest = nullptr;
    for (const MemoryPoint& point : probes.memory) {
      if (point.kernel != name) continue;
      if (largest == nullptr || point.bytes > largest->bytes) largest = &point;
    }
    if (largest == nullptr) continue;
    const auto bytes = static_cast<double>(largest->bytes.count);
    sum += bytes / largest->time.mean.value / device.memory_bandwidth.value;
    ++kernels;
  }
  if (kernels > 0 && device.memory_bandwidth.value > 0) {
    device.kernels.memory = std::min(1.0, sum / kernels);
    device.kernels.memory_basis = basis;
  }
  if (!probes.launch) return;
  device.launch = probes.launch->issue.mean;
  device.kernel_start = probes.launch->gap.mean;
}

void use_graphs(const Probes& probes, Device& device) {
  device.graphs = true;
  device.graph_launch = device.launch;
  if (!probes.launch) return;
  device.graph_launch = probes.launch->graph_issue.mean;
  device.kernel_start = probes.launch->graph_gap.mean;
}

}  // namespace stepcast
