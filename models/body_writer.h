// BodyWriter: appends instructions to a body, with their tables.
#pragma once

#include <string_view>
#include <vector>

#include "models/fragment.h"

namespace stepcast {

// The tensors of one block in one chunk: where a fragment's slots and places lead.
struct Binding {
  TensorId base = 0;                  // slot s >= 0 is tensor base + s
  std::vector<TensorId> places;       // place -1 - i is places[i]
  std::int32_t layer = -1;            // for labels

  TensorId operator()(TensorId slot) const {
    return slot >= 0 ? base + slot : places[static_cast<std::size_t>(-1 - slot)];
  }
};

// Bodies of a Job that are called one after the other, `count` of them.
struct BodyRange {
  BodyId first = 0;
  std::int32_t count = 1;
  BodyId operator[](std::int32_t i) const { return static_cast<BodyId>(first + i); }
};

class BodyWriter {
 public:
  BodyWriter(Tables& tables, std::string_view name, Phase phase) : tables_(tables) {
    body_.name = name;
    body_.phase = phase;
  }

  Tables& tables() { return tables_; }
  Bytes bytes(TensorId id) const {
    return tables_.job().tensors[static_cast<std::size_t>(id)].bytes();
  }
  Phase phase() const { return body_.phase; }
  bool empty() const { return body_.code.empty(); }

  void add(Instruction instruction) { body_.code.push_back(instruction); }
  void stamp(const Fragment& fragment, const Binding& binding);
  void compute(const Op& op, const std::vector<TensorId>& reads,
               const std::vector<TensorId>& writes, Label label, Phase phase);
  void collective(const Transfer& transfer, const std::vector<TensorId>& reads,
                  const std::vector<TensorId>& writes, Label label, Stream stream, Phase phase);
  // Everything later on `waiter` starts after all that `stream` holds now; through `event`.
  void order(Stream stream, EventId event, Stream waiter) {
    add(Record{stream, event});
    add(Wait{waiter, event});
  }

  BodyId finish();  // adds the body to the Job
  // The same, `in_parts` or in one: a part ends where compute would wait for an exchange of
  // experts, so that other work can be called in between.
  BodyRange finish(bool in_parts);

 private:
  Operands operands(const std::vector<TensorId>& reads, const std::vector<TensorId>& writes);

  Tables& tables_;
  Body body_;
};

}  // namespace stepcast
