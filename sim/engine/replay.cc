// Replay with detection of the steady state.
//
// In a long 1F1B schedule the same allocations come round again: after k micro-batches every block
// lies where it lay, with the tensors of later micro-batches in it. A fingerprint finds that: the
// sum, over live blocks, of a hash of address and tensor times g^m for micro-batch m (mod 2^64, g
// odd). Dividing by g^m of the call at hand makes it independent of where in the schedule it is,
// and it costs one multiplication an event. Free blocks need not be hashed: while nothing is
// reserved or given back, they are the gaps. When a call finds the fingerprint of an earlier call
// of the same body, and the schedule from there on repeats (same bodies and chunks, micro-batches
// further by the same number), whole periods are skipped. (Two states with equal sums of 64 bits
// would be taken for one; at a million calls that has a chance of 3e-8.)
#include "sim/engine/replay.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr BlockId kNoBlock = -1;

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's finalizer
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Powers of an odd number modulo 2^64; they have inverses.
constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15;
constexpr std::uint64_t inverse(std::uint64_t odd) {  // Newton: each step doubles the correct bits
  std::uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
  return x;
}
constexpr std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
  std::uint64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}
constexpr std::uint64_t kInverse = inverse(kBase);

// A tensor of the bodies at hand.
struct Slot {
  Bytes bytes;
  Stream stream = Stream::kCompute;
  std::int32_t place = 0;        // among the slots of its table
  Scope scope = Scope::kMicroBatch;
};

struct Event {
  std::int32_t slot = 0;
  bool is_alloc = false;
};

struct Steps {                   // of one body
  std::vector<Event> events;
  bool multiplies = false;       // has matrix products
  bool is_compiled = false;
};

// The instances of one micro-batch on one chunk.
struct Frame {
  std::int32_t chunk = 0, micro_batch = 0;
  std::int32_t live = 0;
  std::vector<BlockId> blocks;
};

class StageReplay {
 public:
  StageReplay(const Job& job, std::size_t stage, const std::vector<Stream>& streams,
              const ReplayOptions& options);
  Replay run();

 private:
  void compile(BodyId id);
  std::int32_t slot_of(TensorId id);
  void allocate_residents(bool of_optimizer);
  void allocate_workspace(const Body& body, const Steps& steps);
  void step();
  void issue(const Call& call);
  Frame& frame_of(const Call& call);
  std::size_t skip(std::size_t at);
  void shift_micro_batches(std::int32_t by);

  const Job& job_;
  const Program& program_;
  const std::vector<Stream>& streams_;
  ReplayOptions options_;
  CachingAllocator allocator_;
  Replay result_;

  std::vector<Steps> bodies_;
  std::vector<std::int32_t> slot_of_tensor_;
  std::vector<Slot> slots_;
  std::int32_t micro_batch_slots_ = 0, other_slots_ = 0;

  std::int32_t chunks_ = 1;
  std::vector<BlockId> others_;             // [chunk][place]; of a rank's scope: chunk 0
  std::vector<Frame> frames_;
  std::vector<std::size_t> unused_frames_;
  std::unordered_map<std::int64_t, std::size_t> frame_at_;  // chunk, micro-batch -> frames_

  bool has_optimizer_state_ = false;
  bool has_workspace_[2] = {false, false};  // main thread, autograd's

  std::uint64_t other_sum_ = 0, micro_batch_sum_ = 0;
  std::int64_t seen_version_ = -1;
  std::unordered_map<std::uint64_t, std::size_t> seen_;  // fingerprint before a call -> call
};

StageReplay::StageReplay(const Job& job, std::size_t stage, const std::vector<Stream>& streams,
                         const ReplayOptions& options)
    : job_(job), program_(job.programs[stage]), streams_(streams), options_(options),
      allocator_(options.allocator), bodies_(job.bodies.size()),
      slot_of_tensor_(job.tensors.size(), -1) {
  for (const Call& call : program_.schedule) {
    chunks_ = std::max(chunks_, call.chunk + 1);
    compile(call.body);
  }
  others_.assign(static_cast<std::size_t>(chunks_) * static_cast<std::size_t>(other_slots_),
                 kNoBlock);
}

std::int32_t StageReplay::slot_of(TensorId id) {
  std::int32_t& slot = slot_of_tensor_[static_cast<std::size_t>(id)];
  if (slot >= 0) return slot;
  const Tensor& tensor = job_.tensors[static_cast<std::size_t>(id)];
  const bool is_of_micro_batch = tensor.scope == Scope::kMicroBatch;
  std::int32_t& count = is_of_micro_batch ? micro_batch_slots_ : other_slots_;
  slots_.push_back(
      {tensor.bytes(), streams_[static_cast<std::size_t>(id)], count++, tensor.scope});
  return slot = static_cast<std::int32_t>(slots_.size()) - 1;
}

void StageReplay::compile(BodyId id) {
  Steps& steps = bodies_[static_cast<std::size_t>(id)];
  if (steps.is_compiled) return;
  steps.is_compiled = true;
  for (const Instruction& instruction : job_.bodies[static_cast<std::size_t>(id)].code) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction)) {
      steps.events.push_back({slot_of(alloc->tensor), true});
    } else if (const auto* free = std::get_if<Free>(&instruction)) {
      steps.events.push_back({slot_of(free->tensor), false});
    } else if (const auto* compute = std::get_if<Compute>(&instruction)) {
      const Op& op = job_.ops[static_cast<std::size_t>(compute->op)];
      steps.multiplies = steps.multiplies || std::holds_alternative<Gemm>(op);
    }
  }
}

// A tensor without elements takes nothing.
void StageReplay::allocate_residents(bool of_optimizer) {
  seen_.clear();  // residents and workspaces are not in the fingerprint
  for (const Resident& resident : program_.residents) {
    for (const TensorId id : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
      const Tensor& tensor = job_.tensors[static_cast<std::size_t>(id)];
      if ((tensor.category == Category::kOptimizer) != of_optimizer) continue;
      if (tensor.bytes() > Bytes(0)) allocator_.allocate(tensor.bytes(), Stream::kCompute);
    }
  }
}

void StageReplay::allocate_workspace(const Body& body, const Steps& steps) {
  bool& has = has_workspace_[body.phase == Phase::kBackward ? 1 : 0];
  if (has || !steps.multiplies || options_.workspace == Bytes(0)) return;
  has = true;
  seen_.clear();
  allocator_.allocate(options_.workspace, Stream::kCompute);
  result_.workspaces += options_.workspace;
}

Frame& StageReplay::frame_of(const Call& call) {
  const std::int64_t key = std::int64_t{call.micro_batch} * chunks_ + call.chunk;
  const auto found = frame_at_.find(key);
  if (found != frame_at_.end()) return frames_[found->second];
  std::size_t index = frames_.size();
  if (unused_frames_.empty()) {
    frames_.push_back(
        {0, 0, 0, std::vector<BlockId>(static_cast<std::size_t>(micro_batch_slots_), kNoBlock)});
  } else {
    index = unused_frames_.back();
    unused_frames_.pop_back();
  }
  frames_[index].chunk = call.chunk;
  frames_[index].micro_batch = call.micro_batch;
  frame_at_.emplace(key, index);
  return frames_[index];
}

void StageReplay::issue(const Call& call) {
  const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
  const Steps& steps = bodies_[static_cast<std::size_t>(call.body)];
  if (body.phase == Phase::kOptimizer && !has_optimizer_state_) {
    has_optimizer_state_ = true;
    allocate_residents(true);
  }
  allocate_workspace(body, steps);
  if (steps.events.empty()) return;
  Frame& frame = frame_of(call);
  const auto chunk = static_cast<std::uint64_t>(call.chunk);
  const std::uint64_t factor = power(kBase, static_cast<std::uint64_t>(call.micro_batch));
  BlockId* others = others_.data() + call.chunk * other_slots_;
  std::uint64_t other_sum = 0, micro_batch_sum = 0;
  for (const Event event : steps.events) {
    const Slot& slot = slots_[static_cast<std::size_t>(event.slot)];
    if (slot.bytes == Bytes(0)) continue;
    const auto place = static_cast<std::size_t>(slot.place);
    const bool is_of_micro_batch = slot.scope == Scope::kMicroBatch;
    BlockId& block = is_of_micro_batch            ? frame.blocks[place]
                     : slot.scope == Scope::kRank ? others_[place]
                                                  : others[place];
    if (event.is_alloc) block = allocator_.allocate(slot.bytes, slot.stream);
    std::uint64_t hash = mixed(allocator_.address(block) ^
                               (static_cast<std::uint64_t>(event.slot) << 32 | chunk) * kBase);
    if (!event.is_alloc) {
      allocator_.free(block);
      hash = -hash;
    }
    (is_of_micro_batch ? micro_batch_sum : other_sum) += hash;
    if (is_of_micro_batch) frame.live += event.is_alloc ? 1 : -1;
  }
  result_.events += std::ssize(steps.events);
  other_sum_ += other_sum;
  micro_batch_sum_ += micro_batch_sum * factor;
  if (frame.live > 0) return;
  const std::int64_t key = std::int64_t{call.micro_batch} * chunks_ + call.chunk;
  unused_frames_.push_back(frame_at_.at(key));
  frame_at_.erase(key);
}

void StageReplay::shift_micro_batches(std::int32_t by) {
  std::unordered_map<std::int64_t, std::size_t> shifted;
  for (const auto& [key, index] : frame_at_) {
    frames_[index].micro_batch += by;
    shifted.emplace(key + std::int64_t{by} * chunks_, index);
  }
  frame_at_ = std::move(shifted);
  const auto magnitude = static_cast<std::uint64_t>(std::abs(by));
  micro_batch_sum_ *= power(by >= 0 ? kBase : kInverse, magnitude);
}

// The call to go on with: `at`, or, if what begins there repeats an earlier stretch, the one behind
// its last whole repetition.
std::size_t StageReplay::skip(std::size_t at) {
  const std::vector<Call>& calls = program_.schedule;
  if (allocator_.version() != seen_version_) seen_.clear();
  seen_version_ = allocator_.version();
  const Call& call = calls[at];
  const std::uint64_t relative =
      micro_batch_sum_ *
      power(kInverse, static_cast<std::uint64_t>(call.micro_batch));
  const std::uint64_t what = static_cast<std::uint64_t>(call.body) << 32 |
                             static_cast<std::uint64_t>(call.chunk);
  const auto [found, fresh] = seen_.emplace(mixed(mixed(relative + what) ^ other_sum_), at);
  if (fresh) return at;
  const std::size_t before = std::exchange(found->second, at);
  const std::int32_t by = call.micro_batch - calls[before].micro_batch;
  std::size_t same = 0;
  while (at + same < calls.size()) {
    const Call& a = calls[before + same];
    const Call& b = calls[at + same];
    if (a.body != b.body || a.chunk != b.chunk || b.micro_batch - a.micro_batch != by) break;
    ++same;
  }
  const std::size_t period = at - before;
  const std::size_t periods = same / period;
  if (periods == 0) return at;
  shift_micro_batches(by * static_cast<std::int32_t>(periods));
  return at + periods * period;
}

void StageReplay::step() {
  seen_version_ = -1;
  for (std::size_t i = 0; i < program_.schedule.size();) {
    if (options_.skips) {
      const std::size_t next = skip(i);
      if (next != i) {
        i = next;
        continue;
      }
    }
    issue(program_.schedule[i++]);
  }
}

Replay StageReplay::run() {
  allocate_residents(false);
  step();
  const int first = allocator_.retries();
  step();
  result_.retries = allocator_.retries() - first;
  result_.reserved_peak = allocator_.reserved_peak();
  result_.exhausted = allocator_.exhausted();
  return result_;
}

}  // namespace

std::vector<Stream> allocation_streams(const Job& job) {
  std::vector<Stream> streams(job.tensors.size(), Stream::kCompute);
  std::vector<char> known(job.tensors.size(), 0);
  const auto written = [&](const Body& body, const Operands& operands, Stream stream) {
    for (std::int32_t i = 0; i < operands.writes; ++i) {
      const auto id = static_cast<std::size_t>(
          body.operands[static_cast<std::size_t>(operands.first + operands.reads + i)]);
      if (known[id] == 0) streams[id] = stream;
      known[id] = 1;
    }
  };
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        written(body, compute->operands, Stream::kCompute);
      } else if (const auto* collective = std::get_if<Collective>(&instruction)) {
        const Stream stream = collective->stream;
        const bool own = stream == Stream::kData || stream == Stream::kReplica;
        written(body, collective->operands, own ? stream : Stream::kCompute);
      }
    }
  }
  return streams;
}

Replay replay_stage(const Job& job, std::size_t stage, const std::vector<Stream>& streams,
                    const ReplayOptions& options) {
  return StageReplay(job, stage, streams, options).run();
}

}  // namespace stepcast
