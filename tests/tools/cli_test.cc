// The command as a person meets it: the built binary, run in a shell from the root of the sources.
#include <string>

#include <gmock/gmock.h>

#include "sim/base/json.h"
#include "tests/support/shell.h"

namespace stepcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Outcome out_of(const std::string& arguments) {
  return run_shell(binary() + arguments + " 2>/dev/null");
}
Outcome err_of(const std::string& arguments) {
  return run_shell(binary() + arguments + " 2>&1 >/dev/null");
}

const std::string kExample = "configs/gpt2-1xa100.json";

// Exit code 2, nothing on stdout, and on stderr this one line.
void expect_trouble(const std::string& arguments, const std::string& part) {
  const Outcome err = err_of(arguments);
  EXPECT_EQ(err.code, 2) << arguments << "\n" << err.text;
  EXPECT_THAT(err.text, StartsWith("stepcast: ")) << arguments;
  EXPECT_THAT(err.text, HasSubstr(part)) << arguments;
  EXPECT_EQ(err.text.find('\n'), err.text.size() - 1) << arguments << "\n" << err.text;
  EXPECT_THAT(out_of(arguments).text, IsEmpty()) << arguments;
}

// The same for a what-if on stdin.
void expect_trouble_in(const std::string& json, const std::string& part) {
  const Outcome err =
      run_shell("printf '%s' '" + json + "' | " + binary() + "simulate - 2>&1 >/dev/null");
  EXPECT_EQ(err.code, 2) << json << "\n" << err.text;
  EXPECT_THAT(err.text, StartsWith("stepcast: stdin:")) << json;
  EXPECT_THAT(err.text, HasSubstr(part)) << json;
  EXPECT_EQ(err.text.find('\n'), err.text.size() - 1) << err.text;
}

TEST(Cli, PrintsHelpWithExamplesAndExitsWithZero) {
  for (const char* arguments : {"--help", "-h", "simulate --help", "search --help", "show --help",
                                "list --help", "time --help", "validate --help", "import --help",
                                "explain --help", "schema --help"}) {
    const Outcome out = out_of(arguments);
    EXPECT_EQ(out.code, 0) << arguments;
    EXPECT_THAT(out.text, HasSubstr("Example")) << arguments;
  }
  EXPECT_THAT(out_of("--version").text, StartsWith("stepcast "));
  EXPECT_EQ(out_of("--version").code, 0);
}

TEST(Cli, SaysWithoutACommandWhatCommandsThereAre) {
  const Outcome err = err_of("");
  EXPECT_EQ(err.code, 2);
  EXPECT_THAT(err.text, HasSubstr("simulate"));
  EXPECT_LT(err.text.find("Examples"), err.text.find("Usage"));
}

TEST(Cli, NamesTheNearestCommandAndFlag) {
  expect_trouble("simulat x", "there is no command \"simulat\" (did you mean \"simulate\"?)");
  expect_trouble("divine x",
                 "there is no command \"divine\"; there are simulate, search, execute,");
  expect_trouble("simulate " + kExample + " --jsn x", "no flag --jsn (did you mean \"--json\"?)");
  expect_trouble("simulate --jsn=x", "no flag --jsn (did you mean \"--json\"?)");
  expect_trouble("--jason", "no flag --jason");
}

TEST(Cli, EndsBadUsageInOneLine) {
  expect_trouble("simulate", "CONFIG");
  expect_trouble("simulate " + kExample + " --json", "--json");
  expect_trouble("simulate " + kExample + " more", "\"more\" is one word too many");
  expect_trouble("simulate " + kExample + " --ranks foled", "did you mean \"folded\"?");
  expect_trouble("show program " + kExample + " --stage x", "--stage");
  expect_trouble("show program " + kExample + " --stage 7", "there is only stage 0, not 7");
  expect_trouble("show model " + kExample + " --stage 0", "--stage");
  expect_trouble("show memroy " + kExample, "did you mean \"memory\"?");
  expect_trouble("search " + kExample + " --vary parallel.tensr=2",
                 "did you mean \"parallel.tensor\"?");
  expect_trouble("search " + kExample + " --devices 1..x", "write 64..1024");
  expect_trouble("list device", "did you mean \"devices\"?");
  expect_trouble("explain parallel.tensr", "did you mean \"parallel.tensor\"?");
}

TEST(Cli, NamesTheFileThatItCannotRead) {
  expect_trouble("simulate none.json", "none.json: there is no such file");
  expect_trouble("simulate configs", "configs: is a directory");
  expect_trouble("simulate " + kExample + " --json /none/x.json", "/none/x.json: cannot write");
}

TEST(Cli, NamesTheOverrideThatItCannotApply) {
  expect_trouble("simulate " + kExample + " --set parallel.tensor", "write path=value");
  expect_trouble("simulate " + kExample + " --set =3", "--set");
  expect_trouble("simulate " + kExample + " --set parallel.tensr=2",
                 "did you mean \"tensor\"?");
  expect_trouble("simulate " + kExample + " --set name.x=2", "--set");
}

TEST(Cli, TakesTheWordAfterAnOverrideForWhatItIs) {
  EXPECT_EQ(out_of("show model --set batch.micro=1 " + kExample).code, 0);
}

TEST(Cli, NamesLineAndPathOfWhatIsWrongInTheFile) {
  expect_trouble_in("{\"model\": \"gpt2\",\n \"cluster\": }", "stdin:2:13");
  expect_trouble_in("", "stdin:1:1");
  expect_trouble_in("[]", "stdin:1");
  const std::string head = "{\"model\": \"gpt2\", \"cluster\": \"a100-80gb-1x8\",\n";
  const std::string batch = "\"batch\": {\"sequence_length\": 1024}";
  expect_trouble_in(head + batch + ",\n\"shardin\": {}}", "did you mean \"sharding\"?");
  expect_trouble_in(head + batch + ",\n\"sharding\": {\"bucket\": \"200 mb\"}}",
                    "stdin:3: sharding.bucket");
  expect_trouble_in(head + batch + ",\n\"sharding\": {\"bucket\": 200}}",
                    "stdin:3: sharding.bucket");
  expect_trouble_in(head + batch + ",\n\"parallel\": {\"tensor\": 4, \"data\": 3}}",
                    "stdin:3: parallel.data");
  // GPT-2 has 12 heads.
  expect_trouble_in(head + batch + ",\n\"parallel\": {\"tensor\": 8}}", "stdin:3: parallel.tensor");
  expect_trouble_in("{\"model\": \"gpt-99\", \"cluster\": \"a100-80gb-1x8\", " + batch + "}",
                    "no model is called \"gpt-99\"");
  expect_trouble_in("{\"model\": \"gpt2\", \"cluster\": \"a100-1x8\", " + batch + "}",
                    "a100-40gb, a100-80gb");
}

TEST(Cli, WritesNothingButTheReportToStdout) {
  const Outcome out = out_of("simulate " + kExample + " --json -");
  EXPECT_EQ(out.code, 0);
  const Document report = parse_json(out.text, "stdout");
  EXPECT_EQ(report.root.at("format"), "stepcast.report/1");
}

TEST(Cli, ForecastsItsOwnResolvedConfigToTheSameReport) {
  const Outcome first = out_of("simulate " + kExample + " --json -");
  const Json report = parse_json(first.text, "stdout").root;
  const std::string config = report.at("config").dump();
  const Outcome second =
      run_shell("printf '%s' '" + config + "' | " + binary() + "simulate - --json - 2>&1");
  EXPECT_EQ(second.text, first.text);
}

TEST(Cli, ExitsWithOneIfTheAnswerIsUnwelcome) {
  EXPECT_EQ(out_of("simulate " + kExample + " --set expect.step_time='<= 1 us'").code, 1);
  EXPECT_EQ(out_of("simulate " + kExample + " --set expect.step_time='<= 1 h'").code, 0);
}

TEST(Cli, ListsEveryKindAlsoAsJson) {
  EXPECT_THAT(out_of("list models").text, HasSubstr("llama3.1-8b"));
  EXPECT_THAT(out_of("list devices").text, HasSubstr("h100-sxm"));
  EXPECT_THAT(out_of("list clusters").text, HasSubstr("aws-p4d-16x8"));
  EXPECT_THAT(out_of("list profiles").text, ::testing::ContainsRegex("b200 .*gemm +336"));
  for (const std::string kind : {"models", "devices", "clusters", "profiles", "frameworks"}) {
    const Outcome out = out_of("list --json " + kind);
    EXPECT_EQ(out.code, 0);
    EXPECT_FALSE(parse_json(out.text, kind).root.at(kind).empty());
  }
}

TEST(Cli, ShowsWhatWouldRun) {
  EXPECT_THAT(out_of("show model " + kExample).text, HasSubstr("124,439,808"));  // GPT-2 small
  EXPECT_THAT(out_of("show model configs/mixtral-8x7b-64xh100.json").text,
              AllOf(HasSubstr("8 experts of 14,336, 2 a token"), HasSubstr("46,702,792,704"),
                    HasSubstr("77.3 B")));  // 6 x the 12.9 B that a token passes
  EXPECT_THAT(out_of("show cluster " + kExample).text, HasSubstr("memory bandwidth"));
  const std::string box = out_of("show cluster configs/llama3.1-70b-1024xh100.json "
                                 "--set cluster.fabric.rails=true "
                                 "--set cluster.fabric.nodes_per_leaf=32").text;
  EXPECT_THAT(box, HasSubstr("node0/device0 - node0/switch - node0/device1\n"));
  EXPECT_THAT(box, HasSubstr("128 boxes on 32 leaf switches, 8 rails"));
  EXPECT_THAT(box, HasSubstr("leaf0 - spine0 - leaf8 - node32/nic0"));
  EXPECT_THAT(out_of("show program " + kExample).text, StartsWith("job 1\n"));
  EXPECT_THAT(out_of("show memory " + kExample).text, HasSubstr("  reserved "));
}

TEST(Cli, ShowsOneStageOfTheProgramAndOnlyTheBodiesThatItCalls) {
  const std::string file = "configs/llama3.1-70b-1024xh100.json";
  const Outcome one = out_of("show program " + file + " --stage 0");
  const Outcome all = out_of("show program " + file);
  EXPECT_EQ(one.code, 0);
  EXPECT_LT(one.text.size(), all.text.size());
  EXPECT_THAT(one.text, HasSubstr("\nstage 0\n"));
  EXPECT_EQ(one.text.find("\nstage 1\n"), std::string::npos);
  EXPECT_THAT(all.text, HasSubstr("\nstage 1\n"));
}

TEST(Cli, TimesOneKernelOrCollective) {
  const std::string gemm = "time gemm --m 4096 --n 4096 --k 4096 --device h100-sxm";
  EXPECT_THAT(out_of(gemm).text, HasSubstr("TFLOP/s"));
  EXPECT_EQ(parse_json(out_of(gemm + " --json -").text, "stdout").root.at("format"),
            "stepcast.time/1");
  EXPECT_THAT(out_of("time all_reduce --size '1 GB' --cluster h100-sxm-2x8").text,
              HasSubstr("busbw"));
  expect_trouble("time gem --device h100-sxm", "did you mean \"gemm\"?");
  expect_trouble("time gemm --m 8 --n 8 --device h100-sxm", "--k is missing");
  expect_trouble("time gemm --m 0 --n 8 --k 8 --device h100-sxm", "--m: must be 1 to");
  expect_trouble(gemm + " --heads 8", "--heads is not a flag of gemm");
  expect_trouble(gemm + " --role forwrd", "did you mean \"forward\"?");
  expect_trouble("time gemm --m 8 --n 8 --k 8", "give --device NAME or --cluster NAME");
  expect_trouble("time gemm --m 8 --n 8 --k 8 --device h1000", "--device: no device is called");
  expect_trouble("time send --size 8 --cluster h100-sxm-2x8", "--size");
  expect_trouble("time send --size '1 B' --ranks 17 --cluster h100-sxm-2x8", "--ranks");
  expect_trouble("time send --from '2 B' --to '1 B' --cluster h100-sxm-2x8", "--from");
}

TEST(Cli, ValidatesMeasurementsThatItIsGiven) {
  const std::string row = R"({"id": "x", "kind": "gemm", "gpu": "H100", "dtype": "bf16", )"
                          R"("m": 8192, "n": 8192, "k": 8192, "achieved_tflops": 700})";
  const auto validate = [&](const std::string& lines, const std::string& rest) {
    return run_shell("printf '" + lines + "' | " + binary() + "validate - " + rest);
  };
  EXPECT_THAT(validate(row, "").text, HasSubstr("1 row, 1 of them covered"));
  const Json json = parse_json(validate(row + "\\n{}", "--json -").text, "stdout").root;
  ASSERT_EQ(json.at("rows").size(), 2u);
  EXPECT_EQ(json.at("rows").at(0).at("covered"), true);
  EXPECT_EQ(json.at("rows").at(1).at("reason"), "kind is not stated");
  const Outcome broken = validate(row + "\\n{", "2>&1");
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.text, StartsWith("stepcast: stdin:2"));
  expect_trouble("validate - --markdown x", "--markdown and --errors are of the shipped runs");
  expect_trouble("validate none.jsonl", "none.jsonl: there is no such file");
}

// The rows of the log come back from the profile, to the digit.
TEST(Cli, ImportsALogAndTimesByIt) {
  const std::string row = "1048576 262144 float sum -1 40.37 25.97 45.45 0 41.00 25.58 44.76 0\\n";
  const std::string import = "import nccl-tests - --ranks 8 --nodes 1 --device h100-sxm --out ";
  const auto with_profile = [&](const std::string& command) {
    return run_shell("d=$(mktemp -d) && printf '" + row + "' | " + binary() + import +
                     "\"$d/p.json\" 2>/dev/null && " + binary() + command +
                     " --profile \"$d/p.json\" 2>&1; c=$?; rm -r \"$d\"; exit $c");
  };
  const std::string time = "time all-reduce --json - --size '1 MiB' --cluster ";
  const Json json = parse_json(with_profile(time + "h100-sxm-1x8").text, "stdout").root;
  EXPECT_EQ(json.at("rows").at(0).at("basis"), "measured");
  EXPECT_EQ(Seconds(json.at("rows").at(0).at("seconds").get<double>()),
            parse_seconds("40.37 us", ""));
  const Json other = parse_json(with_profile(time + "h100-sxm-2x8").text, "stdout").root;
  EXPECT_EQ(other.at("rows").at(0).at("basis"), "fitted");
  const Outcome wrong = with_profile(time + "a100-80gb-1x8");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, StartsWith("stepcast: --profile: profile p is of the device h100-sxm"));
}

TEST(Cli, SaysWhatItCannotImport) {
  expect_trouble("import nccl-test x --out /dev/null", "did you mean \"nccl-tests\"?");
  expect_trouble("import nccl-tests none.log --out x", "none.log: there is no such file");
  expect_trouble("import nccl-tests README.md --out /none/x", "has no row of nccl-tests");
  expect_trouble("import nccl-tests README.md", "--out");
  expect_trouble("import nccl-tests README.md --out x --collective all-reduced",
                 "did you mean \"all-reduce\"?");
  expect_trouble("import nccl-tests README.md --out x --ranks 1", "--ranks: must be 2 to");
  expect_trouble("import nccl-tests --out x", "give at least one FILE");
  expect_trouble("import nccl-topology README.md --out x --ranks 8", "of nccl-tests only");
  expect_trouble("import runs --device h100-sxm --without vtrain --out x", "no run is of that");
  expect_trouble("import kernels README.md --without sc21 --out x", "--without is of runs only");
  expect_trouble("import kernels README.md --rows 8 --out x", "--rows is of runs only");
  expect_trouble("import kernels README.md --hold memory --out x", "--hold is of runs only");
  expect_trouble("import runs --device h100-sxm --hold memori --out x",
                 "--hold memori: no number that runs fix (did you mean \"memory\"?)");
  expect_trouble("import nccl-topology README.md --out x", "README.md:");
  expect_trouble("import nvidia-smi-topo README.md --out x", "no matrix of devices");
  expect_trouble("time gemm --m 8 --n 8 --k 8 --device h100-sxm --profile x", "--profile is not a");
  expect_trouble("time send --cluster h100-sxm-2x8 --profile none", "no profile is called");
}

TEST(Cli, ListsTheProfilesOfADirectory) {
  const std::string profile =
      R"({"format": "stepcast.profile/1", "name": "mine", "device": "h100-sxm",
          "provenance": {"source": "a.log"}, "wires": [{"collective": "all-reduce", "ranks": 2,
          "nodes": 1, "points": [{"bytes": 8, "seconds": "1 us"}], "samples": 2, "spread": 0.5}]})";
  const auto list = [&](const std::string& flag) {
    return run_shell("d=$(mktemp -d) && mkdir \"$d/profiles\" && printf '%s' '" + profile +
                     "' > \"$d/profiles/mine.json\" && STEPCAST_CONFIGS=\"$d\" " + binary() +
                     "list profiles " + flag + " 2>/dev/null; c=$?; rm -r \"$d\"; exit $c");
  };
  EXPECT_THAT(list("").text,
              ::testing::ContainsRegex("mine +h100-sxm +measured +curves +1 +50.0 %"));
  const Json json = parse_json(list("--json").text, "stdout").root;
  EXPECT_EQ(json.at("profiles").at(0).at("curves").at(0).at("samples"), 2);
}

TEST(Cli, EndsQuietlyWhenNobodyReads) {
  const Outcome outcome = run_shell("{ " + binary() + "show program " + kExample +
                                    "; } 2>&1 | head -1");
  EXPECT_EQ(outcome.text, "job 1\n");
}

TEST(Cli, SaysThatStdoutIsFull) {
  const Outcome outcome = run_shell(binary() + "schema 2>&1 >/dev/full");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.text, "stepcast: stdout: cannot write: No space left on device\n");
}

}  // namespace
}  // namespace stepcast
