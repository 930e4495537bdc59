// `stepcast simulate`: reads a what-if, forecasts it, and says so on stdout. With --json - stdout
// is for the machine alone: no table, and no advice, which only the table shows.
#include <optional>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/result/kineto.h"
#include "sim/result/perfetto.h"
#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/forecast/advice.h"
#include "tools/forecast/forecast.h"
#include "tools/forecast/table.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

constexpr int kDone = 0;
constexpr int kUnwelcome = 1;
std::string trace_text(const std::string& file, const WhatIf& what_if, const Forecast& result) {
  const Trace& trace = result.report.timeline.trace;
  if (!file.ends_with(".json")) return write_perfetto(result.job, trace);
  return write_kineto(result.job, trace, kAllTracedRanks, what_if.cluster.device.name);
}

}  // namespace

int simulate_command(const SimulateArguments& arguments) {
  // Before the work, not after it.
  if (arguments.trace.ends_with(".gz")) {
    throw Error("--trace " + arguments.trace, "traces are not compressed; write to a name without "
                                              ".gz and compress it afterwards");
  }
  if (arguments.json == kStdout && arguments.trace == kStdout) {
    throw Error("--trace -", "stdout is taken by --json -; name a file for one of the two");
  }
  const WhatIf what_if = read_what_if(arguments.config, arguments.sets);
  ForecastOptions options;
  options.ranks = arguments.all_ranks ? Ranks::kAll : Ranks::kFolded;
  options.trace = !arguments.trace.empty();
  options.errors = shipped_error_classes();
  const Forecast result = forecast(what_if, options);
  const Json report = write_report(result.report, result.job);

  if (!arguments.json.empty()) write_file(arguments.json, report.dump(2) + "\n");
  if (options.trace) write_file(arguments.trace, trace_text(arguments.trace, what_if, result));
  if (arguments.json != kStdout && arguments.trace != kStdout) {
    std::optional<Advice> advice;
    if (arguments.advise) advice = advise(what_if, result);
    write_file("-", write_table(what_if, report, advice));
  }

  bool welcome = !arguments.require_fit || report.at("memory").at("fits").get<bool>();
  for (const Expectation& one : check_expectations(what_if, report)) welcome = welcome && one.met;
  return welcome ? kDone : kUnwelcome;
}

}  // namespace stepcast
