// `stepcast execute` as a person meets it: the built binary trains a tiny model, and its report is
// held against the forecast of the same file.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "execute/cuda/cuda_device.h"
#include "sim/base/json.h"
#include "tests/support/shell.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kTiny = "configs/tiny-gpt-8xcpu.json ";
const std::string kSmaller =
    "--set model.hidden=16 --set batch.sequence_length=8 --set batch.micro=1 --set batch.global=8 ";

Json json_of(const std::string& command) {
  const Outcome outcome = run_shell(command);
  EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.text;
  return Json::parse(outcome.text, nullptr, false);
}

TEST(ExecuteCommand, HoldsAndSendsWhatTheForecastSays) {
  const Json run = json_of(binary() + "execute " + kTiny + kSmaller + "--steps 3 --json -");
  const Json forecast = json_of(binary() + "simulate " + kTiny + kSmaller + "--json -");
  ASSERT_TRUE(run.is_object() && forecast.is_object());
  EXPECT_EQ(run["format"], "stepcast.report/1");
  EXPECT_EQ(run["losses"].size(), 3u);
  EXPECT_EQ(run["step_seconds"].size(), 3u);
  EXPECT_NEAR(run["losses"][0].get<double>(), std::log(256.0), 0.1);  // of weights near zero
  EXPECT_EQ(run["traffic"], forecast["traffic"]);
  EXPECT_EQ(run["memory"]["allocated_peak_bytes"], forecast["memory"]["allocated_peak_bytes"]);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    for (const char* key : {"peak_at", "weights_bytes", "gradients_bytes", "optimizer_bytes",
                            "activations_bytes", "buffers_bytes"}) {
      EXPECT_EQ(run["memory"]["stages"][stage][key], forecast["memory"]["stages"][stage][key])
          << key;
    }
  }
  EXPECT_EQ(run["basis"]["measured"], 1.0);
}

// Eight processes learn what eight threads learn, up to the order of sums: a dense model, and one
// whose tokens cross from rank to rank to their experts.
TEST(ExecuteCommand, TrainsTheSameUnderMpi) {
  if (run_shell("command -v mpirun >/dev/null").code != 0) GTEST_SKIP() << "no mpirun here";
  const std::string experts =
      "--set model.experts=4 --set model.experts_per_token=2 --set model.expert_ffn=16 "
      "--set model.mlp_bias=false --set parallel.expert=4 --set capacity_factor=2 ";
  for (const std::string& model : {std::string(), experts}) {
    const std::string arguments = "execute " + kTiny + kSmaller + model + "--steps 3 --json - ";
    const Json threads = json_of(binary() + arguments);
    const Json processes = json_of(
        // Open MPI keeps memory until the end of the process, which a leak checker counts.
        "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "mpirun --oversubscribe "
        "--bind-to none --mca btl_vader_single_copy_mechanism none -n 8 " +
        binary() + arguments + "--launch mpi");
    ASSERT_TRUE(threads.is_object() && processes.is_object());
    ASSERT_EQ(processes["losses"].size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const double expected = threads["losses"][i].get<double>();
      EXPECT_NEAR(processes["losses"][i].get<double>(), expected, 1e-4 * expected);
    }
    EXPECT_EQ(processes["memory"]["allocated_peak_bytes"],
              threads["memory"]["allocated_peak_bytes"]);
    EXPECT_EQ(processes["traffic"], threads["traffic"]);
    EXPECT_EQ(threads["traffic"]["sent_bytes_per_device"]["expert"] != 0, !model.empty());
  }
}

TEST(ExecuteCommand, TrainsOnTheBytesOfAFile) {
  const Outcome run =
      run_shell(binary() + "execute " + kTiny + kSmaller + "--steps 2 --data README.md 2>&1");
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_THAT(run.text, HasSubstr("8 ranks (threads)"));
}

TEST(ExecuteCommand, SaysWhatIsWrong) {
  const auto trouble = [](const std::string& arguments) {
    const Outcome outcome = run_shell(binary() + "execute " + arguments + " 2>&1 >/dev/null");
    EXPECT_EQ(outcome.code, 2) << arguments;
    return outcome.text;
  };
  EXPECT_THAT(trouble(kTiny + "--launch thread"), HasSubstr("did you mean \"threads\""));
  EXPECT_THAT(trouble(kTiny + "--steps 0"), HasSubstr("--steps"));
  EXPECT_THAT(trouble(kTiny + "--data nowhere.txt"), HasSubstr("nowhere.txt"));
  EXPECT_THAT(trouble(kTiny + "--data README.md --set model.vocabulary=64"),
              HasSubstr("vocabulary of at least 256"));
  EXPECT_THAT(trouble(kTiny + "--device gpu"), HasSubstr("auto, cpu or cuda"));
  EXPECT_THAT(trouble(kTiny + "--device cpu --cuda-graphs"), HasSubstr("--cuda-graphs"));
  EXPECT_THAT(trouble(kTiny + "--device cpu --register-buffers"), HasSubstr("--register-buffers"));
  // A plan of 1,024 ranks of a large model does not fit here, and nobody tries.
  EXPECT_THAT(trouble("configs/llama3.1-70b-1024xh100.json"), HasSubstr("GB"));
}

// One line that says what is missing, before anything is read or built.
TEST(ExecuteCommand, SaysWhatIsMissingForAGpu) {
  const std::string missing = cuda_missing();
  if (missing.empty()) GTEST_SKIP() << "there is a GPU";
  for (const char* more : {"", " --launch mpi"}) {
    const Outcome outcome =
        run_shell(binary() + "execute " + kTiny + "--device cuda" + more + " 2>&1");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.text, "stepcast: --device cuda: " + missing + "\n");
  }
}

}  // namespace
}  // namespace stepcast
