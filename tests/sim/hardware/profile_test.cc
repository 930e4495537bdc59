#include "sim/hardware/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/program.h"
#include "tests/support/replaced.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kProfileText = R"({"format": "stepcast.profile/1", "name": "box",
"device": "h100-sxm", "basis": "measured",
"provenance": {"nccl": "2.29.2", "date": "2026-08-01"},
"wires": [
{"collective": "all-reduce", "ranks": 8, "nodes": 1, "samples": 3, "spread": 0.03,
"points": [{"bytes": "1 MiB", "seconds": "37 us"},
{"bytes": 2000000, "seconds": "0.05 ms"}]}]})";

std::string profile_error(const std::string& text) {
  try {
    read_profile(parse_json(text, "p.json"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Profile, ReadsUnitsAndCounts) {
  const Profile profile = read_profile(parse_json(kProfileText, "p.json"));
  EXPECT_EQ(profile.name, "box");
  EXPECT_EQ(profile.device, "h100-sxm");
  EXPECT_EQ(profile.basis, Basis::kMeasured);
  EXPECT_EQ(profile.provenance.at("nccl"), "2.29.2");
  ASSERT_EQ(profile.wires.size(), 1u);
  const WireCurve& curve = profile.wires[0];
  EXPECT_EQ(curve.collective, "all-reduce");
  EXPECT_EQ(curve.ranks, 8);
  EXPECT_EQ(curve.samples, 3);
  EXPECT_EQ(curve.spread, 0.03);
  const std::vector<WirePoint> points = {{mebibytes(1), microseconds(37)},
                                         {Bytes(2000000), microseconds(50)}};
  ASSERT_EQ(curve.points.size(), 2u);
  EXPECT_EQ(curve.points[0].bytes, points[0].bytes);
  EXPECT_DOUBLE_EQ(curve.points[0].time.value, points[0].time.value);
  EXPECT_EQ(curve.points[1].bytes, points[1].bytes);
  EXPECT_DOUBLE_EQ(curve.points[1].time.value, points[1].time.value);
}

TEST(Profile, WrittenReadsBackToTheSame) {
  Profile profile = read_profile(parse_json(kProfileText, "p.json"));
  profile.description = "a \"box\"";
  profile.basis = Basis::kFitted;
  profile.wires[0].points.push_back({Bytes(3 << 20), Seconds(1.0 / 3)});
  const Json json = write_profile(profile);
  const Profile back = read_profile(parse_json(json.dump(), "written"));
  EXPECT_EQ(back.wires, profile.wires);
  EXPECT_EQ(back.description, profile.description);
  EXPECT_EQ(back.basis, profile.basis);
  EXPECT_EQ(back.provenance, profile.provenance);
  EXPECT_EQ(write_profile(back), json);
}

TEST(Profile, NamesThePlaceOfWhatIsWrong) {
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"samples\"", "\"sample\"")),
              HasSubstr("p.json:5: wires.0.sample: unknown key"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"samples\"", "\"sample\"")),
              HasSubstr("did you mean \"samples\"?"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "all-reduce", "all-reduced")),
              HasSubstr("did you mean \"all-reduce\"?"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "2000000", "1048576")), HasSubstr("p.json:7"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "2000000", "1048576")),
              HasSubstr("must ascend"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "37 us", "0 us")), HasSubstr("more than zero"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "37 us", "37")), HasSubstr("p.json:6"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "37 us", "1e300 h")), HasSubstr("p.json:6"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "2000000", "0")), HasSubstr("p.json:7"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"nodes\": 1", "\"nodes\": 9")),
              HasSubstr("8 ranks cannot span 9 nodes"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"ranks\": 8", "\"ranks\": 1")),
              HasSubstr("from 2"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "profile/1", "report/1")),
              HasSubstr("stepcast import"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"measured\"", "\"datasheet\"")),
              HasSubstr("basis"));
  EXPECT_THAT(profile_error(replaced(kProfileText, "\"2.29.2\"", "2")),
              HasSubstr("provenance.nccl"));
}

TEST(Profile, RefusesACurveThatIsThereTwice) {
  const std::string curve =
      R"({"collective": "send-receive", "ranks": 2, "nodes": 2,
          "points": [{"bytes": "1 B", "seconds": "5 us"}]})";
  const std::string head = R"({"format": "stepcast.profile/1", "name": "x", "device": "y",
                               "wires": [)";
  EXPECT_EQ(profile_error(head + curve + "]}"), "");
  EXPECT_THAT(profile_error(head + curve + "," + curve + "]}"), HasSubstr("is there twice"));
  EXPECT_THAT(profile_error(
                  head + replaced(curve, "{\"bytes\": \"1 B\", \"seconds\": \"5 us\"}", "") + "]}"),
              HasSubstr("at least one"));
}

// The floor below does not know TransferKind; the names must be its all the same.
TEST(Profile, HasTheCollectivesOfATransfer) {
  std::vector<std::string> names;
  for (const TransferKind kind :
       {TransferKind::kAllReduce, TransferKind::kAllGather, TransferKind::kReduceScatter,
        TransferKind::kBroadcast, TransferKind::kAllToAll, TransferKind::kSendReceive}) {
    std::string name(transfer_name(kind));
    for (char& c : name) c = c == '_' ? '-' : c;
    names.push_back(name);
  }
  EXPECT_EQ(collective_names(), names);
}

// What a data sheet gives; `die` is the device whose kernels were fitted.
Device on_links(BoxLinks links, double bandwidth, const std::string& die = "") {
  Device device;
  device.die = die;
  device.kernels.attention["generic"] = {0.7, 0.5};
  device.kernels.usual_attention = "generic";
  device.box.links = links;
  device.node_bandwidth = gigabytes_per_second(bandwidth);
  device.node_bandwidth_efficiency = 0.7;
  return device;
}

// Its shares are of its own peaks. A ring's last copy takes as long as on the fitted box, whose
// links are 450 / 200 times as fast: so many steps fewer.
TEST(Profile, OfTheSameDieServesADeviceWithItsOwnLinks) {
  Profile profile;
  profile.basis = Basis::kFitted;
  profile.file = "p.json";
  profile.kernels = {{"memory", 0.9},
                     {"matrix", {{"efficiency", 0.6}}},
                     {"attention", {{"flash", {{"forward", 0.65}}}}},
                     {"usual_attention", "flash"},
                     {"collectives", {{"start", "10 us"},
                                      {"ring_copy", 0.5},
                                      {"node_bandwidth_efficiency", 0.8}}}};
  const Device die = on_links(BoxLinks::kSwitch, 450);
  Device slower = on_links(BoxLinks::kSwitch, 200, "die");
  use_die(profile, die, slower);
  EXPECT_EQ(slower.kernels.memory, 0.9);
  EXPECT_EQ(slower.kernels.matrix.efficiency, 0.6);
  EXPECT_EQ(slower.kernels.matrix.basis, Basis::kFitted);
  EXPECT_EQ(slower.kernels.usual().forward, 0.65);
  EXPECT_EQ(slower.node_bandwidth_efficiency, 0.8);
  EXPECT_DOUBLE_EQ(slower.kernels.collectives.ring_copy, 0.5 * 200 / 450);
  EXPECT_EQ(slower.node_bandwidth, gigabytes_per_second(200));

  Device card = on_links(BoxLinks::kPcie, 31.5, "die");
  use_die(profile, die, card);
  EXPECT_EQ(card.kernels.matrix.efficiency, 0.6);
  EXPECT_EQ(card.node_bandwidth_efficiency, 0.7);
  EXPECT_EQ(card.kernels.collectives.ring_copy, 0);
  EXPECT_EQ(card.kernels.collectives.basis, Basis::kDatasheet);
}

TEST(Profile, OfAnotherDeviceIsRefusedWithBothNames) {
  Cluster cluster;
  cluster.name = "mine";
  cluster.device.name = "a100-80gb";
  const auto profile =
      std::make_shared<const Profile>(read_profile(parse_json(kProfileText, "p.json")));
  try {
    use_profile(cluster, profile, "plan.json:3: profile");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("plan.json:3: profile"));
    EXPECT_THAT(error.what(), HasSubstr("h100-sxm"));
    EXPECT_THAT(error.what(), HasSubstr("a100-80gb"));
  }
  EXPECT_EQ(cluster.profile, nullptr);
  cluster.device.name = "h100-sxm";
  use_profile(cluster, profile, "");
  EXPECT_EQ(cluster.profile, profile);
}

}  // namespace
}  // namespace stepcast
