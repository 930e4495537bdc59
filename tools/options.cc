// One function a subcommand. Each says what a flag means where it is added, and ends in examples.
#include "tools/options.h"

#include <CLI/CLI.hpp>

namespace stepcast {
namespace {

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
  command
      ->add_option("--ranks", arguments.ranks,
                   "folded: one rank a stage stands for all of its stage; all: every rank")
      ->type_name("folded|all");
  command->add_flag("--require-fit", simulate.require_fit, "Exit 1 if it does not fit in memory");
  command->add_flag("--no-advice", arguments.no_advice, "Without the advice below the table");
  command->footer(R"(Example:
  stepcast simulate configs/llama3.1-70b-1024xh100.json --set sharding.zero=3 --json -)");
}

void add_search(CLI::App& app, Arguments& arguments) {
  CLI::App* command = app.add_subcommand("search", "Every plan that fits, best first");
  SearchArguments& search = arguments.search;
  command->add_option("CONFIG", search.config, "The what-if file")->required();
  add_sets(*command, search.sets);
  command
      ->add_option("--devices", search.devices,
                   "Clusters of whole nodes: 64..1024 (doubling) or 64,96; without: the file's")
      ->type_name("A..B");
  command
      ->add_option("--vary", search.vary,
                   "Values of a key of the plan, in place of those that are tried otherwise")
      ->type_name("KEY=VALUE,VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--fix", search.fix, "Leave a key as the file has it; --set KEY=VALUE does too")
      ->type_name("KEY")
      ->allow_extra_args(false);
  command->add_option("--top", search.top, "Plans to rank; without: 10, or 3 on each cluster")
      ->type_name("N");
  command
      ->add_option("--price-per-device-hour", search.price,
                   "Tell costs in it, not in device-hours; needs train.tokens")
      ->type_name("X");
  command->add_option("--json", search.json, "Write what was found there; - is stdout")
      ->type_name("FILE");
  command->footer(
      R"(Tried, whatever the file says of them: parallel.tensor (what divides a node), pipeline,
virtual_stages, sequence_parallel, batch.micro, sharding.zero, recompute; data is what is left.
Model, batch and all else stay as they are in the file.
Exit code: 0; 1 if no plan fits, or none meets the step time that the file expects.
Examples:
  stepcast search configs/llama3.1-70b-1024xh100.json --fix recompute
  stepcast search plan.json --devices 64..1024 --vary parallel.tensor=4,8 --json found.json)");
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
  command->add_option("--value-dim", time.value_dim,
                      "attention: that of a head's values, if it is another");
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
  It may have batch, too, and gap_us: what the host's clock counts between two products.
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
  command->add_option("--without", import.without, "runs: a group that the fit may not see")
      ->type_name("GROUP")
      ->allow_extra_args(false);
  command
      ->add_option("--rows", import.rows,
                   "runs: of a group at most so many, evenly spread; without: 16")
      ->check(CLI::Range(4, 100'000));
  command
      ->add_option("--hold", import.hold,
                   "runs: a number that is not fitted but stays what the profile has")
      ->type_name("NUMBER")
      ->allow_extra_args(false);
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

}  // namespace

void add_commands(CLI::App& app, Arguments& arguments) {
  add_simulate(app, arguments);
  add_search(app, arguments);
  add_execute(app, arguments);
  add_calibrate(app, arguments);
  add_compare(app, arguments);
  add_loop(app, arguments);
  add_show(app, arguments);
  add_time(app, arguments);
  add_validate(app, arguments);
  add_import(app, arguments);
  add_rest(app, arguments);
}

}  // namespace stepcast
