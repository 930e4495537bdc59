// Runs in which something goes wrong: they end soon, with one line that says what and where, and
// lose nothing.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shell.h"

namespace stepcast {
namespace {

using ::testing::HasSubstr;

const std::string kFaultyRun =
    "configs/tiny-gpt-8xcpu.json --set model.hidden=16 --set batch.sequence_length=8 "
    "--set batch.micro=1 --set batch.global=8 ";

// Open MPI keeps memory until the end of the process, which a leak checker counts.
const std::string kMpirun =
    "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "timeout -k 5 60 mpirun --oversubscribe --bind-to none "
    "--mca btl_vader_single_copy_mechanism none ";

bool has_mpirun() { return run_shell("command -v mpirun >/dev/null").code == 0; }

// The lines that are ours, among what mpirun has to say.
std::vector<std::string> our_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = text.find("stepcast: "); at != std::string::npos;
       at = text.find("stepcast: ", at + 1)) {
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  }
  return lines;
}

Outcome run_faulty(const std::string& fault) {
  return run_shell(kMpirun + "-n 2 '" STEPCAST_FAULTY_RANK "' " + fault + " 2>&1");
}

TEST(ProcessFaults, AreTheOnlyThingWrong) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  const Outcome outcome = run_faulty("none");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_TRUE(our_lines(outcome.text).empty()) << outcome.text;
}

TEST(ProcessFaults, EndTheRunWithOneLineThatNamesRankAndInstruction) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  for (const auto& [fault, what] : {std::pair("die", "was ended by signal 9 in step 1"),
                                    {"nan", " wrote NaN"},
                                    {"hang", "has not come to an end for 5 seconds"}}) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = run_faulty(fault);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(outcome.code, 2) << fault << "\n" << outcome.text;
    EXPECT_LT(took.count(), 60) << fault << ": ended by timeout";
    const std::vector<std::string> lines = our_lines(outcome.text);
    ASSERT_EQ(lines.size(), 1u) << fault << "\n" << outcome.text;
    EXPECT_THAT(lines[0], HasSubstr("rank 1: ")) << fault;
    EXPECT_THAT(lines[0], HasSubstr("instruction ")) << fault;
    EXPECT_THAT(lines[0], HasSubstr(what)) << fault;
  }
}

TEST(ProcessFaults, OfTheQuestionAreSaidOnce) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  const Outcome outcome = run_shell(kMpirun + "-n 3 " + binary() + "execute " + kFaultyRun +
                                    "--launch mpi --data nowhere.txt 2>&1");
  EXPECT_EQ(outcome.code, 2) << outcome.text;
  const std::vector<std::string> lines = our_lines(outcome.text);
  ASSERT_EQ(lines.size(), 1u) << outcome.text;
  EXPECT_THAT(lines[0], HasSubstr("nowhere.txt"));
}

TEST(ExecuteFaults, AMissingDataFileLosesNothing) {
  const std::string kept = ::testing::TempDir() + "kept.json";
  std::ofstream(kept) << "before";
  const Outcome outcome = run_shell(binary() + "execute " + kFaultyRun +
                                    "--steps 2 --data nowhere.txt " + "--json '" + kept + "' 2>&1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.text, "stepcast: nowhere.txt: there is no such file\n");
  EXPECT_EQ(run_shell("cat '" + kept + "'").text, "before");
}

// What cannot be written to the disk is written to stdout.
TEST(ExecuteFaults, AFullDiskLosesNothing) {
  const std::string command = binary() + "execute " + kFaultyRun + "--steps 2 --json /dev/full ";
  const Outcome errors = run_shell(command + "2>&1 >/dev/null");
  EXPECT_EQ(errors.code, 2);
  EXPECT_EQ(errors.text,
            "stepcast: /dev/full: cannot write: No space left on device; the report "
            "stands on stdout instead\n");
  const Outcome output = run_shell(command + "2>/dev/null");
  EXPECT_THAT(output.text, HasSubstr("  step       loss    seconds\n"));
  EXPECT_THAT(output.text, HasSubstr("\"format\": \"stepcast.report/1\""));
  EXPECT_THAT(output.text, HasSubstr("\"losses\": ["));
  const Outcome full = run_shell(binary() + "execute " + kFaultyRun + "--steps 2 2>&1 >/dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.text, HasSubstr("stdout: cannot write"));
}

// Found before the first step, not after the last.
TEST(ExecuteFaults, AFolderThatIsNotThereIsFoundFirst) {
  const Outcome outcome =
      run_shell(binary() + "execute " + kFaultyRun + "--steps 1000000 --json nowhere/x.json 2>&1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.text, HasSubstr("nowhere/x.json: cannot write: "));
  EXPECT_EQ(our_lines(outcome.text).size(), 1u);
}

}  // namespace
}  // namespace stepcast
