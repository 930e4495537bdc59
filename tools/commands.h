// The subcommands of `stepcast`, one source file each. Every one returns the exit code: 0 done, 1
// the answer is unwelcome; trouble is thrown as Error and becomes 2 in main.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepcast {

inline constexpr int kTrouble = 2;  // the exit code of bad usage, bad input or a device's fault

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

struct ExecuteArguments {
  std::string config;
  std::vector<std::string> sets;   // --set path=value
  std::int64_t steps = 10;         // --steps
  std::string data;                // --data FILE: train on its bytes; else on a made-up language
  std::string launch = "threads";  // --launch threads|mpi
  std::string json;                // --json FILE|-
  std::string trace;               // --trace FILE, of the last step
  double rate = 1e-3;              // --rate: AdamW's learning rate
  std::uint64_t seed = 1;          // --seed: of initial weights and the made-up language
  std::string device = "auto";     // --device auto|cpu|cuda
  bool cuda_graphs = false;        // --cuda-graphs
  bool register_buffers = false;   // --register-buffers
};
int execute_command(const ExecuteArguments& arguments);

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
