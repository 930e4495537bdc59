// Catalog: the distinct work of Jobs: what is worth timing.
//
// Two instances of the same key take the same time, as far as the text of a Job tells. A kernel is
// told by its Op, by the phase that it belongs to, and by whether its micro-batch is the first of
// the step (before which the optimizer has passed through all memory) or a later one; a message or
// collective by its kind, the size of its group and its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "sim/program/program.h"

namespace stepcast {

struct KernelKey {
  Op op;
  Phase phase = Phase::kForward;
  bool first = true;  // of micro-batch 0
  bool operator==(const KernelKey&) const = default;
};

struct TransferKey {
  TransferKind kind = TransferKind::kAllReduce;
  bool receives = false;  // the far end of a kSendReceive, which copies, too
  int ranks = 1;          // of the group; of a pipeline all stages
  Bytes bytes;            // as Transfer::bytes counts
  bool shifts = false;    // a kSendReceive that is a collective: both ends, and the wait for them
  bool operator==(const TransferKey&) const = default;
};

using WorkKey = std::variant<KernelKey, TransferKey>;

// "gemm forward 512x768x768 fp32, forward, first micro-batch"; "all-reduce of 4 MiB over 2 ranks".
std::string to_text(const WorkKey& key);

// "all-reduce", ..., "send", "receive" and "shift": as a profile names them (sim/hardware/work.h).
std::string transfer_key_name(const TransferKey& key);

// Of an instruction that takes time, in one call. REQUIRES: it is a Compute, Collective, Send or
// Receive.
WorkKey work_key(const Job& job, const Call& call, const Instruction& instruction);

class Catalog {
 public:
  // All work of one step of all ranks. Cost: linear in the distinct (body, first or later) pairs'
  // text, plus the calls.
  void add(const Job& job);

  // In the order of their first appearance; no two are equal.
  const std::vector<WorkKey>& keys() const { return keys_; }
  std::int64_t instances(std::size_t i) const { return instances_[i]; }  // in a step of all ranks
  std::optional<std::size_t> find(const WorkKey& key) const;
  std::size_t index(const WorkKey& key);  // added if it is new, with no instance

 private:
  struct Hash {
    std::size_t operator()(const WorkKey& key) const;
  };
  std::vector<WorkKey> keys_;
  std::vector<std::int64_t> instances_;
  std::unordered_map<WorkKey, std::size_t, Hash> index_;
};

}  // namespace stepcast
