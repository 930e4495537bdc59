// DeviceRank: the interpreter of one rank's program on a GPU.
//
// It issues what the Job says and waits for nothing until the step's end: kernels on the compute
// stream, collectives and messages on the streams that the Job names, Records and Waits as CUDA
// events. Fences (fences.h) keep the arena's places apart where the Job does not. What changes from
// step to step (tokens, the optimizer's corrections) lies in memory that the host fills before, so
// that a captured step can be launched again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "execute/arena.h"
#include "execute/bound_job.h"
#include "execute/cuda/cuda_device.h"
#include "execute/cuda/device/event.h"
#include "execute/cuda/device/groups.h"
#include "execute/cuda/device/matmul.h"
#include "execute/cuda/device/memory.h"
#include "execute/cuda/kernels.h"
#include "execute/cuda/places.h"

namespace stepcast::cuda {

// What the host tells the device before a step, and what the device tells after it.
struct StepState {
  StepScalars scalars;
  std::uint32_t step = 0;  // as dropout counts it
  double loss = 0;
};

class DeviceRank : private BoundJob {
 public:
  // `places`: of its stage. `stop`: another rank of this process failed; whoever waits gives up.
  DeviceRank(const Job& job, const ExecuteOptions& options, const Corpus& corpus,
             Transport& control, int device, const CudaOptions& cuda, StagePlaces places,
             const std::atomic<bool>& stop);
  ~DeviceRank();

  void step();
  CudaRun finish();

 private:
  using Clock = std::chrono::steady_clock;

  cudaStream_t stream(Stream s) const { return streams_[static_cast<std::size_t>(s)].get(); }
  void open_streams();
  void take_places(StagePlaces stage);
  void place_residents();
  void rehearse();
  void register_arena();
  void write_initial_values();
  void load_step();

  void issue(bool timed);
  void run(const Body& body, bool timed);
  void work(const Body& body, const Instruction& instruction);
  void compute(const Body& body, const Compute& compute);
  void product(const Gemm& op, const Work& work);
  void squared_norm(const Update& op, std::span<const TensorId> reads);
  void update(const Update& op, std::span<const TensorId> reads, std::span<const TensorId> writes);
  void collective(const Body& body, const Collective& collective);
  void copy_tokens();
  const Group& group(const Transfer& transfer);
  Launch launch();
  void keep_near();

  void take_step();
  void fork();
  void join();
  void capture();
  void synchronize();
  void wait_for(const Event& event, std::chrono::microseconds nap);
  void take_spans(Duration step);

  const ExecuteOptions& options_;
  const Corpus& corpus_;
  Transport& control_;
  const CudaOptions& cuda_;
  const std::atomic<bool>& stop_;
  std::vector<MemoryItem> memory_;
  std::array<OwnedStream, kStreams> streams_;  // null: the Job does not use it
  std::vector<Event> events_, fence_events_, joins_;
  std::vector<Fence> fences_;  // ascending in `before`
  std::multimap<std::int64_t, std::size_t> fences_after_;
  DeviceMemory block_;  // the arena, then scratch
  std::optional<Groups> groups_;
  std::optional<Arena> arena_;
  Workspace scratch_;
  std::optional<Matmul> matmul_;
  DeviceMemory state_, staging_;  // of a step: see StepState; tokens
  std::map<std::pair<std::uint8_t, bool>, Group> group_of_;
  Carried carried_;
  std::vector<Operand> reads_, writes_;

  std::int64_t step_ = 0;
  std::int64_t number_ = 0;  // of the next instruction of the step
  std::size_t next_fence_ = 0;
  std::size_t token_at_ = 0;  // in the staging
  Event begin_, end_, near_;
  std::int64_t launches_ = 0;
  std::vector<Event> marks_;  // begin and end of what was timed
  std::size_t timed_ = 0;
  std::vector<Span> spans_;
  std::vector<std::vector<Span>> recorded_;
  bool capturing_ = false;
  cudaGraphExec_t graph_ = nullptr;
  RankRun run_;
};

}  // namespace stepcast::cuda
