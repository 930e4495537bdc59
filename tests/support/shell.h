// The built command in a shell, run from the root of the sources. For tests that know where it is
// (STEPCAST_BINARY).
#pragma once

#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace stepcast {

struct Outcome {
  int code = -1;  // 128 + signal if one ended it
  std::string text;
};

inline Outcome run_shell(const std::string& command) {
  const std::string line = std::string("cd '") + STEPCAST_SOURCE_DIR + "' && " + command;
  std::FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return {};
  Outcome outcome;
  char piece[4096];
  while (const std::size_t count = std::fread(piece, 1, sizeof piece, pipe)) {
    outcome.text.append(piece, count);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

inline std::string binary() { return std::string("'") + STEPCAST_BINARY + "' "; }

}  // namespace stepcast
