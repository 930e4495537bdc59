// What the fake NCCL keeps of its communicators and of the calls on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/include/nccl.h"

namespace stepcast::fake {

constexpr std::ptrdiff_t kBuffers = 1 << 20;  // of a communicator

enum class Kind { kAllReduce, kAllGather, kReduceScatter, kReduce, kBroadcast, kSend, kReceive };

struct Member;

struct Call {
  Kind kind = Kind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  // or root
  std::shared_ptr<Member> member = {};
  cudaStream_t stream = nullptr;
};

// Those who came for one collective, or for one message: sender, receiver.
struct Meeting {
  std::vector<std::shared_ptr<const Call>> come;
  std::size_t count = 0;
  bool done = false;
  bool left = false;  // a message that was taken from its sender before the receiver came
  std::vector<unsigned char> message;
};
using MeetingPointer = std::shared_ptr<Meeting>;

// A communicator, seen from nowhere.
struct Clique {
  std::vector<std::weak_ptr<Member>> members;
  int present = 0;  // at its making
  int gone = 0;     // gave theirs back
  std::map<std::int64_t, MeetingPointer> collectives;
  std::map<std::pair<int, int>, std::map<std::int64_t, MeetingPointer>> messages;
  int connected = 0;
  bool left = false;  // a member failed or aborted: sockets to it are closed
  // Splits of it, in order: color and key of each member that has come.
  std::vector<std::map<int, std::pair<int, int>>> splits;
  std::vector<std::map<int, std::shared_ptr<Clique>>> made;  // by color
};

struct Registered {
  const unsigned char* data = nullptr;
  std::size_t bytes = 0;
};

struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  std::int64_t issued = 0, finished = 0;  // calls or groups
  std::int64_t collectives = 0;
  std::map<std::pair<int, int>, std::int64_t> messages;
  std::size_t splits = 0;
  bool connected = false;
  bool aborted = false;
  ncclResult_t state = ncclSuccess;
  std::vector<std::unique_ptr<Registered>> registered;

  int size() const { return static_cast<int>(clique->members.size()); }
};

}  // namespace stepcast::fake
