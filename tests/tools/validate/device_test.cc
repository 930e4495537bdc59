#include "tools/validate/device.h"

#include <gtest/gtest.h>

#include "tests/support/shipped.h"
#include "tools/base/files.h"
#include "tools/whatif/devices.h"

namespace stepcast {
namespace {

std::string device_called(const std::string& gpu) {
  const NamedDevice named = find_device(gpu, shipped().devices);
  return named.device == nullptr ? "" : named.device->name;
}

// As published tables call them.
TEST(ValidateDevice, IsFoundByTheNamesThatTablesGiveIt) {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"V100-32GB-SXM3 (DGX-2)", "v100-sxm3"},
      {"V100-SXM2", "v100-sxm2"},
      {"H800-80GB-SXM (NVLink ~160GB/s, CX7 400Gb/s)", "h800-sxm"},
      {"NVIDIA A800-SXM4-80GB", "a800-80gb"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"8x H100 SXM5 (NVLink 900 GB/s)", "h100-sxm"},
      {"NVIDIA H20", "h20"},
      {"NVIDIA H200", "h200"},
      {"GH200 (Isambard-AI, 4 per node)", "gh200"},
      {"NVIDIA L40S", "l40s"},
      {"AMD MI325X", "mi325x"},
      {"AMD MI355X", "mi355x"},
      {"h800-sxm", "h800-sxm"},
      {"Tesla V100-PCIE-32GB", ""},
      {"NVIDIA P100", ""}};
  for (const auto& [gpu, device] : names) EXPECT_EQ(device_called(gpu), device) << gpu;
}

// A fit of the H100's kernels takes rows of the H800, which has the same die: the H100 is the only
// device there is to choose then.
TEST(ValidateDevice, LendsItsKernelsToTheOneOfTheSameDieThatIsNotThere) {
  const std::vector<Device> only = {load_device(find_config("devices", "h100-sxm", "test"))};
  const NamedDevice h800 = find_device("H800-80GB-SXM", only);
  ASSERT_NE(h800.device, nullptr);
  EXPECT_EQ(h800.device->name, "h100-sxm");
  EXPECT_FALSE(h800.same_links);
  EXPECT_NE(h800.assumed, "");
  EXPECT_TRUE(find_device("H800-80GB-SXM", shipped().devices).same_links);
  EXPECT_EQ(find_device("H200", only).device, nullptr);
}

}  // namespace
}  // namespace stepcast
