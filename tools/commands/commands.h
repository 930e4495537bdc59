// Subcommands that only ask and tell, one source file each. Every one returns the exit code: 0
// done, 1 the answer is unwelcome; trouble is thrown as Error and becomes 2 in main.
#pragma once

#include <string>
#include <vector>

namespace stepcast {

struct SimulateArguments {
  std::string config;
  std::vector<std::string> sets;   // --set path=value
  std::string json;                // --json FILE|-
  std::string trace;               // --trace FILE (.json: Kineto-shaped; else Perfetto)
  bool all_ranks = false;          // --ranks all
  bool require_fit = false;        // --require-fit: exit 1 if it does not fit
  bool advise = true;              // --no-advice
};
int simulate_command(const SimulateArguments& arguments);

struct ShowArguments {
  std::string what;                // model | program | cluster | memory
  std::string config;
  std::vector<std::string> sets;
  int stage = -1;                  // program: only this one; -1 all
};
int show_command(const ShowArguments& arguments);

int list_command(const std::string& kind, bool json);      // models devices clusters profiles
int explain_command(const std::string& key);               // "parallel.tensor", "step.mfu", ...
int schema_command();

}  // namespace stepcast
