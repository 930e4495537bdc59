#include "tools/whatif/whatif.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "sim/base/error.h"
#include "sim/hardware/profile.h"
#include "tests/tools/small_whatif.h"
#include "tools/base/files.h"
#include "tools/forecast/forecast.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The error that reading ends with, as main prints it; "" if there is none.
std::string trouble(const std::vector<std::string>& sets, std::string_view text = kSmallWhatIf) {
  try {
    small_what_if(sets, text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kSmallWhatIf);
  text.replace(text.find(from), from.size(), to);
  return text;
}

class WhatIfFiles : public ::testing::Test {
 protected:
  WhatIfFiles()
      : directory_(fs::path(::testing::TempDir()) / ("whatif_" + std::to_string(::getpid()))) {
    fs::create_directories(directory_ / "sub");
  }
  ~WhatIfFiles() override { fs::remove_all(directory_); }

  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = (directory_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  fs::path directory_;
};

TEST(WhatIf, NamesFileAndLineOfAnUnknownKeyAndTheNearestOne) {
  const std::string text = replaced("\"batch\"", "\"bacth\"");
  EXPECT_EQ(trouble({}, text),
            "plan.json:6: bacth: unknown key \"bacth\" (did you mean \"batch\"?)");
}

TEST(WhatIf, NamesTheLineOfABadUnit) {
  const std::string text =
      replaced("\"name\": \"small\",", "\"expect\": {\"peak_memory\": \"<= 76 Gib\"},");
  EXPECT_THAT(trouble({}, text), StartsWith("plan.json:2: expect.peak_memory: unknown unit"));
}

TEST(WhatIf, RefusesAnExpectationThatIsNoUpperLimit) {
  EXPECT_THAT(trouble({"expect.step_time=\"12 s\""}), HasSubstr("must be an upper limit"));
  EXPECT_THAT(trouble({"expect.step_tim=\"<= 12 s\""}), HasSubstr("did you mean \"step_time\"?"));
}

TEST(WhatIf, NamesTheModelFileThatIsMissing) {
  const std::string message = trouble({"model=nowhere/model.json"});
  EXPECT_THAT(message, HasSubstr("nowhere/model.json"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

// 2 x 3 = 6 ranks on 8 devices.
TEST(WhatIf, RefusesDegreesWhoseProductIsNotTheClustersDevices) {
  const std::string text = replaced("\"data\": 4", "\"data\": 3");
  const std::string message = trouble({}, text);
  EXPECT_THAT(message, StartsWith("plan.json:7: parallel.data: "));
  EXPECT_THAT(message, HasSubstr("data 4 would match"));
}

TEST(WhatIf, RefusesATensorDegreeThatTheHeadsAreNotAMultipleOf) {
  const std::string text =
      replaced("{\"pipeline\": 2, \"data\": 4}", "{\"tensor\": 8, \"data\": 1}");
  const std::string six = "cluster.devices_per_node=6";
  EXPECT_EQ(trouble({}, text), "");
  EXPECT_THAT(trouble({six, "parallel.tensor=6"}, text),
              HasSubstr("8 heads cannot be divided by tensor 6"));
}

TEST(WhatIf, DerivesTheDataDegreeThatIsLeftOut) {
  const WhatIf what_if = small_what_if({}, replaced(", \"data\": 4", ""));
  EXPECT_EQ(what_if.plan.data, 4);
  EXPECT_EQ(what_if.resolved.at("parallel").at("data"), 4);
}

TEST(WhatIf, FillsInWhatIsLeftOut) {
  const WhatIf what_if = small_what_if();
  EXPECT_EQ(what_if.resolved.at("sharding").at("zero"), 0);
  EXPECT_EQ(what_if.resolved.at("recompute"), "none");
  EXPECT_EQ(what_if.resolved.at("model").at("ffn"), 2048);  // GPT: 4 h
  EXPECT_EQ(what_if.resolved.at("cluster").at("fabric").at("nics_per_node"), 8);
  EXPECT_TRUE(what_if.resolved.at("expect").at("step_time").is_null());
  EXPECT_EQ(what_if.tokens, 0);
  EXPECT_FALSE(what_if.expect_step_time);
}

TEST(WhatIf, TakesOverridesInTheirOrder) {
  EXPECT_EQ(small_what_if({"sharding.zero=1", "sharding.zero=2"}).plan.zero, 2);
  EXPECT_THAT(trouble({"parallel.tensr=4"}), StartsWith("--set parallel.tensr: "));
}

TEST(WhatIf, ReadsCountsOfTokensWithTheirSuffix) {
  EXPECT_EQ(small_what_if({"train.tokens=\"15T\""}).tokens, 15e12);
  EXPECT_EQ(small_what_if({"train.tokens=300 B"}).tokens, 300e9);
  EXPECT_EQ(small_what_if({"train.tokens=1500000"}).tokens, 1.5e6);
  EXPECT_THAT(trouble({"train.tokens=15X"}), HasSubstr("must be a count"));
  EXPECT_THAT(trouble({"train.tokens=0"}), HasSubstr("must be from 1"));
}

TEST(WhatIf, ResolvedReadsBackToTheSame) {
  const std::vector<std::string> sets = {
      "expect.step_time=<= 12 s",
      "train.tokens=15T",
      "cluster.slow_devices=[{\"device\": 3, \"factor\": 1.25}]",
      "cluster.fabric={\"nic_bandwidth\": \"123.456789 Gb/s\", \"node_latency\": \"0 us\"}",
      "recompute={\"every\": 2}"};
  const WhatIf once = small_what_if(sets);
  const WhatIf twice = read_what_if(parse_json(once.resolved.dump(2), "resolved.json"), ".");
  EXPECT_EQ(once.resolved.dump(2), twice.resolved.dump(2));
  EXPECT_EQ(once.plan, twice.plan);
  EXPECT_EQ(once.cluster.nic_bandwidth, twice.cluster.nic_bandwidth);
  EXPECT_EQ(once.cluster.node_latency, twice.cluster.node_latency);
  EXPECT_EQ(once.cluster.slow_devices, twice.cluster.slow_devices);
}

// An all-reduce of a second over the measured group; the forecast's step then takes longer than it.
TEST_F(WhatIfFiles, TakesMeasuredTimesFromTheProfileThatIsNamed) {
  const auto profile = [](const std::string& device) {
    return R"({"format": "stepcast.profile/1", "name": "slow", "device": ")" + device +
           R"(", "wires": [{"collective": "all-reduce", "ranks": 8, "nodes": 1,
               "points": [{"bytes": "1 B", "seconds": "1 s"},
                          {"bytes": "1 TiB", "seconds": "1 s"}]}]})";
  };
  const std::string plan = replaced("\"pipeline\": 2, \"data\": 4", "\"data\": 8");
  const std::string path = write("slow.json", profile("a100-40gb"));
  write("plan.json", replaced("\"parallel\"", "\"profile\": \"slow.json\", \"parallel\""));
  const WhatIf without = small_what_if({}, plan);
  const WhatIf with = small_what_if({"profile=" + path}, plan);
  EXPECT_EQ(without.cluster.profile, nullptr);
  EXPECT_TRUE(without.resolved.at("profile").is_null());
  ASSERT_NE(with.cluster.profile, nullptr);
  EXPECT_EQ(with.cluster.profile->name, "slow");
  EXPECT_LT(forecast(without).report.timeline.step, to_duration(Seconds(1)));
  EXPECT_GT(forecast(with).report.timeline.step, to_duration(Seconds(1)));

  // A path starts from the what-if's directory, and stays found from anywhere.
  const WhatIf beside = read_what_if((directory_ / "plan.json").string(), {});
  EXPECT_EQ(beside.resolved.at("profile"), path);
  const WhatIf twice = read_what_if(parse_json(beside.resolved.dump(), "resolved"), ".");
  EXPECT_EQ(twice.resolved.dump(), beside.resolved.dump());

  const std::string other = write("other.json", profile("h100-sxm"));
  EXPECT_THAT(trouble({"profile=" + other}), HasSubstr("is of the device h100-sxm"));
  EXPECT_THAT(trouble({"profile=" + other}), StartsWith("--set profile"));
  EXPECT_THAT(trouble({"profile=none/x.json"}), HasSubstr("there is no file"));
  EXPECT_THAT(trouble({"profile=none"}), HasSubstr("no profile is called \"none\""));
}

TEST_F(WhatIfFiles, NamesTheProfileAndTheKeyThatIsWrongInIt) {
  const std::string path = write("broken.json", R"({"format": "stepcast.profile/1",
      "name": "broken", "device": "a100-40gb", "basis": "fitted", "wires": [],
      "kernels": {"matrix": {"efficiency": 0.6, "fp8_sustained": 0.5}}})");
  EXPECT_EQ(trouble({"profile=" + path}),
            path + ": kernels.matrix.fp8_sustained: must be from 1 to 10, is 0.5");
}

// Launches of 10 us on the stream, a graph in 80 us; a kernel's begin after 3 us and 1 us.
TEST_F(WhatIfFiles, LaunchesAStepThatIsAGraphAsTheProfileMeasuredIt) {
  const std::string path = write("probed.json", R"({"format": "stepcast.profile/1",
      "name": "probed", "device": "a100-40gb", "launch": {
      "issue": {"seconds": "10 us"}, "gap": {"seconds": "3 us"},
      "graph_issue": {"seconds": "80 us"}, "graph_gap": {"seconds": "1 us"}}})");
  const auto ask = [&](const char* graphs) {
    return small_what_if({"profile=" + path, graphs, "host.pass=100 us", "host.route=50 us"});
  };
  const WhatIf issued = ask("host.graphs=false"), graph = ask("host.graphs=true");
  const Forecast without = forecast(issued), with = forecast(graph);
  // On equal devices: else each pipeline has a pace of its own.
  const auto priced = [](const Job& job, Cluster cluster) {
    cluster.device.spread = 0;
    return price(job, cluster);
  };
  const Prices before = priced(without.job, issued.cluster);
  const Prices after = priced(with.job, graph.cluster);
  EXPECT_EQ(before.issue, Duration(10'000'000));
  EXPECT_EQ(before.pass, Duration(100'000'000));
  EXPECT_EQ(before.route, Duration(50'000'000));
  EXPECT_EQ(before.graph, Duration());
  EXPECT_EQ(after.issue, Duration());
  EXPECT_EQ(after.pass, Duration());
  EXPECT_EQ(after.graph, Duration(80'000'000));
  // Each kernel begins 2 us sooner; both times are rounded. An Op may be several.
  for (std::size_t i = 0; i < after.ops.size(); ++i) {
    EXPECT_GE(before.ops[i] - after.ops[i], Duration(1'999'999)) << i;
  }
  EXPECT_LT(with.report.timeline.step, without.report.timeline.step);
  const WhatIf again = read_what_if(parse_json(graph.resolved.dump(), "resolved"), ".");
  EXPECT_EQ(again.resolved.dump(), graph.resolved.dump());
  EXPECT_EQ(forecast(again).report.timeline.step, with.report.timeline.step);
}

TEST(WhatIf, RefusesAGraphOfAStepInWhichTheHostWaits) {
  EXPECT_EQ(trouble({"host.graphs=true"}), "");
  EXPECT_EQ(
      trouble({"host.p2p_sync=true", "parallel.pipeline=1", "parallel.data=8", "host.graphs=true"}),
      "");
  for (const char* key : {"host.pass_sync=true", "host.optimizer_sync=true"}) {
    EXPECT_EQ(trouble({key}), "") << key;
    EXPECT_THAT(trouble({key, "host.graphs=true"}),
                ::testing::AllOf(StartsWith("--set host.graphs"), HasSubstr("which no graph")))
        << key;
  }
  std::vector<std::string> sets = {"parallel.pipeline_overlap=false", "host.launch_blocking=true"};
  EXPECT_EQ(trouble(sets), "");
  sets.emplace_back("host.graphs=true");
  EXPECT_THAT(trouble(sets), HasSubstr("and launch_blocking"));
}

TEST(WhatIf, RefusesAGraphOfAStepInWhichTheHostReadsCountsOfExperts) {
  const std::vector<std::string> graph = {"host.route_sync=true", "host.graphs=true"};
  EXPECT_EQ(trouble(graph), "");  // the model has no experts
  std::vector<std::string> sets = {"model=\"mixtral-8x7b\"", "parallel.expert=2",
                                   "parallel.data=8", "parallel.pipeline=1"};
  EXPECT_EQ(trouble(sets), "");
  sets.insert(sets.end(), graph.begin(), graph.end());
  EXPECT_THAT(trouble(sets), ::testing::AllOf(StartsWith("--set host.graphs"),
                                              HasSubstr("route_sync")));
}

// Every number of every shipped device survives being written and read, to the last bit.
TEST(WhatIf, ResolvedReadsBackToTheSameForEveryDeviceAndCluster) {
  std::vector<std::string> clusters = config_names("clusters");
  for (const std::string& device : config_names("devices")) clusters.push_back(device + "-1x8");
  ASSERT_GE(clusters.size(), 8u);
  for (const std::string& cluster : clusters) {
    SCOPED_TRACE(cluster);
    const std::string text = replaced("\"data\": 4", "\"schedule\": \"1f1b\"");
    const bool fp16_only = cluster.starts_with("v100");
    const WhatIf once = small_what_if({"cluster=\"" + cluster + "\"", "batch.global=73728",
                                       fp16_only ? "precision.compute=fp16" : "name=small"}, text);
    const WhatIf twice = read_what_if(parse_json(once.resolved.dump(), "resolved.json"), ".");
    EXPECT_EQ(once.resolved.dump(), twice.resolved.dump());
    EXPECT_EQ(once.cluster.node_bandwidth, twice.cluster.node_bandwidth);
    EXPECT_EQ(once.cluster.nic_latency, twice.cluster.nic_latency);
  }
}

TEST(WhatIf, ReadsEveryShippedExample) {
  int found = 0;
  for (const auto& entry : fs::directory_iterator(config_directory())) {
    if (!entry.is_regular_file() || entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().string());
    EXPECT_NO_THROW(read_what_if(entry.path().string(), {}));
    ++found;
  }
  EXPECT_GE(found, 5);
}

TEST_F(WhatIfFiles, LetsASetChangeAClusterThatIsGivenByItsName) {
  const std::string text =
      replaced(R"({"device": "a100-40gb", "nodes": 1, "devices_per_node": 8})",
               "\"a100-40gb-1x8\"");
  const std::string path = write("named.json", text);
  EXPECT_EQ(read_what_if(path, {"cluster.fabric.nics_per_node=2"}).cluster.nics_per_node, 2);
  EXPECT_EQ(read_what_if(path, {"cluster.nodes=2", "parallel.data=8"}).cluster.devices(), 16);
  // A file's cluster, whose device is relative to that file.
  fs::copy(fs::path(config_directory()) / "devices" / "h200.json",
           directory_ / "sub" / "mine.json");
  write("sub/site.json", R"({"device": "./mine.json", "fabric": {"nics_per_node": 4}})");
  const WhatIf changed = read_what_if(
      path, {"cluster=\"./sub/site.json\"", "cluster.fabric.nic_bandwidth=\"100 Gb/s\""});
  EXPECT_EQ(changed.cluster.device.name, "h200");
  EXPECT_EQ(changed.cluster.nics_per_node, 4);
  EXPECT_DOUBLE_EQ(changed.cluster.nic_bandwidth.value, 12.5e9 * 0.94);
  // Before the name is looked up nothing is known that could be wrong with the key.
  EXPECT_THROW(read_what_if(path, {"cluster.fabric.oversubscripton=2"}), Error);
}

TEST(WhatIf, WritesTheWholeTopologyAndReadsItBack) {
  const WhatIf once = small_what_if(
      {"cluster.nodes=4", "parallel.data=16", "cluster.fabric.nodes_per_leaf=2",
       "cluster.fabric.oversubscription=2.5", "cluster.fabric.rails=true",
       "cluster.fabric.spines=3",
       "cluster.box={\"links\": \"pairs\", \"peer_to_peer\": false, \"sockets\": 1, "
       "\"host_bandwidth\": \"77 GB/s\"}",
       "cluster.slow_links=[{\"from\": \"node3/nic7\", \"to\": \"leaf15\", \"speed\": 0.3}]"});
  const WhatIf twice = read_what_if(parse_json(once.resolved.dump(), "resolved.json"), ".");
  EXPECT_EQ(once.resolved.dump(), twice.resolved.dump());
  EXPECT_EQ(twice.cluster.box.host_bandwidth.value, 77e9);
  EXPECT_EQ(twice.cluster.oversubscription, 2.5);
  EXPECT_EQ(once.cluster.slow_links, twice.cluster.slow_links);
}

// Llama-like layers on data-parallel boxes: the step is the longer the worse the fabric.
TEST(WhatIf, ChangesTheStepWithTheTopology) {
  const auto step = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"cluster.nodes=4", "parallel.data=16", "parallel.pipeline=2",
                                     "cluster.fabric.nodes_per_leaf=1"};
    sets.insert(sets.end(), more.begin(), more.end());
    return forecast(small_what_if(sets)).report.timeline.step;
  };
  const Duration even = step({});
  EXPECT_GT(step({"cluster.fabric.oversubscription=8"}), even);
  EXPECT_GT(step({"cluster.slow_links=[{\"from\": \"node2/nic1\", \"to\": \"leaf2\", "
                  "\"speed\": 0.1}]"}), even);
  EXPECT_GT(step({"cluster.box.links=\"pcie\""}), even);
  EXPECT_EQ(step({"cluster.fabric.spines=4"}), even);
}

TEST_F(WhatIfFiles, FindsAModelRelativeToItsOwnPlace) {
  write("sub/tiny.json", R"({"layers": 2, "hidden": 64, "heads": 2, "ffn": 128,
                             "vocabulary": 100, "positions": 64})");
  const std::string path = write("plan.json", R"({"model": "sub/tiny.json",
      "cluster": "a100-40gb-1x1", "batch": {"sequence_length": 64}})");
  const WhatIf what_if = read_what_if(path, {});
  EXPECT_EQ(what_if.model.name, "tiny");
  EXPECT_EQ(what_if.name, "tiny on a100-40gb-1x1");
}

TEST_F(WhatIfFiles, NamesTheReferencedFileInWhichAnErrorStands) {
  const std::string model = write("bad.json", "{\n\"layers\": 0}");
  const std::string path = write("plan.json", R"({"model": "bad.json",
      "cluster": "a100-40gb-1x1", "batch": {"sequence_length": 64}})");
  try {
    read_what_if(path, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), model + ":2: layers");
  }
}

TEST_F(WhatIfFiles, NamesTheClusterFileInWhichAnErrorStands) {
  const std::string cluster = write("c.json", "{\"device\": \"a100-40gb\",\n\"nodse\": 2}");
  const std::string path = write("plan.json", R"({"model": "gpt2", "cluster": "c.json",
      "batch": {"sequence_length": 64}})");
  try {
    read_what_if(path, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.where(), cluster + ":2: nodse");
  }
}

TEST_F(WhatIfFiles, RefusesAnOverrideWithoutAValue) {
  const std::string path = write("plan.json", kSmallWhatIf);
  EXPECT_THROW(read_what_if(path, {"parallel.tensor"}), Error);
}

// Products in 8 bits need matrix units for them, and on Hopper operands in one layout.
TEST(WhatIf, AsksTheDeviceForEightBitProducts) {
  const auto plan_on = [](const std::string& cluster) {
    return small_what_if({"precision.compute=fp8", "cluster=" + cluster}, kSmallWhatIf).plan;
  };
  EXPECT_TRUE(plan_on("h100-sxm-1x8").eight_bit.transposes);
  EXPECT_FALSE(plan_on("b200-1x8").eight_bit.transposes);
  EXPECT_TRUE(small_what_if({"precision.compute=fp8", "cluster=b200-1x8",
                             "precision.fp8_transposes=true"}, kSmallWhatIf)
                  .plan.eight_bit.transposes);
  EXPECT_THAT(trouble({"precision.compute=fp8", "cluster=a100-80gb-1x8"}),
              HasSubstr("precision.compute: a100-80gb has no 8-bit matrix units; use \"bf16\""));
}

// PyTorch's bf16 products do without Volta's matrix units, a twelfth as fast.
TEST(WhatIf, RefusesBf16WhereTheMatrixUnitsKnowFp16Only) {
  EXPECT_EQ(trouble({"precision.compute=fp16", "cluster=v100-sxm3-1x8"}), "");
  for (const char* precision : {"precision.compute=bf16", "name=small"}) {
    EXPECT_THAT(trouble({precision, "cluster=v100-sxm3-1x8"}),
                HasSubstr("precision.compute: v100-sxm3 has no matrix units for bf16; use "
                          "\"fp16\""))
        << precision;
  }
}

// A question that is kept and one that is read anew are the same, whatever is changed: also what it
// has read already.
TEST(WhatIfFile, AnswersAsAFileThatHasTheChanges) {
  const WhatIfFile question{parse_json(kSmallWhatIf, "plan.json")};
  const std::vector<std::vector<std::string>> changes = {
      {},
      {"parallel.pipeline=1", "parallel.data=8", "recompute=full"},
      {"cluster.nodes=2", "parallel.data=8"},
      {"model.layers=8"},
      {"framework=megatron-lm-2021"},
      {"framework=megatron-core", "parallel.tensor=2", "parallel.data=2",
       "parallel.virtual_stages=2"},
      {"host.launch=9 us", "fusion.gates=false", "name=other", "train.tokens=1B"}};
  for (const std::vector<std::string>& sets : changes) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    EXPECT_EQ(question.with(sets).resolved, small_what_if(sets).resolved);
    EXPECT_EQ(question.changed(sets).with().resolved, small_what_if(sets).resolved);
  }
  EXPECT_EQ(question.changed({"train.tokens=1B"}).common().tokens, 1e9);
}

TEST(WhatIfFile, ComplainsAsAFileThatHasTheChanges) {
  const WhatIfFile question{parse_json(kSmallWhatIf, "plan.json")};
  for (const char* set : {"parallel.tensor=3", "parallel.tensr=2", "cluster.nodes=0", "model=none",
                          "framework=none", "bacth.micro=2", "train.tokens=-1"}) {
    std::string said;
    try {
      question.with({set});
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_EQ(said, trouble({set}));
    EXPECT_NE(said, "");
  }
}

}  // namespace
}  // namespace stepcast
