// Options: the subcommands of `stepcast` and their flags, as CLI11 reads them.
#pragma once

#include <string>

#include "tools/commands/commands.h"
#include "tools/compare/compare.h"
#include "tools/import/import.h"
#include "tools/run/calibrate.h"
#include "tools/run/execute.h"
#include "tools/run/loop.h"
#include "tools/search/search.h"
#include "tools/time/time.h"
#include "tools/validate/validate.h"

namespace CLI {
class App;
}

namespace stepcast {

struct Arguments {
  SimulateArguments simulate;
  std::string ranks = "folded";
  bool no_advice = false;
  SearchArguments search;
  ExecuteArguments execute;
  CalibrateArguments calibrate;
  CompareArguments compare;
  LoopArguments loop;
  ShowArguments show;
  TimeArguments time;
  ValidateArguments validate;
  ImportArguments import;
  std::string list_kind;
  bool list_json = false;
  std::string key;
};

// What is read goes into `arguments`, which has to outlive the reading.
void add_commands(CLI::App& app, Arguments& arguments);

}  // namespace stepcast
