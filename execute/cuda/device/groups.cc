// A thin layer over NCCL; linear in the pieces of what is carried.
#include "execute/cuda/device/groups.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "execute/cuda/device/memory.h"
#include "sim/base/error.h"

namespace stepcast::cuda {

namespace {

ncclDataType_t type_of(Dtype dtype) { return dtype == Dtype::kBf16 ? ncclBfloat16 : ncclFloat32; }

std::size_t count_of(const Stretch& stretch) { return static_cast<std::size_t>(stretch.elements); }

// NCCL takes what is called between as one: all of it can be under way at once.
class Together {
 public:
  Together() { check(nccl().ncclGroupStart(), "ncclGroupStart"); }
  void end() {
    open_ = false;
    check(nccl().ncclGroupEnd(), "ncclGroupEnd");
  }
  ~Together() {
    if (open_) nccl().ncclGroupEnd();
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

 private:
  bool open_ = true;
};

// `pieces` are the members' parts one after the other, `mine` is this rank's, elsewhere or in
// place. Calls function(owner, piece, place in mine or null) for what is no padding.
template <class Function>
void for_owned(std::span<const Stretch> pieces, std::span<const Stretch> mine, std::size_t members,
               std::size_t me, Function function) {
  const std::int64_t share = total(pieces) / static_cast<std::int64_t>(members);
  std::int64_t at = 0;
  for (const Stretch& piece : pieces) {
    const auto owner = static_cast<std::size_t>(at / share);
    std::byte* place = nullptr;
    if (owner == me && piece.data != nullptr) {
      std::int64_t inside = at - static_cast<std::int64_t>(owner) * share;
      std::size_t i = 0;
      while (inside >= mine[i].elements) inside -= mine[i++].elements;
      STEPCAST_CHECK(inside + piece.elements <= mine[i].elements, "pieces are cut alike");
      place = mine[i].part(inside, piece.elements).data;
    }
    if (piece.data != nullptr) function(static_cast<int>(owner), piece, place);
    at += piece.elements;
  }
}

}  // namespace

Stretch end_to_end(std::span<const Stretch> stretches) {
  Stretch all = stretches.empty() ? Stretch{} : stretches[0];
  if (all.data == nullptr) return {};
  for (const Stretch& next : stretches.subspan(1)) {
    if (next.data != all.data + all.bytes()) return {};
    all.elements += next.elements;
  }
  return all;
}

Groups::Groups(const Job& job, int rank, Transport& control, const std::atomic<bool>& stop,
               std::vector<MemoryItem>& memory)
    : job_(job),
      rank_(rank),
      stage_(job.mesh.stage(rank)),
      stop_(stop),
      splits_(plan_communicators(job, rank)),
      communicators_(splits_.size(), nullptr),
      registered_(splits_.size(), nullptr) {
  if (splits_.empty()) return;
  ncclUniqueId id;
  std::memset(&id, 0, sizeof id);
  const auto bytes = std::as_writable_bytes(std::span(&id, 1));
  if (rank == 0) {
    check(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
    for (int other = 1; other < job.mesh.ranks(); ++other) {
      control.send(other, Stream::kHostCopy, bytes);
    }
  } else {
    control.receive(0, Stream::kHostCopy, bytes);
  }
  const Bytes before = free_bytes();
  control.sum_everywhere({});  // all are still there: who fails from here on has to abort
  check(nccl().ncclCommInitRank(&world_, job.mesh.ranks(), id, rank), "ncclCommInitRank");
  // What a first use works on outlives the abort: cudaFree waits for whatever is under way.
  OwnedStream stream;
  DeviceMemory numbers(nullptr, [](std::byte*) {});
  try {
    memory.push_back({"communicator of all ranks", before - free_bytes()});
    cudaStream_t one = nullptr;
    check(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), "cudaStreamCreate");
    stream.reset(one);
    numbers = device_memory(512, "a first message");
    split(control, memory, stream.get(), numbers.get());
  } catch (...) {
    abort();  // there is no object yet that could be destroyed
    throw;
  }
}

void Groups::split(Transport& control, std::vector<MemoryItem>& memory, cudaStream_t stream,
                   void* numbers) {
  for (std::size_t i = 0; i < splits_.size(); ++i) {
    const Bytes before = free_bytes();
    const int color = splits_[i].color == kNoColor ? NCCL_SPLIT_NOCOLOR : splits_[i].color;
    check(nccl().ncclCommSplit(world_, color, splits_[i].key, &communicators_[i], nullptr),
          "ncclCommSplit");
    if (communicators_[i] != nullptr) warm_up(splits_[i], communicators_[i], stream, numbers);
    control.sum_everywhere({});  // the next split begins when this one works everywhere
    memory.push_back({"communicator " + splits_[i].name, before - free_bytes()});
  }
}

void Groups::warm_up(const Split& split, ncclComm_t communicator, cudaStream_t stream,
                     void* memory) {
  if (split.direction == 0) {
    check(nccl().ncclAllReduce(memory, memory, 1, ncclFloat32, ncclMax, communicator, stream),
          "the first ncclAllReduce");
  } else if (split.key == 0) {
    check(nccl().ncclSend(memory, 1, ncclFloat32, 1, communicator, stream), "the first ncclSend");
  } else {
    check(nccl().ncclRecv(memory, 1, ncclFloat32, 0, communicator, stream), "the first ncclRecv");
  }
  const Event done(false);
  done.record(stream);
  wait_for(done, "the first use of a communicator");
}

void Groups::register_buffer(std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < splits_.size(); ++i) {
    const bool over_stages = splits_[i].direction == 0 && splits_[i].axes.has(Axis::kPipeline);
    if (communicators_[i] == nullptr || over_stages) continue;
    check(nccl().ncclCommRegister(communicators_[i], data, bytes, &registered_[i]),
          "ncclCommRegister");
  }
}

Groups::~Groups() {
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    if (communicators_[i] == nullptr) continue;
    if (registered_[i] != nullptr) nccl().ncclCommDeregister(communicators_[i], registered_[i]);
    nccl().ncclCommDestroy(communicators_[i]);
  }
  if (world_ != nullptr) nccl().ncclCommDestroy(world_);
}

void Groups::abort() noexcept {
  for (ncclComm_t& communicator : communicators_) {
    if (communicator != nullptr) nccl().ncclCommAbort(communicator);
    communicator = nullptr;
  }
  if (world_ != nullptr) nccl().ncclCommAbort(world_);
  world_ = nullptr;
}

void Groups::wait_for(const Event& event, const char* what, std::chrono::microseconds nap) const {
  await(event, fmt::format("rank {}: {}", rank_, what).c_str(), nap, [this] {
    check_failures();
    if (stop_.load()) throw Error("execute", "another rank stopped");
  });
}

void Groups::check_failures() const {
  for (std::size_t i = 0; i < communicators_.size(); ++i) {
    if (communicators_[i] == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    check(nccl().ncclCommGetAsyncError(communicators_[i], &state), "ncclCommGetAsyncError");
    check(state, ("communicator " + splits_[i].name).c_str());
  }
}

void Groups::all_reduce(ncclComm_t communicator, ncclRedOp_t op, std::span<const Stretch> stretches,
                        cudaStream_t on) {
  Together together;
  for (const Stretch& stretch : stretches) {
    if (stretch.data == nullptr) continue;
    check(nccl().ncclAllReduce(stretch.data, stretch.data, count_of(stretch),
                               type_of(stretch.dtype), op, communicator, on),
          "ncclAllReduce");
  }
  together.end();
}

void Groups::collective(const Transfer& transfer, const Group& members, Stream stream,
                        const Carried& carried, cudaStream_t on) {
  const std::size_t count = members.members.size();
  if (count == 1) return;  // alone: a degree of one shards and reduces nothing
  ncclComm_t communicator = communicators_[split_of(splits_, stream, transfer)];
  const ncclRedOp_t op = transfer.reduction == Reduction::kSum ? ncclSum : ncclMax;
  if (transfer.kind == TransferKind::kAllReduce) {
    return all_reduce(communicator, op, carried.out, on);
  }
  const Stretch in = end_to_end(carried.in), out = end_to_end(carried.out);
  const bool whole = in.data != nullptr && out.data != nullptr;
  if (transfer.kind == TransferKind::kReduceScatter) {
    if (whole) {
      return check(nccl().ncclReduceScatter(in.data, out.data, count_of(out), type_of(out.dtype),
                                            op, communicator, on),
                   "ncclReduceScatter");
    }
    Together together;
    for_owned(carried.in, carried.out, count, members.index,
              [&](int owner, const Stretch& piece, std::byte* place) {
                check(nccl().ncclReduce(piece.data, place, count_of(piece), type_of(piece.dtype),
                                        op, owner, communicator, on),
                      "ncclReduce");
              });
    return together.end();
  }
  if (whole) {
    return check(
        nccl().ncclAllGather(in.data, out.data, count_of(in), type_of(in.dtype), communicator, on),
        "ncclAllGather");
  }
  Together together;
  for_owned(carried.out, carried.in, count, members.index,
            [&](int owner, const Stretch& piece, std::byte* place) {
              check(nccl().ncclBroadcast(place, piece.data, count_of(piece), type_of(piece.dtype),
                                         owner, communicator, on),
                    "ncclBroadcast");
            });
  together.end();
}

void Groups::send(int direction, const Stretch& message, cudaStream_t on) {
  const std::size_t hop = split_of_hop(splits_, direction, stage_, job_.mesh.stages());
  check(nccl().ncclSend(message.data, static_cast<std::size_t>(message.bytes()), ncclInt8, 1,
                        communicators_[hop], on),
        "ncclSend");
}

void Groups::receive(int direction, const Stretch& message, cudaStream_t on) {
  const int stages = job_.mesh.stages();
  const int from = (stage_ - direction + stages) % stages;
  const std::size_t hop = split_of_hop(splits_, direction, from, stages);
  check(nccl().ncclRecv(message.data, static_cast<std::size_t>(message.bytes()), ncclInt8, 0,
                        communicators_[hop], on),
        "ncclRecv");
}

bool Groups::sends(int direction) const {
  return std::any_of(splits_.begin(), splits_.end(), [&](const Split& split) {
    return split.direction == direction && split.color != kNoColor && split.key == 0;
  });
}

bool Groups::receives(int direction) const {
  return std::any_of(splits_.begin(), splits_.end(), [&](const Split& split) {
    return split.direction == direction && split.color != kNoColor && split.key == 1;
  });
}

namespace {

void copy(const Stretch& from, const Stretch& to, cudaStream_t on) {
  const auto bytes = static_cast<std::size_t>(std::min(from.bytes(), to.bytes()));
  if (from.data == nullptr || to.data == nullptr || from.data == to.data) return;
  check(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, on),
        "standing in for another rank");
}

}  // namespace

void stand_in(const Transfer& transfer, const Group& members, const Carried& carried,
              cudaStream_t on) {
  if (transfer.kind == TransferKind::kAllReduce || members.members.size() == 1) return;
  const std::vector<Stretch>&from = carried.in, &to = carried.out;
  if (from.empty() || to.empty()) return;
  const std::int64_t share = std::min(total(from), total(to));
  const Stretch in = end_to_end(from), out = end_to_end(to);
  if (in.data != nullptr && out.data != nullptr) {
    for (std::int64_t at = 0; at + share <= out.elements; at += share) {
      copy(in.part(0, share), out.part(at, share), on);
    }
    return;
  }
  for (std::size_t i = 0; i < to.size(); ++i) copy(from[i % from.size()], to[i], on);
}

// Every byte 0x3d: 0.046 in bf16 and fp32 alike, the size of an activation's.
void stand_in(const Stretch& message, cudaStream_t on) {
  check(cudaMemsetAsync(message.data, 0x3d, static_cast<std::size_t>(message.bytes()), on),
        "standing in for another rank");
}

}  // namespace stepcast::cuda
