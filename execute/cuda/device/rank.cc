// One pass over the instructions a step; a launch is a look-up in tables and a call.
#include "execute/cuda/device/rank.h"

#include <algorithm>

#include <fmt/format.h>

#include "execute/cuda/waits.h"
#include "sim/base/error.h"
#include "sim/program/charged.h"

namespace stepcast::cuda {

namespace {

constexpr std::chrono::microseconds kNap(20);  // of a host that has nothing to do

std::vector<bool> used_streams(const Job& job, const Program& program) {
  std::vector<bool> used(kStreams, false);
  used[static_cast<std::size_t>(Stream::kCompute)] = true;
  for (const Call& call : program.schedule) {
    for (const Instruction& i : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (takes_time(i)) used[static_cast<std::size_t>(stream_index(i))] = true;
      if (const auto* r = std::get_if<Record>(&i)) used[static_cast<std::size_t>(r->stream)] = true;
      if (const auto* w = std::get_if<Wait>(&i)) used[static_cast<std::size_t>(w->stream)] = true;
    }
  }
  return used;
}

}  // namespace

DeviceRank::DeviceRank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
                       Transport& control, int device, const CudaOptions& cuda, StagePlaces places,
                       const std::atomic<bool>& stop)
    : BoundJob(job, control.rank()),
      options_(options),
      corpus_(corpus),
      control_(control),
      cuda_(cuda),
      stop_(stop),
      block_(nullptr, [](std::byte*) {}),
      state_(nullptr, [](std::byte*) {}),
      staging_(nullptr, [](std::byte*) {}),
      begin_((check(cudaSetDevice(device), "cudaSetDevice"), true)),
      end_(true),
      near_(false) {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  memory_.push_back({"context, with whatever else runs on this GPU",
                     Bytes(static_cast<std::int64_t>(all - free))});
  run_.rank = rank_;
  open_streams();
  take_places(std::move(places));
  place_residents();
  rehearse();
  if (!cuda.alone) groups_.emplace(job, rank_, control, stop_, memory_);
  if (groups_ && cuda.register_buffers) register_arena();
  write_initial_values();
}

DeviceRank::~DeviceRank() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

// Transfers go first where both could run: others wait for them.
void DeviceRank::open_streams() {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  const std::vector<bool> used = used_streams(job_, program());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const bool computes = i == static_cast<std::size_t>(Stream::kCompute);
    cudaStream_t one = nullptr;
    check(cudaStreamCreateWithPriority(&one, cudaStreamNonBlocking, computes ? least : greatest),
          "cudaStreamCreate");
    streams_[i].reset(one);
    joins_.emplace_back(false);
  }
  for (int i = 0; i < job_.events; ++i) events_.emplace_back(false);
}

void DeviceRank::keep_near() {
  if (capturing_ || ++launches_ % kLaunchesAhead != 0) return;
  wait_for(near_, kNap);
  near_.record(stream(Stream::kCompute));
}

Launch DeviceRank::launch() {
  keep_near();
  Launch at;
  at.stream = stream(Stream::kCompute);
  at.scratch = scratch_;
  return at;
}

const Group& DeviceRank::group(const Transfer& transfer) {
  const auto key = std::pair(transfer.axes.bits, transfer.ends_only);
  const auto found = group_of_.find(key);
  if (found != group_of_.end()) return found->second;
  return group_of_
      .emplace(key, stepcast::group_of(job_.mesh, rank_, transfer.axes, transfer.ends_only))
      .first->second;
}

// The other streams begin behind the compute stream, and it ends behind them: one graph.
void DeviceRank::fork() {
  const cudaStream_t compute = stream(Stream::kCompute);
  begin_.record(compute);
  auto* state = reinterpret_cast<StepState*>(state_.get());
  check(cudaMemcpyAsync(state, staging_.get(), sizeof(StepState), cudaMemcpyHostToDevice, compute),
        "a step's numbers");
  for (const OwnedStream& other : streams_) {
    if (other != nullptr && other.get() != compute) begin_.hold(other.get());
  }
}

void DeviceRank::join() {
  const cudaStream_t compute = stream(Stream::kCompute);
  std::size_t i = 0;
  for (const OwnedStream& other : streams_) {
    if (other == nullptr || other.get() == compute) continue;
    joins_[i].record(other.get());
    joins_[i++].hold(compute);
  }
  check(cudaMemcpyAsync(staging_.get(), state_.get(), sizeof(StepState), cudaMemcpyDeviceToHost,
                        compute),
        "a step's loss");
}

void DeviceRank::issue(bool timed) {
  arena_->begin_step();
  number_ = 0;
  next_fence_ = 0;
  timed_ = 0;
  token_at_ = kCudaAlignment;
  spans_.clear();
  run_.instructions = 0;
  run_.sent = {};
  fork();
  for (const Call& call : program().schedule) {
    call_ = call;
    const Body& body = job_.bodies[static_cast<std::size_t>(call.body)];
    if (body.phase != Phase::kOptimizer) copy_tokens();
    run(body, timed);
  }
  join();
}

void DeviceRank::run(const Body& body, bool timed) {
  std::int32_t at = -1;
  for (const Instruction& instruction : body.code) {
    ++at;
    const int index = stream_index(instruction);
    if (index == kStreams) {
      work(body, instruction);
      ++number_;
      continue;
    }
    const cudaStream_t on = stream(static_cast<Stream>(index));
    for (; next_fence_ < fences_.size() && fences_[next_fence_].before == number_; ++next_fence_) {
      fence_events_[next_fence_].hold(on);
    }
    while (timed && marks_.size() < 2 * timed_ + 2) marks_.emplace_back(true);
    if (timed) marks_[2 * timed_].record(on);
    work(body, instruction);
    if (timed) {
      marks_[2 * timed_++ + 1].record(on);
      spans_.push_back({rank_,
                        call_.body,
                        at,
                        call_.chunk,
                        call_.micro_batch,
                        static_cast<Stream>(index),
                        {},
                        {}});
    }
    const auto [first, last] = fences_after_.equal_range(number_);
    for (auto it = first; it != last; ++it) fence_events_[it->second].record(on);
    ++run_.instructions;
    ++number_;
  }
}

void DeviceRank::work(const Body& body, const Instruction& instruction) {
  match(
      instruction, [&](const Compute& c) { compute(body, c); },
      [&](const Collective& c) { collective(body, c); },
      [&](const Send& s) {
        if (groups_) groups_->send(s.step, stretch(s.tensor), stream(s.stream));
        run_.sent[static_cast<std::size_t>(Axis::kPipeline)] += tensor(s.tensor).bytes();
      },
      [&](const Receive& r) {
        if (!groups_) return stand_in(stretch(r.tensor), stream(r.stream));
        groups_->receive(-r.step, stretch(r.tensor), stream(r.stream));
      },
      [&](const Alloc& a) { slot(a.tensor, call_) = arena_->allocate(tensor(a.tensor)); },
      [&](const Free& f) { arena_->free(tensor(f.tensor)); },
      [&](const Record& r) { events_[static_cast<std::size_t>(r.event)].record(stream(r.stream)); },
      [&](const Wait& w) { events_[static_cast<std::size_t>(w.event)].hold(stream(w.stream)); },
      [&](const Synchronize&) { synchronize(); },
      [&](const HostWait& w) {
        wait_for(events_[static_cast<std::size_t>(w.event)], std::chrono::microseconds(0));
      },
      [](const Mark&) {});
}

void DeviceRank::compute(const Body& body, const Compute& compute) {
  const Op& op = job_.ops[static_cast<std::size_t>(compute.op)];
  const auto reads = ids(body, compute.operands, false);
  const auto writes = ids(body, compute.operands, true);
  if (const auto* state = std::get_if<Update>(&op)) {
    return state->part == UpdatePart::kSquaredNorm ? squared_norm(*state, reads)
                                                   : update(*state, reads, writes);
  }
  if (const auto* copy = std::get_if<Pointwise>(&op)) {
    const std::vector<Stretch> share = share_for_copy(*copy, reads, writes);
    Stretch to = stretch(writes[0]);
    for (const Stretch& from : share) {
      if (from.data != nullptr) {
        launch_convert({from.data, from.dtype, from.elements}, to.data, to.dtype, launch());
      }
      to.data += from.elements * dtype_size(to.dtype);
    }
    if (!share.empty()) return;
  }
  reads_.clear();
  writes_.clear();
  for (const TensorId id : reads) reads_.push_back({slot(id, call_), &tensor(id)});
  for (const TensorId id : writes) writes_.push_back({slot(id, call_), &tensor(id)});
  auto* state = reinterpret_cast<StepState*>(state_.get());
  const Work work{op, reads_, writes_, place_,
                  dropout(op, reads, writes, options_.seed, &state->step)};
  match(
      op, [&](const Gemm& gemm) { product(gemm, work); }, [](const Update&) {},
      [](const Route&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses experts"); },
      [](const Permute&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses experts"); },
      [](const Regroup&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses what has it"); },
      [](const ShareHeads&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses contexts"); },
      [](const OwnSlots&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses experts"); },
      [](const LatentKeys&) { STEPCAST_CHECK(false, "cuda_unsupported() refuses it"); },
      [&](const auto& other) { stepcast::cuda::launch(other, work, launch()); });
  const auto* loss = std::get_if<Loss>(&op);
  const bool counts = loss != nullptr && loss->part == LossPart::kFinish &&
                      compute.phase == Phase::kForward && place_.tensor_rank == 0;
  if (!counts) return;
  launch_add_up(reinterpret_cast<const float*>(slot(writes[0], call_)),
                tensor(writes[0]).shape.elements(), &state->loss, launch());
}

void DeviceRank::product(const Gemm& op, const Work& work) {
  const Products products = products_of(op, work);
  for (const Product& one : products.calls) {
    keep_near();
    matmul_->run(one, stream(Stream::kCompute));
  }
  if (products.bias_gradient.data == nullptr) return;
  launch_column_sums(products.d_y, op.k, op.m, products.bias_gradient, op.accumulate, launch());
}

void DeviceRank::squared_norm(const Update& op, std::span<const TensorId> reads) {
  std::vector<Numbers> numbers;
  for (const Stretch& one : counted(op, reads)) {
    numbers.push_back({one.data, one.dtype, one.elements});
  }
  launch_squared_norm(numbers.data(), static_cast<int>(numbers.size()),
                      reinterpret_cast<float*>(slot(reads.back(), call_)), launch());
}

void DeviceRank::update(const Update& op, std::span<const TensorId> reads,
                        std::span<const TensorId> writes) {
  const TensorId norm = norm_of(op, reads, writes);
  const float* length = norm < 0 ? nullptr : reinterpret_cast<const float*>(slot(norm, call_));
  const auto* state = reinterpret_cast<const StepState*>(state_.get());
  for (const StateStretch& one : owned(op, reads, writes)) {
    UpdateStretch out;
    out.weight = one.weight.data;
    out.master = reinterpret_cast<float*>(one.master.data);
    out.gradient = one.gradient.data;
    out.moment1 = one.moment1.data;
    out.moment2 = one.moment2.data;
    out.weight_dtype = one.weight.dtype;
    out.gradient_dtype = one.gradient.dtype;
    out.moment_dtype = one.moment1.dtype;
    out.elements = one.weight.elements;
    launch_update(out, options_.optimizer, &state->scalars, length, launch());
  }
}

void DeviceRank::collective(const Body& body, const Collective& collective) {
  const Transfer& transfer = job_.transfers[static_cast<std::size_t>(collective.transfer)];
  const Group& members = group(transfer);
  carried(transfer, ids(body, collective.operands, false), ids(body, collective.operands, true),
          members.members.size(), carried_);
  const cudaStream_t on = stream(collective.stream);
  if (!groups_) return stand_in(transfer, members, carried_, on);
  groups_->collective(transfer, members, collective.stream, carried_, on);
  const bool gathers = transfer.kind == TransferKind::kReduceScatter;
  Transfer moved = transfer;
  moved.bytes = {};
  for (const Stretch& one : gathers ? carried_.in : carried_.out) moved.bytes += Bytes(one.bytes());
  run_.sent[static_cast<std::size_t>(charged_axis(collective.stream, transfer))] +=
      sent_bytes(moved, job_.mesh);
}

// The host waits for all of the rank's streams, and for nobody else's on the same device.
void DeviceRank::synchronize() {
  std::size_t i = 0;
  for (const OwnedStream& one : streams_) {
    if (one != nullptr) joins_[i++].record(one.get());
  }
  for (const Event& join : joins_) wait_for(join, std::chrono::microseconds(0));
}

void DeviceRank::wait_for(const Event& event, std::chrono::microseconds nap) {
  if (groups_) return groups_->wait_for(event, "a step", nap);
  await(event, fmt::format("rank {}: a step", rank_).c_str(), nap, [this] {
    if (stop_.load()) throw Error("execute", "another rank stopped");
  });
}

// The second step is captured; the first one was for what NCCL does at its first calls.
void DeviceRank::capture() {
  const cudaStream_t compute = stream(Stream::kCompute);
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal), "a capture");
  capturing_ = true;
  try {
    issue(false);
  } catch (...) {
    cudaStreamEndCapture(compute, &graph);  // in a capture nothing can be given back
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  capturing_ = false;
  check(cudaStreamEndCapture(compute, &graph), "cudaStreamEndCapture");
  const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "cudaGraphInstantiate");
}

// A rank that fails ends its communicators, so that neither its own kernels nor the others' wait
// for ever.
void DeviceRank::step() {
  try {
    take_step();
  } catch (...) {
    if (groups_) groups_->abort();
    throw;
  }
}

void DeviceRank::take_step() {
  const std::int64_t left = options_.steps - step_;  // this one too
  const bool timed = !cuda_.graphs && left <= std::max<std::int64_t>(1, options_.record);
  load_step();
  const auto begin = Clock::now();
  if (cuda_.graphs && step_ == 1) capture();
  if (graph_ != nullptr) {
    check(cudaGraphLaunch(graph_, stream(Stream::kCompute)), "cudaGraphLaunch");
  } else {
    issue(timed);
  }
  end_.record(stream(Stream::kCompute));
  wait_for(end_, kNap);
  const auto done = Clock::now();
  double loss = reinterpret_cast<const StepState*>(staging_.get())->loss /
                static_cast<double>(place_.batch_tokens);
  control_.sum_everywhere({&loss, 1});
  const auto all_done = Clock::now();
  run_.losses.push_back(loss);
  run_.seconds.push_back(std::chrono::duration<double>(all_done - begin).count());
  const auto nanoseconds = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  };
  run_.time = {};
  run_.time.rank = rank_;
  run_.time.end = Instant() + Duration(nanoseconds(done - begin) * 1000);
  if (timed || left == 1) take_spans(Duration(nanoseconds(all_done - begin) * 1000));
  ++step_;
}

void DeviceRank::take_spans(Duration step) {
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].begin = Instant() + between(begin_, marks_[2 * i]);
    spans_[i].end = Instant() + between(begin_, marks_[2 * i + 1]);
    const Phase phase = job_.bodies[static_cast<std::size_t>(spans_[i].body)].phase;
    if (phase != Phase::kOptimizer) {
      run_.time.pipeline_end = std::max(run_.time.pipeline_end, spans_[i].end);
    }
  }
  Breakdown& parts = run_.time.breakdown;
  if (spans_.empty()) {
    parts[static_cast<std::size_t>(Part::kOther)] = step;
    run_.time.pipeline_end = run_.time.end;
    return;
  }
  parts = attribute(job_, program(), spans_, step);
  for (const Part part : {Part::kCompute, Part::kRecompute, Part::kOptimizer}) {
    run_.time.basis[static_cast<std::size_t>(Basis::kMeasured)] +=
        parts[static_cast<std::size_t>(part)];
  }
  if (options_.trace) run_.spans = spans_;
  if (options_.record > 0) recorded_.push_back(spans_);
}

CudaRun DeviceRank::finish() {
  STEPCAST_CHECK(arena_->live() == run_.resident, "what a step allocates it frees");
  Bytes named;
  for (const MemoryItem& item : memory_) named += item.bytes;
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  memory_.push_back(
      {"all else: events, graphs", Bytes(static_cast<std::int64_t>(all - free)) - named});
  run_.peak = arena_->peak();
  run_.at_peak = arena_->at_peak();
  return {std::move(run_), std::move(memory_), std::move(recorded_)};
}

}  // namespace stepcast::cuda
