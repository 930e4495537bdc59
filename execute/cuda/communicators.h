// Communicators: which groups of ranks need one, and how one communicator of all ranks is split
// into them (ncclCommSplit): every rank makes the same splits in the same order, with a color that
// tells its group.
//
// One for each set of axes and stream that a collective of the Job uses. Messages between stages
// travel on communicators of two, one for each hop and direction: a communicator's calls run in the
// order of issue whatever stream they are on, and a message to the next stage must not wait for one
// from the previous. A rank takes part in two hops of a direction, so the hops of a ring of p
// stages are split off in two rounds, and in three where p is odd.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "execute/transport.h"
#include "sim/program/program.h"

namespace stepcast::cuda {

inline constexpr int kNoColor = -1;  // takes no part

struct Split {
  std::string name;  // "tensor", "data+pipeline", "ends", "forward 0", for reports
  Stream stream = Stream::kCompute;
  AxisSet axes;  // of collectives
  bool ends_only = false;
  int direction = 0;     // of messages: +1 to the next stage, -1 to the previous; 0: collectives
  int round = 0;         // of messages
  int color = kNoColor;  // of this rank
  int key = 0;           // this rank's number in its group
  int members = 0;       // of its group
};

// The splits of one rank, in order. All ranks get the same list but for color, key and members.
std::vector<Split> plan_communicators(const Job& job, int rank);

// In which round the message from `stage` goes. REQUIRES: stages > 1.
int hop_round(int stage, int stages);

// Index into a rank's splits. REQUIRES: the Job has such a collective, or message.
std::size_t split_of(const std::vector<Split>& splits, Stream stream, const Transfer& transfer);
std::size_t split_of_hop(const std::vector<Split>& splits, int direction, int from_stage,
                         int stages);

}  // namespace stepcast::cuda
