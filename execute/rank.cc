// The interpreter: one switch over the instructions. A tensor's number and the call tell which
// instance is meant; where it lies was decided before the first step (arena.h).
#include "execute/rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {

namespace {

Place place_of(const Job& job, int rank) {
  Place place;
  place.batch = job.batch;
  place.tensor_rank = job.mesh.coordinate(rank, Axis::kTensor);
  place.tensor_ranks = job.mesh.degree(Axis::kTensor);
  place.batch_tokens = job.batch.sequence_length * job.batch.micro_batch *
                       job.batch.micro_batches * job.mesh.degree(Axis::kData) *
                       job.mesh.degree(Axis::kReplica);
  return place;
}

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

constexpr double kClipEpsilon = 1e-6;

}  // namespace

Rank::Rank(const Job& job, const ExecuteOptions& options, const Corpus& corpus, Backend& backend,
           Transport& transport, Progress& progress)
    : job_(job),
      options_(options),
      corpus_(corpus),
      backend_(backend),
      transport_(transport),
      progress_(progress),
      rank_(transport.rank()),
      index_(job),
      place_(place_of(job, rank_)),
      stage_(job.mesh.stage(rank_)),
      data_rank_(job.mesh.coordinate(rank_, Axis::kData)),
      batch_rank_(data_rank_ + static_cast<std::int64_t>(job.mesh.degree(Axis::kData)) *
                                   job.mesh.coordinate(rank_, Axis::kReplica)),
      arena_(plan_memory(job, job.programs[static_cast<std::size_t>(stage_)])) {
  const auto chunks = static_cast<std::size_t>(index_.chunks());
  const auto batches = static_cast<std::size_t>(job.batch.micro_batches);
  slots_.resize(job.tensors.size() * (1 + chunks + chunks * batches), nullptr);
  sequence_.resize(static_cast<std::size_t>(job.batch.sequence_length) + 1);
  place_residents();
  for_each_timed(job, job.programs[static_cast<std::size_t>(stage_)],
                 [&](const auto&...) { ++timed_; });
  progress_.rank.store(rank_);
  result_run_.rank = rank_;
  result_run_.resident = arena_.live();
  result_run_.arena = Bytes(static_cast<std::int64_t>(arena_.size()));
}

std::byte*& Rank::slot(TensorId id, const Call& call) {
  const auto chunks = static_cast<std::size_t>(index_.chunks());
  const auto chunk = static_cast<std::size_t>(call.chunk);
  std::size_t row = 0;
  switch (tensor(id).scope) {
    case Scope::kRank: break;
    case Scope::kChunk: row = 1 + chunk; break;
    case Scope::kMicroBatch:
      row = 1 + chunks + static_cast<std::size_t>(call.micro_batch) * chunks + chunk;
      break;
  }
  return slots_[row * job_.tensors.size() + static_cast<std::size_t>(id)];
}

std::span<const TensorId> Rank::ids(const Body& body, Operands operands, bool writes) const {
  const TensorId* first = body.operands.data() + operands.first + (writes ? operands.reads : 0);
  return {first, static_cast<std::size_t>(writes ? operands.writes : operands.reads)};
}

void Rank::place_residents() {
  std::size_t i = 0;
  for (const Resident& resident : job_.programs[static_cast<std::size_t>(stage_)].residents) {
    for (const TensorId id : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
      slot(id, {0, resident.chunk, 0}) = arena_.resident(i++, tensor(id));
      initialise(id, resident.chunk);
    }
  }
}

// Weights, whole or this rank's share; all else begins at zero, as the arena does.
void Rank::initialise(TensorId id, std::int32_t chunk) {
  if (tensor(id).category != Category::kWeights) return;
  const InitialValues initial{job_, index_, place_, options_.initial_deviation, options_.seed};
  const std::int64_t layer = index_.first_layer(stage_, chunk);
  auto* out = reinterpret_cast<float*>(slot(id, {0, chunk, 0}));
  const int flat = index_.flat_of_share(id);
  if (flat < 0) return initial.write(id, layer, 0, tensor(id).shape.elements(), out);
  const Flat& whole = job_.flats[static_cast<std::size_t>(flat)];
  for_pieces(job_, whole, data_rank_, [&](const Piece& piece) {
    initial.write(whole.whole[piece.tensor], layer, piece.begin, piece.elements, out + piece.at);
  });
}

// What a data loader would have copied to the device: row = position * micro-batch + sequence.
void Rank::load_tokens(const Call& call) {
  const Batch& batch = job_.batch;
  const auto data_ranks = static_cast<std::int64_t>(job_.mesh.degree(Axis::kData)) *
                          job_.mesh.degree(Axis::kReplica);
  const std::int64_t global = batch.micro_batch * batch.micro_batches * data_ranks;
  const std::int64_t first =
      step_ * global + (call.micro_batch * data_ranks + batch_rank_) * batch.micro_batch;
  for (const Resident& resident : job_.programs[static_cast<std::size_t>(stage_)].residents) {
    if (resident.chunk != call.chunk) continue;
    for (const TensorId id : job_.resident_sets[static_cast<std::size_t>(resident.set)]) {
      const DataUse use = index_.data_use(id);
      if (use == DataUse::kNone) continue;
      auto* out = reinterpret_cast<std::int64_t*>(slot(id, call));
      const std::int64_t shift = use == DataUse::kTargets ? 1 : 0;
      for (std::int64_t j = 0; j < batch.micro_batch; ++j) {
        corpus_.read(first + j, batch.sequence_length + 1, sequence_.data());
        for (std::int64_t i = 0; i < batch.sequence_length; ++i) {
          out[i * batch.micro_batch + j] = sequence_[static_cast<std::size_t>(i + shift)];
        }
      }
    }
  }
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
    if (pipeline) load_tokens(call);
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
                                                   : update(reads, writes);
  }
  reads_.clear();
  writes_.clear();
  for (const TensorId id : reads) reads_.push_back({slot(id, call_), &tensor(id)});
  for (const TensorId id : writes) writes_.push_back({slot(id, call_), &tensor(id)});
  backend_.compute({op, reads_, writes_, place_});
  const auto* loss = std::get_if<Loss>(&op);
  const bool counts = loss != nullptr && loss->part == LossPart::kFinish &&
                      compute.phase == Phase::kForward && place_.tensor_rank == 0;
  if (counts) count_loss(writes[0]);
}

void Rank::count_loss(TensorId losses) {
  const float* rows = values(losses);
  for (std::int64_t i = 0; i < tensor(losses).shape.elements(); ++i) loss_ += rows[i];
}

// Each element of the model once: see Update in op.h.
double Rank::counted_norm(TensorId gradient, const float* data, std::int64_t elements) const {
  const bool copy = tensor(gradient).cut == Cut::kWhole && place_.tensor_rank > 0;
  const bool twice = index_.at_both_ends(gradient) && stage_ > 0;
  return copy || twice ? 0 : backend_.squared_norm(data, elements);
}

void Rank::squared_norm(const Update& op, std::span<const TensorId> reads) {
  const auto gradients = reads.first(reads.size() - 1);
  std::int64_t whole = 0;
  for (const TensorId id : gradients) whole += tensor(id).shape.elements();
  double sum = 0;
  for (std::size_t i = 0; i < gradients.size();) {
    const TensorId id = gradients[i];
    const int share = index_.flat_of_share(id);
    const int flat = share >= 0 ? share : op.elements < whole ? index_.flat_of(id) : -1;
    if (flat < 0) {
      sum += counted_norm(id, values(id), tensor(id).shape.elements());
      ++i;
      continue;
    }
    const Flat& list = job_.flats[static_cast<std::size_t>(flat)];
    for_pieces(job_, list, data_rank_, [&](const Piece& piece) {
      const TensorId part = list.whole[piece.tensor];
      const float* data = share >= 0 ? values(id) + piece.at : values(part) + piece.begin;
      sum += counted_norm(part, data, piece.elements);
    });
    i += share >= 0 ? 1 : list.whole.size();
  }
  *values(reads.back()) += static_cast<float>(sum);
}

// gradients..., norm?, weights..., moments -> weights..., moments
void Rank::update(std::span<const TensorId> reads, std::span<const TensorId> writes) {
  const auto weights = writes.first(writes.size() - 2);
  const TensorId moment1 = writes[weights.size()], moment2 = writes[weights.size() + 1];
  std::size_t gradients = reads.size() - writes.size();
  double scale = 1;
  if (tensor(reads[gradients - 1]).scope == Scope::kRank) {
    --gradients;
    const double norm = std::sqrt(static_cast<double>(*values(reads[gradients])));
    scale = std::min(1.0, options_.optimizer.clip / (norm + kClipEpsilon));
  }
  const auto one = [&](float* weight, const float* gradient, std::int64_t at,
                       std::int64_t elements) {
    backend_.update({weight, gradient, values(moment1) + at, values(moment2) + at, elements},
                   options_.optimizer, step_ + 1, scale);
  };
  std::int64_t whole = 0;
  for (const TensorId id : weights) whole += tensor(id).shape.elements();
  if (tensor(moment1).shape.elements() == whole) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t elements = tensor(weights[i]).shape.elements();
      one(values(weights[i]), values(reads[i]), at, elements);
      at += elements;
    }
    return;
  }
  const int flat = index_.flat_of(weights[0]);
  STEPCAST_CHECK(flat >= 0, "an update of a share names the tensors of a flat");
  const bool share = index_.flat_of_share(reads[0]) >= 0;
  for_pieces(job_, job_.flats[static_cast<std::size_t>(flat)], data_rank_, [&](const Piece& p) {
    const float* gradient =
        share ? values(reads[0]) + p.at : values(reads[p.tensor]) + p.begin;
    one(values(weights[p.tensor]) + p.begin, gradient, p.at, p.elements);
  });
}

}  // namespace stepcast
