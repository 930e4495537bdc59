// Training logs: a scanner that looks for known phrases in each line and reads the number behind
// them, so that prefixes, colours and the order of fields do not matter. The phrases are those of
//   Megatron-LM       training.py: "iteration N/ M | ... elapsed time per iteration (ms): T", and
//                     "[Rank R] (after N iterations) memory (MB) | allocated: ... " (MB = 2^20)
//   Megatron-Bridge   "Step Time : Ts GPU utilization: ..."
//   NeMo              "train_step_timing in s: T" (also "=T", on a progress bar)
//   DeepSpeed         timer.py: "CurrSamplesPerSec=S" and "MaxMemAllocated=bGB"; and
//                     "MA a GB Max_MA b GB CA c GB Max_CA d GB" (GB = 2^30)
//   torchtitan        "step: N loss: ... memory: XGiB(..%) tps: T": tokens a second and device; the
//                     memory is the largest that the allocator reserved
// One pass, linear in the text.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "calibrate/fit.h"
#include "sim/base/error.h"
#include "tools/compare/judge.h"
#include "tools/compare/measured.h"

namespace stepcast {
namespace {

constexpr double kSecondsMost = 1e9;
constexpr double kSecondsLeast = 1e-12;
constexpr double kMebi = 1 << 20, kGibi = 1 << 30;

enum class LogKind { kMegatron, kTorchtitan, kNemo, kBridge, kDeepSpeed };
constexpr std::array kLogKinds = {std::pair{LogKind::kMegatron, "a Megatron-LM log"},
                                  std::pair{LogKind::kTorchtitan, "a torchtitan log"},
                                  std::pair{LogKind::kNemo, "a NeMo log"},
                                  std::pair{LogKind::kBridge, "a Megatron-Bridge log"},
                                  std::pair{LogKind::kDeepSpeed, "a DeepSpeed log"}};

constexpr std::string_view kMegatronTime = "elapsed time per iteration (ms):";
constexpr std::string_view kNemoTime = "train_step_timing in s";
constexpr std::string_view kBridgeTime = "Step Time :";
constexpr std::string_view kDeepSpeedRate = "CurrSamplesPerSec=";
constexpr std::string_view kMegatronMemory = "memory (MB)";

// Without escape sequences: ESC [ parameters letter (ECMA-48).
std::string without_escapes(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1B') {
      out += line[i];
      continue;
    }
    if (i + 1 >= line.size() || line[i + 1] != '[') continue;
    i += 2;
    while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
  }
  return out;
}

// The number behind `phrase`, with "," between thousands; none where there is no such phrase. What
// is no number (nan, N/A) is a NaN.
std::optional<double> number_after(std::string_view line, std::string_view phrase) {
  const std::size_t at = line.find(phrase);
  if (at == std::string_view::npos) return std::nullopt;
  std::string digits;
  std::size_t i = at + phrase.size();
  while (i < line.size() && (line[i] == ' ' || line[i] == ':' || line[i] == '=')) ++i;
  for (; i < line.size() && digits.size() < 40; ++i) {
    const char c = line[i];
    if (c == ',' && i + 1 < line.size() && line[i + 1] >= '0' && line[i + 1] <= '9') continue;
    if ((c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E') break;
    digits += c;
  }
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, trouble] = std::from_chars(digits.data(), end, value);
  const bool ends = stop == end || (stop != digits.data() && (*stop == 'e' || *stop == 'E'));
  return trouble == std::errc() && ends ? value : std::nan("");
}

std::optional<std::int64_t> count_after(std::string_view line, std::string_view phrase) {
  const std::optional<double> value = number_after(line, phrase);
  constexpr double kMost = 1e15;
  if (!value || !(*value >= 0 && *value <= kMost)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

// "[Rank 3]", "[rank3]:" as torchrun has it, "rank: 3".
int rank_of(std::string_view line) {
  for (const std::string_view phrase : {"[Rank ", "[rank"}) {
    const std::optional<std::int64_t> rank = count_after(line, phrase);
    if (rank && *rank < (1 << 20)) return static_cast<int>(*rank);
  }
  return kRankUnknown;
}

struct Series {
  std::map<std::int64_t, std::vector<double>> durations;  // by step; several ranks, a restart
  std::map<std::int64_t, std::int64_t> batches;           // sequences of that step, where told
};

class LogScan {
 public:
  void line(std::string_view raw) {
    const bool coloured = raw.find('\x1B') != std::string_view::npos;
    const std::string kept = coloured ? without_escapes(raw) : std::string();
    const std::string_view text = coloured ? std::string_view(kept) : raw;
    times(text);
    memory(text);
  }

  bool found() const { return !series_.empty() || !peaks_.empty(); }
  Measured result(const std::string& name);

 private:
  void times(std::string_view line);
  void memory(std::string_view line);

  void add(LogKind framework, std::optional<std::int64_t> step, double duration,
           std::optional<std::int64_t> batch) {
    if (!(duration >= kSecondsLeast && duration <= kSecondsMost)) {
      ++impossible_;
      return;
    }
    Series& series = series_[framework];
    const std::int64_t at = step.value_or(static_cast<std::int64_t>(series.durations.size()) + 1);
    series.durations[at].push_back(duration);
    if (batch) series.batches[at] = *batch;
  }

  void peak(int rank, std::optional<double> allocated, std::optional<double> reserved) {
    RankPeak& peak = peaks_[rank];
    peak.rank = rank;
    const auto raise = [](std::optional<double>& most, const std::optional<double>& value) {
      if (!value || !(*value > 0) || !std::isfinite(*value)) return;
      most = std::max(most.value_or(0), *value);
    };
    raise(peak.allocated, allocated);
    raise(peak.reserved, reserved);
    if (!peak.allocated && !peak.reserved) peaks_.erase(rank);
  }

  std::map<LogKind, Series> series_;
  std::map<int, RankPeak> peaks_;
  std::optional<std::int64_t> sequence_;
  std::int64_t impossible_ = 0, nan_losses_ = 0, skipped_ = 0;
};

std::optional<std::int64_t> iteration_of(std::string_view line) {
  for (std::size_t at = line.find("iteration"); at != std::string_view::npos;
       at = line.find("iteration", at + 1)) {
    const std::string_view rest = line.substr(at);
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) return std::nullopt;
    if (rest.substr(9, slash - 9).find_first_not_of(" 0123456789") != std::string_view::npos) {
      continue;
    }
    if (const auto count = count_after(rest, "iteration")) return count;
  }
  return std::nullopt;
}

void LogScan::times(std::string_view line) {
  if (const auto milliseconds = number_after(line, kMegatronTime)) {
    add(LogKind::kMegatron, iteration_of(line), *milliseconds * 1e-3,
        count_after(line, "global batch size:"));
    nan_losses_ += count_after(line, "number of nan iterations:").value_or(0);
    skipped_ += count_after(line, "number of skipped iterations:").value_or(0);
    if (const auto length = count_after(line, "actual seqlen:")) sequence_ = length;
  } else if (const auto seconds = number_after(line, kNemoTime)) {
    auto step = count_after(line, "global_step");
    add(LogKind::kNemo, step ? step : iteration_of(line), *seconds,
        count_after(line, "global_batch_size"));
  } else if (const auto bridge = number_after(line, kBridgeTime);
             bridge && line.find("TFLOP") != std::string_view::npos) {
    add(LogKind::kBridge, std::nullopt, *bridge, std::nullopt);
  } else if (const auto samples = number_after(line, kDeepSpeedRate)) {
    add(LogKind::kDeepSpeed, count_after(line, "global_step="), 1 / *samples, std::nullopt);
  } else if (const auto tokens = number_after(line, "tps:");
             tokens && line.find("loss:") != std::string_view::npos) {
    add(LogKind::kTorchtitan, count_after(line, "step:"), 1 / *tokens, std::nullopt);
  }
}

void LogScan::memory(std::string_view line) {
  const auto scaled = [&](std::string_view phrase, double unit) -> std::optional<double> {
    const std::optional<double> value = number_after(line, phrase);
    return value ? std::optional<double>(*value * unit) : std::nullopt;
  };
  if (line.find(kMegatronMemory) != std::string_view::npos) {
    peak(rank_of(line), scaled("max allocated:", kMebi), scaled("max reserved:", kMebi));
  } else if (line.find("Max_MA ") != std::string_view::npos) {
    peak(rank_of(line), scaled("Max_MA ", kGibi), scaled("Max_CA ", kGibi));
  } else if (line.find("MaxMemAllocated=") != std::string_view::npos) {
    peak(rank_of(line), scaled("MaxMemAllocated=", kGibi), std::nullopt);
  } else if (line.find("tps:") != std::string_view::npos &&
             line.find("GiB(") != std::string_view::npos) {
    peak(rank_of(line), std::nullopt, scaled("memory:", kGibi));
  }
}

// A batch that grows at first: only steps of the last size are of the same question.
void keep_last_batch(Series& series, Measured& measured) {
  if (series.batches.empty()) return;
  const std::int64_t batch = series.batches.rbegin()->second;
  measured.global_batch = batch;
  std::size_t other = 0;
  for (const auto& [step, size] : series.batches) {
    if (size != batch) other += series.durations.erase(step);
  }
  if (other > 0) {
    measured.notes.push_back(
        fmt::format("{} iterations of another global batch than {} were left out", other, batch));
  }
}

Measured LogScan::result(const std::string& name) {
  Measured measured;
  for (const auto& [framework, words] : kLogKinds) {
    const auto found = series_.find(framework);
    if (found == series_.end()) continue;
    measured.form = words;
    if (framework == LogKind::kTorchtitan) measured.pace = Pace::kDeviceToken;
    if (framework == LogKind::kDeepSpeed) measured.pace = Pace::kSample;
    keep_last_batch(found->second, measured);
    std::size_t again = 0;
    for (const auto& [step, durations] : found->second.durations) {
      measured.durations.push_back(median_of(durations));
      again += durations.size() - 1;
    }
    if (again > 0) {
      measured.notes.push_back(
          fmt::format("{} lines tell of a step for another time (several "
                      "ranks, or a restart): the median counts",
                      again));
    }
    break;
  }
  if (measured.durations.empty()) {
    throw Error(name, "tells no time of a step: no line has a number where it should be");
  }
  if (impossible_ > 0) {
    measured.notes.push_back(
        fmt::format("{} lines whose time is no number above 0 were skipped", impossible_));
  }
  if (nan_losses_ + skipped_ > 0) {
    measured.notes.push_back(
        fmt::format("the log counts {} NaN and {} skipped iterations; a "
                    "skipped one has no optimizer step",
                    nan_losses_, skipped_));
  }
  measured.sequence_length = sequence_;
  for (const auto& [rank, peak] : peaks_) measured.peaks.push_back(peak);
  drop_warm_up(measured.durations, measured.notes);
  return measured;
}

// Lines end at a line feed; a progress bar overwrites its own behind a carriage return.
template <class Take>
void for_each_line(std::string_view text, Take take) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    if (end > 0) take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

bool has_training_lines(std::string_view text) {
  LogScan scan;
  for_each_line(text, [&](std::string_view line) {
    if (!scan.found()) scan.line(line);
  });
  return scan.found();
}

Measured read_training_logs(const std::vector<MeasuredFile>& logs) {
  LogScan scan;
  for (const MeasuredFile& log : logs) {
    for_each_line(log.text, [&](std::string_view line) { scan.line(line); });
  }
  return scan.result(logs.front().name);
}

}  // namespace stepcast
