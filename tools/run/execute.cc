// `stepcast execute`: reads a what-if and trains its model here, by the very Job that `simulate`
// times. What it reports has the form of a forecast's report, with what was measured in its place.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/execute.h"
#include "execute/mpi.h"
#include "models/model.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "sim/result/kineto.h"
#include "sim/result/perfetto.h"
#include "sim/result/report.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/run/composition.h"
#include "tools/run/execute.h"
#include "tools/run/execute_cuda.h"
#include "tools/run/here.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

constexpr std::int64_t kRecorded = 20;  // steps, the last ones, that are composed again

// The last step, as its slowest rank saw it; every other rank waited for that one.
Timeline timeline_of(std::vector<RankRun>& runs, bool trace) {
  Timeline timeline;
  double idle = 0, pipeline = 0;
  for (RankRun& run : runs) {
    Duration step;
    for (const Duration part : run.time.breakdown) step += part;
    if (step > timeline.step) {
      timeline.step = step;
      timeline.slowest = static_cast<std::int32_t>(timeline.ranks.size());
    }
    timeline.instructions += run.instructions;
    idle += to_seconds(run.time.breakdown[static_cast<std::size_t>(Part::kBubble)]).value;
    pipeline += to_seconds(run.time.pipeline_end - Instant()).value;
    timeline.ranks.push_back(run.time);
    if (trace) {
      std::vector<Span>& spans = timeline.trace.spans;
      spans.insert(spans.end(), run.spans.begin(), run.spans.end());
    }
  }
  for (RankTime& rank : timeline.ranks) {
    Duration known;
    for (const Duration part : rank.breakdown) known += part;
    rank.breakdown[static_cast<std::size_t>(Part::kOther)] += timeline.step - known;
  }
  timeline.bubble_fraction = pipeline > 0 ? std::min(1.0, idle / pipeline) : 0;
  return timeline;
}

Report report_of(const WhatIf& what_if, const Job& job, std::vector<RankRun>& runs, Bytes capacity,
                 bool trace) {
  Report report;
  report.config = what_if.resolved;
  report.timeline = timeline_of(runs, trace);
  report.footprint = account(job);  // for the moments of the peaks; the bytes are the arenas'
  report.traffic.stages.resize(job.programs.size());
  for (const RankRun& run : runs) {
    const auto stage = static_cast<std::size_t>(job.mesh.stage(run.rank));
    StageMemory& memory = report.footprint.stages[stage];
    memory.peak = run.peak;
    memory.at_peak = run.at_peak;
    memory.resident = run.resident;
    memory.reserved = std::max(memory.reserved, run.arena);
    report.traffic.stages[stage] = run.sent;
  }
  report.capacity = capacity;
  report.parameters = parameters(what_if.model);
  const Plan& plan = what_if.plan;
  report.flops_per_token = model_flops_per_token(what_if.model, plan.attended(), true);
  // The first step also warms up.
  const std::vector<double>& seconds = runs[0].seconds;
  const double last = to_seconds(report.timeline.step).value;
  const auto [low, high] =
      std::minmax_element(seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end());
  report.low = Seconds(std::min(*low, last));
  report.high = Seconds(std::max(*high, last));
  report.range_from = fmt::format("{} step{} of this run",
                                  std::max<std::size_t>(1, seconds.size() - 1),
                                  seconds.size() > 2 ? "s" : "");
  report.tokens_per_second_per_device = static_cast<double>(plan.global_batch) *
                                        static_cast<double>(plan.sequence_length) / last /
                                        static_cast<double>(plan.ranks());
  return report;
}

// Ranks beyond the cores take turns: their times say nothing about the plan.
bool is_timed(const Job& job, const Machine& machine, const ExecuteArguments& arguments,
              const Gpus& gpus) {
  return gpus.used || arguments.launch == "mpi" || job.mesh.ranks() <= machine.cores;
}

Json report_json(const Report& report, const Job& job, const std::vector<RankRun>& runs,
                 const Machine& machine, const ExecuteArguments& arguments,
                 const ExecuteOptions& options, const Gpus& gpus) {
  const RankRun& run = runs.front();
  Json json = write_report(report, job);
  const auto composition = compose(job, runs);
  json["composition"] = composition ? composition_json(*composition) : Json();
  json["between_kernels_seconds"] = to_seconds(run.between).value;
  json["losses"] = run.losses;
  json["step_seconds"] = run.seconds;
  const AdamW& o = options.optimizer;
  json["machine"] = {{"host", machine.host},
                     {"processor", machine.processor},
                     {"cores", machine.cores},
                     {"memory_bytes", machine.memory.count},
                     {"backend", gpus.used ? "cuda" : "cpu"},
                     {"launch", arguments.launch},
                     {"timed", is_timed(job, machine, arguments, gpus)},
                     {"ranks", job.mesh.ranks()}};
  if (gpus.used) json["machine"]["gpu"] = gpu_json(gpus);
  json["training"] = {{"data", arguments.data.empty() ? "synthetic" : arguments.data},
                      {"seed", options.seed},
                      {"initial_deviation", options.initial_deviation},
                      {"optimizer", "adamw"},
                      {"rate", o.rate},
                      {"beta1", o.beta1},
                      {"beta2", o.beta2},
                      {"epsilon", o.epsilon},
                      {"decay", o.decay},
                      {"clip", o.clip}};
  return json;
}

std::string table(const WhatIf& what_if, const Job& job, const Report& report,
                  const std::vector<RankRun>& runs, const Machine& machine,
                  const ExecuteArguments& arguments, const Gpus& gpus) {
  const RankRun& run = runs.front();
  std::string out = fmt::format(
      "{}: {} ranks ({}) on {}\n\n", what_if.name, what_if.plan.ranks(), arguments.launch,
      gpus.used ? gpus.machine.device
                : fmt::format("{} cores, {}", machine.cores, machine.processor));
  out += "  step       loss    seconds\n";
  const std::size_t steps = run.losses.size();
  const std::size_t every = std::max<std::size_t>(1, (steps + 19) / 20);
  for (std::size_t i = 0; i < steps; ++i) {
    if (i % every != 0 && i + 1 != steps) continue;
    out += fmt::format("{:>6} {:>10.4f} {:>10.4f}\n", i + 1, run.losses[i], run.seconds[i]);
  }
  out += "\n stage  peak bytes of a rank  sent bytes of a rank in a step\n";
  for (std::size_t stage = 0; stage < report.footprint.stages.size(); ++stage) {
    Bytes sent;
    for (const Bytes bytes : report.traffic.stages[stage]) sent += bytes;
    out += fmt::format("{:>6} {:>21} {:>31}\n", stage, report.footprint.stages[stage].peak.count,
                       sent.count);
  }
  if (const auto composition = compose(job, runs)) {
    out += fmt::format(
        "\nThe last {} steps, composed again of what their instructions took, are "
        "off by {:+.2f} %\n(the furthest by {:+.2f} %).\n",
        composition->errors.size(), 100 * composition->error, 100 * composition->largest);
  }
  out += gpu_text(gpus);
  if (!is_timed(job, machine, arguments, gpus)) {
    out += fmt::format("Not timed: {} ranks take turns on {} cores.\n", job.mesh.ranks(),
                       machine.cores);
  }
  return out;
}

std::unique_ptr<Corpus> corpus_of(const ExecuteArguments& arguments, const Job& job) {
  const Batch& batch = job.batch;
  if (arguments.data.empty()) return make_language(batch.vocabulary, arguments.seed);
  return make_text(read_file(arguments.data), arguments.data, batch.vocabulary,
                   batch.sequence_length);
}

void check_arguments(const ExecuteArguments& arguments) {
  if (arguments.launch != "threads" && arguments.launch != "mpi") {
    throw Error("--launch", fmt::format("must be threads or mpi, is \"{}\"{}", arguments.launch,
                                        did_you_mean(arguments.launch, {"threads", "mpi"})));
  }
  if (arguments.json == kStdout && arguments.trace == kStdout) {
    throw Error("--trace -", "stdout is taken by --json -; name a file for one of the two");
  }
  if (arguments.steps < 1 || arguments.steps > 1'000'000) {
    throw Error("--steps", fmt::format("must be from 1 to 1000000, is {}", arguments.steps));
  }
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  if (std::find(devices.begin(), devices.end(), arguments.device) == devices.end()) {
    throw Error("--device", fmt::format("must be auto, cpu or cuda, is \"{}\"{}", arguments.device,
                                        did_you_mean(arguments.device, devices)));
  }
  if (!(arguments.rate > 0) || arguments.rate > 1) {
    throw Error("--rate", fmt::format("must be above 0 and at most 1, is {}", arguments.rate));
  }
}

// What is to be run. All that can be wrong with the question is found before anything runs.
struct Prepared {
  WhatIf what_if;
  Job job;
  Machine machine;
  std::unique_ptr<Corpus> corpus;
  ExecuteOptions options;
  Gpus gpus;
};

std::unique_ptr<Prepared> prepare(const ExecuteArguments& arguments, bool speak) {
  auto prepared = std::make_unique<Prepared>();
  Gpus& gpus = prepared->gpus;
  gpus.used = choose_gpus(arguments);
  std::vector<std::string> sets = arguments.sets;
  if (arguments.cuda_graphs) sets.emplace_back("host.graphs=true");
  prepared->what_if = gpus.used ? read_what_if(arguments.config, sets)
                                : executable_what_if(arguments.config, sets, speak);
  gpus.options.graphs = prepared->what_if.cluster.device.graphs;
  gpus.options.register_buffers = arguments.register_buffers;
  prepared->job = executable_job(prepared->what_if, arguments.config);
  const std::string trouble = gpus.used ? cuda_unsupported(prepared->job) : "";
  if (!trouble.empty()) throw Error(arguments.config, trouble);
  const Job& job = prepared->job;
  for (const std::string& path : {arguments.json, arguments.trace}) {
    if (!path.empty()) check_writable(path);
  }
  prepared->machine = this_machine();
  prepared->corpus = corpus_of(arguments, job);
  ExecuteOptions& options = prepared->options;
  options.steps = arguments.steps;
  options.seed = arguments.seed;
  options.optimizer.rate = arguments.rate;
  options.trace = !arguments.trace.empty();
  options.record = std::min(arguments.steps, kRecorded);
  options.check_numbers = true;
  if (gpus.used) {
    options.record = 0;  // one clock a GPU
    options.check_numbers = false;
  } else if (arguments.launch == "threads") {
    check_memory(job, arguments.config, prepared->machine);
    options.stuck = [](const Error& error) {
      std::fputs(fmt::format("stepcast: {}\n", error.what()).c_str(), stderr);
      std::_Exit(kTrouble);  // a thread that hangs cannot be joined
    };
  }
  return prepared;
}

int threads_of_rank(const Prepared& prepared) {
  return std::max(1, prepared.machine.cores / prepared.job.mesh.ranks());
}

// The table first, so that it is not lost with a file that cannot be written.
int report_all(const Prepared& prepared, std::vector<RankRun>& runs,
               const ExecuteArguments& arguments) {
  const Job& job = prepared.job;
  const bool trace = prepared.options.trace;
  const Gpus& gpus = prepared.gpus;
  const Bytes capacity = gpus.used ? gpus.machine.memory : prepared.machine.memory;
  const Report report = report_of(prepared.what_if, job, runs, capacity, trace);
  if (arguments.json != kStdout && arguments.trace != kStdout) {
    write_file("-", table(prepared.what_if, job, report, runs, prepared.machine, arguments, gpus));
  }
  std::optional<Error> first;
  if (!arguments.json.empty()) {
    const std::string text =
        report_json(report, job, runs, prepared.machine, arguments, prepared.options, gpus)
            .dump(2) +
        "\n";
    try {
      write_file(arguments.json, text);
    } catch (const Error& error) {
      if (arguments.json == kStdout || arguments.trace == kStdout) throw;
      write_file("-", text);
      first = Error(error.where(), error.message() + "; the report stands on stdout instead");
    }
  }
  if (trace) {
    const Trace& spans = report.timeline.trace;
    write_file(arguments.trace,
               arguments.trace.ends_with(".json")
                   ? write_kineto(job, spans, kAllTracedRanks, gpus.used ? "cuda" : "cpu")
                   : write_perfetto(job, spans));
  }
  if (first) throw *first;
  return 0;
}

int execute_threads(const ExecuteArguments& arguments) {
  const auto prepared = prepare(arguments, true);
  if (prepared->gpus.used) {
    std::vector<RankRun> runs =
        run_on_gpus(prepared->job, prepared->options, *prepared->corpus, prepared->gpus);
    return report_all(*prepared, runs, arguments);
  }
  const int threads = threads_of_rank(*prepared);
  std::vector<RankRun> runs = run_threads(prepared->job, prepared->options, *prepared->corpus,
                                          [&] { return make_cpu_backend(threads); });
  return report_all(*prepared, runs, arguments);
}

// One process of several, in the child of the one that was launched.
int run_process(Prepared& prepared, const ExecuteArguments& arguments, Progress& progress) {
  const MpiSession session;
  try {
    const Job& job = prepared.job;
    if (session.ranks() != job.mesh.ranks()) {
      throw Error("--launch mpi",
                  fmt::format("the plan has {} ranks, but {} processes were started; use "
                              "mpirun -n {}",
                              job.mesh.ranks(), session.ranks(), job.mesh.ranks()));
    }
    const auto transport = session.transport();
    if (prepared.gpus.used) {
      const RankRun mine =
          run_on_a_gpu(job, prepared.options, *prepared.corpus, *transport, prepared.gpus);
      std::vector<RankRun> runs = gather_runs(*transport, job.mesh, mine);
      return runs.empty() ? 0 : report_all(prepared, runs, arguments);
    }
    prepared.options.epoch = common_epoch(*transport);
    if (!session.one_machine()) prepared.options.record = 0;  // their clocks differ
    const auto backend = make_cpu_backend(threads_of_rank(prepared));
    const RankRun mine =
        run_rank(job, prepared.options, *prepared.corpus, *backend, *transport, progress);
    std::vector<RankRun> runs = gather_runs(*transport, job.mesh, mine);
    return runs.empty() ? 0 : report_all(prepared, runs, arguments);
  } catch (const Error& error) {
    // The session ends all processes on its way out, before anybody else could say why.
    const std::string rank =
        error.where().starts_with("rank ") ? "" : fmt::format("rank {}: ", session.rank());
    std::fputs(fmt::format("stepcast: {}{}\n", rank, error.what()).c_str(), stderr);
    throw;
  }
}

// All processes find the same trouble with the question. The first says so; the others give it the
// time to, and speak if it is theirs alone.
int execute_processes(const ExecuteArguments& arguments) {
  std::unique_ptr<Prepared> prepared;
  try {
    prepared = prepare(arguments, launched_rank() == 0);
  } catch (const Error&) {
    if (launched_rank() > 0) sleep(2);
    throw;
  }
  // What a GPU was asked before a fork does not work after it; NCCL tells when a rank is lost.
  if (prepared->gpus.used) {
    Progress progress;
    return run_process(*prepared, arguments, progress);
  }
  return run_watched(prepared->job, [&](Progress& progress) {
    return run_process(*prepared, arguments, progress);
  });
}

}  // namespace

int execute_command(const ExecuteArguments& arguments) {
  check_arguments(arguments);
  return arguments.launch == "threads" ? execute_threads(arguments) : execute_processes(arguments);
}

}  // namespace stepcast
