// Parts of the pipeline that hold the same kinds of blocks share their bodies: a pipeline of 16
// stages of equal layers has three kinds of chunk (first, middle, last), however many stages and
// virtual stages there are.
#include "models/lower.h"

#include <algorithm>

#include "models/buffers.h"
#include "models/chunk.h"
#include "models/schedule.h"
#include "models/stages.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

class Lowering {
 public:
  Lowering(const Network& network, const Plan& plan, Passes passes, std::int64_t rounds)
      : network_(network), plan_(plan), passes_(passes), rounds_(rounds), tables_(job_) {}

  Job run();

 private:
  const ChunkBodies& bodies_of(const BlockRange& part, bool previous, bool next);
  BodyId write_clip();
  void reduce_norm(BodyWriter& body, AxisSet axes);
  BodyId write_synchronize();
  BodyId write_norm_reset();
  BodyId write_memory(std::string_view name, const std::vector<TensorId>& allocated,
                      const std::vector<TensorId>& freed);
  void write_program(const std::vector<Slot>& slots, std::size_t stage);
  void write_round(const std::vector<Slot>& slots, std::size_t stage,
                   const std::vector<ChunkBodies>& bodies, std::int64_t round,
                   std::vector<Call>& schedule) const;
  BodyRange parts_of(const Slot& slot, const std::vector<ChunkBodies>& bodies,
                     std::int64_t round) const;
  bool receives(const Slot& slot, std::size_t stage) const;
  bool sends(const Slot& slot, std::size_t stage) const;

  const Network& network_;
  const Plan& plan_;
  const Passes passes_;
  const std::int64_t rounds_;
  Job job_;
  Tables tables_;
  std::vector<BlockKind> kinds_;
  std::vector<BlockRange> parts_;
  std::vector<ChunkShape> shapes_;     // distinct
  std::vector<ChunkBodies> chunks_;    // of shapes_
  TensorId norm_ = kNoTensor;
  std::int32_t norm_set_ = 0;
  BodyId begin_ = -1;
  BodyId clip_ = -1;
  BodyId norm_reset_ = -1;
  BodyId synchronize_ = -1;
  BodyId defer_ = -1, drain_ = -1;     // of the last stage
};

const ChunkBodies& Lowering::bodies_of(const BlockRange& part, bool previous, bool next) {
  const auto chain = network_.chain.begin();
  ChunkShape shape{{chain + part.first, chain + part.last}, previous, next};
  const auto known = std::find(shapes_.begin(), shapes_.end(), shape);
  if (known != shapes_.end()) return chunks_[static_cast<std::size_t>(known - shapes_.begin())];
  chunks_.push_back(write_chunk(tables_, kinds_, shape, plan_, norm_, passes_));
  shapes_.push_back(std::move(shape));
  return chunks_.back();
}

// Every rank has a share of the squared norm: of its slices, its stage, its shard. The host may
// read it, to clip or to skip the step where a loss scale was too large.
BodyId Lowering::write_clip() {
  AxisSet axes;
  for (Axis axis : {Axis::kTensor, Axis::kData, Axis::kPipeline}) {
    const bool split = axis != Axis::kData || plan_.effective_zero() >= 1;
    const AxisSet all = axis == Axis::kData ? state_axes(plan_) : AxisSet(axis);
    if (split && job_.mesh.group_size(all) > 1) axes = axes | all;
  }
  axes = axes | plan_.expert_axes();
  if (!plan_.clip_gradients) axes = {};
  if (axes.empty() && !plan_.optimizer_sync) return -1;
  BodyWriter body(tables_, "clip", Phase::kOptimizer);
  if (!axes.empty()) reduce_norm(body, axes);
  if (plan_.optimizer_sync) body.add(Synchronize{});
  return body.finish();
}

void Lowering::reduce_norm(BodyWriter& body, AxisSet axes) {
  body.order(Stream::kCompute, kComputeReady, Stream::kGlobal);
  body.collective({TransferKind::kAllReduce, axes, false, body.bytes(norm_)}, {norm_}, {norm_},
                  tables_.label("gradients.norm.reduce"), Stream::kGlobal, Phase::kOptimizer);
  body.order(Stream::kGlobal, kGlobalDone, Stream::kCompute);
}

BodyId Lowering::write_synchronize() {
  BodyWriter body(tables_, "synchronize", Phase::kForward);
  body.add(Synchronize{});
  return body.finish();
}

BodyId Lowering::write_norm_reset() {
  BodyWriter body(tables_, "reset norm", Phase::kOptimizer);
  body.compute(Pointwise{PointwiseKind::kFill, 1, 1, Dtype::kFp32, Dtype::kFp32, false}, {},
               {norm_}, tables_.label("gradients.norm.zero"), Phase::kOptimizer);
  return body.finish();
}

BodyId Lowering::write_memory(std::string_view name, const std::vector<TensorId>& allocated,
                              const std::vector<TensorId>& freed) {
  BodyWriter body(tables_, name, Phase::kBackward);
  for (const TensorId tensor : allocated) body.add(Alloc{tensor});
  for (const TensorId tensor : freed) body.add(Free{tensor});
  return body.finish();
}

// The first part receives no activations and sends no gradients; the last the other way round.
bool Lowering::receives(const Slot& slot, std::size_t stage) const {
  const std::size_t part = static_cast<std::size_t>(slot.chunk * plan_.pipeline) + stage;
  return slot.backward ? part + 1 < parts_.size() : part > 0;
}

bool Lowering::sends(const Slot& slot, std::size_t stage) const {
  const std::size_t part = static_cast<std::size_t>(slot.chunk * plan_.pipeline) + stage;
  return slot.backward ? part > 0 : part + 1 < parts_.size();
}

BodyRange Lowering::parts_of(const Slot& slot, const std::vector<ChunkBodies>& bodies,
                             std::int64_t round) const {
  const auto micro_batches = static_cast<std::int32_t>(plan_.micro_batches());
  const std::vector<PassBodies>& passes = bodies[static_cast<std::size_t>(slot.chunk)].passes;
  const PassBodies& b = passes[static_cast<std::size_t>(round + slot.micro_batch) % passes.size()];
  if (slot.backward) return slot.micro_batch + 1 == micro_batches ? b.backward_last : b.backward;
  return slot.micro_batch == 0 ? b.forward_first : b.forward;
}

namespace {

// The host waits for each kernel and each collective, and for nothing else: a message may be under
// way beside them. For messages it waits as with p2p_sync: a send and the receive behind it are one
// launch. Until a collective is over the compute stream has nothing to do either, so it waits for
// the same: a breakdown then says for what.
void block_launches(Body& body, EventId launched) {
  std::vector<Instruction> code;
  code.reserve(4 * body.code.size());
  for (const Instruction& instruction : body.code) {
    code.push_back(instruction);
    const auto* collective = std::get_if<Collective>(&instruction);
    if (collective == nullptr && !std::holds_alternative<Compute>(instruction)) continue;
    code.emplace_back(Record{collective ? collective->stream : Stream::kCompute, launched});
    if (collective != nullptr) code.emplace_back(Wait{Stream::kCompute, launched});
    code.emplace_back(HostWait{launched});
  }
  body.code = std::move(code);
}

// The parts of a backward and of a forward in turn, beginning with the backward (Megatron-Core,
// megatron/core/models/common/model_chunk_schedule_plan.py): beside the exchange that ends a part
// of one runs the part of the other that is called next.
void call_in_turn(const Slot& forward, BodyRange forward_parts, const Slot& backward,
                  BodyRange backward_parts, std::vector<Call>& schedule) {
  for (std::int32_t i = 0; i < std::max(forward_parts.count, backward_parts.count); ++i) {
    if (i < backward_parts.count) {
      schedule.push_back({backward_parts[i], backward.chunk, backward.micro_batch});
    }
    if (i < forward_parts.count) {
      schedule.push_back({forward_parts[i], forward.chunk, forward.micro_batch});
    }
  }
}

}  // namespace

// Where the host waits for messages, one wait serves a send and the receive that follows it, which
// are posted together; a send that none follows is waited for by itself.
void Lowering::write_round(const std::vector<Slot>& slots, std::size_t stage,
                           const std::vector<ChunkBodies>& bodies, std::int64_t round,
                           std::vector<Call>& schedule) const {
  const auto chunks = static_cast<std::int32_t>(bodies.size());
  const bool last = stage + 1 == static_cast<std::size_t>(plan_.pipeline);
  if (begin_ >= 0) schedule.push_back({begin_, 0, 0});
  if (last && defer_ >= 0) schedule.push_back({defer_, 0, 0});
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    const BodyRange parts = parts_of(slot, bodies, round);
    if (plan_.expert_overlap && slot.alternates) {
      const Slot& backward = slots[++i];
      call_in_turn(slot, parts, backward, parts_of(backward, bodies, round), schedule);
      continue;
    }
    for (std::int32_t part = 0; part < parts.count; ++part) {
      schedule.push_back({parts[part], slot.chunk, slot.micro_batch});
    }
    if (synchronize_ < 0 || !sends(slot, stage)) continue;
    const bool together = i + 1 < slots.size() && receives(slots[i + 1], stage);
    if (!together) schedule.push_back({synchronize_, slot.chunk, slot.micro_batch});
  }
  if (last && drain_ >= 0) schedule.push_back({drain_, 0, 0});
  if (norm_reset_ >= 0) schedule.push_back({norm_reset_, 0, 0});
  for (std::int32_t c = 0; c < chunks; ++c) {
    schedule.push_back({bodies[static_cast<std::size_t>(c)].settle, c, 0});
  }
  if (clip_ >= 0) schedule.push_back({clip_, 0, 0});
  for (std::int32_t c = 0; c < chunks; ++c) {
    schedule.push_back({bodies[static_cast<std::size_t>(c)].update, c, 0});
  }
}

void Lowering::write_program(const std::vector<Slot>& slots, std::size_t stage) {
  const auto stages = static_cast<std::size_t>(plan_.pipeline);
  const auto chunks = static_cast<std::int32_t>(plan_.virtual_stages);
  std::vector<ChunkBodies> bodies;
  Program program;
  for (std::int32_t c = 0; c < chunks; ++c) {
    const std::size_t part = static_cast<std::size_t>(c) * stages + stage;
    bodies.push_back(bodies_of(parts_[part], part > 0, part + 1 < parts_.size()));
    program.residents.push_back({bodies.back().residents, c});
  }
  if (norm_ != kNoTensor) program.residents.push_back({norm_set_, 0});
  std::vector<TensorId> buffers =
      framework_buffers(tables_, network_, plan_, stage + 1 == stages);
  if (!buffers.empty()) {
    program.residents.push_back({static_cast<std::int32_t>(job_.resident_sets.size()), 0});
    job_.resident_sets.push_back(std::move(buffers));
  }
  program.schedule.reserve(static_cast<std::size_t>(rounds_) *
                           (slots.size() + 2 * bodies.size() + 5));
  for (std::int64_t round = 0; round < rounds_; ++round) {
    write_round(slots, stage, bodies, round, program.schedule);
  }
  job_.programs.push_back(std::move(program));
}

Job Lowering::run() {
  job_.mesh = plan_.mesh();
  job_.events = events_used(plan_);
  if (network_.vocabulary > 0) {
    job_.batch = {plan_.sequence_length, plan_.micro_batch, plan_.micro_batches(),
                  network_.vocabulary};
  }
  if (plan_.dropout) job_.dropout = plan_.dropout_rate;
  job_.experts = plan_.expert_axes();
  parts_ = lay_out(network_, plan_);
  for (const Block& block : network_.kinds) kinds_.push_back(make_kind(tables_, block, plan_));
  if (plan_.clip_gradients) {
    norm_ = static_cast<TensorId>(job_.tensors.size());
    job_.tensors.push_back({tables_.label("gradients.norm"), {1}, Dtype::kFp32, Category::kBuffers,
                            Scope::kRank});
    norm_set_ = static_cast<std::int32_t>(job_.resident_sets.size());
    job_.resident_sets.push_back({norm_});
    norm_reset_ = write_norm_reset();
  }
  clip_ = write_clip();
  if (plan_.host_waits_for_messages()) synchronize_ = write_synchronize();
  const std::vector<TensorId> deferred = deferred_buffers(tables_, network_, plan_);
  if (!deferred.empty()) {
    defer_ = write_memory("defer head", deferred, {});
    drain_ = write_memory("drain head", {}, deferred);
  }
  if (plan_.effective_zero() == 3) begin_ = write_begin(tables_, plan_);
  const auto schedules = pipeline_schedule(
      plan_.schedule, static_cast<std::int32_t>(plan_.pipeline),
      static_cast<std::int32_t>(plan_.virtual_stages),
      static_cast<std::int32_t>(plan_.micro_batches()), plan_.expert_overlap ? 1 : 0);
  for (std::size_t stage = 0; stage < schedules.size(); ++stage) {
    write_program(schedules[stage], stage);
  }
  if (plan_.launch_blocking) {
    const auto launched = static_cast<EventId>(job_.events++);
    for (Body& body : job_.bodies) block_launches(body, launched);
  }
  return std::move(job_);
}

}  // namespace

Job lower(const Network& network, const Plan& plan) {
  return Lowering(network, plan, Passes::kAll, 1).run();
}

Plan ring_plan(const Plan& plan) {
  constexpr std::int64_t kMicroBatches = 3;  // the first, one in between, the last
  Plan ring = plan;
  ring.global_batch =
      plan.micro_batch * plan.data * std::min(kMicroBatches, plan.micro_batches());
  return ring;
}

Job lower_ring(const Network& network, const Plan& plan, std::int64_t rounds) {
  STEPCAST_CHECK(rounds >= 1, "a ring without rounds");
  const Plan ring = ring_plan(plan);
  return Lowering(network, ring, Passes::kRing, rounds).run();
}

}  // namespace stepcast
