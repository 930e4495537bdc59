// What was measured of a device apart from plans: as text, and what a device takes from it.
#include "sim/hardware/probes.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/hardware/profile.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

const std::string kProbesText =
    R"({"format": "stepcast.profile/1", "name": "box", "device": "h100-sxm",
"memory": [
{"kernel": "copy", "bytes": "64 MiB", "seconds": "20 us", "spread": 0.01, "samples": 10},
{"kernel": "copy", "bytes": 1000000000, "seconds": "500 us"},
{"kernel": "add", "bytes": 1000000000, "seconds": "400 us"}],
"launch": {"issue": {"seconds": "3 us", "spread": 0.1, "samples": 10}, "gap": {"seconds": "1.5 us"},
"graph_issue": {"seconds": "80 us"}, "graph_gap": {"seconds": "1 us"}},
"beside": [
{"kernel": "product", "collective": "all-reduce", "ranks": 8, "nodes": 1, "groups_per_node": 2,
"bytes": "64 MiB", "kernel_factor": 1.2, "collective_factor": 1.05, "samples": 80}],
"wires": [
{"collective": "all-reduce", "ranks": 2, "nodes": 1, "points": [{"bytes": 8, "seconds": "9 us"}]},
{"collective": "all-reduce", "ranks": 2, "nodes": 1, "groups_per_node": 4,
"points": [{"bytes": 8, "seconds": "10 us"}]}]})";

Profile read_probed(const std::string& text = kProbesText) {
  return read_profile(parse_json(text, "p.json"));
}

std::string probes_error(const std::string& from, const std::string& to) {
  std::string text = kProbesText;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  try {
    read_probed(text.replace(at, from.size(), to));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Probes, AreReadWithTheirUnits) {
  const Probes probes = read_probed().probes;
  ASSERT_EQ(probes.memory.size(), 3u);
  EXPECT_EQ(probes.memory[0].kernel, "copy");
  EXPECT_EQ(probes.memory[0].bytes, mebibytes(64));
  EXPECT_DOUBLE_EQ(probes.memory[0].time.mean.value, 20e-6);
  EXPECT_EQ(probes.memory[0].time.spread, 0.01);
  EXPECT_EQ(probes.memory[0].time.samples, 10);
  ASSERT_TRUE(probes.launch);
  EXPECT_EQ(probes.launch->issue.samples, 10);
  EXPECT_DOUBLE_EQ(probes.launch->graph_gap.mean.value, 1e-6);
  ASSERT_EQ(probes.beside.size(), 1u);
  EXPECT_EQ(probes.beside[0].groups_per_node, 2);
  EXPECT_EQ(probes.beside[0].kernel_factor, 1.2);
  EXPECT_EQ(probes.beside[0].collective_factor, 1.05);
}

TEST(Probes, WrittenReadBackToTheSame) {
  const Profile profile = read_probed();
  const Json json = write_profile(profile);
  const Profile again = read_probed(json.dump());
  EXPECT_EQ(again.probes, profile.probes);
  EXPECT_EQ(again.wires, profile.wires);
  // A group that has its nodes to itself is written as it always was.
  EXPECT_FALSE(json["wires"][0].contains("groups_per_node"));
  EXPECT_EQ(json["wires"][1]["groups_per_node"], 4);
  const Json none = write_profile(Profile());
  for (const char* key : {"memory", "launch", "beside"}) EXPECT_FALSE(none.contains(key)) << key;
}

TEST(Probes, OfAFileThatIsWrongNameThePlace) {
  const auto wrong = [](const std::string& from, const std::string& to, const std::string& place) {
    EXPECT_THAT(probes_error(from, to), HasSubstr(place)) << to;
  };
  wrong("\"copy\"", "\"scale\"", "memory.0.kernel");
  wrong("\"20 us\"", "\"0 us\"", "memory.0.seconds");
  wrong("\"add\"", "\"copy\"", "memory.2: is there twice");
  wrong("\"gap\": {\"seconds\": \"1.5 us\"},", "", "gap");
  wrong("\"3 us\"", "\"-3 us\"", "launch.issue.seconds");
  wrong("\"product\"", "\"gemm\"", "beside.0.kernel");
  wrong("\"all-reduce\"", "\"reduce\"", "beside.0.collective");
  wrong("\"nodes\": 1, \"groups", "\"nodes\": 9, \"groups", "beside.0.nodes");
  wrong("\"kernel_factor\": 1.2", "\"kernel_factor\": 0", "beside.0.kernel_factor");
  wrong("\"collective_factor\": 1.05, ", "", "collective_factor");
  wrong("\"samples\": 80", "\"sample\": 80", "beside.0.sample");
  wrong("\"groups_per_node\": 4,", "", "wires.1");
}

// 1 GB in 500 us is 2 TB/s, in 400 us 2.5 TB/s: of 3 TB/s three quarters in the mean. The small
// copy fits into a cache and does not count.
TEST(Probes, GiveADeviceItsMemoryAndLaunches) {
  Device device;
  device.name = "h100-sxm";
  device.memory_bandwidth = gigabytes_per_second(3000);
  device.launch = microseconds(10);
  device.kernel_start = microseconds(7);
  device.kernels.memory = 0.9;
  use_kernels(read_probed(), device);
  EXPECT_NEAR(device.kernels.memory, 0.75, 1e-12);
  EXPECT_EQ(device.kernels.memory_basis, Basis::kInterpolated);
  EXPECT_DOUBLE_EQ(device.launch.value, 3e-6);
  EXPECT_DOUBLE_EQ(device.kernel_start.value, 1.5e-6);
  use_kernels(Profile(), device);  // says nothing, changes nothing
  EXPECT_NEAR(device.kernels.memory, 0.75, 1e-12);
}

TEST(Probes, GiveADeviceOfGraphsTheLaunchOfOneAndItsGap) {
  Device device;
  device.launch = microseconds(10);
  device.kernel_start = microseconds(7);
  use_graphs(Probes(), device);
  EXPECT_TRUE(device.graphs);
  EXPECT_EQ(device.graph_launch, microseconds(10));
  EXPECT_EQ(device.kernel_start, microseconds(7));
  use_graphs(read_probed().probes, device);
  EXPECT_DOUBLE_EQ(device.graph_launch.value, 80e-6);
  EXPECT_DOUBLE_EQ(device.kernel_start.value, 1e-6);
}

TEST(Probes, OfACollectiveAreThoseOfItsGroupAlone) {
  const Probes probes = read_probed().probes;
  EXPECT_EQ(beside_kernel(Gemm{}), "product");
  EXPECT_EQ(beside_kernel(Attention{}), "product");
  EXPECT_EQ(beside_kernel(Norm{}), "memory");
  EXPECT_EQ(find_beside(probes, "product", "all-reduce", 8, 1, 2), &probes.beside[0]);
  EXPECT_EQ(find_beside(probes, "memory", "all-reduce", 8, 1, 2), nullptr);
  EXPECT_EQ(find_beside(probes, "product", "all-gather", 8, 1, 2), nullptr);
  EXPECT_EQ(find_beside(probes, "product", "all-reduce", 4, 1, 2), nullptr);
  EXPECT_EQ(find_beside(probes, "product", "all-reduce", 8, 1, 1), nullptr);
}

}  // namespace
}  // namespace stepcast
