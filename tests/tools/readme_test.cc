// Every command in the README's sh blocks does what the reader will do: run. A trailing "# exits 1"
// says that it is meant to end so. A text block behind a sh block is what its last command prints,
// to the letter: so every figure there is one that its command gives today.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/shell.h"

namespace stepcast {
namespace {

constexpr std::string_view kWords[] = {"build/release/stepcast ", "stepcast "};

struct Shown {
  std::string arguments;  // what follows `stepcast `
  std::string output;     // as the text shows it; empty: not shown
};

std::vector<Shown> commands_in(std::istream& text) {
  std::vector<Shown> commands;
  std::string block;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("```")) {
      block = block.empty() ? line : "";
      continue;
    }
    if (block == "```text" && !commands.empty()) commands.back().output += line + "\n";
    for (const std::string_view word : kWords) {
      if (block == "```sh" && line.starts_with(word)) {
        commands.push_back({line.substr(word.size()), ""});
      }
    }
  }
  return commands;
}

Outcome run(const std::string& arguments) {
  // Files that a command writes go to a directory of their own; `configs` is where it reads.
  return run_shell(std::string("d=$(mktemp -d) && ln -s '") + STEPCAST_SOURCE_DIR +
                   "/configs' \"$d/configs\" && cd \"$d\" && { " + binary() + arguments +
                   "\n} 2>/dev/null; c=$?; rm -r \"$d\"; exit $c");
}

TEST(Readme, EveryCommandRunsAndPrintsWhatTheTextShows) {
  std::ifstream readme(std::string(STEPCAST_SOURCE_DIR) + "/README.md");
  const std::vector<Shown> commands = commands_in(readme);
  EXPECT_GE(commands.size(), 5u);
  int shown = 0;
  for (const Shown& command : commands) {
    const Outcome ran = run(command.arguments);
    EXPECT_EQ(ran.code, command.arguments.ends_with("# exits 1") ? 1 : 0) << command.arguments;
    if (command.output.empty()) continue;
    EXPECT_EQ(ran.text, command.output) << command.arguments;
    ++shown;
  }
  EXPECT_GE(shown, 1);
}

TEST(Readme, ACommandThatDoesNotRunIsSeen) { EXPECT_EQ(run("simulate none.json").code, 2); }

}  // namespace
}  // namespace stepcast
