// The arguments are parsed by CLI11; its complaints are said in this program's own form, one line
// with the nearest right word. Whatever is thrown below ends here, once.
//
// A closed pipe (`stepcast list models | head -1`) ends the process by SIGPIPE, as it ends cat.
#include "tools/cli.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/options.h"

namespace stepcast {
namespace {

constexpr const char* kDescription =
    R"(stepcast forecasts a training step of a large language model: time, memory, traffic, waiting.

Examples:
  stepcast simulate configs/llama3.1-70b-1024xh100.json
  stepcast simulate plan.json --set parallel.pipeline=8 --json report.json
  stepcast search plan.json
  stepcast show memory plan.json
  stepcast list devices
  stepcast explain parallel.tensor
)";

constexpr const char* kFooter =
    R"(Exit code: 0 done; 1 the answer is unwelcome; 2 trouble, in one line on stderr.
`stepcast COMMAND --help` says more about a command.)";

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// CLI11's complaint in one line; what it could not place is looked at first, as a misspelt flag is
// the cause of what else is missing.
Error usage_error(const CLI::App& app, const CLI::ParseError& trouble) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string where = chosen.empty() ? "" : command.get_name();
  const std::vector<std::string> left = app.remaining(true);
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& word) {
    return word.size() > 1 && word.front() == '-';
  });
  if (flag != left.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    return Error(where, fmt::format("there is no flag {}{}; `stepcast{}{} --help` lists them", name,
                                    did_you_mean(name, flag_names(command)),
                                    where.empty() ? "" : " ", where));
  }
  if (!left.empty()) return Error(where, fmt::format("\"{}\" is one word too many", left.front()));
  return Error(where, trouble.what());
}

// The first word that is no flag has to be a command: CLI11 would take it for a word too many.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]).starts_with('-')) return;
  const std::vector<std::string> names = command_names(app);
  const std::string word = argv[1];
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  throw Error("", fmt::format("there is no command \"{}\"{}; there are {}", word,
                              did_you_mean(word, names), fmt::join(names, ", ")));
}

int dispatch(const CLI::App& app, Arguments& arguments) {
  if (app.got_subcommand("simulate")) {
    const std::vector<std::string> words = {"folded", "all"};
    if (std::find(words.begin(), words.end(), arguments.ranks) == words.end()) {
      throw Error("--ranks", fmt::format("must be folded or all, is \"{}\"{}", arguments.ranks,
                                         did_you_mean(arguments.ranks, words)));
    }
    arguments.simulate.all_ranks = arguments.ranks == "all";
    arguments.simulate.advise = !arguments.no_advice;
    return simulate_command(arguments.simulate);
  }
  if (app.got_subcommand("search")) return search_command(arguments.search);
  if (app.got_subcommand("execute")) return execute_command(arguments.execute);
  if (app.got_subcommand("calibrate")) return calibrate_command(arguments.calibrate);
  if (app.got_subcommand("compare")) return compare_command(arguments.compare);
  if (app.got_subcommand("loop")) return loop_command(arguments.loop);
  if (app.got_subcommand("show")) return show_command(arguments.show);
  if (app.got_subcommand("time")) return time_command(arguments.time);
  if (app.got_subcommand("validate")) return validate_command(arguments.validate);
  if (app.got_subcommand("import")) return import_command(arguments.import);
  if (app.got_subcommand("list")) return list_command(arguments.list_kind, arguments.list_json);
  if (app.got_subcommand("explain")) return explain_command(arguments.key);
  return schema_command();
}

int parse_and_run(int argc, char** argv) {
  CLI::App app(kDescription, "stepcast");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "stepcast " STEPCAST_VERSION);
  Arguments arguments;
  add_commands(app, arguments);

  if (argc < 2) {
    std::cerr << app.help();
    return kTrouble;
  }
  check_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    write_file("-", app.help());
    return 0;
  } catch (const CLI::CallForVersion& version) {
    write_file("-", std::string(version.what()) + "\n");
    return 0;
  } catch (const CLI::ParseError& trouble) {
    throw usage_error(app, trouble);
  }
  const int code = dispatch(app, arguments);
  std::cout.flush();
  write_file("-", "");  // throws if what was printed did not all arrive
  return code;
}

int complain(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = "stepcast: " + text + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  return kTrouble;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // a parent may have had it ignored
  try {
    return parse_and_run(argc, argv);
  } catch (const Error& error) {
    return complain(error.what());
  } catch (const std::bad_alloc&) {
    std::fputs("stepcast: out of memory\n", stderr);
    return kTrouble;
  } catch (const std::exception& trouble) {
    return complain(trouble.what());
  }
}

}  // namespace stepcast
