// `stepcast execute --device cuda` as a person meets it: the whole command, linked with a machine
// of eight GPUs that are none.
#include <cmath>
#include <string>

#include <gmock/gmock.h>

#include "sim/base/json.h"
#include "tests/support/shell.h"

namespace stepcast {
namespace {

const std::string kTiny =
    "configs/tiny-gpt-8xcpu.json --set model.hidden=16 --set model.layers=2 "
    "--set batch.sequence_length=4 --set batch.micro=1 --set batch.global=4 ";

TEST(FakeCommand, ReportsARunOnGpusAsTheForecastDoes) {
  const Outcome run = run_shell(binary() + "execute " + kTiny + "--device cuda --steps 2 --json -");
  const Outcome forecast = run_shell(binary() + "simulate " + kTiny + "--json -");
  ASSERT_EQ(run.code, 0) << run.text;
  const Json ran = Json::parse(run.text), said = Json::parse(forecast.text);
  EXPECT_EQ(ran["losses"].size(), 2u);
  EXPECT_NEAR(ran["losses"][0].get<double>(), std::log(256.0), 0.1);  // of weights near zero
  EXPECT_EQ(ran["traffic"], said["traffic"]);
  EXPECT_EQ(ran["memory"]["allocated_peak_bytes"], said["memory"]["allocated_peak_bytes"]);
}

TEST(FakeCommand, ListsWhatTheGpusMemoryWentTo) {
  const Outcome run = run_shell(binary() + "execute " + kTiny +
                                "--device cuda --steps 2 --cuda-graphs 2>/dev/null");
  EXPECT_EQ(run.code, 0) << run.text;
  for (const char* item : {"arena", "workspaces", "cuBLASLt", "communicator of all ranks",
                           "communicator tensor", "communicator forward 0"}) {
    EXPECT_THAT(run.text, testing::HasSubstr(item));
  }
}

TEST(FakeCommand, WantsAGpuForEachRank) {
  const Outcome run = run_shell(binary() + "execute " + kTiny +
                                "--device cuda --set cluster=a100-80gb-2x8 "
                                "--set parallel.data=4 --set batch.global=8 2>&1");
  EXPECT_EQ(run.code, 2) << run.text;
  EXPECT_THAT(run.text, testing::HasSubstr("16 ranks, this machine 8 GPUs"));
}

}  // namespace
}  // namespace stepcast
