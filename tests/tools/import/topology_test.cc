#include "tools/import/topology.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/import/import.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Device topology_device(const std::string& name) {
  const std::string path = find_config("devices", name, "test");
  return read_device(parse_json(read_file(path), path));
}

std::string pci(const std::string& bus, const std::string& pci_class, const std::string& inside,
                const std::string& link = R"(link_speed="32.0 GT/s PCIe" link_width="16")",
                const std::string& ids = R"(vendor="0x10de" device="0x2330")") {
  return fmt::format(R"(<pci busid="{}" class="{}" {} {}>{}</pci>)", bus, pci_class, ids, link,
                     inside);
}

std::string gpu(int i, const std::string& links, int sm = 90) {
  return pci(fmt::format("g{}", i), "0x030200",
             fmt::format(R"(<gpu dev="{}" sm="{}" rank="{}" gdr="1">{}</gpu>)", i, sm, i, links));
}

std::string nic(int i, int speed,
                const std::string& link = R"(link_speed="32.0 GT/s PCIe" link_width="16")") {
  return pci(fmt::format("n{}", i), "0x020700",
             fmt::format(R"(<nic><net name="mlx5_{}" dev="{}" speed="{}" port="1"/></nic>)", i, i,
                         speed),
             link, R"(vendor="0x15b3" device="0x1021")");
}

std::string link(const std::string& target, int count, const std::string& target_class) {
  return fmt::format(R"(<nvlink target="{}" count="{}" tclass="{}"/>)", target, count,
                     target_class);
}

std::string box(const std::string& inside) {
  return fmt::format(R"(<system version="1"><cpu host_hash="0x1" numaid="0" arch="x86_64" )"
                     R"(vendor="GenuineIntel" familyid="6" modelid="143">{}</cpu></system>)",
                     inside);
}

// Two PCIe switches with a device and a card each, four NVSwitches.
std::string two_h100() {
  std::string inside;
  for (int i = 0; i < 2; ++i) {
    std::string links;
    for (int s = 0; s < 4; ++s) {
      links += link(fmt::format("s{}", s), s < 2 ? 5 : 4, "0x068000");
    }
    inside += pci(fmt::format("p{}", i), "0x060400", gpu(i, links) + nic(i, 400000));
  }
  return box(inside);
}

struct Read {
  Json cluster;
  std::string words, error;
};

template <class Reader>
Read read(Reader reader, const std::string& text, const std::string& name) {
  Read result;
  try {
    const FoundTopology topology = reader(text, "x");
    std::vector<std::string> words;
    const Device of = topology_device(name.empty() ? device_of_topology(topology, "x") : name);
    result.cluster = topology_cluster(topology, of, "x", words);
    result.cluster["device"] = of.name;
    result.words = fmt::format("{}", ::testing::PrintToString(words));
    // Whatever is written can be read.
    const Document document = parse_json(result.cluster.dump(), "cluster");
    read_cluster(Object(document), of);
  } catch (const Error& error) {
    result.error = error.what();
  }
  return result;
}

Read read_xml(const std::string& text, const std::string& name = "") {
  return read(read_nccl_topology, text, name);
}
Read read_smi(const std::string& text, const std::string& name = "h100-sxm") {
  return read(read_smi_topology, text, name);
}

// 5 + 5 + 4 + 4 links of 25 GB/s are 450 GB/s; 400,000 Mb/s are 50 GB/s.
TEST(NcclTopology, CountsDevicesLinksAndCards) {
  const Read box = read_xml(two_h100());
  EXPECT_EQ(box.error, "");
  EXPECT_EQ(box.cluster.at("device"), "h100-sxm");  // 10de:2330
  EXPECT_EQ(box.cluster.at("nodes"), 1);
  EXPECT_EQ(box.cluster.at("devices_per_node"), 2);
  const Json fabric = {{"node_bandwidth", "450 GB/s"},
                       {"nics_per_node", 2},
                       {"nic_bandwidth", "50 GB/s"}};
  EXPECT_EQ(box.cluster.at("fabric"), fabric);
  EXPECT_THAT(box.words, HasSubstr("18 links each to 4 NVSwitches"));
  EXPECT_THAT(box.words, HasSubstr("2 PCIe switches, CPU GenuineIntel"));
}

// 4 links to each of three others: 12 of 25 GB/s.
TEST(NcclTopology, AddsUpLinksFromDeviceToDevice) {
  std::string inside;
  for (int i = 0; i < 4; ++i) {
    std::string links;
    for (int j = 0; j < 4; ++j) {
      if (j != i) links += link(fmt::format("g{}", j), 4, "0x030200");
    }
    inside += gpu(i, links, 80);
  }
  const Read mesh = read_xml(box(inside), "a100-80gb");
  EXPECT_EQ(mesh.error, "");
  EXPECT_EQ(mesh.cluster.at("fabric").at("node_bandwidth"), "300 GB/s");
  EXPECT_THAT(mesh.words, HasSubstr("no network cards"));
}

// PCIe 5.0 x 16: 32 GT/s x 16 x 128/130 / 8 = 63.0 GB/s.
TEST(NcclTopology, TakesPcieWhereLinksDoNotJoinAllDevices) {
  const std::string pair01 = gpu(0, link("g1", 12, "0x030200")) +
                             gpu(1, link("g0", 12, "0x030200"));
  const std::string pair23 = gpu(2, link("g3", 12, "0x030200")) +
                             gpu(3, link("g2", 12, "0x030200"));
  const Read pairs = read_xml(box(pair01 + pair23));
  EXPECT_EQ(pairs.error, "");
  const std::string text = pairs.cluster.at("fabric").at("node_bandwidth").get<std::string>();
  EXPECT_NEAR(parse_bandwidth(text, "").value, 32e9 * 16 / 8 * 128 / 130, 1);
  EXPECT_THAT(pairs.words, HasSubstr("NVLinks do not join all devices"));
  EXPECT_EQ(read_xml(box(pair01)).cluster.at("fabric").at("node_bandwidth"), "300 GB/s");
}

// A file for NCCL_TOPO_FILE: no <gpu>, <net> or <nvlink>, lanes as virtual machines have them.
TEST(NcclTopology, CountsByClassInAStaticFileAndLeavesItsLinksOpen) {
  std::string inside;
  for (int i = 0; i < 4; ++i) {
    inside += pci(fmt::format("p{}", i), "0x060400",
                  pci(fmt::format("g{}", i), "0x030200", "",
                      R"(link_speed="8 GT/s" link_width="0")", "") +
                      pci(fmt::format("n{}", i), "0x020700", "", "", ""));
  }
  const Read file = read_xml(box(inside), "h100-sxm");
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.cluster.at("devices_per_node"), 4);
  EXPECT_EQ(file.cluster.at("fabric"), Json({{"nics_per_node", 4}}));
  EXPECT_THAT(file.words, HasSubstr("lists no NVLinks"));
  EXPECT_THAT(file.words, HasSubstr("speed is not told"));
  EXPECT_THAT(read_xml(box(inside)).error, HasSubstr("give --device NAME"));
}

// A slot of PCIe 3.0 x 8 carries 7.88 GB/s, less than a card of 100 Gb/s.
TEST(NcclTopology, LeavesOutSlowAndFarCardsAndMindsTheirSlots) {
  const std::string switched = link("s0", 18, "0x068000");
  const std::string narrow = R"(link_speed="8.0 GT/s PCIe" link_width="8")";
  const Read box1 = read_xml(box(pci("p0", "0x060400", gpu(0, switched) + nic(0, 400000)) +
                                 pci("p1", "0x060400", gpu(1, switched) + nic(1, 25000)) +
                                 nic(9, 400000)));
  EXPECT_EQ(box1.cluster.at("fabric").at("nics_per_node"), 1);
  EXPECT_THAT(box1.words, HasSubstr("far from every device: mlx5_9"));
  EXPECT_THAT(box1.words, HasSubstr("slower than others: mlx5_1"));
  const Read box2 = read_xml(box(gpu(0, switched) + gpu(1, switched) + nic(0, 100000, narrow)));
  const std::string text = box2.cluster.at("fabric").at("nic_bandwidth").get<std::string>();
  EXPECT_NEAR(parse_bandwidth(text, "").value, 8e9 * 8 / 8 * 128 / 130, 1);
  EXPECT_THAT(box2.words, HasSubstr("slots are slower"));
}

// As nvidia-smi and rocm-smi print them. An H800 on PCIe is another product.
TEST(KnownProducts, AreShippedDevices) {
  const std::vector<std::pair<const char*, const char*>> products = {
      {"Tesla V100-SXM3-32GB", "v100-sxm3"}, {"NVIDIA A800-SXM4-80GB", "a800-80gb"},
      {"NVIDIA H800", "h800-sxm"},           {"NVIDIA H20", "h20"},
      {"NVIDIA H100 PCIe", "h100-pcie"},     {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA L40S", "l40s"},               {"AMD Instinct MI325X", "mi325x"}};
  for (const auto& [product, device] : products) {
    const KnownProduct* known = known_product(product);
    ASSERT_NE(known, nullptr) << product;
    EXPECT_EQ(known->device, device);
    EXPECT_EQ(known_pci_device(known->pci), known);
    EXPECT_NO_THROW(find_config("devices", device, "test")) << product;
  }
  EXPECT_EQ(known_product("NVIDIA H800 PCIe"), nullptr);
}

TEST(NcclTopology, RefusesWhatIsNoTopology) {
  EXPECT_THAT(read_xml("<graphs version=\"1\"/>").error, HasSubstr("is a graph file"));
  EXPECT_THAT(read_xml("<x/>").error, HasSubstr("no <system>"));
  EXPECT_THAT(read_xml("<system>\n<cpu>").error, HasSubstr("x:2: is no XML"));
  EXPECT_THAT(read_xml("").error, HasSubstr("is no XML"));
  EXPECT_THAT(read_xml(box(nic(0, 1))).error, HasSubstr("has no devices"));
  EXPECT_THAT(read_xml(box(gpu(0, "", 80) + gpu(1, "", 90))).error, HasSubstr("two kinds"));
  EXPECT_THAT(read_xml(two_h100(), "a100-80gb").error, HasSubstr("another generation"));
  EXPECT_THAT(read_xml(box(gpu(0, "", 70) + gpu(1, "", 70)), "a100-80gb").error,
              HasSubstr("another generation"));
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "<pci>";
  for (int i = 0; i < 1000; ++i) deep += "</pci>";
  EXPECT_THAT(read_xml(box(deep)).error, HasSubstr("deeper than any machine"));
}

TEST(NcclTopology, CutAnywhereIsAnError) {
  const std::string whole = two_h100();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(read_xml(whole.substr(0, length)).error, Not(IsEmpty())) << length;
  }
}

// ------------------------------------------------------------------------------ nvidia-smi topo -m

// `cell(i, j)` of two devices; cards after them: `near(i)` tells whose switch a card is behind.
template <class Cell>
std::string matrix(int gpus, int nics, Cell cell, const std::string& separator = "\t") {
  std::string text;
  for (int j = 0; j < gpus; ++j) text += fmt::format("{}GPU{}", separator, j);
  for (int j = 0; j < nics; ++j) text += fmt::format("{}NIC{}", separator, j);
  text += separator + "CPU Affinity" + separator + "NUMA Affinity\n";
  for (int i = 0; i < gpus; ++i) {
    text += fmt::format("GPU{}", i);
    for (int j = 0; j < gpus; ++j) text += separator + (i == j ? " X " : cell(i, j));
    for (int j = 0; j < nics; ++j) text += separator + (i == j ? "PIX" : "SYS");
    text += separator + "0-47" + separator + "0\n";
  }
  for (int i = 0; i < nics; ++i) {
    text += fmt::format("NIC{}", i);
    for (int j = 0; j < gpus + nics; ++j) text += separator + (j == gpus + i ? " X " : "SYS");
    text += "\n";
  }
  return text + "\nLegend:\n\n  X    = Self\n  NV#  = Connection\n\nNIC Legend:\n\n"
                "  NIC0: mlx5_0\n";
}

std::string nv18(int, int) { return "NV18"; }

// 18 links to each of seven others cannot be 126 of its own: they lead through switches.
TEST(SmiTopology, KnowsSwitchedLinksFromDirectOnes) {
  const Read switched = read_smi(matrix(8, 9, nv18));
  EXPECT_EQ(switched.error, "");
  EXPECT_EQ(switched.cluster.at("devices_per_node"), 8);
  EXPECT_EQ(switched.cluster.at("fabric").at("node_bandwidth"), "450 GB/s");
  EXPECT_EQ(switched.cluster.at("fabric").at("nics_per_node"), 8);  // the ninth is far from all
  EXPECT_THAT(switched.words, HasSubstr("far from every device: NIC8"));
  const Read direct = read_smi(matrix(4, 0, [](int, int) { return "NV4"; }), "a100-80gb");
  EXPECT_EQ(direct.cluster.at("fabric").at("node_bandwidth"), "300 GB/s");  // 12 x 25
  const Read blackwell = read_smi(matrix(8, 0, nv18), "b200");
  EXPECT_EQ(blackwell.cluster.at("fabric").at("node_bandwidth"), "900 GB/s");  // 18 x 50
}

TEST(SmiTopology, ReadsSpacesAndTheUnderlineOfATerminal) {
  const std::string plain = matrix(2, 0, nv18, "   ");
  EXPECT_EQ(read_smi(plain).cluster.at("fabric").at("node_bandwidth"), "450 GB/s");
  EXPECT_EQ(read_smi("\x1b[4m" + plain).cluster.at("devices_per_node"), 2);
}

TEST(SmiTopology, RefusesDevicesThatOnlyPcieJoins) {
  EXPECT_THAT(read_smi(matrix(4, 0, [](int i, int j) {
                         return std::string(i / 2 == j / 2 ? "NV12" : "SYS");
                       })).error,
              HasSubstr("does not tell the speed of PCIe"));
  EXPECT_EQ(read_smi(matrix(1, 1, nv18)).error, "");
  EXPECT_THAT(read_smi("hello\n").error, HasSubstr("no matrix of devices"));
  EXPECT_THAT(read(read_smi_topology, matrix(8, 0, nv18), "").error, HasSubstr("give --device"));
}

// Up to the last device's row; what follows (cards, legends) says nothing new.
TEST(SmiTopology, CutInTheDevicesRowsIsAnError) {
  const std::string whole = matrix(8, 2, nv18);
  const std::size_t end = whole.find("\t0-47", whole.find("\nGPU7"));
  for (std::size_t length = 0; length < end; ++length) {
    const Read cut = read_smi(whole.substr(0, length));
    EXPECT_THAT(cut.error, Not(IsEmpty())) << length;
  }
}

}  // namespace
}  // namespace stepcast
