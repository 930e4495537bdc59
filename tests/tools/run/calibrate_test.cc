// `stepcast calibrate` as a person meets it: the built binary times a tiny plan, goes on after it
// was killed, and its profile is what `simulate` takes, on this machine only.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "execute/cuda/cuda_device.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "sim/hardware/profile.h"
#include "tests/support/shell.h"
#include "tools/run/calibrate.h"
#include "tools/run/calibrate_cuda.h"
#include "tools/run/here.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// One rank of a tiny GPT, in a folder of the test's own.
class CalibrateCommand : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("stepcast_calibrate_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(plan()) << R"({"model": {"style": "gpt", "layers": 4, "hidden": 32, "heads": 2,
      "vocabulary": 61, "positions": 16}, "cluster": "cpu-1x1",
      "batch": {"sequence_length": 16, "micro": 1, "global": 4},
      "precision": {"compute": "fp32", "moments": "fp32"}, "dropout": false})";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string plan() const { return (folder_ / "plan.json").string(); }
  std::string out() const { return (folder_ / "here.json").string(); }
  Outcome calibrate(const std::string& more) const {
    return run_shell(binary() + "calibrate --for " + plan() + " --out " + out() + " " + more +
                     " 2>&1");
  }
  Json simulate(const std::string& more = "") const {
    const Outcome outcome = run_shell(binary() + "simulate " + plan() + " --set profile=" + out() +
                                      " --json - " + more);
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    return Json::parse(outcome.text, nullptr, false);
  }
  Json file() const {
    std::ifstream in(out());
    return Json::parse(in, nullptr, false);
  }
  std::int64_t fewest_samples() const {
    const Json profile = file();
    std::int64_t fewest = INT64_MAX;
    for (const Json& kernel : profile["work"][0]["kernels"]) {
      fewest = std::min(fewest, kernel["samples"].get<std::int64_t>());
    }
    return fewest;
  }
  // The file with one of its texts replaced.
  void replace(const std::string& from, const std::string& to) const {
    std::ifstream in(out());
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(out()) << text;
  }

 private:
  fs::path folder_;
};

TEST_F(CalibrateCommand, WritesAProfileFromWhichAForecastIsAllMeasured) {
  const Outcome outcome = calibrate("--repeat 2");
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("The sentinel took"));
  const Json profile = file();
  EXPECT_EQ(profile["format"], "stepcast.profile/1");
  EXPECT_EQ(profile["device"], "cpu");
  EXPECT_EQ(profile["machine"]["processor"], machine_texts().at("processor"));
  EXPECT_FALSE(profile["machine"]["onednn"].get<std::string>().empty());
  for (const char* key :
       {"command", "date", "host", "launch", "sentinel_first", "sentinel_last", "sentinel_drift"}) {
    EXPECT_TRUE(profile["provenance"].contains(key)) << key;
  }
  EXPECT_GE(fewest_samples(), 4);  // two slices of two rounds
  const Json report = simulate();
  EXPECT_EQ(report["basis"]["measured"], 1.0);
  EXPECT_GT(report["step"]["seconds"].get<double>(), 0);
  // A plan that was not timed has no exact work of its own.
  EXPECT_LT(simulate("--set model.hidden=64")["basis"]["measured"].get<double>(), 0.5);
}

TEST_F(CalibrateCommand, GoesOnFromWhatTheFileHolds) {
  ASSERT_EQ(calibrate("--repeat 1").code, 0);
  const std::int64_t samples = fewest_samples();
  ASSERT_EQ(calibrate("--repeat 3 --resume").code, 0);
  EXPECT_EQ(fewest_samples(), 3 * samples);
  // What is there already is not measured again.
  const Outcome done = calibrate("--repeat 3 --resume");
  EXPECT_EQ(done.code, 0) << done.text;
  EXPECT_EQ(fewest_samples(), 3 * samples);
  // Without the flag it begins anew.
  ASSERT_EQ(calibrate("--repeat 1").code, 0);
  EXPECT_EQ(fewest_samples(), samples);
}

TEST_F(CalibrateCommand, KeepsWhatWasMeasuredWhenItIsKilled) {
  // Killed in the middle of it, some time after its first slice.
  const Outcome killed =
      run_shell("(" + binary() + "calibrate --for " + plan() + " --out " + out() +
                " --repeat 100000 >/dev/null 2>&1 & pid=$!; while kill -0 $pid && [ ! -e " + out() +
                " ]; do sleep 0.05; done; sleep 0.3; kill -KILL $pid; wait $pid) 2>/dev/null");
  EXPECT_EQ(killed.code, 128 + 9);
  ASSERT_TRUE(fs::exists(out()));
  const std::int64_t kept = fewest_samples();  // whole: it parses
  EXPECT_GE(kept, 2);
  ASSERT_EQ(calibrate("--repeat 1 --resume").code, 0);
  EXPECT_EQ(fewest_samples(), kept);
}

TEST_F(CalibrateCommand, RefusesAFileThatIsNotWhole) {
  ASSERT_EQ(calibrate("--repeat 1").code, 0);
  fs::resize_file(out(), fs::file_size(out()) / 2);
  const Outcome outcome = calibrate("--repeat 2 --resume");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.text, HasSubstr(out()));
}

TEST_F(CalibrateCommand, OfAnotherMachineIsRefusedOrTakenAsInterpolatedWhenAsked) {
  ASSERT_EQ(calibrate("--repeat 1").code, 0);
  replace("\"onednn\": \"", "\"onednn\": \"0.");
  const std::string version = machine_texts().at("onednn");
  const std::string why = "its onednn is 0." + version + ", here it is " + version;
  const Outcome refused =
      run_shell(binary() + "simulate " + plan() + " --set profile=" + out() + " 2>&1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr(why));
  EXPECT_THAT(refused.text, HasSubstr("profile_basis"));
  const Json report = simulate("--set profile_basis=interpolated");
  EXPECT_EQ(report["basis"]["measured"], 0.0);
  EXPECT_EQ(report["basis"]["interpolated"], 1.0);
  const Outcome resumed = calibrate("--repeat 2 --resume");
  EXPECT_EQ(resumed.code, 2);
  EXPECT_THAT(resumed.text, HasSubstr(why));
}

TEST_F(CalibrateCommand, WritesToStdout) {
  const Outcome outcome =
      run_shell(binary() + "calibrate --for " + plan() + " --repeat 1 --out - 2>/dev/null");
  EXPECT_EQ(outcome.code, 0);
  const Profile profile = read_profile(parse_json(outcome.text, "stdout"));
  EXPECT_EQ(profile.work.size(), 1u);
}

TEST_F(CalibrateCommand, WrongUsageIsOneLineThatSaysWhatIsRight) {
  const auto line = [&](const std::string& more, const std::string& part) {
    const Outcome outcome = calibrate(more);
    EXPECT_EQ(outcome.code, 2) << more;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(part));
  };
  const std::string missing = cuda_missing();
  if (!missing.empty()) line("--device cuda", missing);
  line("--device gpu", "must be cpu or cuda");
  line("--repeat -1", "must be from 0");
  line("--launch ssh", "must be threads or mpi");
  line("--set parallel.tensor=2", "parallel");
  line("--for nowhere.json", "nowhere.json");
  const Outcome nothing = run_shell(binary() + "calibrate --out x.json 2>&1");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.text, HasSubstr("--for"));
  const Outcome stdout_resumed =
      run_shell(binary() + "calibrate --for " + plan() + " --out - --resume 2>&1");
  EXPECT_EQ(stdout_resumed.code, 2);
  EXPECT_THAT(stdout_resumed.text, HasSubstr("goes on from a file"));
}

TEST(SentinelLog, SaysHowFarItMoved) {
  SentinelLog log;
  EXPECT_EQ(log.drift(), 0);
  log.add({Seconds(0.010), Seconds(0.011), std::nullopt});
  log.add({Seconds(0.009), Seconds(0.010), std::nullopt});
  EXPECT_EQ(log.first(), Seconds(0.010));
  EXPECT_EQ(log.last(), Seconds(0.010));
  EXPECT_NEAR(log.drift(), 0.2, 1e-12);
}

TEST(Resume, AsksForTheSameLaunch) {
  Profile profile;
  profile.file = "here.json";
  profile.machine = machine_texts();
  profile.provenance["launch"] = "mpi";
  try {
    resume_from(profile, "threads", machine_texts());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("here.json"));
    EXPECT_THAT(error.what(), HasSubstr("--launch mpi, not threads"));
  }
}

// 0: as many as 10 s hold, 8 to 200; three tell how long one takes.
TEST(NextSteps, OfARingAreAsManyAsWereAskedFor) {
  EXPECT_EQ(next_steps(0, 0, 0), 3);
  EXPECT_EQ(next_steps(0, 3, 0.5), 17);  // 20 in 10 s
  EXPECT_EQ(next_steps(0, 20, 0.5), 0);
  EXPECT_EQ(next_steps(0, 3, 60), 1);  // one in a run, until there are eight
  EXPECT_EQ(next_steps(0, 8, 60), 0);
  EXPECT_EQ(next_steps(0, 3, 0.001), 197);
  EXPECT_EQ(next_steps(2, 0, 0), 2);
  EXPECT_EQ(next_steps(5, 2, 0.1), 3);
  EXPECT_EQ(next_steps(5, 7, 0), 0);
  EXPECT_EQ(next_steps(100'000, 3, 0.001), 200);  // of a run; the file is written after each
}

TEST(DevicesPerNode, AreTheSameEverywhere) {
  const auto ask = [](std::vector<int> here) {
    const auto ranks = static_cast<int>(here.size());
    const auto transports = make_thread_transports(ranks);
    std::vector<std::string> said(here.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < here.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          said[rank] = std::to_string(devices_per_node(*transports[rank], here[rank], ranks));
        } catch (const Error& error) {
          said[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return said;
  };
  EXPECT_EQ(ask({2, 2, 2, 2}), (std::vector<std::string>(4, "2")));
  EXPECT_EQ(ask({4, 4, 4, 4}), (std::vector<std::string>(4, "4")));
  for (const std::string& one : ask({3, 3, 3, 1})) {
    EXPECT_THAT(one, HasSubstr("start as many on each"));
  }
}

TEST(ProbedText, NamesWhatWasMeasured) {
  Probed probed;
  EXPECT_EQ(to_text(probed), "");
  probed.probes.memory = {{"copy", Bytes(1'000'000), {microseconds(1), 0, 10}},
                          {"add", Bytes(1'000'000'000), {microseconds(400), 0, 10}}};
  probed.probes.launch = LaunchCosts{{microseconds(4), 0, 10},
                                     {microseconds(2), 0, 10},
                                     {microseconds(90), 0, 10},
                                     {microseconds(1), 0, 10}};
  probed.probes.beside = {{"product", "all-gather", 8, 1, 1, mebibytes(64), 1.25, 1.1, 40}};
  WireCurve curve;
  curve.collective = "all-gather";
  curve.ranks = 8;
  curve.points = {{kibibytes(1), microseconds(9)}, {Bytes(64'000'000), microseconds(300)}};
  probed.wires = {curve};
  EXPECT_EQ(to_text(probed),
            "memory: 2500 GB/s, by add of 1000 MB\n"
            "launch: 4.00 us of the host, 2.00 us from kernel to kernel, 1.00 us in a graph\n"
            "all-gather over 8 ranks: 9.00 us to 300 us at 64 MB\n"
            "product beside all-gather over 8 ranks: 1.25 times as long, the other 1.10\n");
}

}  // namespace
}  // namespace stepcast
