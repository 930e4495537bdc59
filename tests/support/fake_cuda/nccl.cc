// NCCL for ranks that are threads of one process. A call on a stream meets the calls of the other
// members of its communicator there: collectives by their number on the communicator, messages by
// their number from one member to the other. Nothing moves before all of them have come, and a
// communicator's calls come one after the other in the order of their issue, whatever streams they
// are on; those between ncclGroupStart and ncclGroupEnd come at once. Members whose calls differ in
// kind, count, type, operation or root break the communicator, which from then on answers
// ncclInvalidUsage and never ends; as one that fails on its way ("async") does.
//
// Members of a collective must have registered either all or none of what they pass, and at the
// same offset what all of them hold whole; so must both ends of a message, at any offset.
//
// The first call on a communicator connects it: the host waits until all members' hosts have come.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/include/nccl.h"
#include "tests/support/fake_cuda/nccl_calls.h"
#include "tests/support/fake_cuda/numbers.h"

using namespace stepcast::fake;

struct ncclComm {
  std::shared_ptr<Member> member = {};
};

namespace {

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;
thread_local ncclResult_t group_state = ncclSuccess;  // a group with a call that failed is void

std::map<std::string, std::shared_ptr<Clique>>& cliques() {
  static std::map<std::string, std::shared_ptr<Clique>> all;
  return all;
}

ncclResult_t refuse(const char* why, ncclResult_t result = ncclInvalidArgument) {
  complain(std::string("NCCL: ") + why);
  return result;
}

std::size_t size_of(ncclDataType_t type) {
  return type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : 4;
}

void break_up(Clique& clique, const std::string& why) {
  complain("NCCL: " + why);
  for (const auto& weak : clique.members) {
    if (const auto member = weak.lock()) member->state = ncclInvalidUsage;
  }
}

// -------------------------------------------------------------------------------- arithmetic

// As it is once it has been stored.
float rounded(float value, bool wide) {
  float stored = 0;
  store(&stored, wide, 0, value);
  return load(&stored, wide, 0);
}

// In the order of the ranks, rounded after each as on a ring.
std::vector<float> reduced(const Meeting& meeting, std::size_t count) {
  std::vector<float> out(count);
  const Call& first = *meeting.come[0];
  const bool wide = first.type == ncclFloat32;
  for (std::size_t rank = 0; rank < meeting.come.size(); ++rank) {
    const Call& call = *meeting.come[rank];
    for (std::size_t i = 0; i < count; ++i) {
      const float x = load(call.send, wide, i);
      if (rank == 0) {
        out[i] = x;
      } else {
        // A NaN is greater than all else here, so that it is not lost.
        const float most = out[i] < x || x != x ? x : out[i];
        out[i] = rounded(first.op == ncclSum ? out[i] + x : most, wide);
      }
    }
  }
  return out;
}

void carry_out(const Meeting& meeting) {
  for (const auto& call : meeting.come) open_memory(call->member->device);
  const Call& first = *meeting.come[0];
  const bool wide = first.type == ncclFloat32;
  const std::size_t count = first.count, bytes = count * size_of(first.type);
  const std::size_t members = meeting.come.size();
  switch (first.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: {
      const std::vector<float> sum = reduced(meeting, count);
      for (std::size_t rank = 0; rank < members; ++rank) {
        const Call& call = *meeting.come[rank];
        if (call.kind == Kind::kReduce && static_cast<int>(rank) != call.peer) continue;
        for (std::size_t i = 0; i < count; ++i) store(call.receive, wide, i, sum[i]);
      }
      return;
    }
    case Kind::kReduceScatter: {
      const std::vector<float> sum = reduced(meeting, count * members);
      for (std::size_t rank = 0; rank < members; ++rank) {
        const Call& call = *meeting.come[rank];
        for (std::size_t i = 0; i < count; ++i) {
          store(call.receive, wide, i, sum[rank * count + i]);
        }
      }
      return;
    }
    case Kind::kAllGather: {
      std::vector<unsigned char> all(bytes * members);
      for (std::size_t rank = 0; rank < members; ++rank) {
        std::memcpy(all.data() + rank * bytes, meeting.come[rank]->send, bytes);
      }
      for (const auto& call : meeting.come) std::memcpy(call->receive, all.data(), all.size());
      return;
    }
    case Kind::kBroadcast: {
      const Call& root = *meeting.come[static_cast<std::size_t>(first.peer)];
      const auto* from = static_cast<const unsigned char*>(root.send);
      const std::vector<unsigned char> all(from, from + bytes);
      for (const auto& call : meeting.come) std::memcpy(call->receive, all.data(), bytes);
      return;
    }
    case Kind::kSend:
    case Kind::kReceive:
      std::memcpy(meeting.come[1]->receive,
                  meeting.left ? meeting.message.data() : meeting.come[0]->send, bytes);
      return;
  }
}

// ------------------------------------------------------------------------------ what is asked

bool alike(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.peer == b.peer;
}

// Of memory in a buffer that the member registered; -1: in none.
std::ptrdiff_t registered_offset(const Member& member, const void* memory) {
  const auto* at = static_cast<const unsigned char*>(memory);
  for (const auto& one : member.registered) {
    if (at >= one->data && at < one->data + one->bytes) return at - one->data;
  }
  return -1;
}

bool registered_alike(const Call& a, const Call& b) {
  const auto offsets = [](const Call& call) {
    return std::pair(registered_offset(*call.member, call.send),
                     registered_offset(*call.member, call.receive));
  };
  const auto [send, receive] = offsets(a);
  const auto [other_send, other_receive] = offsets(b);
  switch (a.kind) {
    case Kind::kAllReduce: return send == other_send && receive == other_receive;
    case Kind::kAllGather: return receive == other_receive;  // shares lie elsewhere on each
    case Kind::kReduceScatter: return send == other_send;
    case Kind::kSend: return (send < 0) == (other_receive < 0);
    case Kind::kReceive: return (receive < 0) == (other_send < 0);
    case Kind::kReduce:
    case Kind::kBroadcast: return true;  // what the root alone passes is nobody else's
  }
  return true;
}

// What a call reads and writes on its member, in bytes.
std::pair<std::size_t, std::size_t> reach(const Call& call) {
  const std::size_t bytes = call.count * size_of(call.type);
  const auto members = static_cast<std::size_t>(call.member->size());
  const bool root = call.member->rank == call.peer;
  switch (call.kind) {
    case Kind::kAllReduce: return {bytes, bytes};
    case Kind::kAllGather: return {bytes, bytes * members};
    case Kind::kReduceScatter: return {bytes * members, bytes};
    case Kind::kReduce: return {bytes, root ? bytes : 0};
    case Kind::kBroadcast: return {root ? bytes : 0, bytes};
    case Kind::kSend: return {bytes, 0};
    case Kind::kReceive: break;
  }
  return {0, bytes};
}

// Buffers lie on the member's device, and apart or exactly as "in place" says.
ncclResult_t check_buffers(const Call& call) {
  const auto [read, written] = reach(call);
  if (read > 0 && !owns(call.member->device, call.send, read)) {
    return refuse("a send buffer beyond an allocation of its device");
  }
  if (written > 0 && !owns(call.member->device, call.receive, written)) {
    return refuse("a receive buffer beyond an allocation of its device");
  }
  if (read == 0 || written == 0) return ncclSuccess;
  const auto* from = static_cast<const unsigned char*>(call.send);
  const auto* to = static_cast<const unsigned char*>(call.receive);
  if (from + read <= to || to + written <= from) return ncclSuccess;
  const std::size_t share =
      static_cast<std::size_t>(call.member->rank) * call.count * size_of(call.type);
  const bool in_place = call.kind == Kind::kAllGather       ? from == to + share
                        : call.kind == Kind::kReduceScatter ? to == from + share
                                                            : from == to;
  return in_place ? ncclSuccess : refuse("buffers that overlap, and not in place");
}

ncclResult_t check_call(const Call& call) {
  const Member& member = *call.member;
  if (member.aborted) return refuse("a call on a communicator that was aborted", ncclInvalidUsage);
  if (member.device != current_device()) return refuse("a call from another device's thread");
  const bool has_peer = call.kind == Kind::kReduce || call.kind == Kind::kBroadcast ||
                        call.kind == Kind::kSend || call.kind == Kind::kReceive;
  if (has_peer && (call.peer < 0 || call.peer >= member.size()))
    return refuse("a peer that is none");
  return check_buffers(call);
}

// --------------------------------------------------------------------------------- on streams

// One call, or a group of calls, on one stream.
class Operation {
 public:
  explicit Operation(const std::vector<Call>& calls) : calls_(calls) {
    for (const Call& call : calls_) {
      if (tickets_.emplace(call.member.get(), call.member->issued).second) ++call.member->issued;
      meetings_.push_back(meeting_of(call));
    }
    under_way(calls_[0].member->device, 1);
  }

  bool attempt() {
    if (!ended()) return false;
    under_way(calls_[0].member->device, -1);
    return true;
  }

 private:
  bool ended() {
    if (std::all_of(tickets_.begin(), tickets_.end(),
                    [](const auto& one) { return one.first->aborted; })) {
      return true;  // its kernel was ended
    }
    if (!come_ && !come()) return false;
    for (const auto& [member, ticket] : tickets_) {
      if (member->state != ncclSuccess) return false;
    }
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const bool left = calls_[i].kind == Kind::kSend && meetings_[i]->left;
      if (!meetings_[i]->done && !left) return false;
    }
    for (const auto& [member, ticket] : tickets_) ++member->finished;
    return true;
  }

  static MeetingPointer meeting_of(const Call& call) {
    Member& member = *call.member;
    MeetingPointer* slot = nullptr;
    if (call.kind == Kind::kSend || call.kind == Kind::kReceive) {
      const bool sends = call.kind == Kind::kSend;
      const std::pair way(sends ? member.rank : call.peer, sends ? call.peer : member.rank);
      slot = &member.clique->messages[way][member.messages[way]++];
    } else {
      slot = &member.clique->collectives[member.collectives++];
    }
    if (*slot == nullptr) *slot = std::make_shared<Meeting>();
    return *slot;
  }

  // To the meetings, if the calls before on the same communicators are done.
  bool come() {
    for (const auto& [member, ticket] : tickets_) {
      if (member->finished != ticket) return false;
    }
    come_ = true;
    for (std::size_t i = 0; i < calls_.size(); ++i) arrive(calls_[i], *meetings_[i]);
    return true;
  }

  void arrive(const Call& call, Meeting& meeting) {
    Member& member = *call.member;
    if (const int bad = fault_on("async", member.device)) {
      member.state = static_cast<ncclResult_t>(bad);
      return;
    }
    const bool message = call.kind == Kind::kSend || call.kind == Kind::kReceive;
    meeting.come.resize(message ? 2 : static_cast<std::size_t>(member.size()), nullptr);
    const auto place =
        static_cast<std::size_t>(message ? (call.kind == Kind::kSend ? 0 : 1) : member.rank);
    for (const auto& other : meeting.come) {
      if (other == nullptr) continue;
      if (other->member->aborted) return;  // nobody is there any more
      const bool fits =
          message ? other->count == call.count && other->type == call.type : alike(*other, call);
      if (!fits) return break_up(*member.clique, "members whose calls differ");
      if (!registered_alike(*other, call)) {
        return break_up(*member.clique, "members whose buffers are not registered alike");
      }
    }
    meeting.come[place] = std::make_shared<const Call>(call);
    const std::size_t bytes = call.count * size_of(call.type);
    if (call.kind == Kind::kSend && bytes <= eager_bytes()) {
      const auto* from = static_cast<const unsigned char*>(call.send);
      open_memory(member.device);
      meeting.message.assign(from, from + bytes);
      meeting.left = true;
    }
    if (++meeting.count < meeting.come.size()) return;
    carry_out(meeting);
    meeting.done = true;
    changed();
  }

  std::vector<Call> calls_;
  std::map<Member*, std::int64_t> tickets_;
  std::vector<MeetingPointer> meetings_;
  bool come_ = false;
};

// The first call of a member waits for the other members' hosts.
ncclResult_t connect(const std::vector<Call>& calls) {
  std::unique_lock lock(mutex());
  for (const Call& call : calls) {
    Member& member = *call.member;
    if (member.connected || member.aborted) continue;
    member.connected = true;
    ++member.clique->connected;
    changed();
    const auto all = [&] {
      return member.aborted || member.clique->left || member.clique->connected >= member.size();
    };
    if (!wait_until(lock, all)) return ncclSystemError;
    if (member.clique->connected < member.size()) return ncclRemoteError;
  }
  return ncclSuccess;
}

ncclResult_t issue(const std::vector<Call>& calls) {
  if (calls.empty()) return ncclSuccess;
  if (const ncclResult_t bad = connect(calls); bad != ncclSuccess) return bad;
  for (const Call& call : calls) {
    if (call.stream == calls[0].stream) continue;
    const std::lock_guard lock(mutex());
    return refuse("a group on several streams, which this machine does not know");
  }
  const auto operation = [calls] {
    return [one = std::make_shared<Operation>(calls)] { return one->attempt(); };
  };
  const cudaError_t status = enqueue(calls[0].stream, operation, true);
  return status == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t prepare(const char* name, Call& call, ncclComm_t comm) {
  const std::lock_guard lock(mutex());
  if (const int bad = fault_on(name, current_device())) return static_cast<ncclResult_t>(bad);
  if (comm == nullptr) return refuse("no communicator");
  call.member = comm->member;
  return check_call(call);
}

ncclResult_t take(const char* name, Call call, ncclComm_t comm, cudaStream_t stream) {
  call.stream = stream;
  const ncclResult_t state = prepare(name, call, comm);
  if (group_depth == 0) return state == ncclSuccess ? issue({call}) : state;
  if (state != ncclSuccess) group_state = state;
  group_calls.push_back(call);
  return state;
}

ncclComm_t make(const std::shared_ptr<Clique>& clique, int rank) {
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  member->device = current_device();
  clique->members[static_cast<std::size_t>(rank)] = member;
  ++clique->present;
  made("communicators");
  hold_memory(member->device, kBuffers);
  changed();
  return new ncclComm{std::move(member)};
}

void give_back(ncclComm_t comm) {
  made("communicators", -1);
  made("registered buffers", -static_cast<int>(comm->member->registered.size()));
  hold_memory(comm->member->device, -kBuffers);
  // Calls hold their members, and members the communicator that holds the calls.
  Clique& clique = *comm->member->clique;
  if (++clique.gone == clique.present) {
    clique.collectives.clear();
    clique.messages.clear();
  }
  delete comm;
}

void leave(Clique& clique) {
  clique.left = true;
  changed();
}

// Until all members are there; a communicator that does not come to be is taken back.
ncclResult_t gather(std::unique_lock<std::mutex>& lock, const Clique& clique, ncclComm_t* comm) {
  const auto whole = [&] { return clique.present == static_cast<int>(clique.members.size()); };
  if (wait_until(lock, [&] { return clique.left || whole(); }) && whole()) return ncclSuccess;
  give_back(std::exchange(*comm, nullptr));
  return ncclRemoteError;
}

// Who splits in which group: by color, in the order of key and rank.
void carry_out_split(Clique& parent, std::size_t number) {
  std::map<int, int> sizes;
  for (const auto& [rank, one] : parent.splits[number]) ++sizes[one.first];
  for (const auto& [color, size] : sizes) {
    auto clique = std::make_shared<Clique>();
    clique->members.resize(static_cast<std::size_t>(size));
    parent.made[number][color] = std::move(clique);
  }
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22800;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unhandled cuda error";
  }
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const int bad = fault_of("ncclGetUniqueId")) return static_cast<ncclResult_t>(bad);
  const std::lock_guard lock(mutex());
  static int number = 0;
  std::memset(id, 0, sizeof *id);
  const std::string text = "id " + std::to_string(number++);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  *comm = nullptr;
  std::unique_lock lock(mutex());
  std::shared_ptr<Clique>& slot = cliques()[std::string(id.internal)];
  if (slot == nullptr) {
    slot = std::make_shared<Clique>();
    slot->members.resize(static_cast<std::size_t>(ranks));
  }
  const std::shared_ptr<Clique> clique = slot;
  if (const int bad = fault_on("ncclCommInitRank", current_device())) {
    leave(*clique);
    return static_cast<ncclResult_t>(bad);
  }
  if (ranks != static_cast<int>(clique->members.size()) || rank < 0 || rank >= ranks ||
      clique->members[static_cast<std::size_t>(rank)].lock() != nullptr) {
    return refuse("a rank of a communicator twice, or beyond it");
  }
  *comm = make(clique, rank);
  return gather(lock, *clique, comm);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  *out = nullptr;
  std::unique_lock lock(mutex());
  const std::shared_ptr<Member> held = comm->member;  // another thread may abort it meanwhile
  Member& member = *held;
  Clique& parent = *member.clique;
  if (const int bad = fault_on("ncclCommSplit", current_device())) {
    leave(parent);
    return static_cast<ncclResult_t>(bad);
  }
  const std::size_t number = member.splits++;
  if (parent.splits.size() <= number) {
    parent.splits.emplace_back();
    parent.made.emplace_back();
  }
  parent.splits[number][member.rank] = {color, key};
  const auto all = parent.members.size();
  if (parent.splits[number].size() == all) carry_out_split(parent, number);
  changed();
  const auto come = [&] { return parent.left || parent.splits[number].size() == all; };
  if (!wait_until(lock, come)) return ncclSystemError;
  if (parent.splits[number].size() < all) return ncclRemoteError;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  const std::shared_ptr<Clique> clique = parent.made[number].at(color);
  int rank = 0;
  for (const auto& [other, one] : parent.splits[number]) {
    if (one.first == color && std::pair(one.second, other) < std::pair(key, member.rank)) ++rank;
  }
  *out = make(clique, rank);
  return gather(lock, *clique, out);
}

// Pieces that one library makes and another gives back are no balance.
constexpr const char* kMemory = "pieces of NCCL's memory";

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  if (const int bad = fault_of("ncclMemAlloc")) return static_cast<ncclResult_t>(bad);
  if (cudaMalloc(data, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(mutex());
  made(kMemory);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
  {
    const std::lock_guard lock(mutex());
    made(kMemory, -1);
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
  const std::lock_guard lock(mutex());
  if (const int bad = fault_on("ncclCommRegister", current_device())) {
    return static_cast<ncclResult_t>(bad);
  }
  if (comm == nullptr || !owns(comm->member->device, data, bytes)) {
    return refuse("a buffer is registered that is none of its device's");
  }
  auto& all = comm->member->registered;
  all.push_back(std::make_unique<Registered>(
      Registered{static_cast<const unsigned char*>(data), bytes}));
  *handle = all.back().get();
  made("registered buffers");
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  const std::lock_guard lock(mutex());
  auto& all = comm->member->registered;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == handle; });
  if (found == all.end()) return refuse("a buffer is deregistered that was not registered");
  const bool there = owns(comm->member->device, (*found)->data, (*found)->bytes);
  all.erase(found);
  made("registered buffers", -1);
  return there ? ncclSuccess : refuse("a registered buffer was freed");
}

// Waits for what is under way.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  std::unique_lock lock(mutex());
  const std::shared_ptr<Member> member = comm->member;
  const bool idle = wait_until(lock, [&] { return member->finished == member->issued; });
  if (!member->registered.empty()) complain("NCCL: a communicator ends before its buffers");
  give_back(comm);
  return idle ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(mutex());
  comm->member->aborted = true;
  leave(*comm->member->clique);
  give_back(comm);
  changed();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (const int bad = fault_of("ncclCommGetAsyncError")) return static_cast<ncclResult_t>(bad);
  const std::lock_guard lock(mutex());
  *state = comm->member->state;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return take("ncclAllReduce", {Kind::kAllReduce, send, receive, count, type, op}, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t send_count,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return take("ncclAllGather", {Kind::kAllGather, send, receive, send_count, type}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return take("ncclReduceScatter", {Kind::kReduceScatter, send, receive, receive_count, type, op},
              comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return take("ncclReduce", {Kind::kReduce, send, receive, count, type, op, root}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return take("ncclBroadcast", {Kind::kBroadcast, send, receive, count, type, ncclSum, root}, comm,
              stream);
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return take("ncclSend", {Kind::kSend, send, nullptr, count, type, ncclSum, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return take("ncclRecv", {Kind::kReceive, nullptr, receive, count, type, ncclSum, peer}, comm,
              stream);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0 || --group_depth > 0) return ncclSuccess;
  const std::vector<Call> calls = std::exchange(group_calls, {});
  const ncclResult_t state = std::exchange(group_state, ncclSuccess);
  return state == ncclSuccess ? issue(calls) : state;
}

}  // extern "C"
