// Files of a run: found, unpacked, recognised. gzip is undone by zlib into memory, because a trace
// is one JSON object and has to be there as a whole; a limit ends what would not fit. Linear.
#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/compare/measured.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytesMax = std::size_t{2} << 30;
constexpr std::size_t kFilesMax = 4096;
constexpr std::array kFileSuffixes = {".json", ".gz", ".log", ".txt", ".jsonl"};

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code trouble;
  fs::directory_iterator entries(folder, trouble);
  for (; !trouble && entries != fs::directory_iterator(); entries.increment(trouble)) {
    const std::string suffix = entries->path().extension().string();
    const bool known =
        std::find(kFileSuffixes.begin(), kFileSuffixes.end(), suffix) != kFileSuffixes.end();
    if (known && entries->is_regular_file(trouble)) found.push_back(entries->path().string());
    if (found.size() > kFilesMax) {
      throw Error(folder,
                  fmt::format("holds more than {} files; name the ranks to read", kFilesMax));
    }
  }
  if (trouble) throw Error(folder, "cannot read: " + trouble.message());
  if (found.empty()) {
    throw Error(folder, fmt::format("no file there ends in {}", fmt::join(kFileSuffixes, ", ")));
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

bool is_gzip(std::string_view text) { return text.starts_with("\x1F\x8B"); }

}  // namespace

std::string unpacked(std::string text, const std::string& name) {
  if (!is_gzip(text)) return text;
  z_stream stream = {};
  constexpr int kGzip = 16;  // zlib's flag for a gzip header
  if (inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) throw Error(name, "zlib cannot start");
  const std::unique_ptr<z_stream, InflateEnd> end(&stream);
  std::string out;
  std::string piece(std::size_t{1} << 20, '\0');
  std::size_t taken = 0;
  int state = Z_OK;
  while (true) {
    if (stream.avail_in == 0) {
      const std::size_t count = std::min(text.size() - taken, std::size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(text.data() + taken);
      stream.avail_in = static_cast<uInt>(count);
      taken += count;
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    state = inflate(&stream, Z_NO_FLUSH);
    out.append(piece, 0, piece.size() - stream.avail_out);
    if (out.size() > kBytesMax) {
      throw Error(name, fmt::format("unpacks to more than {} MiB; record fewer steps (one is "
                                    "enough) or without stacks and shapes",
                                    kBytesMax >> 20));
    }
    const bool more = stream.avail_in > 0 || taken < text.size();
    if (state == Z_STREAM_END) {
      if (!more) return out;
      if (inflateReset(&stream) != Z_OK) break;  // gzip members may follow each other
    } else if (state != Z_OK || (!more && stream.avail_out > 0)) {
      break;
    }
  }
  throw Error(name, state == Z_OK || state == Z_BUF_ERROR
                        ? "is a gzip file that ends too early; copy it again"
                        : "is no valid gzip file");
}

MeasuredForm recognise(std::string& text, const std::string& name) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  // Of lists only those of objects: a log may begin with a bracket, as "[titan] ..." does.
  bool json = first != std::string::npos && text[first] == '{';
  if (first != std::string::npos && text[first] == '[') {
    const std::size_t second = text.find_first_not_of(kSpace, first + 1);
    json = second != std::string::npos && text[second] == '{';
  }
  if (!json && has_training_lines(text)) return MeasuredForm::kLog;
  if (json) {
    try {
      switch (json_form(text, name)) {
        case JsonForm::kReport: return MeasuredForm::kReport;
        case JsonForm::kTrace: return MeasuredForm::kTrace;
        case JsonForm::kGolden: return MeasuredForm::kGolden;
        case JsonForm::kOther: break;
      }
    } catch (const Error&) {  // a log may begin with a brace too
      if (!has_training_lines(text)) throw;
    }
    if (has_training_lines(text)) return MeasuredForm::kLog;
  }
  throw Error(name, fmt::format("{}; understood are reports of stepcast (--json), logs of "
                                "Megatron-LM, NeMo, DeepSpeed and "
                                "torchtitan, Megatron's golden values, and traces of PyTorch's "
                                "profiler (.json or .json.gz)",
                                first == std::string::npos ? "is empty"
                                                           : "is nothing that compare can read"));
}

std::vector<MeasuredFile> read_measured_files(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (path != "-" && fs::is_directory(path, ignored)) {
      for (std::string& file : files_in(path)) found.push_back(std::move(file));
    } else {
      found.push_back(path);
    }
  }
  std::vector<MeasuredFile> files;
  for (const std::string& path : found) {
    MeasuredFile file;
    file.name = path == "-" ? "stdin" : path;
    file.text = unpacked(read_file(path, kBytesMax), file.name);
    file.form = recognise(file.text, file.name);
    if (!files.empty() && file.form != files.front().form) {
      throw Error(file.name, fmt::format("is of another form than {}; compare one kind at a time",
                                         files.front().name));
    }
    files.push_back(std::move(file));
  }
  if (files.size() > 1 && files.front().form == MeasuredForm::kReport) {
    throw Error(files[1].name, "is a second report; compare takes one");
  }
  return files;
}

}  // namespace stepcast
