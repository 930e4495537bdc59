// Fragment: nodes of a block turned into instructions, once a kind of block; lowering stamps it
// into a body for every layer.
//
// Tensors stand in a fragment by slot: slot >= 0 is a local tensor of the block (its number among
// them), slot < 0 is a place to be filled at each stamp (input, output, shared weight; see Places).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/block.h"
#include "models/fill.h"
#include "models/plan.h"

namespace stepcast {

// Events of a rank, by use. Each is recorded again many times; a Wait stands right behind the
// Record it means, or before the next one of the same event.
inline constexpr EventId kComputeReady = 0;   // compute has made what a collective or host takes
inline constexpr EventId kTensorDone = 1;     // four, used in turn
inline constexpr EventId kTensorDones = 4;
inline constexpr EventId kReceived = 5;
inline constexpr EventId kSendReady = 6;
inline constexpr EventId kSent = 7;
inline constexpr EventId kDataDone = 8;
inline constexpr EventId kReplicaReady = 9;
inline constexpr EventId kGlobalDone = 10;
inline constexpr EventId kReduceDone = 11;
inline constexpr EventId kFirstRing = 12;     // gathers' events and limits follow
// As kTensorDone, four, of a backward that stands in parts among those of a forward
// (Plan::expert_overlap). Behind a ring of one gather and its limit: with experts on ranks no
// weights are streamed.
inline constexpr EventId kBackwardDone = kFirstRing + 2;

// Interning of what a Job's tables hold once.
class Tables {
 public:
  explicit Tables(Job& job) : job_(job) {}
  OpId op(const Op& op);
  TransferId transfer(const Transfer& transfer);
  Label label(std::string_view name, std::int32_t layer = -1);
  Job& job() { return job_; }

 private:
  struct OpHash {
    std::size_t operator()(const Op& op) const { return hash_value(op); }
  };
  Job& job_;
  std::unordered_map<Op, OpId, OpHash> ops_;
  std::unordered_map<std::string, std::int16_t> names_;
};

// Places: slots below zero.
inline constexpr TensorId kPlaceX = -1;
inline constexpr TensorId kPlaceY = -2;
inline constexpr TensorId kPlaceDx = -3;
inline constexpr TensorId kPlaceDy = -4;
inline constexpr TensorId kPlaceShared = -5;  // and further down: shared weights, their gradients

struct Fragment {
  std::vector<Instruction> code;
  std::vector<TensorId> operands;
};

struct FragmentOptions {
  std::vector<bool> live;   // by value: allocated before
  std::vector<bool> keep;   // by value: not freed here
  bool recompute = false;   // all of it is run again: phases become kRecompute
  bool overlap = true;      // compute waits for an exchange between tensor ranks only where it
                            // needs the result; for one between context ranks in any case so
  std::int16_t pieces = 1;  // of an exchange beside the product that takes, or makes, what it moves
  std::uint16_t filled = kFilledNone;  // of Filled: made by these, a tensor is filled first
  EventId done = kTensorDone;  // the first of the exchanges' events
  bool host_reads = false;     // the host waits for what it has to know (Node::read)
};

// Turns nodes into instructions: allocates an activation before its first write (and fills it where
// options.filled says so), frees it after its last use; starts exchanges on their axis's stream and
// waits for them before the first use of what they write. `slots` gives each value's slot. Labels
// have no layer yet. Cost: linear.
Fragment write_fragment(Tables& tables, const Block& block, const std::vector<Node>& nodes,
                        const std::vector<TensorId>& slots, const FragmentOptions& options);

}  // namespace stepcast
