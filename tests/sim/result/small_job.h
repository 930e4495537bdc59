// A job for the tests of writers: 4 ranks (tensor 2 x pipeline 2; rank = tensor + 2 stage) with one
// instruction of each kind that takes time. It is not a training step, only a text to look up.
#pragma once

#include <string>

#include "sim/program/program.h"
#include "sim/result/result.h"

namespace stepcast {

// Bodies of small_job() and the places of their instructions.
inline constexpr BodyId kForwardBody = 0;   // 0 qkv, 1 all-gather, 2 Alloc, 3 send
inline constexpr BodyId kBackwardBody = 1;  // 0 receive, 1 recomputed qkv, 2 reduce-scatter
inline constexpr BodyId kOptimizerBody = 2; // 0 update, 1 all-reduce

inline Job small_job(const std::string& first_name = "qkv") {
  Job job;
  job.mesh.degree(Axis::kTensor) = 2;
  job.mesh.degree(Axis::kPipeline) = 2;
  job.names = {first_name, "gather", "hidden", "adamw", "norm"};
  // 1024 x 512 bf16 (1 MiB); 1 fp32
  job.tensors = {{{2, 3}, {1024, 512}, Dtype::kBf16, Category::kActivations, Scope::kMicroBatch},
                 {{4, -1}, {1}, Dtype::kFp32, Category::kBuffers, Scope::kRank}};
  Gemm gemm;
  gemm.m = 4, gemm.n = 8, gemm.k = 16;
  Update update;
  update.elements = 10;
  job.ops = {gemm, update};
  job.transfers = {{TransferKind::kAllGather, Axis::kTensor, false, Bytes(1 << 20)},
                   {TransferKind::kReduceScatter, Axis::kTensor, false, Bytes(1 << 20)},
                   {TransferKind::kSendReceive, Axis::kPipeline, false, Bytes(1 << 20)},
                   {TransferKind::kAllReduce, Axis::kTensor | Axis::kPipeline, false, Bytes(4)}};
  const Operands hidden{0, 0, 1}, norm{1, 1, 1};
  const std::vector<TensorId> operands = {0, 1, 1};
  job.bodies = {
      {"forward", Phase::kForward,
       {Compute{0, hidden, {0, 3}, Phase::kForward},
        Collective{0, hidden, {1, 3}, Stream::kTensor, Phase::kForward}, Alloc{0},
        Send{2, 0, {2, -1}, Stream::kSendForward, 1}},
       operands},
      {"backward", Phase::kBackward,
       {Receive{2, 0, {2, -1}, Stream::kReceiveBackward, 1},
        Compute{0, hidden, {0, 3}, Phase::kRecompute},
        Collective{1, hidden, {1, 3}, Stream::kTensor, Phase::kBackward}},
       operands},
      {"optimizer", Phase::kOptimizer,
       {Compute{1, norm, {3, -1}, Phase::kOptimizer},
        Collective{3, norm, {4, -1}, Stream::kGlobal, Phase::kOptimizer}},
       operands}};
  const std::vector<Call> schedule = {{kForwardBody, 0, 0},  {kForwardBody, 0, 1},
                                      {kBackwardBody, 0, 0}, {kBackwardBody, 1, 1},
                                      {kOptimizerBody, 0, 0}};
  job.programs = {{{}, schedule}, {{}, schedule}};
  job.events = 1;
  return job;
}

// A span in picoseconds.
inline Span span(std::int32_t rank, BodyId body, std::int32_t instruction, Stream stream,
                 std::int64_t begin, std::int64_t end, std::int32_t micro_batch = 0,
                 std::int32_t chunk = 0) {
  return {rank, body, instruction, chunk, micro_batch, stream, Instant(begin), Instant(end)};
}

}  // namespace stepcast
