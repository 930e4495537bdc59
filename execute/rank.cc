// The interpreter: one switch over the instructions. A tensor's number and the call tell which
// instance is meant; where it lies was decided before the first step (arena.h).
#include "execute/rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "execute/convert.h"
#include "sim/base/error.h"

namespace stepcast {

namespace {

// A Receive's stream, as its sender calls it.
Stream senders_stream(Stream stream) {
  return stream == Stream::kReceiveForward ? Stream::kSendForward : Stream::kSendBackward;
}

Part part_of(Phase phase) {
  switch (phase) {
    case Phase::kRecompute: return Part::kRecompute;
    case Phase::kOptimizer: return Part::kOptimizer;
    default: return Part::kCompute;
  }
}

std::int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

Duration duration(std::chrono::steady_clock::duration time) {
  return Duration(nanoseconds(time) * 1000);
}

Stream stream_of(const Instruction& instruction) {
  return match(
      instruction, [](const Collective& i) { return i.stream; },
      [](const Send& i) { return i.stream; }, [](const Receive& i) { return i.stream; },
      [](const auto&) { return Stream::kCompute; });
}

// Of a pass in parts one looks tokens up, and another scores them.
bool reads_tokens(const Job& job, const Body& body) {
  return std::any_of(body.code.begin(), body.code.end(), [&](const Instruction& instruction) {
    const auto* compute = std::get_if<Compute>(&instruction);
    if (compute == nullptr) return false;
    const Op& op = job.ops[static_cast<std::size_t>(compute->op)];
    return std::holds_alternative<Gather>(op) || std::holds_alternative<Loss>(op);
  });
}

constexpr double kClipEpsilon = 1e-6;

}  // namespace

Rank::Rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus, Backend& backend,
           Transport& transport, Progress& progress)
    : BoundJob(job, transport.rank()),
      options_(options),
      corpus_(corpus),
      backend_(backend),
      transport_(transport),
      progress_(progress),
      arena_(plan_memory(job, program())) {
  place_residents();
  for (const Body& body : job.bodies) reads_tokens_.push_back(reads_tokens(job, body));
  for_each_timed(job, job.programs[static_cast<std::size_t>(stage_)],
                 [&](const auto&...) { ++timed_; });
  progress_.rank.store(rank_);
  result_run_.rank = rank_;
  result_run_.resident = arena_.live();
  result_run_.arena = Bytes(static_cast<std::int64_t>(arena_.size()));
}

// Weights begin as all plans' do; all else at zero, as the arena does.
void Rank::place_residents() {
  std::size_t i = 0;
  for_residents([&](TensorId id, std::int32_t chunk) {
    std::byte* memory = arena_.resident(i++, tensor(id));
    slot(id, {0, chunk, 0}) = memory;
    const std::vector<float> initial =
        initial_values(id, chunk, options_.initial_deviation, options_.seed);
    if (initial.empty()) return;
    from_float(initial.data(), tensor(id).shape.elements(), memory, tensor(id).dtype);
  });
}

void Rank::load_tokens(const Call& call) {
  for_residents([&](TensorId id, std::int32_t chunk) {
    if (chunk != call.chunk) return;
    const auto ids = tokens(id, call, step_, corpus_);
    std::copy(ids.begin(), ids.end(), reinterpret_cast<std::int64_t*>(slot(id, call)));
  });
}

void Rank::step() {
  RankTime& time = result_run_.time;
  time = {};
  time.rank = rank_;
  result_run_.sent = {};
  result_run_.spans.clear();
  result_run_.instructions = 0;
  result_run_.between = {};
  loss_ = 0;
  dropout_step_ = static_cast<std::uint32_t>(step_);
  arena_.begin_step();
  begin_record();
  progress_.step.store(step_ + 1, std::memory_order_relaxed);
  begin_ = entry_ = Clock::now();
  if (options_.record > 0) {
    result_run_.marks.back().begin = Instant() + duration(begin_ - options_.epoch);
  }
  run_schedule();
  time.end = Instant() + duration(entry_ - begin_);
  progress_.rest();
  double loss = loss_ / static_cast<double>(place_.batch_tokens);
  transport_.sum_everywhere({&loss, 1});
  const auto all_done = Clock::now();
  result_run_.losses.push_back(loss);
  result_run_.seconds.push_back(std::chrono::duration<double>(all_done - begin_).count());
  Duration known;
  for (const Duration part : time.breakdown) known += part;
  time.breakdown[static_cast<std::size_t>(Part::kOther)] += duration(all_done - begin_) - known;
  for (const Part part : {Part::kCompute, Part::kRecompute, Part::kOptimizer}) {
    time.basis[static_cast<std::size_t>(Basis::kMeasured)] +=
        time.breakdown[static_cast<std::size_t>(part)];
  }
  ++step_;
}

// Room for the marks of one more step; the oldest go.
void Rank::begin_record() {
  if (options_.record == 0) return;
  std::vector<Marks>& marks = result_run_.marks;
  if (std::ssize(marks) < options_.record) {
    marks.push_back({rank_, {}, {}});
    marks.back().ends.reserve(timed_);
  } else {
    std::rotate(marks.begin(), marks.begin() + 1, marks.end());
    marks.back().ends.clear();
  }
}

void Rank::run_schedule() {
  std::int32_t number = 0;
  for (const Call& call : job_.programs[static_cast<std::size_t>(stage_)].schedule) {
    call_ = call;
    const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
    const bool pipeline = body.phase != Phase::kOptimizer;
    progress_.call.store(number++, std::memory_order_relaxed);
    if (reads_tokens_[static_cast<std::size_t>(call.body)]) load_tokens(call);
    run(body, call);
    if (pipeline) result_run_.time.pipeline_end = Instant() + duration(entry_ - begin_);
  }
}

RankRun Rank::finish() {
  STEPCAST_CHECK(arena_.live() == result_run_.resident, "what a step allocates it frees");
  result_run_.peak = arena_.peak();
  result_run_.at_peak = arena_.at_peak();
  return std::move(result_run_);
}

void Rank::run(const Body& body, const Call& call) {
  std::int32_t number = -1;
  for (const Instruction& instruction : body.code) {
    ++number;
    if (!takes_time(instruction)) {
      keep_books(instruction);
      continue;
    }
    const auto begin = Clock::now();
    result_run_.between += duration(begin - entry_);
    progress_.turn_to(number, nanoseconds(begin.time_since_epoch()));
    waited_ = {};
    carry_out(body, instruction);
    const auto* computed = std::get_if<Compute>(&instruction);
    if (options_.check_numbers && computed != nullptr) check_numbers(body, *computed, number);
    const auto end = Clock::now();
    const auto idle = std::min(waited_, end - entry_);
    Breakdown& breakdown = result_run_.time.breakdown;
    breakdown[static_cast<std::size_t>(Part::kBubble)] += duration(idle);
    breakdown[static_cast<std::size_t>(part_)] += duration(end - entry_ - idle);
    ++result_run_.instructions;
    if (options_.record > 0) {
      result_run_.marks.back().ends.push_back(Instant() + duration(end - options_.epoch));
    }
    if (options_.trace) {
      result_run_.spans.push_back({rank_, call.body, number, call.chunk, call.micro_batch,
                                   stream_of(instruction), Instant() + duration(entry_ - begin_),
                                   Instant() + duration(end - begin_)});
    }
    entry_ = end;
  }
}

void Rank::keep_books(const Instruction& instruction) {
  if (const auto* free = std::get_if<Free>(&instruction)) arena_.free(tensor(free->tensor));
  const auto* alloc = std::get_if<Alloc>(&instruction);
  if (alloc == nullptr) return;
  std::byte* memory = arena_.allocate(tensor(alloc->tensor));
  slot(alloc->tensor, call_) = memory;
  if (!options_.poison) return;
  std::memset(memory, 0xff, static_cast<std::size_t>(tensor(alloc->tensor).bytes().count));
}

void Rank::carry_out(const Body& body, const Instruction& instruction) {
  match(
      instruction,
      [&](const Compute& c) {
        compute(body, c);
        part_ = part_of(c.phase);
      },
      [&](const Collective& c) { collective(body, c); },
      [&](const Send& s) {
        const Bytes bytes = tensor(s.tensor).bytes();
        transport_.send(job_.mesh.neighbour(rank_, Axis::kPipeline, s.step), s.stream,
                        {slot(s.tensor, call_), static_cast<std::size_t>(bytes.count)});
        result_run_.sent[static_cast<std::size_t>(Axis::kPipeline)] += bytes;
        part_ = Part::kPipeline;
      },
      [&](const Receive& r) {
        const auto size = static_cast<std::size_t>(tensor(r.tensor).bytes().count);
        const double waited =
            transport_.receive(job_.mesh.neighbour(rank_, Axis::kPipeline, r.step),
                               senders_stream(r.stream), {slot(r.tensor, call_), size});
        waited_ =
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(waited));
        part_ = Part::kPipeline;
      },
      [](const auto&) {});
}

// An update is left out: the gradients that it takes were looked at when they were written, and
// their norm is looked at here.
void Rank::check_numbers(const Body& body, const Compute& compute, std::int32_t number) {
  const auto* state = std::get_if<Update>(&job_.ops[static_cast<std::size_t>(compute.op)]);
  if (state != nullptr && state->part != UpdatePart::kSquaredNorm) return;
  for (const TensorId id : ids(body, compute.operands, true)) {
    if (!backend_.has_nan({slot(id, call_), &tensor(id)})) continue;
    throw Error(fmt::format("rank {}", rank_),
                place_text(job_, stage_, step_ + 1, call_, number) +
                    " wrote NaN, which is no number; a lower --rate may keep the training stable");
  }
}

void Rank::compute(const Body& body, const Compute& compute) {
  const Op& op = job_.ops[static_cast<std::size_t>(compute.op)];
  const auto reads = ids(body, compute.operands, false);
  const auto writes = ids(body, compute.operands, true);
  if (const auto* state = std::get_if<Update>(&op)) {
    return state->part == UpdatePart::kSquaredNorm ? squared_norm(*state, reads)
                                                   : update(*state, reads, writes);
  }
  if (const auto* copy = std::get_if<Pointwise>(&op)) {
    const std::vector<Stretch> share = share_for_copy(*copy, reads, writes);
    if (!share.empty()) {
      const Stretch to = stretch(writes[0]);
      return unpack(pack(share, packed_), {&to, 1});
    }
  }
  reads_.clear();
  writes_.clear();
  for (const TensorId id : reads) reads_.push_back({slot(id, call_), &tensor(id)});
  for (const TensorId id : writes) writes_.push_back({slot(id, call_), &tensor(id)});
  backend_.compute(
      {op, reads_, writes_, place_, dropout(op, reads, writes, options_.seed, &dropout_step_)});
  const auto* loss = std::get_if<Loss>(&op);
  const bool counts = loss != nullptr && loss->part == LossPart::kFinish &&
                      compute.phase == Phase::kForward && place_.tensor_rank == 0;
  if (counts) count_loss(writes[0]);
}

void Rank::count_loss(TensorId losses) {
  const float* rows = values(losses);
  for (std::int64_t i = 0; i < tensor(losses).shape.elements(); ++i) loss_ += rows[i];
}

// The numbers of a stretch as floats: where they lie, or a copy.
const float* Rank::floats(const Stretch& stretch, std::vector<float>& buffer) {
  if (stretch.dtype == Dtype::kFp32) return reinterpret_cast<const float*>(stretch.data);
  buffer.resize(static_cast<std::size_t>(stretch.elements));
  to_float(stretch.data, stretch.dtype, stretch.elements, buffer.data());
  return buffer.data();
}

void Rank::squared_norm(const Update& op, std::span<const TensorId> reads) {
  double sum = 0;
  for (const Stretch& one : counted(op, reads)) {
    sum += backend_.squared_norm(floats(one, packed_), one.elements);
  }
  *values(reads.back()) += static_cast<float>(sum);
}

void Rank::update(const Update& op, std::span<const TensorId> reads,
                  std::span<const TensorId> writes) {
  double scale = 1;
  if (const TensorId norm = norm_of(op, reads, writes); norm >= 0) {
    const double length = std::sqrt(static_cast<double>(*values(norm)));
    scale = std::min(1.0, options_.optimizer.clip / (length + kClipEpsilon));
  }
  for (const StateStretch& state : owned(op, reads, writes)) update(state, scale);
}

// In float, on copies of what is stored narrower; the weights follow their master.
void Rank::update(const StateStretch& state, double scale) {
  const bool master = state.master.data != nullptr;
  const Stretch& kept = master ? state.master : state.weight;
  const auto writable = [&](const Stretch& stretch, std::size_t i) {
    return const_cast<float*>(floats(stretch, wide_[i]));
  };
  float* weight = writable(kept, 0);
  float* moment1 = writable(state.moment1, 1);
  float* moment2 = writable(state.moment2, 2);
  backend_.update({weight, floats(state.gradient, wide_[3]), moment1, moment2, kept.elements},
                  options_.optimizer, step_ + 1, scale);
  const auto keep = [](const float* values, const Stretch& stretch) {
    if (reinterpret_cast<const std::byte*>(values) == stretch.data) return;
    from_float(values, stretch.elements, stretch.data, stretch.dtype);
  };
  keep(weight, state.weight);
  keep(moment1, state.moment1);
  keep(moment2, state.moment2);
}

}  // namespace stepcast
