// Stamping copies a fragment and leads its slots to tensors: a few nanoseconds an instruction,
// which is what makes lowering a model of a hundred layers cheap.
#include "models/body_writer.h"

#include <algorithm>
#include <utility>

namespace stepcast {

void BodyWriter::stamp(const Fragment& fragment, const Binding& binding) {
  const auto first = static_cast<std::int32_t>(body_.operands.size());
  body_.operands.reserve(body_.operands.size() + fragment.operands.size());
  for (TensorId slot : fragment.operands) body_.operands.push_back(binding(slot));
  for (const Instruction& instruction : fragment.code) {
    Instruction& copy = body_.code.emplace_back(instruction);
    if (auto* compute = std::get_if<Compute>(&copy)) {
      compute->operands.first += first;
      compute->label.layer = static_cast<std::int16_t>(binding.layer);
    } else if (auto* collective = std::get_if<Collective>(&copy)) {
      collective->operands.first += first;
      collective->label.layer = static_cast<std::int16_t>(binding.layer);
    } else if (auto* alloc = std::get_if<Alloc>(&copy)) {
      alloc->tensor = binding(alloc->tensor);
    } else if (auto* free = std::get_if<Free>(&copy)) {
      free->tensor = binding(free->tensor);
    }
  }
}

Operands BodyWriter::operands(const std::vector<TensorId>& reads,
                              const std::vector<TensorId>& writes) {
  Operands o{static_cast<std::int32_t>(body_.operands.size()),
             static_cast<std::int32_t>(reads.size()), static_cast<std::int32_t>(writes.size())};
  body_.operands.insert(body_.operands.end(), reads.begin(), reads.end());
  body_.operands.insert(body_.operands.end(), writes.begin(), writes.end());
  return o;
}

void BodyWriter::compute(const Op& op, const std::vector<TensorId>& reads,
                         const std::vector<TensorId>& writes, Label label, Phase phase) {
  add(Compute{tables_.op(op), operands(reads, writes), label, phase});
}

void BodyWriter::collective(const Transfer& transfer, const std::vector<TensorId>& reads,
                            const std::vector<TensorId>& writes, Label label, Stream stream,
                            Phase phase) {
  add(Collective{tables_.transfer(transfer), operands(reads, writes), label, stream, phase});
}

BodyRange BodyWriter::finish(bool in_parts) {
  if (!in_parts) return {finish(), 1};
  const Body whole = std::exchange(body_, Body());
  body_.name = whole.name, body_.phase = whole.phase;
  BodyRange parts{static_cast<BodyId>(tables_.job().bodies.size()), 0};
  std::vector<EventId> flying;  // exchanges of experts that this part has begun
  const auto take = [&](Operands& operands) {
    const auto from = whole.operands.begin() + operands.first;
    operands.first = static_cast<std::int32_t>(body_.operands.size());
    body_.operands.insert(body_.operands.end(), from, from + operands.reads + operands.writes);
  };
  const auto end_part = [&] {
    finish();
    ++parts.count;
    body_ = Body();
    body_.name = whole.name, body_.phase = whole.phase, body_.later = true;
    flying.clear();
  };
  for (Instruction instruction : whole.code) {
    if (auto* compute = std::get_if<Compute>(&instruction)) take(compute->operands);
    if (auto* collective = std::get_if<Collective>(&instruction)) take(collective->operands);
    if (const auto* record = std::get_if<Record>(&instruction)) {
      if (record->stream == Stream::kExpert) flying.push_back(record->event);
    }
    if (const auto* wait = std::get_if<Wait>(&instruction)) {
      const bool ends = std::find(flying.begin(), flying.end(), wait->event) != flying.end();
      if (ends && wait->stream == Stream::kCompute) end_part();
    }
    add(instruction);
  }
  end_part();
  return parts;
}

BodyId BodyWriter::finish() {
  Job& job = tables_.job();
  job.bodies.push_back(std::move(body_));
  return static_cast<BodyId>(job.bodies.size()) - 1;
}

}  // namespace stepcast
