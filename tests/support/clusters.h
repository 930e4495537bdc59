// Clusters of round numbers, for tests of the network.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "sim/hardware/hardware.h"
#include "sim/network/network.h"
#include "sim/program/mesh.h"
#include "tests/support/shipped_device.h"

namespace stepcast {

// 100 GB/s inside a node, one NIC of 10 GB/s a device, latencies of 1 and 5 us.
inline Cluster plain_cluster(int nodes, int devices_per_node) {
  Cluster cluster;
  cluster.name = "plain";
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  cluster.node_bandwidth = gigabytes_per_second(100);
  cluster.node_latency = microseconds(1);
  cluster.nics_per_node = devices_per_node;
  cluster.nic_bandwidth = gigabytes_per_second(10);
  cluster.nic_latency = microseconds(5);
  return cluster;
}

// A device of round numbers, for what things cost on it.
inline Device example_device() {
  Device device;
  device.name = "example";
  device.memory_bandwidth = gigabytes_per_second(2000);
  device.kernels.memory = 0.8;
  device.matrix_rate = {{Dtype::kBf16, teraflops_per_second(300)}};
  device.kernels.matrix.efficiency = 0.7;
  device.vector_rate = teraflops_per_second(20);
  device.multiprocessors = 108;
  device.kernel_start = microseconds(2);
  device.kernels.attention["generic"] = {0.5, 0.4};
  device.kernels.usual_attention = "generic";
  return device;
}

inline Mesh mesh_of(std::initializer_list<std::pair<Axis, int>> degrees) {
  Mesh mesh;
  for (const auto& [axis, degree] : degrees) mesh.degree(axis) = degree;
  return mesh;
}

// So many devices of the repository in its standard box.
inline Cluster standard_box(const std::string& device, int nodes = 1, int devices = 8) {
  return standard_cluster(shipped_device(device), nodes, devices);
}

// One group that fills its nodes.
inline Placement whole_cluster(int nodes, int ranks_per_node = 8) {
  return {nodes * ranks_per_node, nodes, ranks_per_node, 1};
}

}  // namespace stepcast
