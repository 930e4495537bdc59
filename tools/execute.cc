// `stepcast execute`: reads a what-if and trains its model here, by the very Job that `simulate`
// times. What it reports has the form of a forecast's report, with what was measured in its place.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/execute.h"
#include "execute/mpi.h"
#include "models/lower.h"
#include "models/transformer.h"
#include "sim/base/error.h"
#include "sim/engine/simulate.h"
#include "sim/result/kineto.h"
#include "sim/result/perfetto.h"
#include "sim/result/report.h"
#include "tools/commands.h"
#include "tools/files.h"
#include "tools/whatif.h"

namespace stepcast {
namespace {

constexpr std::string_view kStdout = "-";

struct Machine {
  std::string host, processor;
  int cores = 1;
  Bytes memory;
};

// As Linux says it; "" where it does not.
std::string processor_name() {
  std::string info;
  try {
    info = read_file("/proc/cpuinfo");
  } catch (const Error&) {
    return "";
  }
  const std::size_t line = info.find("model name");
  if (line == std::string::npos) return "";
  const std::size_t begin = std::min(info.find(": ", line), info.size() - 2) + 2;
  return info.substr(begin, info.find('\n', begin) - begin);
}

Machine this_machine() {
  Machine machine;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) machine.host = name;
  machine.processor = processor_name();
  machine.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  machine.memory = Bytes(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return machine;
}

// The what-if as it can be carried out: in fp32, without dropout. Says so where that is a change.
WhatIf executable_what_if(const ExecuteArguments& arguments, bool speak) {
  const WhatIf asked = read_what_if(arguments.config, arguments.sets);
  std::vector<std::string> sets = arguments.sets;
  for (const char* set : {"precision.compute=fp32", "precision.gradients=fp32",
                          "precision.moments=fp32", "dropout=false"}) {
    sets.emplace_back(set);
  }
  WhatIf what_if = arguments.config == kStdout ? asked : read_what_if(arguments.config, sets);
  const bool changed = asked.plan.compute != Dtype::kFp32 ||
                       asked.plan.gradients != Dtype::kFp32 ||
                       asked.plan.moments != Dtype::kFp32 || asked.plan.dropout;
  if (changed && arguments.config == kStdout) {
    throw Error("execute -", "runs in fp32 without dropout; say \"precision\": {\"compute\": "
                             "\"fp32\", \"moments\": \"fp32\"} and \"dropout\": false");
  }
  if (changed && speak) {
    std::fputs("stepcast: execute runs in fp32 without dropout, whatever the file says; bytes are "
               "those of fp32\n", stderr);
  }
  return what_if;
}

// All ranks on one machine must fit into its memory, or it would swap.
void check_memory(const Job& job, const std::string& config, Bytes memory) {
  Bytes sum;
  for (const StageMemory& stage : account(job).stages) {
    sum += stage.peak * (job.mesh.ranks() / job.mesh.stages());
  }
  if (sum <= memory) return;
  throw Error(config, fmt::format("{} ranks hold {:.1f} GB at their peak, this machine has {:.1f} "
                                  "GB; take a smaller model or batch, or more of --launch mpi",
                                  job.mesh.ranks(), static_cast<double>(sum.count) / 1e9,
                                  static_cast<double>(memory.count) / 1e9));
}

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

Report report_of(const WhatIf& what_if, const Job& job, std::vector<RankRun>& runs,
                 const Machine& machine, bool trace) {
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
  report.capacity = machine.memory;
  report.parameters = parameters(what_if.model);
  const Plan& plan = what_if.plan;
  report.flops_per_token = model_flops_per_token(what_if.model, plan.sequence_length, true);
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

Json report_json(const Report& report, const Job& job, const RankRun& run, const Machine& machine,
                 const ExecuteArguments& arguments, const ExecuteOptions& options) {
  Json json = write_report(report, job);
  json["losses"] = run.losses;
  json["step_seconds"] = run.seconds;
  const AdamW& o = options.optimizer;
  json["machine"] = {{"host", machine.host},
                     {"processor", machine.processor},
                     {"cores", machine.cores},
                     {"memory_bytes", machine.memory.count},
                     {"backend", "cpu"},
                     {"launch", arguments.launch},
                     {"ranks", job.mesh.ranks()}};
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

std::string table(const WhatIf& what_if, const Report& report, const RankRun& run,
                  const Machine& machine, const ExecuteArguments& arguments) {
  std::string out = fmt::format("{}: {} ranks ({}) on {} cores, {}\n\n", what_if.name,
                                what_if.plan.ranks(), arguments.launch, machine.cores,
                                machine.processor);
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
  if (!(arguments.rate > 0) || arguments.rate > 1) {
    throw Error("--rate", fmt::format("must be above 0 and at most 1, is {}", arguments.rate));
  }
}

// The runs of all ranks; empty on all processes but the first.
std::vector<RankRun> run_all(const Job& job, const ExecuteArguments& arguments,
                             const ExecuteOptions& options, const Machine& machine,
                             const MpiSession* mpi) {
  const auto corpus = corpus_of(arguments, job);
  const int threads = std::max(1, machine.cores / job.mesh.ranks());
  if (mpi == nullptr) {
    check_memory(job, arguments.config, machine.memory);
    return run_threads(job, options, *corpus, [&] { return make_cpu_backend(threads); });
  }
  if (mpi->ranks() != job.mesh.ranks()) {
    throw Error("--launch mpi", fmt::format("the plan has {} ranks, but {} processes were started; "
                                            "use mpirun -n {}", job.mesh.ranks(), mpi->ranks(),
                                            job.mesh.ranks()));
  }
  const auto transport = mpi->transport();
  const auto backend = make_cpu_backend(threads);
  const RankRun mine = run_rank(job, options, *corpus, *backend, *transport);
  return gather_runs(*transport, job.mesh, mine);
}

int execute(const ExecuteArguments& arguments, const MpiSession* mpi) {
  const bool speak = mpi == nullptr || mpi->rank() == 0;
  const WhatIf what_if = executable_what_if(arguments, speak);
  const Job job = lower(transformer(what_if.model, what_if.plan), what_if.plan);
  const std::string fault = verify(job);
  STEPCAST_CHECK(fault.empty(), fault);
  const std::string trouble = executable(job);
  if (!trouble.empty()) throw Error(arguments.config, trouble);

  const Machine machine = this_machine();
  ExecuteOptions options;
  options.steps = arguments.steps;
  options.seed = arguments.seed;
  options.optimizer.rate = arguments.rate;
  options.trace = !arguments.trace.empty();
  std::vector<RankRun> runs = run_all(job, arguments, options, machine, mpi);
  if (runs.empty()) return 0;

  const Report report = report_of(what_if, job, runs, machine, options.trace);
  if (!arguments.json.empty()) {
    const Json json = report_json(report, job, runs[0], machine, arguments, options);
    write_file(arguments.json, json.dump(2) + "\n");
  }
  if (options.trace) {
    const Trace& trace = report.timeline.trace;
    write_file(arguments.trace, arguments.trace.ends_with(".json")
                                    ? write_kineto(job, trace, kAllTracedRanks, "cpu")
                                    : write_perfetto(job, trace));
  }
  if (arguments.json != kStdout && arguments.trace != kStdout) {
    write_file("-", table(what_if, report, runs[0], machine, arguments));
  }
  return 0;
}

}  // namespace

int execute_command(const ExecuteArguments& arguments) {
  check_arguments(arguments);
  if (arguments.launch == "threads") return execute(arguments, nullptr);
  const MpiSession session;
  try {
    return execute(arguments, &session);
  } catch (const Error& error) {
    // The session ends all processes on its way out, before anybody else could say why.
    const std::string line =
        fmt::format("stepcast: rank {}: {}\n", session.rank(), error.what());
    std::fputs(line.c_str(), stderr);
    throw;
  }
}

}  // namespace stepcast
