// Space: the plans that a search looks at, as the words of --set that lead to them.
//
// Every key of a plan takes some values in turn, in the order below; what may be chosen depends on
// what was chosen before it. Unless the command line says otherwise:
//
//   parallel.tensor             what divides the devices of a node
//   parallel.pipeline           what divides the devices that tensor leaves, up to a layer a stage
//   parallel.virtual_stages     1, and what divides the layers of a stage; where a stage's layers
//                               are no whole number, powers of two
//   parallel.expert             with experts: what divides them and is the context ranks, times the
//                               tensor ranks unless they cut each expert, times some of the data
//                               ranks; and 1, if tensor ranks need not share them
//   parallel.sequence_parallel  true and false, with tensor parallelism
//   batch.micro                 powers of two that divide a data-parallel rank's sequences
//   sharding.zero               0 to 3, with data parallelism
//   recompute                   none, full; selective where attention is not fused
//
// and of each, what the file itself says. The data degree is what is left; the schedule is
// interleaved with virtual stages; layers that do not divide are balanced; experts that the file
// cuts over its tensor ranks (parallel.expert_tensor) are cut over the plan's. Whether a plan is
// legal is not decided here: models/ refuses it when it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/whatif/whatif.h"

namespace stepcast {

// A key and its values, each as --set writes it.
struct Choice {
  std::string key;
  std::vector<std::string> values;
};

// More candidates than this are refused: half an hour on one core.
inline constexpr std::size_t kCandidatesMost = 1'000'000;

// Whether a key is searched without being named.
bool is_walked(std::string_view key);

// "parallel.tensor=4,8"; commas inside of brackets and quotes part nothing. Throws Error (place
// "--vary ...") for a key that is not one of a plan or that changes the work: plans are compared
// for the same model, batch and cluster.
Choice parse_choice(const std::string& text);

// `key` with the value that it has without a search. Throws Error (place "--fix KEY") likewise.
Choice fixed_choice(const std::string& key, const WhatIfFile& question);

// "64..1024" (doubling), "64,96,128" or "64". Throws Error (place "--devices") for what is no whole
// number of nodes of `devices_per_node`.
std::vector<std::int64_t> parse_devices(const std::string& text, std::int64_t devices_per_node);

// The candidates on the devices of the question's cluster, for `global_batch` sequences a step;
// each is what --set has to say beyond the question. `given` takes the place of the values above,
// and may name other keys of the plan. Throws Error where there are more than `most`.
std::vector<std::vector<std::string>> candidates(const WhatIfFile& question,
                                                 std::int64_t global_batch,
                                                 const std::vector<Choice>& given,
                                                 std::size_t most = kCandidatesMost);

}  // namespace stepcast
