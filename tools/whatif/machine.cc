// Names and counts come from Linux: /proc, sysconf, the affinity mask.
#include "tools/whatif/machine.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "execute/cpu/cpu_backend.h"
#include "execute/mpi.h"
#include "sim/base/error.h"
#include "tools/base/files.h"

namespace stepcast {

namespace {

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

std::string compiler_version() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

}  // namespace

std::map<std::string, std::string> machine_texts() {
  std::map<std::string, std::string> texts = {
      {"processor", processor_name()},
      {"cores", fmt::format("{}", sysconf(_SC_NPROCESSORS_ONLN))},
      {"onednn", cpu_library_version()},
      {"compiler", compiler_version()}};
  if (const std::string mpi = mpi_version(); !mpi.empty()) texts["mpi"] = mpi;
  return texts;
}

Machine this_machine() {
  Machine machine;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) machine.host = name;
  machine.processor = processor_name();
  cpu_set_t mine;
  const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
  machine.cores =
      known ? CPU_COUNT(&mine) : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  machine.memory = Bytes(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return machine;
}

}  // namespace stepcast
