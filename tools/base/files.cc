// Files are read in pieces, so that an endless one (/dev/zero) ends at the limit, and written
// beside their target, then renamed: POSIX renames within one directory are atomic, so a reader
// sees the old file or the new one, and a full disk leaves the old one as it was. What is no
// regular file (a pipe, /dev/null) is written in place.
//
// A name of a config is found by four looser and looser readings; the first that finds one wins:
// as it is; ignoring case and "_" or " " for "-"; ignoring all punctuation ("Llama-3.1-8B" is
// llama3.1-8b); as the first words of exactly one name ("h100" is h100-sxm). Cost: linear in the
// names of that kind.
#include "tools/base/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "sim/base/error.h"
#include "sim/base/json.h"
#include "tools/base/text.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<std::FILE, FileCloser>;

std::string errno_text(int number) { return std::generic_category().message(number); }

// The C library would cut the path short there.
void refuse_nul(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(path.substr(0, path.find('\0')), "a path cannot hold a NUL character");
  }
}

std::string read_stream(std::FILE* stream, const std::string& place, std::size_t bytes_max) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    const std::size_t count = std::fread(piece, 1, sizeof piece, stream);
    text.append(piece, count);
    if (text.size() > bytes_max) {
      throw Error(place, fmt::format("is larger than {} MiB", bytes_max >> 20));
    }
    if (count == sizeof piece) continue;
    if (std::ferror(stream) != 0) throw Error(place, "cannot read: " + errno_text(errno));
    return text;
  }
}

// 0 or an errno. `durable`: also on the disk, so that the rename that follows cannot overtake it.
int write_stream(std::FILE* stream, std::string_view content, bool durable) {
  errno = 0;
  const bool written = std::fwrite(content.data(), 1, content.size(), stream) == content.size();
  if (!written || std::fflush(stream) != 0 || std::ferror(stream) != 0) {
    return errno != 0 ? errno : EIO;
  }
  if (durable && fsync(fileno(stream)) != 0) return errno;
  return 0;
}

[[noreturn]] void fail_to_write(const std::string& path, int number) {
  throw Error(path, "cannot write: " + errno_text(number));
}

// A file that goes away unless it is kept.
class Temporary {
 public:
  // A new file beside `target`, with the permissions that a new file gets here.
  explicit Temporary(const std::string& target) {
    constexpr int kTries = 100;  // names that a process of the same number may have left behind
    int number = EEXIST;
    for (int i = 0; i < kTries && number == EEXIST; ++i) {
      path_ = fmt::format("{}.{}-{}.tmp", target, getpid(), i);
      file_.reset(std::fopen(path_.c_str(), "wbx"));
      number = errno;
      if (file_ != nullptr) return;
    }
    path_.clear();
    fail_to_write(target, number);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove(path_, ignored);
  }

  std::FILE* file() const { return file_.get(); }
  const std::string& path() const { return path_; }

  // 0 or an errno.
  int rename_to(const std::string& target) {
    if (std::fclose(file_.release()) != 0) return errno;
    if (std::rename(path_.c_str(), target.c_str()) != 0) return errno;
    path_.clear();
    return 0;
  }

 private:
  std::string path_;
  FileHandle file_;
};

void write_in_place(const std::string& path, std::string_view content) {
  const FileHandle file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) fail_to_write(path, errno);
  if (const int number = write_stream(file.get(), content, false)) fail_to_write(path, number);
}

// ------------------------------------------------------------------------------- named configs

std::string dashed(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == '_' || c == ' ' ? '-' : c;
  return lower(text);
}

std::string squeezed(std::string_view name) {
  std::string text;
  for (const char c : dashed(name)) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) text += c;
  }
  return text;
}

template <class Reading>
std::vector<std::string> matching(const std::vector<std::string>& names, Reading reading) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), reading);
  return found;
}

// The words of `name` begin the words of `longer`.
bool begins(const std::string& longer, const std::string& name) {
  return longer.size() > name.size() && longer.starts_with(name) && longer[name.size()] == '-';
}

std::string suggestion(const std::string& name, const std::vector<std::string>& names) {
  std::string text = did_you_mean(name, names);
  if (!text.empty()) return text;
  // Punctuation is what people remember least.
  std::vector<std::string> bare;
  std::transform(names.begin(), names.end(), std::back_inserter(bare), squeezed);
  const std::string nearest = nearest_name(squeezed(name), bare);
  if (nearest.empty()) return "";
  const auto at = std::find(bare.begin(), bare.end(), nearest) - bare.begin();
  return fmt::format(" (did you mean \"{}\"?)", names[static_cast<std::size_t>(at)]);
}

}  // namespace

std::string read_file(const std::string& path) { return read_file(path, kJsonBytesMax); }

std::string read_file(const std::string& path, std::size_t bytes_max) {
  if (path == "-") return read_stream(stdin, "stdin", bytes_max);
  refuse_nul(path);
  if (path.empty()) throw Error("", "a path is empty");
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) throw Error(path, "is a directory, not a file");
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    throw Error(path, errno == ENOENT ? "there is no such file"
                                      : "cannot read: " + errno_text(errno));
  }
  return read_stream(file.get(), path, bytes_max);
}

void write_file(const std::string& path, std::string_view content) {
  if (path == "-") {
    if (const int number = write_stream(stdout, content, false)) fail_to_write("stdout", number);
    return;
  }
  refuse_nul(path);
  if (path.empty()) throw Error("", "a path is empty");
  std::error_code trouble;
  const fs::file_status status = fs::status(path, trouble);
  if (fs::is_directory(status)) throw Error(path, "is a directory, not a file");
  if (fs::exists(status) && !fs::is_regular_file(status)) return write_in_place(path, content);

  // Of a link, the file that it names is replaced, not the link.
  std::string target = path;
  if (fs::is_symlink(fs::symlink_status(path, trouble))) {
    const fs::path canonical = fs::weakly_canonical(path, trouble);
    if (!trouble) target = canonical.string();
  }
  Temporary temporary(target);
  if (const int number = write_stream(temporary.file(), content, true)) {
    fail_to_write(path, number);
  }
  if (fs::exists(status)) fs::permissions(temporary.path(), status.permissions(), trouble);
  if (const int number = temporary.rename_to(target)) fail_to_write(path, number);
}

void check_writable(const std::string& path) {
  if (path == "-") return;
  refuse_nul(path);
  if (path.empty()) throw Error("", "a path is empty");
  std::error_code trouble;
  const fs::file_status status = fs::status(path, trouble);
  if (fs::is_directory(status)) throw Error(path, "is a directory, not a file");
  if (!fs::exists(status) || fs::is_regular_file(status)) const Temporary room(path);
}

std::string config_directory() {
  std::error_code trouble;
  if (const char* given = std::getenv("STEPCAST_CONFIGS"); given != nullptr && *given != '\0') {
    if (!fs::is_directory(given, trouble)) {
      throw Error("STEPCAST_CONFIGS", fmt::format("\"{}\" is not a directory", given));
    }
    return given;
  }
  const fs::path binary = fs::read_symlink("/proc/self/exe", trouble);
  const fs::path installed =
      (binary.parent_path() / ".." / "share" / "stepcast" / "configs").lexically_normal();
  if (!binary.empty() && fs::is_directory(installed, trouble)) return installed.string();
  if (fs::is_directory(STEPCAST_CONFIG_DIR, trouble)) return STEPCAST_CONFIG_DIR;
  throw Error("configs", fmt::format("neither {} nor {} is there; set STEPCAST_CONFIGS to the "
                                     "directory that has devices/ and models/",
                                     installed.string(), STEPCAST_CONFIG_DIR));
}

std::vector<std::string> config_names(const std::string& kind) {
  std::vector<std::string> names;
  std::error_code trouble;
  fs::directory_iterator entries(fs::path(config_directory()) / kind, trouble);
  for (; !trouble && entries != fs::directory_iterator(); entries.increment(trouble)) {
    const fs::path& path = entries->path();
    if (path.extension() == ".json") names.push_back(path.stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string find_config(const std::string& kind, const std::string& name, std::string_view place) {
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return name;
  const std::vector<std::string> names = config_names(kind);
  const auto path_of = [&](const std::string& found) {
    return (fs::path(config_directory()) / kind / (found + ".json")).string();
  };
  if (std::find(names.begin(), names.end(), name) != names.end()) return path_of(name);

  const std::string one = kind.ends_with('s') ? kind.substr(0, kind.size() - 1) : kind;
  if (!squeezed(name).empty()) {
    const std::string dashed_name = dashed(name), squeezed_name = squeezed(name);
    const std::vector<std::string> readings[] = {
        matching(names, [&](const std::string& n) { return dashed(n) == dashed_name; }),
        matching(names, [&](const std::string& n) { return squeezed(n) == squeezed_name; }),
        matching(names, [&](const std::string& n) { return begins(dashed(n), dashed_name); })};
    for (const std::vector<std::string>& found : readings) {
      if (found.size() == 1) return path_of(found.front());
      if (found.size() > 1) {
        throw Error(place, fmt::format("\"{}\" may be any of the {} {}; say which", name, kind,
                                       fmt::join(found, ", ")));
      }
    }
  }
  throw Error(place, fmt::format("no {} is called \"{}\"{}; `stepcast list {}` names them all", one,
                                 name, suggestion(name, names), kind));
}

}  // namespace stepcast
