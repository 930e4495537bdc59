// Measured: what a run on a real cluster left behind, read for `stepcast compare`. A file is known
// by its content, whatever it is called and whether it is gzipped or not:
//
//   report    stepcast.report/1, of `simulate --json` or `execute --json`
//   log       lines of Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, NeMo, DeepSpeed or
//             torchtitan among any others; prefixes (srun -l, mpirun --tag-output, kubectl),
//             colours and the order of the fields do not matter
//   golden    Megatron-LM's golden values: {"iteration-time": {"values": {...}}, ...}
//   trace     of PyTorch's profiler (Kineto, Chrome's trace events), a file a rank or several ranks
//             in one, as `simulate --trace x.json` writes them
//
// Steps. Some logs give seconds a step, others a rate; what is kept is always a duration, of the
// unit in `Pace`. The first steps warm up (compilation, caches, the allocator) and are dropped: the
// first where there are two or more, and those after it that still take over 10 % longer than the
// median of the second half; never more than half.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/compare/measured_trace.h"

namespace stepcast {

enum class MeasuredForm { kReport, kLog, kGolden, kTrace };

struct MeasuredFile {
  std::string name;  // as the person named it; a file of a folder by its path
  std::string text;  // unpacked
  MeasuredForm form = MeasuredForm::kLog;
};

// What one duration of a log is of.
enum class Pace {
  kStep,         // a step
  kDeviceToken,  // a token of one device: 1 / (tokens a second and device)
  kSample,       // a sequence of the global batch: 1 / (samples a second)
};

inline constexpr int kRankUnknown = -1;
inline constexpr int kRankLast = -2;  // of the last stage

// Peaks that PyTorch's allocator reports of one rank, in bytes.
struct RankPeak {
  int rank = kRankUnknown;
  std::optional<double> allocated, reserved;
};

struct Measured {
  std::string form;  // "a Megatron-LM log"
  Pace pace = Pace::kStep;
  std::vector<double> durations;  // seconds, warm-up dropped; of logs and golden values
  std::vector<RankPeak> peaks;    // one a rank
  std::optional<std::int64_t> global_batch, sequence_length;  // where a log tells
  std::vector<TraceFile> traces;                              // of a trace
  std::vector<std::string> notes;                             // what was dropped and why
};

// Reads files, folders (every file in it that ends in .json, .jsonl, .gz, .log or .txt) and stdin
// ("-"). Throws Error for what cannot be read, is not recognised, is too large, or mixes forms.
std::vector<MeasuredFile> read_measured_files(const std::vector<std::string>& paths);

// gzip (RFC 1952) is unpacked, anything else comes back as it is. Throws Error (place: `name`).
std::string unpacked(std::string text, const std::string& name);

// By content alone; throws Error that lists what is understood.
MeasuredForm recognise(std::string& text, const std::string& name);

// What logs, golden values or traces say. REQUIRES: all of one form, which is not kReport.
Measured read_measured(std::vector<MeasuredFile> files);
Measured read_training_logs(const std::vector<MeasuredFile>& logs);
Measured read_golden_values(const MeasuredFile& file);

// Does any line look like one of a training log?
bool has_training_lines(std::string_view text);

// How many leading steps warm up, by the rule above.
std::size_t warm_up_steps(const std::vector<double>& durations);

// Drops them, and says so in `notes`.
void drop_warm_up(std::vector<double>& durations, std::vector<std::string>& notes);

}  // namespace stepcast
