// `stepcast execute`: a what-if trained on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepcast {

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

}  // namespace stepcast
