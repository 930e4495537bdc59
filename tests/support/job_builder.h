// A few lines to build a Job by hand in a test: tables intern, bodies are written instruction by
// instruction, operands fall in place. Nothing is checked; that is what the tests are for.
//
//   JobBuilder b;
//   TensorId x = b.tensor("x", {4, 8}, Scope::kMicroBatch);
//   BodyId f = b.body("forward", Phase::kForward);
//   b.alloc(x).compute(Pointwise{PointwiseKind::kFill, 4, 8}, {}, {x}).free(x);
//   b.job.programs[0].schedule.push_back({f, 0, 0});
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "sim/program/program.h"

namespace stepcast {

struct JobBuilder {
  Job job;

  explicit JobBuilder(int stages = 1) {
    job.mesh.degree(Axis::kPipeline) = stages;
    job.programs.resize(static_cast<std::size_t>(stages));
    job.resident_sets.emplace_back();
    for (Program& program : job.programs) program.residents.push_back({0, 0});
  }

  template <class Table, class Entry>
  static std::int32_t intern(Table& table, const Entry& entry) {
    const auto it = std::find(table.begin(), table.end(), entry);
    const auto index = static_cast<std::int32_t>(it - table.begin());
    if (it == table.end()) table.push_back(entry);
    return index;
  }

  Label label(const std::string& name, int layer = -1) {
    return {static_cast<std::int16_t>(intern(job.names, name)), static_cast<std::int16_t>(layer)};
  }
  TensorId tensor(const std::string& name, Shape shape, Scope scope = Scope::kMicroBatch,
                  Category category = Category::kActivations, Dtype dtype = Dtype::kBf16) {
    job.tensors.push_back({label(name), shape, dtype, category, scope});
    return static_cast<TensorId>(job.tensors.size()) - 1;
  }
  // A weight-like tensor that every chunk 0 holds before and after the step.
  TensorId resident(const std::string& name, Shape shape, Scope scope = Scope::kChunk) {
    const TensorId id = tensor(name, shape, scope, Category::kWeights);
    job.resident_sets[0].push_back(id);
    return id;
  }

  BodyId body(const std::string& name, Phase phase) {
    job.bodies.push_back({name, phase, {}, {}});
    return static_cast<BodyId>(job.bodies.size()) - 1;
  }

  // The rest appends to the latest body.
  JobBuilder& add(Instruction instruction) {
    job.bodies.back().code.push_back(instruction);
    return *this;
  }
  Operands operands(std::initializer_list<TensorId> reads, std::initializer_list<TensorId> writes) {
    std::vector<TensorId>& pool = job.bodies.back().operands;
    const Operands list = {static_cast<std::int32_t>(pool.size()),
                           static_cast<std::int16_t>(reads.size()),
                           static_cast<std::int16_t>(writes.size())};
    pool.insert(pool.end(), reads);
    pool.insert(pool.end(), writes);
    return list;
  }
  JobBuilder& compute(const Op& op, std::initializer_list<TensorId> reads,
                      std::initializer_list<TensorId> writes, const std::string& name = "op") {
    const OpId id = intern(job.ops, op);
    const Operands list = operands(reads, writes);
    return add(Compute{id, list, label(name), job.bodies.back().phase});
  }
  JobBuilder& collective(const Transfer& transfer, Stream stream,
                         std::initializer_list<TensorId> reads,
                         std::initializer_list<TensorId> writes, const std::string& name = "op") {
    const TransferId id = intern(job.transfers, transfer);
    const Operands list = operands(reads, writes);
    return add(Collective{id, list, label(name), stream, job.bodies.back().phase});
  }
  TransferId message(TensorId tensor) {
    const Bytes bytes = job.tensors[static_cast<std::size_t>(tensor)].bytes();
    return intern(job.transfers,
                  Transfer{TransferKind::kSendReceive, Axis::kPipeline, false, bytes});
  }
  JobBuilder& send(TensorId tensor, bool backward = false) {
    const TransferId id = message(tensor);
    const Stream stream = backward ? Stream::kSendBackward : Stream::kSendForward;
    return add(
        Send{id, tensor, label("send"), stream, static_cast<std::int8_t>(backward ? -1 : 1)});
  }
  JobBuilder& receive(TensorId tensor, bool backward = false) {
    const TransferId id = message(tensor);
    const Stream stream = backward ? Stream::kReceiveBackward : Stream::kReceiveForward;
    return add(
        Receive{id, tensor, label("receive"), stream, static_cast<std::int8_t>(backward ? 1 : -1)});
  }
  JobBuilder& alloc(TensorId tensor) { return add(Alloc{tensor}); }
  JobBuilder& free(TensorId tensor) { return add(Free{tensor}); }
  JobBuilder& record(Stream stream, int event) {
    job.events = std::max(job.events, event + 1);
    return add(Record{stream, static_cast<EventId>(event)});
  }
  JobBuilder& wait(Stream stream, int event) {
    job.events = std::max(job.events, event + 1);
    return add(Wait{stream, static_cast<EventId>(event)});
  }
  // `later` runs after all that `earlier` holds so far.
  JobBuilder& order(Stream earlier, Stream later, int event) {
    return record(earlier, event).wait(later, event);
  }
  JobBuilder& call(int stage, BodyId body, int micro_batch, int chunk = 0) {
    job.programs[static_cast<std::size_t>(stage)].schedule.push_back({body, chunk, micro_batch});
    return *this;
  }
};

}  // namespace stepcast
