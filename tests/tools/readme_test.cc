// Every command in a README's sh block does what the reader will do: run. A trailing "# exits 1"
// says that it is meant to end so.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace {

constexpr std::string_view kWords[] = {"build/release/stepcast ", "stepcast "};

// What follows `stepcast ` on each such line.
std::vector<std::string> commands_in(std::istream& text) {
  std::vector<std::string> commands;
  bool is_shell = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```")) is_shell = line == "```sh";
    for (const std::string_view word : kWords) {
      if (is_shell && line.starts_with(word)) commands.push_back(line.substr(word.size()));
    }
  }
  return commands;
}

int exit_code(const std::string& arguments) {
  // Files that a command writes go to a directory of their own; `configs` is where it reads.
  const std::string line = std::string("d=$(mktemp -d) && ln -s '") + STEPCAST_SOURCE_DIR +
                           "/configs' \"$d/configs\" && cd \"$d\" && { '" + STEPCAST_BINARY +
                           "' " + arguments + "\n} >/dev/null 2>&1; c=$?; rm -r \"$d\"; exit $c";
  const int status = std::system(line.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Readme, EveryCommandRuns) {
  std::ifstream readme(std::string(STEPCAST_SOURCE_DIR) + "/README.md");
  const std::vector<std::string> commands = commands_in(readme);
  EXPECT_GE(commands.size(), 5u);
  for (const std::string& command : commands) {
    const bool unwelcome = command.ends_with("# exits 1");
    EXPECT_EQ(exit_code(command), unwelcome ? 1 : 0) << command;
  }
}

TEST(Readme, ACommandThatDoesNotRunIsSeen) { EXPECT_EQ(exit_code("simulate none.json"), 2); }

}  // namespace
