#include "tools/import/nccl_tests.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// What follows the size, as nccl-tests prints it: two decimals, bandwidths from the time.
std::string half_row(std::int64_t bytes, double us, double factor, const std::string& wrong) {
  const double algorithm = static_cast<double>(bytes) / us * 1e-3;
  return fmt::format("  {:7.2f}  {:6.2f}  {:6.2f}  {:>6}", us, algorithm,
                     algorithm * factor, wrong);
}

// `middle` is what stands between count and time: "float     sum      -1".
std::string row(std::int64_t bytes, const std::string& middle, double us, double factor,
                const std::string& wrong = "0") {
  return fmt::format("{:12}  {:12}  {}{}{}", bytes, bytes / 4, middle,
                     half_row(bytes, us, factor, wrong), half_row(bytes, us + 1, factor, wrong));
}

std::string ranks_text(int ranks, int per_host, const std::string& group = " Group  0") {
  std::string text = "# Using devices\n";
  for (int i = 0; i < ranks; ++i) {
    text += fmt::format("#  Rank {:2}{} Pid {} on host{} device {:2} [0000:{:02x}:00] NVIDIA H100 "
                        "80GB HBM3\n", i, group, 100 + i, i / per_host, i % per_host, 16 + i);
  }
  return text;
}

const std::string kHeader =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
    "time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
    "(us)  (GB/s)  (GB/s)\n";
const std::string kSum = "   float     sum      -1";
const std::string kNone = "   float    none      -1";

std::string all_reduce_rows() {
  return row(1 << 20, kSum, 40, 1.75) + "\n" + row(1 << 21, kSum, 60.25, 1.75) + "\n";
}

struct Imported {
  std::vector<WireCurve> curves;
  std::vector<std::string> words;
  std::string error;
};

Imported import_text(const std::string& text, const NcclTestsDefaults& defaults = {},
                     bool in_place = false) {
  Imported result;
  try {
    result.curves = wire_curves({read_nccl_tests(text, "a.log", in_place)}, defaults, result.words);
  } catch (const Error& error) {
    result.error = error.what();
  }
  return result;
}

// The two points of all_reduce_rows(), over 8 ranks in one node.
void expect_all_reduce(const Imported& result, const std::string& what) {
  ASSERT_EQ(result.curves.size(), 1u) << what << result.error;
  const WireCurve& curve = result.curves[0];
  EXPECT_EQ(curve.collective, "all-reduce") << what;
  EXPECT_EQ(curve.ranks, 8) << what;
  EXPECT_EQ(curve.nodes, 1) << what;
  const std::vector<WirePoint> points = {{mebibytes(1), parse_seconds("40 us", "")},
                                         {mebibytes(2), parse_seconds("60.25 us", "")}};
  EXPECT_EQ(curve.points, points) << what;
}

// Every line of `text` behind `prefix`.
std::string prefixed(const std::string& text, const std::string& prefix) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    result += prefix + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return result;
}

const NcclTestsDefaults kEight{{}, 8, 1};

TEST(NcclTests, ReadsATableWithItsDevices) {
  const std::string log = "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902\n"
                          "# Collective test starting: all_reduce_perf\n" +
                          ranks_text(8, 8) + kHeader + all_reduce_rows();
  expect_all_reduce(import_text(log), "plain");
  const NcclTestsLog read = read_nccl_tests(log, "a.log", false);
  EXPECT_THAT(read.products, Contains("NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(read.provenance.at("nccl"), Contains("2.29.2"));
  EXPECT_THAT(read.provenance.at("tests"), Contains("2.17.8"));
}

TEST(NcclTests, ReadsWhatLaunchersPutBeforeEachLine) {
  const std::string log = ranks_text(8, 8) + kHeader + all_reduce_rows();
  for (const char* prefix : {"0: ", "[1,0]<stdout>:", "    ", "> ", "nccl-test-launcher-x2z | ",
                             "2026-08-01T10:00:00.123Z ", "\x1b[32mworker-0:\x1b[0m "}) {
    expect_all_reduce(import_text(prefixed(log, prefix)), prefix);
  }
  // A size of twelve digits leaves no blank behind the prefix.
  const std::string wide = "[1,0]<stdout>:137438953472   34359738368  float sum -1  280000 490.85 "
                           "859.0 0 280000 490.85 859.0 0\n";
  const Imported result = import_text(kHeader + wide, kEight);
  ASSERT_EQ(result.curves.size(), 1u) << result.error;
  EXPECT_EQ(result.curves[0].points[0].bytes, Bytes(137438953472));
}

TEST(NcclTests, ReadsTheColumnsOfEveryVersion) {
  const auto rows = [](const std::string& middle, const std::string& wrong) {
    return row(1 << 20, middle, 40, 1.75, wrong) + "\n" + row(1 << 21, middle, 60.25, 1.75, wrong) +
           "\n";
  };
  const std::string old = "# size count type redop time algbw busbw error time algbw busbw error\n";
  expect_all_reduce(import_text(old + rows("float sum", "4e-07"), kEight), "2021");
  expect_all_reduce(import_text(kHeader + rows(kSum, "N/A"), kEight), "not checked");
  expect_all_reduce(import_text(rows(kSum, "0"), kEight), "no header");
  expect_all_reduce(import_text(rows("float sum", "0"), kEight), "no header, no root");

  std::string per_iteration = "# size count type redop root time algbw busbw #wrong i_min i_max "
                              "i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv% "
                              "timestamp\n";
  for (const auto& [bytes, us] : {std::pair{1 << 20, 40.0}, std::pair{1 << 21, 60.25}}) {
    per_iteration += fmt::format("{} {} {}{} 39.1 44.0 43.9 1.2{} 39.1 44.0 43.9 1.2 2026-08-01 "
                                 "10:00:00\n", bytes, bytes / 4, kSum,
                                 half_row(bytes, us, 1.75, "0"), half_row(bytes, 99, 1.75, "0"));
  }
  expect_all_reduce(import_text(per_iteration, kEight), "-I 1 -S 1");
}

TEST(NcclTests, TakesTheOtherColumnsInPlace) {
  const Imported result = import_text(kHeader + all_reduce_rows(), kEight, true);
  ASSERT_EQ(result.curves.size(), 1u);
  EXPECT_EQ(result.curves[0].points[0].time, parse_seconds("41 us", ""));
}

TEST(NcclTests, ReadsSeveralTestsOfAFile) {
  std::string log;
  for (const auto& [program, middle, factor] :
       {std::tuple{"all_reduce_perf", kSum, 1.875}, std::tuple{"all_gather_perf", kNone, 0.9375},
        std::tuple{"reduce_scatter_perf", kSum, 0.9375}, std::tuple{"alltoall_perf", kNone, 0.9375},
        std::tuple{"sendrecv_perf", kSum, 1.0}, std::tuple{"broadcast_perf", kNone, 1.0},
        std::tuple{"gather_perf", kNone, 0.9375}}) {
    log += fmt::format("# Collective test starting: {}\n", program) + ranks_text(16, 8) + kHeader +
           row(1 << 20, middle, 50, factor) + "\n# Out of bounds values : 0 OK\n" +
           fmt::format("# Collective test concluded: {}\n", program);
  }
  const Imported result = import_text(log);
  std::vector<std::string> names;
  for (const WireCurve& curve : result.curves) {
    names.push_back(curve.collective);
    EXPECT_EQ(curve.ranks, 16);
    EXPECT_EQ(curve.nodes, 2);
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(collective_names()));
  EXPECT_THAT(result.words, Contains(HasSubstr("gather_perf tests nothing that a forecast needs")));
}

TEST(NcclTests, TellsTheCollectiveByItsBandwidthsWhereNoNameIsStated) {
  const auto name_of = [](const std::string& middle, double factor) {
    const Imported result = import_text(kHeader + row(1 << 24, middle, 90, factor), kEight);
    return result.curves.empty() ? result.error : result.curves[0].collective;
  };
  EXPECT_EQ(name_of(kSum, 1.75), "all-reduce");
  EXPECT_EQ(name_of(kSum, 0.875), "reduce-scatter");
  EXPECT_EQ(name_of("float none 0", 1), "broadcast");
  EXPECT_EQ(name_of(kNone, 1), "send-receive");
  EXPECT_THAT(name_of(kNone, 0.875), HasSubstr("all-gather or all-to-all? The log does not say"));
  EXPECT_THAT(name_of(kSum, 1.5), HasSubstr("no collective over 8 ranks"));
  NcclTestsDefaults defaults = kEight;
  defaults.collective = TransferKind::kAllToAll;
  const Imported told = import_text(kHeader + row(1 << 24, kNone, 90, 0.875), defaults);
  ASSERT_EQ(told.curves.size(), 1u);
  EXPECT_EQ(told.curves[0].collective, "all-to-all");
}

// Over 16 ranks the factor of all-reduce is 1.875, over 8 it is 1.75.
TEST(NcclTests, RefusesANameOrANumberOfRanksThatTheBandwidthsContradict) {
  const NcclTestsDefaults sixteen{TransferKind::kAllReduce, 16, 2};
  EXPECT_THAT(import_text(kHeader + all_reduce_rows(), sixteen).error,
              HasSubstr("but of all-reduce over 16 ranks 1.8750"));
  EXPECT_THAT(import_text("$ ./all_gather_perf -b 8\n" + kHeader + all_reduce_rows(), kEight).error,
              HasSubstr("of all-gather over 8 ranks 0.8750"));
}

TEST(NcclTests, RefusesRowsThatCannotBeBelievedByLine) {
  const std::string good = all_reduce_rows();
  const auto words_with = [&](const std::string& bad) {
    const Imported result = import_text(kHeader + bad + "\n" + good, kEight);
    expect_all_reduce(result, bad);
    return ::testing::PrintToString(result.words);
  };
  EXPECT_THAT(words_with(row(1 << 22, kSum, 90, 1.75, "3")),
              HasSubstr("a.log:3: 3 wrong values: row refused"));
  EXPECT_THAT(words_with("4194304 1048576 float sum -1 90.00 4.66 8.16 0 90.00 46.6 81.6 0"),
              HasSubstr("a.log:3: its time says 46.60 GB/s, its algbw 4.66"));
  EXPECT_THAT(words_with(row(1 << 22, kSum, 90, 1.75).substr(0, 70)),
              HasSubstr("a.log:3: does not have the columns"));
  EXPECT_THAT(words_with("0 0 float sum -1 0.10 0.00 0.00 0 0.10 0.00 0.00 0"),
              HasSubstr("a.log:3: a row of 0 bytes"));
  EXPECT_THAT(words_with("4194304 1048576 float sum -1 nan nan nan 0 nan nan nan 0"),
              HasSubstr("a.log:3"));
  // Other lines are nobody's rows.
  EXPECT_EQ(import_text(kHeader + "host:1:2 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n" + good, kEight)
                .words.size(), 1u);
}

TEST(NcclTests, RefusesErrorsBeyondWhatTheOldTestsLetPass) {
  const std::string old = "# size count type redop time algbw busbw error time algbw busbw error\n";
  EXPECT_THAT(import_text(old + row(1 << 20, "float sum", 40, 1.75, "1e-03"), kEight).error,
              HasSubstr("an error of 0.001"));
  EXPECT_EQ(import_text(old + row(1 << 20, "half sum", 40, 1.75, "1e-03"), kEight).curves.size(),
            1u);
}

TEST(NcclTests, RefusesTablesOfAnotherMeaning) {
  EXPECT_THAT(import_text("# size count type redop root cputime algbw busbw #wrong cputime algbw "
                          "busbw #wrong\n" + all_reduce_rows(), kEight).error,
              HasSubstr("the CPU's (-C)"));
  EXPECT_THAT(import_text(kHeader + all_reduce_rows()).error,
              HasSubstr("give --ranks and --nodes"));
  EXPECT_THAT(import_text(ranks_text(1, 1) + kHeader + all_reduce_rows()).error,
              HasSubstr("one rank measures no wires"));
  const std::string two = ranks_text(2, 2);
  EXPECT_THAT(import_text(two + two.substr(two.find('\n') + 1).replace(two.find("host0") -
                          two.find('\n') - 1, 5, "hostZ") + kHeader + all_reduce_rows()).error,
              HasSubstr("several tests at once"));
  const std::string eight = ranks_text(8, 8);
  EXPECT_THAT(import_text(std::string(eight).erase(eight.find("#  Rank  3"),
                                                   eight.find("#  Rank  4") -
                                                       eight.find("#  Rank  3")) +
                          kHeader + all_reduce_rows()).error,
              HasSubstr("7 of 8 lines"));
  std::string split = ranks_text(8, 8);
  split.replace(split.rfind("Group  0"), 8, "Group  1");
  EXPECT_THAT(import_text(split + kHeader + all_reduce_rows()).error, HasSubstr("2 groups"));
  EXPECT_THAT(import_text("nothing of the kind\n").error, HasSubstr("has no row of nccl-tests"));
}

// 60, 40, 50, 70: the lower middle is 50, the spread 30 / 50.
TEST(NcclTests, TakesTheMedianOfRepeatsAndSaysTheirSpread) {
  std::string log = kHeader;
  for (const double us : {60.0, 40.0, 50.0, 70.0}) log += row(1 << 20, kSum, us, 1.75) + "\n";
  const Imported result = import_text(log, kEight);
  ASSERT_EQ(result.curves.size(), 1u) << result.error;
  EXPECT_EQ(result.curves[0].points[0].time, parse_seconds("50 us", ""));
  EXPECT_EQ(result.curves[0].samples, 4);
  EXPECT_DOUBLE_EQ(result.curves[0].spread, 0.6);
  EXPECT_THAT(result.words, Contains(HasSubstr("differ by up to 60 %")));
}

const char* const kJson = R"({
 "version": 3, "start_time": "2026-08-01 10:00:00",
 "args": ["/opt/build/all_reduce_perf", "-g", "8"],
 "env": ["TOKEN=hunter2"],
 "nccl_version": 22902,
 "config": {"nthreads": 1, "ngpus": 8, "devices": [
   {"rank": 0, "group": 0, "hostname": "a", "device_info": "NVIDIA H100 80GB HBM3"}]},
 "results": [
  {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1",
   "out_of_place": {"time": 40.000000, "alg_bw": 26.214400, "bus_bw": 45.875200, "nwrong": 0},
   "in_place": {"time": 41.000000, "alg_bw": 25.575220, "bus_bw": 44.756634, "nwrong": null}},
  {"size": 2097152, "count": 524288, "type": "float", "redop": "sum", "root": "    -1",
   "out_of_place": {"time": 60.250000, "alg_bw": 34.807502, "bus_bw": 60.913129, "nwrong": 0},
   "in_place": {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": "nan"}}]})";

TEST(NcclTests, ReadsJsonAndLeavesTheEnvironmentAlone) {
  expect_all_reduce(import_text(kJson), "json");
  const NcclTestsLog log = read_nccl_tests(kJson, "a.json", false);
  EXPECT_THAT(log.products, Contains("NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(log.provenance.at("nccl"), Contains("2.29.2"));
  EXPECT_THAT(log.provenance.at("date"), Contains("2026-08-01"));
  for (const auto& [key, values] : log.provenance) {
    for (const std::string& value : values) EXPECT_EQ(value.find("hunter2"), std::string::npos);
  }
  const Imported in_place = import_text(kJson, {}, true);
  ASSERT_EQ(in_place.curves.size(), 1u) << in_place.error;
  EXPECT_EQ(in_place.curves[0].points.size(), 1u);
  EXPECT_THAT(in_place.words, Contains(HasSubstr("a.log:12: no time: skipped")));
}

// A process of eight devices may list its first rank only; two processes then list 0 and 8.
TEST(NcclTests, CountsTheRanksOfJsonByProcess) {
  std::string json = kJson;
  json.replace(json.find("[\n   {\"rank\""), 1,
               "[{\"rank\": 8, \"group\": 0, \"hostname\": \"b\"},");
  const NcclTestsLog log = read_nccl_tests(json, "a.json", false);
  EXPECT_EQ(log.tables.at(0).ranks, 16);
  EXPECT_EQ(log.tables.at(0).nodes, 2);
}

// A cut log gives fewer rows or none, never another time.
TEST(NcclTests, CutAnywhereGivesOnlyWhatTheWholeGives) {
  const std::string text = "# Collective test starting: all_reduce_perf\n" + ranks_text(8, 8) +
                           kHeader + all_reduce_rows();
  for (const std::string& whole : {text, std::string(kJson)}) {
    const std::vector<WirePoint> points = import_text(whole).curves.at(0).points;
    std::size_t most = 0;
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const Imported cut = import_text(whole.substr(0, length));
      EXPECT_NE(cut.curves.empty(), cut.error.empty()) << length;
      for (const WireCurve& curve : cut.curves) {
        EXPECT_EQ(curve.ranks, 8);
        most = std::max(most, curve.points.size());
        for (const WirePoint& point : curve.points) EXPECT_THAT(points, Contains(point)) << length;
      }
    }
    EXPECT_LE(most, points.size());
  }
}

// Bytes of noise: whatever happens, it ends in curves or in an Error.
TEST(NcclTests, SurvivesNoise) {
  const std::string text = ranks_text(8, 8) + kHeader + all_reduce_rows();
  std::uint32_t state = 12345;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  int errors = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string noisy = text;
    for (int i = 0; i < 8; ++i) {
      noisy[(next() >> 8) % noisy.size()] = static_cast<char>(next() >> 24);
    }
    const Imported result = import_text(noisy);
    errors += result.curves.empty();
    for (const WireCurve& curve : result.curves) {
      for (const WirePoint& point : curve.points) EXPECT_GT(point.time, Seconds(0));
    }
  }
  EXPECT_LT(errors, 2000);
}

}  // namespace
}  // namespace stepcast
