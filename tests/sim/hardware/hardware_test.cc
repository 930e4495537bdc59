#include "sim/hardware/hardware.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/mesh.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

std::filesystem::path configs() {
  return std::filesystem::path(STEPCAST_SOURCE_DIR) / "configs";
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Document device_file(const std::string& name) {
  const std::filesystem::path path = configs() / "devices" / (name + ".json");
  return parse_json(slurp(path), path.string());
}

std::vector<std::filesystem::path> files_of(const char* folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(configs() / folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  return files;
}

// The message of the Error that `call` throws, place first; "" if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.where() + ": " + error.message();
  }
  return "";
}

Cluster cluster_of(const std::string& text) {
  const Document document = parse_json(text, "cluster.json");
  return read_cluster(Object(document), read_device(device_file("h100-sxm")));
}

TEST(Device, EveryShippedFileReadsAndNamesASourceForEveryKey) {
  const auto files = files_of("devices");
  ASSERT_GE(files.size(), 6u);
  for (const auto& path : files) {
    SCOPED_TRACE(path.string());
    const Document document = parse_json(slurp(path), path.string());
    const Device device = read_device(document);
    EXPECT_EQ(device.name, path.stem().string());
    for (const auto& [key, value] : document.root.items()) {
      if (key == "name" || key == "description" || key == "sources") continue;
      EXPECT_EQ(device.sources.count(key), 1u) << key << " has no source";
    }
  }
}

// NVIDIA H100 data sheet (SXM): 989 TFLOP/s bf16, 1,979 fp8, 3.35 TB/s, NVLink 900 GB/s in both
// directions; 400 Gb/s are 50e9 bytes a second.
TEST(Device, ReadsTheH100AsItsDataSheetHasIt) {
  const Device device = read_device(device_file("h100-sxm"));
  EXPECT_DOUBLE_EQ(device.matrix_rate.at(Dtype::kBf16).value, 989e12);
  EXPECT_DOUBLE_EQ(device.matrix_rate.at(Dtype::kFp8).value, 1979e12);
  EXPECT_DOUBLE_EQ(device.memory_bandwidth.value, 3350e9);
  EXPECT_DOUBLE_EQ(device.node_bandwidth.value, 450e9);
  EXPECT_DOUBLE_EQ(device.nic_bandwidth.value, 50e9);
  EXPECT_EQ(device.multiprocessors, 132);
  EXPECT_EQ(device.cache, mebibytes(50));
  EXPECT_LT(device.memory.count, 80ll << 30);
}

// NVIDIA/nccl src/graph/topo.h: 18 links x 20.6 GB/s.
TEST(Device, SaysWhatNcclsTunerTakesItFor) {
  const Device h100 = read_device(device_file("h100-sxm"));
  ASSERT_TRUE(h100.nccl);
  EXPECT_EQ(h100.nccl->generation, NcclGeneration::kHopper);
  EXPECT_EQ(h100.nccl->host, HostCpu::kIntel);
  EXPECT_TRUE(h100.nccl->nvls);
  EXPECT_NEAR(h100.nccl->link_bandwidth.value, 18 * 20.6e9, 1);
  EXPECT_FALSE(read_device(device_file("mi300x")).nccl);
}

TEST(Device, HasAnothersDieNotItsOwn) {
  EXPECT_EQ(read_device(device_file("h800-sxm")).die, "h100-sxm");
  EXPECT_EQ(read_device(device_file("h100-sxm")).die, "");
  Document document = device_file("h100-sxm");
  document.root["die"] = "h100-sxm";
  EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr("die: must be another device"));
}

TEST(Device, RefusesAnNcclThatCannotBe) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"generation", "pascal"}, {"generation", nullptr}, {"host", "arm"},
      {"host", nullptr},        {"link_bandwidth", "0 GB/s"}, {"link_bandwidth", nullptr},
      {"nvls", "yes"},          {"nvlss", true}};
  for (const auto& [key, value] : cases) {
    Document document = device_file("h100-sxm");
    document.root["nccl"][key] = value;
    EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr(key)) << value;
  }
  for (const char* device : {"a100-80gb", "v100-sxm3"}) {
    Document document = device_file(device);
    document.root["nccl"]["nvls"] = true;
    EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr("nvls")) << device;
  }
}

TEST(Device, NamesAnUnknownKeyAndTheNearestRightOne) {
  Document document = device_file("h100-sxm");
  document.root["memory_bandwith"] = "1 GB/s";
  const std::string error = error_of([&] { read_device(document); });
  EXPECT_THAT(error, HasSubstr("memory_bandwith"));
  EXPECT_THAT(error, HasSubstr("memory_bandwidth"));
}

TEST(Device, RefusesASourceForAKeyThatDoesNotExist) {
  Document document = device_file("h100-sxm");
  document.root["sources"]["memroy"] = "somewhere";
  EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr("memroy"));
}

TEST(Device, SaysHowFastIntegersAreOnlyWhereThatIsNotHalfOfFp32) {
  EXPECT_EQ(read_device(device_file("a100-80gb")).integer_rate->value, 19.5e12);
  EXPECT_FALSE(read_device(device_file("h100-sxm")).integer_rate.has_value());
}

TEST(Device, RefusesValuesThatNoDeviceHas) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"matrix_efficiency", 1.5}, {"matrix_efficiency", 0},        {"multiprocessors", 0},
      {"memory", "0 GB"},         {"memory_bandwidth", "0 GB/s"},  {"memory", 80},
      {"matrix_rate", Json::object()}, {"nics_per_node", 0},       {"vector_rate", "67 GB/s"},
      {"integer_rate", "0 TFLOP/s"}};
  for (const auto& [key, value] : cases) {
    Document document = device_file("h100-sxm");
    document.root[key] = value;
    EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr(key)) << value;
  }
  for (const char* key : {"matrix_efficiency", "memory", "node_latency", "nic_efficiency"}) {
    Document document = device_file("h100-sxm");
    document.root.erase(key);
    EXPECT_THAT(error_of([&] { read_device(document); }), HasSubstr(key));
  }
}

TEST(Cluster, EveryShippedFileReadsAndNamesItsSource) {
  const auto files = files_of("clusters");
  ASSERT_GE(files.size(), 3u);
  for (const auto& path : files) {
    SCOPED_TRACE(path.string());
    const Document document = parse_json(slurp(path), path.string());
    const Object object(document);
    EXPECT_FALSE(object.string("source").empty());
    const Cluster cluster = read_cluster(object, read_device(device_file(object.string("device"))));
    EXPECT_EQ(cluster.name, path.stem().string());
  }
}

TEST(Cluster, TakesFromTheStandardBoxWhatItsFileDoesNotSay) {
  const Cluster cluster = cluster_of(R"({"device": "h100-sxm", "nodes": 4})");
  EXPECT_EQ(cluster.devices(), 32);
  EXPECT_EQ(cluster.nics_per_node, 8);
  EXPECT_DOUBLE_EQ(cluster.node_bandwidth.value, 450e9 * 0.812);
  EXPECT_DOUBLE_EQ(cluster.nic_bandwidth.value, 50e9 * 0.94);
}

TEST(Cluster, AppliesTheEfficiencyToANominalBandwidth) {
  const Cluster cluster = cluster_of(
      R"({"device": "h100-sxm", "nodes": 2, "devices_per_node": 4,
          "fabric": {"nic_bandwidth": "200 Gb/s", "nic_efficiency": 0.5, "nics_per_node": 2,
                     "node_bandwidth": "100 GB/s", "node_latency": "1 us"},
          "slow_devices": [{"device": 7, "factor": 1.25}]})");
  EXPECT_DOUBLE_EQ(cluster.nic_bandwidth.value, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster.node_bandwidth.value, 100e9 * 0.812);
  EXPECT_DOUBLE_EQ(cluster.node_latency.value, 1e-6);
  EXPECT_EQ(cluster.nics_per_node, 2);
  ASSERT_EQ(cluster.slow_devices.size(), 1u);
  EXPECT_DOUBLE_EQ(cluster.slow_devices.at(7), 1.25);
}

TEST(Cluster, RefusesWhatCannotBeAndSaysWhere) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"device": "x", "nodes": 1000000})", "nodes"},
      {R"({"device": "x", "nodes": 0})", "nodes"},
      {R"({"device": "x", "nodez": 2})", "nodez"},
      {R"({"device": "x", "fabric": {"nic_speed": "1 GB/s"}})", "nic_speed"},
      {R"({"device": "x", "fabric": {"nic_bandwidth": "0 Gb/s"}})", "nic_bandwidth"},
      {R"({"device": "x", "nodes": 2, "fabric": {"nics_per_node": 0}})", "cannot reach each other"},
      {R"({"device": "x", "fabric": {"oversubscription": 0.5, "nodes_per_leaf": 2}})",
       "oversubscription: must be from 1"},
      {R"({"device": "x", "fabric": {"oversubscription": 2}})", "nodes_per_leaf"},
      {R"({"device": "x", "fabric": {"spines": 0}})", "spines"},
      {R"({"device": "x", "box": {"links": "nvlink"}})", "switch"},
      {R"({"device": "x", "box": {"pcie_switch": 4}})", "pcie_switches"},
      {R"({"device": "x", "devices_per_node": 1000, "box": {"links": "pcie"}})",
       "devices_per_node: a box of 1000"},
      {R"({"device": "x", "slow_links": [{"from": "node0/nic0", "to": "leaf0"}]})", "speed"},
      {R"({"device": "x", "slow_links": [{"from": "node0/nic0", "to": "leaf0", "speed": 2}]})",
       "speed"},
      {R"({"device": "x", "slow_links": [{"from": "node1/nic0", "to": "leaf0", "speed": 0}]})",
       "cluster.json:1: slow_links[0]: the cluster has no link node1/nic0 to leaf0"},
      {R"({"device": "x", "nodes": 2, "fabric": {"nics_per_node": 1},
           "slow_links": [{"from": "node1/nic0", "to": "leaf0", "speed": 0}]})",
       "node1/device0 reaches no network"},
      {R"({"device": "x", "slow_devices": [{"device": 8, "factor": 2}]})", "device"},
      {R"({"device": "x", "slow_devices": [{"device": -1, "factor": 2}]})", "device"},
      {R"({"device": "x", "slow_devices": [{"device": 1, "factor": 0.5}]})", "factor"},
      {R"({"device": "x", "slow_devices": [{"device": 1}]})", "factor"},
      {R"({"device": "x", "slow_devices": [{"device": 1, "factor": 2},
                                           {"device": 1, "factor": 3}]})", "named twice"}};
  for (const auto& [text, part] : cases) {
    EXPECT_THAT(error_of([&text = text] { cluster_of(text); }), HasSubstr(part)) << text;
  }
}

TEST(Cluster, TakesItsBoxFromTheDeviceUnlessItSaysOtherwise) {
  const Cluster standard = cluster_of(R"({"device": "h100-sxm"})");
  EXPECT_EQ(standard.box.links, BoxLinks::kSwitch);
  EXPECT_DOUBLE_EQ(standard.box.pcie_bandwidth.value, 63e9 * 0.762);
  const Cluster pcie = cluster_of(
      R"({"device": "h100-sxm", "fabric": {"nics_per_node": 0},
          "box": {"links": "pcie", "pcie_bandwidth": "32 GB/s", "pcie_efficiency": 0.5,
                  "host_bandwidth": "100 GB/s", "peer_to_peer": false}})");
  EXPECT_DOUBLE_EQ(pcie.box.pcie_bandwidth.value, 16e9);
  EXPECT_DOUBLE_EQ(pcie.node_bandwidth.value, 16e9);  // nothing in it is faster
  EXPECT_DOUBLE_EQ(pcie.box.host_bandwidth.value, 100e9);
  EXPECT_FALSE(pcie.box.peer_to_peer);
  EXPECT_EQ(pcie.box.sockets, standard.box.sockets);
  EXPECT_EQ(pcie.nics_per_node, 0);
}

// Cores that compute and copy: one stream, one memory for all.
TEST(Device, OfACpuDoesEverythingInOrder) {
  const Device cpu = read_device(device_file("cpu"));
  EXPECT_TRUE(cpu.one_stream);
  EXPECT_FALSE(cpu.box.peer_to_peer);
  EXPECT_EQ(cpu.box.cores, 0);
  EXPECT_FALSE(read_device(device_file("h100-sxm")).one_stream);
}

TEST(Cluster, SaysHowManyCoresItsDevicesAre) {
  EXPECT_EQ(cluster_of(R"({"device": "h100-sxm", "box": {"cores": 6}})").box.cores, 6);
  EXPECT_THAT(error_of([] { cluster_of(R"({"device": "h100-sxm", "box": {"cores": -1}})"); }),
              HasSubstr("cores"));
}

// 448 GB/s are seven links of 64; among four devices three of them count.
TEST(StandardCluster, HasTheLinksOfItsDevicesOnly) {
  const Device device = read_device(device_file("mi300x"));
  EXPECT_EQ(device.box.links, BoxLinks::kDirect);
  EXPECT_DOUBLE_EQ(standard_cluster(device, 1, 4).node_bandwidth.value, 3 * 64e9 * 0.75);
}

TEST(StandardCluster, HoldsAtMostAsManyDevicesAsAMeshHasRanks) {
  const Device device = read_device(device_file("h100-sxm"));
  EXPECT_EQ(standard_cluster(device, kRanksMax / 8, 8).devices(), kRanksMax);
  EXPECT_THROW(standard_cluster(device, kRanksMax / 8 + 1, 8), Error);
  EXPECT_THROW(standard_cluster(device, 0, 8), Error);
  EXPECT_THROW(standard_cluster(device, 1, -8), Error);
}

// Half a box has half of its NICs; one device keeps one.
TEST(StandardCluster, GivesAPartOfABoxItsShareOfTheNics) {
  const Device device = read_device(device_file("h100-sxm"));
  EXPECT_EQ(standard_cluster(device, 2, 8).nics_per_node, 8);
  EXPECT_EQ(standard_cluster(device, 2, 4).nics_per_node, 4);
  EXPECT_EQ(standard_cluster(device, 2, 1).nics_per_node, 1);
  EXPECT_EQ(standard_cluster(device, 128, 8).name, "h100-sxm-128x8");
}

TEST(ClusterName, SplitsOnlyTheStandardForm) {
  std::string device = "untouched";
  int nodes = -1, devices = -1;
  for (const char* name : {"", "h100-sxm", "-2x8", "h100-sxm-2x", "h100-sxm-x8", "h100-2x8b",
                           "h100--2x8x1", "2x8"}) {
    EXPECT_FALSE(split_cluster_name(name, device, nodes, devices)) << name;
  }
  EXPECT_EQ(device, "untouched");
  ASSERT_TRUE(split_cluster_name("h100-sxm-128x8", device, nodes, devices));
  EXPECT_EQ(device, "h100-sxm");
  EXPECT_EQ(nodes, 128);
  EXPECT_EQ(devices, 8);
  // Too large to hold, yet of the form: standard_cluster says what is wrong.
  ASSERT_TRUE(split_cluster_name("b200-99999999999x8", device, nodes, devices));
  EXPECT_GT(nodes, kRanksMax);
}

}  // namespace
}  // namespace stepcast
