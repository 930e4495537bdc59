// What is the same for every form of measurement: warm-up, and which reader serves. Megatron-LM's
// golden values are a JSON object a metric, {"start_step", "end_step", "step_interval", "values":
// {"1": x, "2": "nan"}}, written from TensorBoard's log of the last rank; steps that were not
// logged are "nan".
#include "tools/compare/measured.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "sim/base/json.h"
#include "tools/compare/judge.h"

namespace stepcast {
namespace {

constexpr double kSlower = 1.1;  // of a step that still warms up

struct LoggedValues {
  std::map<std::int64_t, double> of_step;
  std::size_t skipped = 0;  // "nan", or no number above 0
};

std::optional<std::int64_t> step_number(std::string_view text) {
  std::int64_t step = 0;
  const auto [stop, trouble] = std::from_chars(text.data(), text.data() + text.size(), step);
  const bool whole = trouble == std::errc() && stop == text.data() + text.size();
  return whole ? std::optional(step) : std::nullopt;
}

LoggedValues values_of(const Object& root, const std::string& metric) {
  LoggedValues values;
  if (!root.has(metric)) return values;
  const Object one = root.object(metric);
  if (!one.has("values")) one.fail("values", "is missing");
  const Json& list = one.at("values");
  if (!list.is_object()) one.fail("values", "must be an object of step numbers");
  for (const auto& item : list.items()) {
    const std::optional<std::int64_t> step = step_number(item.key());
    if (!step) one.fail("values", fmt::format("\"{}\" is no step number", item.key()));
    const double value = item.value().is_number() ? item.value().get<double>() : std::nan("");
    if (std::isfinite(value) && value > 0) {
      values.of_step[*step] = value;
    } else {
      ++values.skipped;
    }
  }
  return values;
}

Measured traces_of(std::vector<MeasuredFile> files) {
  Measured measured;
  measured.form = files.size() == 1 ? "a trace of PyTorch's profiler"
                                    : fmt::format("{} traces of PyTorch's profiler", files.size());
  for (MeasuredFile& file : files) {
    measured.traces.push_back(read_trace(file.text, file.name));
    file.text = std::string();  // a trace may have a gigabyte
  }
  for (const TraceFile& trace : measured.traces) {
    for (const TraceRank& rank : trace.ranks) {
      if (!rank.allocated_peak && !rank.reserved_peak) continue;
      measured.peaks.push_back({rank.rank, rank.allocated_peak, rank.reserved_peak});
    }
  }
  return measured;
}

}  // namespace

std::size_t warm_up_steps(const std::vector<double>& durations) {
  const std::size_t count = durations.size();
  if (count < 2) return 0;
  const double settled =
      median_of({durations.begin() + static_cast<std::ptrdiff_t>(count / 2), durations.end()});
  std::size_t dropped = 1;
  while (dropped < count / 2 && durations[dropped] > kSlower * settled) ++dropped;
  return dropped;
}

void drop_warm_up(std::vector<double>& durations, std::vector<std::string>& notes) {
  const std::size_t dropped = warm_up_steps(durations);
  if (dropped == 0) return;
  const std::size_t count = durations.size();
  durations.erase(durations.begin(), durations.begin() + static_cast<std::ptrdiff_t>(dropped));
  notes.push_back(
      fmt::format("of {} steps the first{} dropped, {}", count,
                  dropped == 1 ? " was" : fmt::format(" {} were", dropped),
                  dropped == 1 ? "which warms up"
                               : "which warm up: over 10 % above the median of the second half"));
}

Measured read_golden_values(const MeasuredFile& file) {
  const Document document = parse_json(file.text, file.name);
  const Object root(document);
  Measured measured;
  measured.form = "Megatron-LM's golden values";
  const LoggedValues times = values_of(root, "iteration-time");
  for (const auto& [step, seconds] : times.of_step) measured.durations.push_back(seconds);
  if (measured.durations.empty()) {
    root.fail("iteration-time", "has no time of a step");
  }
  if (times.skipped > 0) {
    measured.notes.push_back(fmt::format("{} steps without a time were skipped", times.skipped));
  }
  const LoggedValues memory = values_of(root, "mem-max-allocated-bytes");
  if (!memory.of_step.empty()) {
    measured.peaks.push_back({kRankLast, memory.of_step.rbegin()->second, std::nullopt});
  }
  drop_warm_up(measured.durations, measured.notes);
  return measured;
}

Measured read_measured(std::vector<MeasuredFile> files) {
  STEPCAST_CHECK(!files.empty(), "nothing to read");
  switch (files.front().form) {
    case MeasuredForm::kLog: return read_training_logs(files);
    case MeasuredForm::kTrace: return traces_of(std::move(files));
    case MeasuredForm::kGolden:
      if (files.size() > 1) {
        throw Error(files[1].name, "is a second file of golden values; compare takes one");
      }
      return read_golden_values(files.front());
    case MeasuredForm::kReport: break;
  }
  STEPCAST_CHECK(false, "a report is read as a report");
}

}  // namespace stepcast
