#include "tools/whatif/devices.h"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "sim/base/error.h"
#include "tools/base/files.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Device loaded(const std::string& name) { return load_device(find_config("devices", name, "test")); }

Json fitted(const Device& device) { return kernels_json(device, Basis::kFitted); }

// The error of reading the H800's file with another die in it; "" if there is none.
std::string trouble_with_die(const std::string& die) {
  Json json = parse_json(read_file(find_config("devices", "h800-sxm", "test")), "test").root;
  json["die"] = die;
  const fs::path path = fs::path(::testing::TempDir()) / fmt::format("die_{}.json", ::getpid());
  std::ofstream(path) << json.dump();
  std::string trouble;
  try {
    load_device(path.string());
  } catch (const Error& error) {
    trouble = error.what();
  }
  fs::remove(path);
  return trouble;
}

// The H800 is an H100 with fewer links, so that its products, attention and traffic are the same,
// share for share and second for second.
TEST(Devices, TakeTheKernelsOfTheirDie) {
  const Device h100 = loaded("h100-sxm"), h800 = loaded("h800-sxm");
  for (const char* kind : {"memory", "matrix", "attention", "usual_attention"}) {
    ASSERT_TRUE(fitted(h100).contains(kind)) << kind;
    EXPECT_EQ(fitted(h800).at(kind), fitted(h100).at(kind)) << kind;
  }
  EXPECT_EQ(h800.matrix_rate, h100.matrix_rate);
  EXPECT_EQ(h800.node_bandwidth, gigabytes_per_second(200));
  EXPECT_EQ(h800.node_bandwidth_efficiency, h100.node_bandwidth_efficiency);
}

// At half the power the same die's products are slower: that is in the card's own profile.
TEST(Devices, LetTheirOwnProfileGoBeforeThatOfTheirDie) {
  const Device sxm = loaded("h100-sxm"), card = loaded("h100-pcie");
  EXPECT_EQ(fitted(card).at("attention"), fitted(sxm).at("attention"));
  EXPECT_LT(card.kernels.matrix.efficiency, sxm.kernels.matrix.efficiency);
  EXPECT_EQ(card.kernels.matrix.basis, Basis::kFitted);
  EXPECT_EQ(card.kernels.collectives.basis, Basis::kDatasheet);  // other links
}

TEST(Devices, SayWhoseProfilesServeThem) {
  EXPECT_THAT(profiles_of(loaded("h100-sxm")), ElementsAre("h100-sxm"));
  EXPECT_THAT(profiles_of(loaded("a800-80gb")), ElementsAre("a100-80gb"));
  EXPECT_THAT(profiles_of(loaded("h100-pcie")), ElementsAre("h100-pcie", "h100-sxm"));
  EXPECT_THAT(profiles_of(loaded("v100-sxm3")), IsEmpty());
  for (const std::string& name : config_names("devices")) EXPECT_NO_THROW(loaded(name)) << name;
}

TEST(Devices, NameTheDieThatIsNoneOrHasNoProfile) {
  EXPECT_EQ(trouble_with_die("h100-sxm"), "");
  EXPECT_THAT(trouble_with_die("h100-smx"), HasSubstr("die: no device is called \"h100-smx\""));
  EXPECT_THAT(trouble_with_die("mi300x"), HasSubstr("die: mi300x has no profile"));
}

}  // namespace
}  // namespace stepcast
