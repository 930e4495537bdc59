// The arguments are parsed by CLI11; its complaints are said in this program's own form, one line
// with the nearest right word. Whatever is thrown below ends here, once.
//
// A closed pipe (`stepcast list models | head -1`) ends the process by SIGPIPE, as it ends cat.
#include "tools/cli.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/compare/compare.h"
#include "tools/import/import.h"
#include "tools/run/calibrate.h"
#include "tools/run/execute.h"
#include "tools/run/loop.h"
#include "tools/time/time.h"
#include "tools/validate/validate.h"

namespace stepcast {
namespace {

constexpr const char* kDescription =
    R"(stepcast forecasts a training step of a large language model: time, memory, traffic, waiting.

Examples:
  stepcast simulate configs/llama3.1-70b-1024xh100.json
  stepcast simulate plan.json --set parallel.pipeline=8 --json report.json
  stepcast show memory plan.json
  stepcast list devices
  stepcast explain parallel.tensor
)";

constexpr const char* kFooter =
    R"(Exit code: 0 done; 1 the answer is unwelcome; 2 trouble, in one line on stderr.
`stepcast COMMAND --help` says more about a command.)";

struct Arguments {
  SimulateArguments simulate;
  std::string ranks = "folded";
  bool no_advice = false;
  ExecuteArguments execute;
  CalibrateArguments calibrate;
  CompareArguments compare;
  LoopArguments loop;
  ShowArguments show;
  TimeArguments time;
  ValidateArguments validate;
  ImportArguments import;
  std::string list_kind;
  bool list_json = false;
  std::string key;
};

// An option that may come again and takes one value each time, so that the words behind it stay
// what they are.
void add_sets(CLI::App& command, std::vector<std::string>& sets) {
  command
      .add_option("--set", sets, "Override a key of the file, again and again: parallel.tensor=4")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

void add_simulate(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("simulate", "Forecast a training step");
  SimulateArguments& simulate = arguments.simulate;
  command->add_option("CONFIG", simulate.config, "The what-if file; - is stdin")->required();
  add_sets(*command, simulate.sets);
  command->add_option("--json", simulate.json, "Write the report there; - is stdout")
      ->type_name("FILE");
  command
      ->add_option("--trace", simulate.trace,
                   "Write the timeline there: *.json as Kineto (PyTorch) has it, else for Perfetto")
      ->type_name("FILE");
  command->add_option("--ranks", arguments.ranks,
                      "folded: one rank a stage stands for all of its stage; all: every rank")
      ->type_name("folded|all");
  command->add_flag("--require-fit", simulate.require_fit, "Exit 1 if it does not fit in memory");
  command->add_flag("--no-advice", arguments.no_advice, "Without the advice below the table");
  command->footer(R"(Example:
  stepcast simulate configs/llama3.1-70b-1024xh100.json --set sharding.zero=3 --json -)");
}

void add_execute(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("execute", "Train the model here, by the same plan");
  ExecuteArguments& execute = arguments.execute;
  command->add_option("CONFIG", execute.config, "The what-if file; - is stdin")->required();
  add_sets(*command, execute.sets);
  command->add_option("--steps", execute.steps, "Training steps")->type_name("N");
  command->add_option("--data", execute.data, "Train on the bytes of this file")->type_name("FILE");
  command
      ->add_option("--launch", execute.launch,
                   "threads of this process are the ranks; mpi: the processes that mpirun started")
      ->type_name("threads|mpi");
  command->add_option("--json", execute.json, "Write the report there; - is stdout")
      ->type_name("FILE");
  command
      ->add_option("--trace", execute.trace,
                   "Write the last step there: *.json as Kineto has it, else for Perfetto")
      ->type_name("FILE");
  command->add_option("--rate", execute.rate, "The learning rate of AdamW")->type_name("X");
  command->add_option("--seed", execute.seed, "Of the initial weights and the made-up language")
      ->type_name("N");
  command
      ->add_option("--device", execute.device,
                   "auto: NVIDIA GPUs if the cluster is of those and here is one for every rank")
      ->type_name("auto|cpu|cuda");
  command->add_flag("--cuda-graphs", execute.cuda_graphs,
                    "Set host.graphs: a step is captured once and launched whole");
  command->add_flag("--register-buffers", execute.register_buffers,
                    "NCCL allocates the ranks' memory and need not copy through its own");
  command->footer(R"(Examples:
  stepcast execute configs/tiny-gpt-8xcpu.json --steps 50
  mpirun -n 8 stepcast execute configs/tiny-gpt-8xcpu.json --launch mpi --json -)");
}

void add_loop(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "loop", "Calibrate, forecast, execute and compare here, in turns: is the forecast right?");
  LoopArguments& loop = arguments.loop;
  command->add_option("CONFIG", loop.configs, "What-if files, one plan after the other")
      ->required()
      ->type_name("");
  add_sets(*command, loop.sets);
  command
      ->add_option("--slices", loop.slices,
                   "Of each plan: [sentinel, ring, sentinel, full steps]; without: 15")
      ->type_name("N");
  command
      ->add_option("--tolerance", loop.tolerance,
                   "Of forecast against measured step time; without: 4%")
      ->type_name("4%");
  command->add_option("--json", loop.json, "Write all slices there; - is stdout")
      ->type_name("FILE");
  command->add_flag("--allow-inconclusive", loop.allow_inconclusive,
                    "Exit 0 where the machine was not still enough to tell");
  command->footer(
      R"(Exit code: 0 within the tolerance; 1 beyond it, or inconclusive: fewer than 5 slices, or
an interval of more than 3 % each way.
Examples:
  stepcast loop configs/loop/gpt-h256.json
  stepcast loop configs/loop/*.json --json loop.json)");
}

void add_calibrate(CLI::App& app, Arguments& arguments) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Time the work of plans here, for simulate to take");
  CalibrateArguments& calibrate = arguments.calibrate;
  command->add_option("--for", calibrate.configs, "A what-if file; may come again")
      ->required()
      ->type_name("CONFIG")
      ->allow_extra_args(false);
  add_sets(*command, calibrate.sets);
  command->add_option("--out", calibrate.out, "Write the profile there; - is stdout")
      ->required()
      ->type_name("PROFILE");
  command->add_option("--device", calibrate.device, "What the plans are executed on")
      ->type_name("cpu|cuda");
  command
      ->add_option("--launch", calibrate.launch,
                   "threads of this process are the ranks; mpi: the processes that mpirun started")
      ->type_name("threads|mpi");
  command->add_flag("--resume", calibrate.resume, "Go on from what the file holds already");
  command
      ->add_option("--repeat", calibrate.repeat,
                   "Slices of each plan; without: what 10 s hold, at least 8")
      ->type_name("N");
  command->footer(
      R"(A slice is two rounds of a small plan of the same shapes; the file is written after each.
Example:
  stepcast calibrate --for plan.json --out here.json
  stepcast simulate plan.json --set profile=here.json)");
}

void add_compare(CLI::App& app, Arguments& arguments) {
  CLI::App* command =
      app.add_subcommand("compare", "A forecast against a run: is the one what the other said?");
  CompareArguments& compare = arguments.compare;
  command->add_option("PREDICTED", compare.predicted, "A report of simulate or execute; - is stdin")
      ->required()
      ->type_name("");
  command
      ->add_option("MEASURED", compare.measured,
                   "A report too; or logs of Megatron-LM, NeMo, DeepSpeed or torchtitan, "
                   "Megatron's golden values, traces of PyTorch's profiler (.json, .json.gz; a "
                   "folder of ranks)")
      ->required()
      ->type_name("");
  command
      ->add_option("--tolerance", compare.tolerance,
                   "Of step time, allocated peak and bytes sent, both ways; without: 5%")
      ->type_name("5%");
  command->add_option("--json", compare.json, "Write the comparison there; - is stdout")
      ->type_name("FILE");
  command->add_option("--junit", compare.junit, "Write it as test cases, for a CI system")
      ->type_name("FILE");
  command->add_option("--markdown", compare.markdown, "Write it as a table, for a comment")
      ->type_name("FILE");
  command->footer(R"(Exit code: 0 within the tolerance; 1 beyond it, or the machine was not still.
Example:
  stepcast simulate plan.json --json forecast.json
  stepcast execute plan.json --json run.json
  stepcast compare forecast.json run.json --tolerance 10% --junit compare.xml
  stepcast compare forecast.json train.log
  stepcast compare forecast.json traces/)");
}

void add_show(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("show", "What would run, as text");
  ShowArguments& show = arguments.show;
  command->add_option("WHAT", show.what, "model, program, cluster or memory")
      ->required()
      ->type_name("");
  command->add_option("CONFIG", show.config, "The what-if file; - is stdin")->required();
  add_sets(*command, show.sets);
  command->add_option("--stage", show.stage, "Of program and memory: only this pipeline stage")
      ->type_name("N");
  command->footer(R"(Example:
  stepcast show memory configs/llama3.1-70b-1024xh100.json --stage 0)");
}

void add_time(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("time", "One kernel or one collective, alone");
  TimeArguments& time = arguments.time;
  command
      ->add_option("WHAT", time.what,
                   "gemm, attention, all-reduce, all-gather, reduce-scatter, broadcast, "
                   "all-to-all or send")
      ->required()
      ->type_name("");
  command->add_option("--m", time.m, "gemm: rows of the result");
  command->add_option("--n", time.n, "gemm: columns of the result");
  command->add_option("--k", time.k, "gemm: what is summed over");
  command->add_option("--batch", time.batch, "gemm: products at once; attention: sequences");
  command->add_option("--role", time.role, "gemm: forward, input-gradient or weight-gradient");
  command->add_option("--dtype", time.dtype,
                      "Of the operands: bf16, fp16, fp32, fp8; fp8-block: scales for blocks of "
                      "128");
  command->add_option("--output", time.output, "gemm: of the result");
  command->add_flag("--accumulate", time.accumulate, "gemm: added to what the result holds");
  command->add_option("--heads", time.heads, "attention: query heads");
  command->add_option("--kv-heads", time.kv_heads, "attention: key-value heads");
  command->add_option("--sequence", time.sequence, "attention: tokens of a sequence");
  command->add_option("--head-dim", time.head_dim, "attention: width of a head");
  command->add_flag("--causal", time.causal, "attention: half of the scores are masked");
  command->add_flag("--flows", time.flows, "COLLECTIVE: also play its messages over the topology");
  command->add_flag("--backward", time.backward, "attention: the gradient");
  command->add_option("--size", time.size, "A collective's bytes, \"1 GB\"");
  command->add_option("--from", time.from, "Or a sweep, doubling: from \"8 B\"");
  command->add_option("--to", time.to, "to \"8 GiB\"");
  command->add_option("--ranks", time.ranks, "Over the first N devices; without: all");
  command->add_option("--device", time.device, "Of a kernel: a name under configs/devices");
  command->add_option("--cluster", time.cluster, "Of a collective: h100-sxm-2x8, or a file");
  command->add_option("--profile", time.profile,
                      "Of a collective: measured times go first; a name or a file");
  command->add_option("--json", time.json, "Write it there; - is stdout")->type_name("FILE");
  command->footer(R"(Examples:
  stepcast time gemm --m 8192 --n 8192 --k 8192 --device h100-sxm
  stepcast time all-reduce --from "1 MiB" --to "1 GiB" --cluster h100-sxm-2x8)");
}

void add_validate(CLI::App& app, Arguments& arguments) {
  CLI::App* command =
      app.add_subcommand("validate", "Published measurements against the forecast of each");
  ValidateArguments& validate = arguments.validate;
  command
      ->add_option("FILE", validate.files,
                   "JSON lines, one measurement each; - is stdin; without: the shipped runs")
      ->type_name("");
  command->add_option("--json", validate.json, "Write every row and the summary; - is stdout")
      ->type_name("FILE");
  command->add_option("--markdown", validate.markdown, "Write the page of the shipped runs there")
      ->type_name("FILE");
  command->add_option("--errors", validate.errors, "Write their errors by class of plan there")
      ->type_name("FILE");
  command->footer(R"(A row: {"id": "x", "source": "a paper", "kind": "gemm", "gpu": "H100-80GB-SXM",
        "dtype": "bf16", "m": 8192, "n": 8192, "k": 8192, "achieved_tflops": 750}
  kind attention has seq_len, head_dim, heads, batch, causal, direction; kind collective has
  collective, size_bytes, ranks, nodes, time_us or busbw_GBps. A training run has the objects model,
  hardware, software, parallel and measured, and recompute:
       {"id": "y", "model": {"name": "llama3-8b", "layers": 32, "hidden": 4096, "heads": 32,
        "kv_heads": 8, "ffn_hidden": 14336, "gated_mlp": true, "vocab": 128256, "seq_len": 8192},
        "hardware": {"gpu": "H100", "gpus_total": 8}, "recompute": "full", "parallel": {"tp": 1,
        "pp": 1, "zero_stage": 3, "micro_batch": 1, "global_batch": 128},
        "measured": {"step_time_s": 15}}
  What is left out is filled in and named; what cannot be mapped says why.
Examples:
  stepcast validate
  stepcast validate kernels.jsonl --json validation.json)");
}

void add_import(CLI::App& app, Arguments& arguments) {
  CLI::App* command =
      app.add_subcommand("import", "What other tools measured, as files of this one");
  ImportArguments& import = arguments.import;
  command
      ->add_option("KIND", import.kind,
                   "nccl-tests, kernels, runs, published, nccl-topology or nvidia-smi-topo")
      ->required()
      ->type_name("");
  command
      ->add_option("FILE", import.files,
                   "nccl-tests: one log or several; - is stdin; runs: without, the shipped ones")
      ->type_name("");
  command
      ->add_option("--out", import.out,
                   "Write the profile or cluster there; - is stdout; published: a folder")
      ->required()
      ->type_name("FILE");
  command->add_option("--device", import.device, "Of what was measured, if the files do not tell");
  command->add_option("--name", import.name, "Of what is written; without: that of the file");
  command->add_option("--collective", import.collective, "nccl-tests: if a log does not tell it");
  command->add_option("--ranks", import.ranks, "nccl-tests: if a log does not list them");
  command->add_option("--nodes", import.nodes, "nccl-tests: if a log does not list them");
  command->add_flag("--in-place", import.in_place, "nccl-tests: the times of the second columns");
  command->footer(R"(Examples:
  stepcast import nccl-tests all_reduce.log all_gather.log --out profile.json
  stepcast time all-reduce --cluster h100-sxm-1x8 --profile profile.json
  nvidia-smi topo -m | stepcast import nvidia-smi-topo - --device h100-sxm --out cluster.json)");
}

void add_rest(CLI::App& app, Arguments& arguments) {
  CLI::App* list = app.add_subcommand("list", "What is shipped of one kind");
  list->add_option("KIND", arguments.list_kind, "models, devices, clusters, profiles or frameworks")
      ->required()
      ->type_name("");
  list->add_flag("--json", arguments.list_json, "As JSON");
  list->footer("Example:\n  stepcast list devices");

  CLI::App* explain = app.add_subcommand("explain", "What a key or a term means");
  explain
      ->add_option("KEY", arguments.key,
                   "A key of the what-if file or of the report, or a term: parallel.tensor, mfu")
      ->required()
      ->type_name("");
  explain->footer("Example:\n  stepcast explain sharding.zero");

  app.add_subcommand("schema", "The JSON Schema of the what-if file, for editors")
      ->footer("Example:\n  stepcast schema > whatif.schema.json");
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// CLI11's complaint in one line; what it could not place is looked at first, as a misspelt flag is
// the cause of what else is missing.
Error usage_error(const CLI::App& app, const CLI::ParseError& trouble) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string where = chosen.empty() ? "" : command.get_name();
  const std::vector<std::string> left = app.remaining(true);
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& word) {
    return word.size() > 1 && word.front() == '-';
  });
  if (flag != left.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    return Error(where, fmt::format("there is no flag {}{}; `stepcast{}{} --help` lists them", name,
                                    did_you_mean(name, flag_names(command)),
                                    where.empty() ? "" : " ", where));
  }
  if (!left.empty()) return Error(where, fmt::format("\"{}\" is one word too many", left.front()));
  return Error(where, trouble.what());
}

// The first word that is no flag has to be a command: CLI11 would take it for a word too many.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]).starts_with('-')) return;
  const std::vector<std::string> names = command_names(app);
  const std::string word = argv[1];
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  throw Error("", fmt::format("there is no command \"{}\"{}; there are {}", word,
                              did_you_mean(word, names), fmt::join(names, ", ")));
}

int dispatch(const CLI::App& app, Arguments& arguments) {
  if (app.got_subcommand("simulate")) {
    const std::vector<std::string> words = {"folded", "all"};
    if (std::find(words.begin(), words.end(), arguments.ranks) == words.end()) {
      throw Error("--ranks", fmt::format("must be folded or all, is \"{}\"{}", arguments.ranks,
                                         did_you_mean(arguments.ranks, words)));
    }
    arguments.simulate.all_ranks = arguments.ranks == "all";
    arguments.simulate.advise = !arguments.no_advice;
    return simulate_command(arguments.simulate);
  }
  if (app.got_subcommand("execute")) return execute_command(arguments.execute);
  if (app.got_subcommand("calibrate")) return calibrate_command(arguments.calibrate);
  if (app.got_subcommand("compare")) return compare_command(arguments.compare);
  if (app.got_subcommand("loop")) return loop_command(arguments.loop);
  if (app.got_subcommand("show")) return show_command(arguments.show);
  if (app.got_subcommand("time")) return time_command(arguments.time);
  if (app.got_subcommand("validate")) return validate_command(arguments.validate);
  if (app.got_subcommand("import")) return import_command(arguments.import);
  if (app.got_subcommand("list")) return list_command(arguments.list_kind, arguments.list_json);
  if (app.got_subcommand("explain")) return explain_command(arguments.key);
  return schema_command();
}

int parse_and_run(int argc, char** argv) {
  CLI::App app(kDescription, "stepcast");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "stepcast " STEPCAST_VERSION);
  Arguments arguments;
  add_simulate(app, arguments);
  add_execute(app, arguments);
  add_calibrate(app, arguments);
  add_compare(app, arguments);
  add_loop(app, arguments);
  add_show(app, arguments);
  add_time(app, arguments);
  add_validate(app, arguments);
  add_import(app, arguments);
  add_rest(app, arguments);

  if (argc < 2) {
    std::cerr << app.help();
    return kTrouble;
  }
  check_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    write_file("-", app.help());
    return 0;
  } catch (const CLI::CallForVersion& version) {
    write_file("-", std::string(version.what()) + "\n");
    return 0;
  } catch (const CLI::ParseError& trouble) {
    throw usage_error(app, trouble);
  }
  const int code = dispatch(app, arguments);
  std::cout.flush();
  write_file("-", "");  // throws if what was printed did not all arrive
  return code;
}

int complain(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = "stepcast: " + text + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  return kTrouble;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // a parent may have had it ignored
  try {
    return parse_and_run(argc, argv);
  } catch (const Error& error) {
    return complain(error.what());
  } catch (const std::bad_alloc&) {
    std::fputs("stepcast: out of memory\n", stderr);
    return kTrouble;
  } catch (const std::exception& trouble) {
    return complain(trouble.what());
  }
}

}  // namespace stepcast
